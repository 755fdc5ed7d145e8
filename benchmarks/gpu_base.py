"""Code that the parts of the GPU benchmark share: random models and users, figures with their limits, and a clock."""

import contextlib
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from heldin.defenses.gradients.per_unit_gradients import UnitBatch
from heldin.models.attention import use_exact_attention
from heldin.models.devices import is_out_of_memory


@dataclass(frozen=True)
class Shape:
    """A shape of GPT-Neo: layers, width, heads, vocabulary and context."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50_257
    context: int = 2048

    def model(self, device: torch.device) -> GPTNeoForCausalLM:
        model = self.default_model(device)
        use_exact_attention(model)
        return model

    @property
    def weights(self) -> int:
        """Return the number of weights that take part in products: all weights except the table of positions."""
        of_layer = self.hidden * (12 * self.hidden + 10)
        return self.layers * of_layer + self.vocabulary * self.hidden + 2 * self.hidden

    def default_model(self, device: torch.device) -> GPTNeoForCausalLM:
        """Return the model as transformers makes it, with transformers' own attention."""
        torch.manual_seed(0)
        kinds = (["global", "local"] * self.layers)[: self.layers]
        config = GPTNeoConfig(
            vocab_size=self.vocabulary,
            max_position_embeddings=self.context,
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.heads,
            attention_types=[[[kind], 1] for kind in kinds],
            window_size=min(256, self.context),
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        with device:
            return GPTNeoForCausalLM(config)


SHAPES = {"125M": Shape(12, 768, 12), "1.3B": Shape(24, 2048, 16)}


@dataclass(frozen=True)
class Figure:
    """A measured figure and its upper limit. Without a limit, the figure is only reported."""

    what: str
    value: float
    limit: float | None = None

    @property
    def fails(self) -> bool:
        return self.limit is not None and not self.value <= self.limit

    def line(self) -> str:
        judged = "" if self.limit is None else f" (at most {self.limit:g}): {'FAIL' if self.fails else 'pass'}"
        return f"  {self.what}: {self.value:.5g}{judged}"


def share_of_card(shape: Shape, tokens: int, seconds: float, device: torch.device, passes: int = 3) -> float:
    """Return the share of the card's measured bf16 peak that a step uses: 2 N FLOPs per token and pass, no attention.

    Args:
        tokens: number of predicted tokens.
        passes: 3 for a forward and a backward pass, 1 for a forward pass.
    """
    return 2 * passes * shape.weights * tokens / seconds / peak(device)


@functools.cache
def peak(device: torch.device) -> float:
    """Return the FLOPs per second of the fastest of five bf16 matrix products of 8,192 x 8,192."""
    size, products = (8192, 10) if device.type == "cuda" else (256, 2)
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out, clock = torch.empty_like(left), Clock(device)
    seconds = []
    for _ in range(6):
        began = clock()
        for _ in range(products):
            torch.mm(left, right, out=out)
        seconds.append(clock() - began)
    return 2 * size**3 * products / min(seconds[1:])


def some_units(users: int, records: int, length: int, vocabulary: int, device: torch.device) -> UnitBatch:
    ids = torch.randint(0, vocabulary, (users * records, length + 1), generator=torch.Generator().manual_seed(1))
    ids = ids.to(device)
    return UnitBatch(ids[:, :-1], ids[:, 1:], torch.arange(users, device=device).repeat_interleave(records), users)


def arithmetic(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Enable TF32 in this block, as containers do, and restore the setting afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def recovering(name: str, taken: dict[str, dict[str, Any]]) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        taken[name] = {"failed": "out of memory"}
    # Out here, where the error is gone, whose traceback would keep its tensors.
    give_back()


def give_back() -> None:
    """Free the GPU memory of objects that no longer exist."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def median_step(
    step: Callable[[int], object], model: torch.nn.Module, device: torch.device, steps: int, *, keep: bool = False
) -> float:
    """Return the seconds of a step with its optimizer: the median from the second step on. ``keep`` keeps gradients."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-6, fused=True if device.type == "cuda" else None)
    clock = Clock(device)
    seconds = []
    for number in range(steps):
        began = clock()
        step(number)
        optimizer.step()
        if not keep:
            optimizer.zero_grad(set_to_none=True)
        seconds.append(clock() - began)
    return statistics.median(seconds[1:])


class Clock:
    """Measures seconds. Waits until the device has finished all its work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Marks:
    """Seconds between marks in a device's queue, by the device's clock, so the host never waits between marks."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def spans(self) -> list[float]:
        """Return the seconds between the marks. Call it after a ``Clock`` has waited for the device."""
        pairs = list(itertools.pairwise(self._marks))
        return [one.elapsed_time(other) / 1000 if self._on_gpu else other - one for one, other in pairs]
