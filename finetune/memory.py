"""The memory that training and scoring would need on a device, measured by a rehearsal of a step.

heldin counts the bytes of tensors as torch's allocator counts them on a CPU. The count excludes memory inside kernels,
of a GPU's context, and in the allocator's gaps.

A rehearsal runs the training code itself on tensors that have a shape but no numbers, and counts the bytes that would
be alive. Values that decide the next operation, such as whether a gradient is finite, are as in a normal step. Ids,
masks and unit numbers are real, so layouts, look-ups and padding are the same as in the step.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from heldin.defenses.gradients.model_parts import take_apart
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic
from heldin.finetune.preparation import halve_frozen, optimizer_of, use_checkpointing, with_adapters
from heldin.finetune.recipe import Precision, Recipe
from heldin.finetune.sharding import Spread, spread
from heldin.models.attention import use_exact_attention
from heldin.models.devices import Planned, planning_for
from heldin.models.logprobs import batch_scores, tokens_per_batch

_aten = torch.ops.aten
# What operations on tensors without numbers made, by all that it depends on.
_MADE: dict[str, Any] = {}
EVALUATION, OPTIMIZING = "an evaluation", "the optimizer's step"  # as moments of a peak


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A block in which floating-point tensors have no content, and heldin counts their bytes.

    Attributes:
        alive: bytes of the tensors that are alive; each storage counts once.
        most: peak of ``alive`` since ``begin``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = 0
        self.most = 0
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        # Of each storage a list of one number, its bytes, which outlives it by a moment.
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, list[int]] = weakref.WeakKeyDictionary()

    def begin(self) -> int:
        """Restart the count of the peak, and return the bytes that are alive now."""
        self.most = self.alive
        return self.alive

    def model(self, make: Callable[[], PreTrainedModel], recipe: Recipe) -> Any:
        """Make a model without numbers. Call this outside the block. For a moment, the adapters have numbers."""
        with self._fakes:
            made = make()
        use_exact_attention(made)
        made = with_adapters(made, recipe)
        for module in made.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and not isinstance(parameter, FakeTensor):
                    fake = nn.Parameter(self._fakes.from_tensor(parameter.detach()), parameter.requires_grad)
                    module._parameters[name] = fake
        for tensor in (*made.parameters(), *made.buffers()):
            self._note(tensor)
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the tensors that it makes."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own operations come here again, one by one, with this process's part
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # torch asks for a shape alone
        tensors = tensors_in((args, kwargs))
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            if func is _aten._local_scalar_dense.default:
                return _answer(args[0].dtype)
            if func is _aten.any.default:
                # Gradients are not all zero; nothing is marked as out of the ordinary.
                return torch.tensor(args[0].dtype != torch.bool)
            if func is _aten.index.Tensor:
                args = (args[0], [_chosen(index) for index in args[1]])
            made = self._without_numbers(func, args, kwargs)
        else:
            made = func(*args, **kwargs) if tensors else self._made(func, args, kwargs)
        for tensor in tensors_in(made):
            self._note(tensor)
        return made

    def _without_numbers(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation on tensors without numbers, five times as fast as FakeTensorMode alone."""
        if torch.Tag.inplace in func.tags and torch.Tag.inplace_view not in func.tags and isinstance(args[0], Tensor):
            return args[0]
        if func.is_view or func is _aten._unsafe_view.default:
            with in_kernel_invocation_manager(self._fakes):
                made = func(*args, **kwargs)
            return _each(made, lambda tensor: FakeTensor(self._fakes, tensor, "cpu"))
        if func.namespace != "aten" or func._schema.is_mutable or torch.Tag.dynamic_output_shape in func.tags:
            return func(*args, **kwargs)
        key = repr((func, _each([args, kwargs], lambda tensor: (tensor.shape, tensor.stride(), tensor.dtype))))
        if key not in _MADE:
            _MADE[key] = func(*args, **kwargs)
        return _each(_MADE[key], self._another)

    def _another(self, tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self._fakes, made, "cpu")

    def _made(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a tensor. A floating-point tensor with more than one element gets no numbers."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        sizes = args[0] if args and isinstance(args[0], list | tuple) else []
        with self._fakes if dtype.is_floating_point and sizes else nullcontext():
            return func(*args, **kwargs)

    @contextmanager
    def one_of(self, processes: int) -> Iterator[None]:
        """A block in which this process acts as the first of several training processes, although no others exist.

        Raises:
            RuntimeError: this process is already one of several.
        """
        # Registers the kind of process group in which every sum is there at once, and is nobody's.
        from torch.testing._internal.distributed.fake_pg import FakeStore

        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            if storage in self._sizes:
                self._count(self._sizes[storage], size)

        if dist.is_initialized():
            raise RuntimeError("a step of several processes is rehearsed by one that is alone")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
        # Where weights are gathered, storages grow and shrink without any operation on tensors.
        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del torch.UntypedStorage.resize_  # what it inherits is there again
            dist.destroy_process_group()

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._sizes:
            bytes_held = self._sizes[storage] = [0]
            self._count(bytes_held, storage.nbytes())
            weakref.finalize(storage, self._count, bytes_held, 0)

    def _count(self, bytes_held: list[int], size: int) -> None:
        """Set the size of a storage."""
        self.alive += size - bytes_held[0]
        self.most = max(self.most, self.alive)
        bytes_held[0] = size


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries. torch's pytree is slower than many operations."""
    tensors: list[Tensor] = []
    _each(value, tensors.append)
    return tensors


def _each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return the value with ``change`` applied to each of its tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [_each(part, change) for part in value]
    return {name: _each(part, change) for name, part in value.items()} if isinstance(value, dict) else value


def _answer(dtype: torch.dtype) -> bool | float:
    """Return the value that a normal step has for a missing number: finite, and equal to the expected number."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point:
        return 0.0
    raise NotImplementedError(f"a rehearsed step depends on a number of type {dtype}")


def _chosen(index: Tensor | None) -> Tensor | None:
    """Return the positions that a mask selects, or all positions if the mask depends on missing numbers."""
    if index is None or index.dtype != torch.bool or index.dim() != 1:
        return index
    return torch.arange(len(index)) if isinstance(index, FakeTensor) else index.nonzero().squeeze(1)


# Of torch.autocast's operations that run in float32 on a GPU and not on a CPU, those of language models.
_FLOAT32_ON_GPU = {
    torch.pow,
    Tensor.pow,
    Tensor.__pow__,
    torch.softmax,
    torch.nn.functional.softmax,
    torch.nn.functional.layer_norm,
    torch.rsqrt,
    Tensor.rsqrt,
}


class AutocastOfGpu(TorchFunctionMode):
    """A block in which CPU autocast uses float32 for the operations for which GPU autocast does."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function. Half-precision arguments become float32 if a GPU's autocast would convert them."""
        if func in _FLOAT32_ON_GPU and torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) and a.dtype == torch.bfloat16 else a for a in args)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Step:
    """The gradient of a step.

    Attributes:
        compute: function that puts a gradient into ``.grad``. Its arguments are the model, the limits of a pass, the
            arithmetic, and the layout of the model over processes (None: each process holds the whole model).
        most: maximum number of records per pass.
        unit: number of records in the largest unit; 1 if each record is clipped separately, or if there is no clipping.
        splits: whether heldin may compute a unit with more records in several passes.
        without_dropout: whether the step computes per-unit gradients.
        copies: number of copies of the weights held in addition to the model.
        scored: tokens of the longest text in evaluations between steps; None: no evaluation.
        halves: whether training reduces the number of records per pass when memory runs out.
    """

    compute: Callable[[PreTrainedModel, Passes, Arithmetic, Spread | None], object]
    most: int
    unit: int = 1
    splits: bool = False
    without_dropout: bool = True
    copies: int = 0
    scored: int | None = None
    halves: bool = True


