"""The devices for models: the device in the environment variable, else a GPU if there is one; copies on other GPUs."""

import copy
import os
import platform
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from heldin.base.errors import InputError
from heldin.base.machine import main_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Logits (tokens x vocabulary) of a piece: 1 MiB and 1 GiB in float32.
LOGITS_PER_CHUNK = {False: 2**18, True: 2**28}  # key: whether on a GPU
# In the environment and not in a config: a run may go on on another device, and processes that it starts use the same.
DEVICE = "HELDIN_DEVICE"
SPREAD = "auto"  # over all GPUs, and main memory


@dataclass(frozen=True)
class Planned:
    """A device for which heldin plans, and which this machine need not have.

    Attributes:
        kind: "cpu" or "cuda".
        memory: bytes of memory.
    """

    kind: str
    memory: int


# Errors that have no class of their own: of a CPU, of cuBLAS, of a kernel that asked for memory itself.
_OUT_OF_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
_highest = 0  # bytes, until a peak was last begun
_PLANNED: ContextVar[Planned | None] = ContextVar("planned", default=None)


def planned_gpu(gibibytes: float | None) -> Planned | None:
    """Return a GPU with this much memory. If ``memory`` is None, return this machine's GPU, or None if models run on
    the CPU."""
    if gibibytes is not None:
        return Planned("cuda", int(gibibytes * 2**30))
    if os.environ.get(DEVICE) == "cpu" or not torch.cuda.is_available():
        return None
    return Planned("cuda", int(torch.cuda.get_device_properties(0).total_memory))


@contextmanager
def planning_for(planned: Planned) -> Iterator[None]:
    """Make ``kind_of`` and ``memory_of`` describe this device, so a rehearsal on a CPU finds the device's memory
    use."""
    token = _PLANNED.set(planned)
    try:
        yield
    finally:
        _PLANNED.reset(token)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's global generators: the CPU's, and the GPUs' unless ``device`` is the CPU.

    ``torch.manual_seed`` would keep its caller's stack for a GPU that may appear later. This takes longer than a step
    of a tiny model.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def kind_of(device: torch.device) -> str:
    """Return the kind of a device, or of the planned device; the kind decides how values are computed."""
    planned = _PLANNED.get()
    return device.type if planned is None else planned.kind


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU's memory, or of the planned device's memory."""
    planned = _PLANNED.get()
    return int(torch.cuda.get_device_properties(device).total_memory) if planned is None else planned.memory


def scoring_memory() -> int:
    """Return the bytes of memory for scoring: the GPU's or the CPU's, or the sum over all devices if models are
    spread."""
    if spreads():
        gpus = [memory_of(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
        return sum(gpus) + main_memory()
    device = default_device()
    return memory_of(device) if device.type == "cuda" else main_memory()


def default_device() -> torch.device:
    """Return the device in the environment variable ``DEVICE``; if unset or "auto", the GPU if there is one.

    Raises:
        InputError: the variable does not name a device, or names a GPU and torch finds none.
    """
    asked = os.environ.get(DEVICE)
    if asked not in (None, "", "cpu", "cuda", SPREAD):
        raise InputError(f"device is '{asked}': choose cpu, cuda or auto (--device, or {DEVICE})")
    if asked == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch finds no usable GPU: choose cpu or auto")
    if asked in ("cpu", "cuda"):
        return torch.device(asked)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on this device. A copy to a GPU uses pinned memory, and the GPU can compute meanwhile."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # Contiguous first: a copy with gaps goes through memory that is not pinned, and waits.
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def spreads() -> bool:
    """Return whether the environment asks heldin to spread a model over all GPUs, with the rest in main memory."""
    return os.environ.get(DEVICE) == SPREAD


def begin_peak(device: torch.device) -> None:
    """Start a measurement of a GPU's peak memory; ``highest_peak`` still includes earlier peaks."""
    global _highest
    if device.type == "cuda":
        _highest = highest_peak(device)
        torch.cuda.reset_peak_memory_stats(device)


def highest_peak(device: torch.device) -> int:
    """Return the peak memory, in bytes, that torch used on a GPU since this process began."""
    return max(_highest, int(torch.cuda.max_memory_allocated(device)))


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or the kind of a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


_COPIES: "weakref.WeakKeyDictionary[PreTrainedModel, list[PreTrainedModel]]" = weakref.WeakKeyDictionary()


def copy_on(model: "PreTrainedModel", device: torch.device) -> "PreTrainedModel":
    """Return a copy of the model on a device. Copies tensor by tensor, because the old device may lack memory for
    two."""
    # What ``deepcopy`` finds in the memo it does not copy where it lies; tied weights stay tied.
    memo: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach().to(device, copy=True), p.requires_grad) for p in model.parameters()
    }
    memo |= {id(b): b.detach().to(device, copy=True) for b in model.buffers()}
    return copy.deepcopy(model, memo)


def copies_on_other_gpus(model: "PreTrainedModel") -> "list[PreTrainedModel]":
    """Return a copy of the model on each other GPU that this process may use. Do not change the model after this call.

    Returns no copy if several processes train together, each on its own GPU. Also returns none if the model is on a
    CPU, spread over devices, or quantised.
    """
    alone = model.device.type == "cuda" and not dist.is_initialized()
    if not alone or hasattr(model, "hf_device_map") or getattr(model, "quantization_method", None) is not None:
        return []
    if model not in _COPIES:
        others = [torch.device("cuda", i) for i in range(torch.cuda.device_count()) if i != model.device.index]
        _COPIES[model] = [copy_on(model, device) for device in others]
    return _COPIES[model]


def in_chunks(logits: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield chunks of logits (N, V) and targets (N,), for computations that need more tensors of a chunk's size."""
    rows = rows_per_chunk(logits)
    return zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)


def rows_per_chunk(logits: torch.Tensor) -> int:
    """Return the number of rows per chunk of logits (N, V)."""
    # They fit into a CPU's cache, so that main memory is read once and not several times.
    return max(1, LOGITS_PER_CHUNK[kind_of(logits.device) == "cuda"] // logits.shape[1])