@dataclass(frozen=True)
class Peak:
    """Peak memory, in bytes.

    Attributes:
        weights: weights and buffers of all models in memory.
        optimizer: the optimizer's state.
        work: all other memory: activations, gradients, sums of gradients, temporary tensors.
        splits: whether a unit with more records is computed in several passes.
        ways: methods for per-unit gradients, in words; "" if the step computes no such gradients.
        fixed: peak bytes at the optimizer's step, which smaller passes hardly change; 0 without an optimizer.
        processes: number of processes that together have one copy of the model. All other fields are for one process.
    """

    moment: str
    weights: int
    optimizer: int
    work: int
    records: int
    splits: bool
    ways: str = ""
    fixed: int = 0
    processes: int = 1

    @property
    def total(self) -> int:
        """Return the sum of weights, optimizer state and work."""
        return self.weights + self.optimizer + self.work


def fitting_peak(
    make: Callable[[], PreTrainedModel],
    recipe: Recipe,
    step: Step,
    device: Planned,
    say: Callable[[str], None] = lambda _: None,
) -> Peak:
    """Return the peak of training with as many records per pass as fit into memory, at least one.

    As in training, if memory runs out, heldin halves passes, and splits a unit that is larger than a pass.

    Args:
        say: receives a line before each rehearsal; a rehearsal may take half a minute.
    """
    while True:
        say(f"memory: rehearsing steps with {step.most:,} records a pass")
        peak = training_peak(make, recipe, step, device)
        tried = step.most if step.splits else max(step.most, step.unit)
        # Smaller passes of training leave an evaluation as it is.
        # What stands whatever a pass holds does not shrink with it.
        fits = peak.total <= device.memory
        if fits or peak.fixed > device.memory or tried == 1 or not step.halves or peak.moment == EVALUATION:
            return peak
        half = max(1, tried // 2)
        step = replace(step, most=half, splits=step.splits or half < step.unit)


def training_peak(make: Callable[[], PreTrainedModel], recipe: Recipe, step: Step, device: Planned) -> Peak:
    """Return the peak of a training's first two steps.

    The first step checks layer rules, and the second has the optimizer's state.
    """
    arithmetic = arithmetic_on(recipe.precision, device)
    rehearsal = Rehearsal()
    model = rehearsal.model(make, recipe).train()
    take_apart(model)  # what its layers are is found by numbers, and remembered
    with rehearsal.one_of(recipe.shard) if recipe.shard else nullcontext(), _rehearsing(rehearsal, device):
        spread_of_step = spread(model, recipe, model.device)
        if recipe.checkpointing:
            # torch runs a backward pass outside of modes like this one.
            again = AutocastOfGpu if device.kind == "cuda" else nullcontext
            use_checkpointing(model, without_dropout=step.without_dropout, again=again)
        if recipe.lora is not None and arithmetic == "bf16":
            halve_frozen(model, keep=False)
        weights = rehearsal.alive
        budget = (device.memory - weights) // 2 if device.kind == "cuda" else device.memory // 4
        passes = Passes(step.most, splits=step.splits, budget=max(0, budget))
        optimizer = optimizer_of(model, recipe)
        peaks: list[tuple[str, int, int]] = []  # moment, most bytes, of them the optimizer's
        state = 0
        for moment in ("the first step", "a later step"):
            rehearsal.begin()
            step.compute(model, passes, arithmetic, spread_of_step)
            peaks.append((moment, rehearsal.most, state))
            with_gradients = rehearsal.begin()
            optimizer.step()
            state += rehearsal.alive - with_gradients
            peaks.append((OPTIMIZING, rehearsal.most, state))
            optimizer.zero_grad(set_to_none=True)
        # A workspace is part of the step, whose gradients are gone by now.
        if step.scored is not None:
            peaks.append((EVALUATION, _score(model.eval(), step.scored, rehearsal)[0], state))
        moment, most, state = max(peaks, key=lambda peak: peak[1])
    copies = step.copies * weights
    ways = passes.effort.ways[0] if passes.effort.ways else ""
    fixed = copies + max(bytes_of for phase, bytes_of, _ in peaks if phase == OPTIMIZING)
    work, processes = most - weights - state, recipe.shard or 1
    return Peak(moment, weights + copies, state, work, step.most, step.splits, ways, fixed, processes)


def scoring_peak(make: Callable[[], PreTrainedModel], positions: int, models: int, device: Planned) -> Peak:
    """Return the peak of scoring texts.

    Args:
        positions: number of tokens L of the longest text, at most the model's context.
        models: number of models of this size in memory.
    """
    rehearsal = Rehearsal()
    model = rehearsal.model(make, Recipe()).eval()
    weights = rehearsal.alive
    with _rehearsing(rehearsal, device):
        most, records = _score(model, positions, rehearsal)
    return Peak("a batch", models * weights, 0, most - weights, records, splits=False)


def arithmetic_on(precision: Precision, device: Planned) -> Arithmetic:
    """Return the arithmetic of a recipe's precision on an absent device. The function assumes that GPUs support
    bfloat16."""
    return "bf16" if precision is Precision.BF16 or (precision is Precision.AUTO and device.kind == "cuda") else "fp32"


def _score(model: PreTrainedModel, positions: int, rehearsal: Rehearsal) -> tuple[int, int]:
    """Return the peak bytes of scoring a batch of texts of this length, and the number of records in the batch."""
    records = max(1, tokens_per_batch(model) // positions)
    ids = torch.zeros(records, positions, dtype=torch.long)
    rehearsal.begin()
    with torch.no_grad():
        batch_scores(model, ids, ids, moments=False, ranks=False)
    return rehearsal.most, records


@contextmanager
def _rehearsing(rehearsal: Rehearsal, device: Planned) -> Iterator[None]:
    with rehearsal, planning_for(device), AutocastOfGpu() if device.kind == "cuda" else nullcontext():
        yield
