"""Run training code on tensors that have a shape and no numbers, and count the bytes that would be alive.

Numbers that decide what happens next, such as whether a gradient is finite, are answered as in a step without trouble.
Ids, masks and unit numbers are real, so that layouts, look-ups and padding are those of the step.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

_aten = torch.ops.aten


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A block in which floating-point tensors hold nothing, and their bytes are counted.

    Attributes:
        alive: bytes of the tensors that are alive, each storage once.
        most: most bytes that were alive since ``begin``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = 0
        self.most = 0
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        # Of each storage a list of one number, its bytes, which outlives it by a moment.
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, list[int]] = weakref.WeakKeyDictionary()

    def begin(self) -> int:
        """Count the most from here on; returns the bytes that are alive now."""
        self.most = self.alive
        return self.alive

    def model(self, make: Callable[[], PreTrainedModel], adapt: Callable[[PreTrainedModel], PreTrainedModel]) -> Any:
        """A model without numbers; call it outside the block.

        Args:
            adapt: gives it adapters, which for a moment have numbers.
        """
        with self._fakes:
            made = make()
        made = adapt(made)
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
        """Run an operation, and count what it makes."""
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
        made = self._made(func, args, kwargs) if not tensors else func(*args, **kwargs)
        for tensor in tensors_in(made):
            self._note(tensor)
        return made

    def _made(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A new tensor: without numbers if it is of floats, and not one number alone."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        sizes = args[0] if args and isinstance(args[0], list | tuple) else []
        if not dtype.is_floating_point or not sizes:
            return func(*args, **kwargs)
        with self._fakes:
            return func(*args, **kwargs)

    @contextmanager
    def one_of(self, processes: int) -> Iterator[None]:
        """A block in which this is the first of several processes that train together; the others are not there.

        Raises:
            RuntimeError: it is one of several already.
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
        """A storage has this size from now on."""
        self.alive += size - bytes_held[0]
        self.most = max(self.most, self.alive)
        bytes_held[0] = size


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries; torch's pytree takes longer than many operations."""
    tensors: list[Tensor] = []
    _collect(value, tensors)
    return tensors


def _collect(value: Any, tensors: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, list | tuple):
        for part in value:
            _collect(part, tensors)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, tensors)


def _answer(dtype: torch.dtype) -> bool | float:
    """Return the number that a step without trouble has: finite, and equal to the expected number."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point:
        return 0.0
    raise NotImplementedError(f"a rehearsed step depends on a number of type {dtype}")


def _chosen(index: Tensor | None) -> Tensor | None:
    """Numbers of the places that a mask chooses: all, if it follows from numbers that are not there."""
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
    """A block in which autocast on a CPU keeps in float32 what it keeps in float32 on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, its half-precision arguments in float32 where a GPU's autocast takes them so."""
        if func in _FLOAT32_ON_GPU and torch.is_autocast_enabled("cpu"):
            args = tuple(a.float() if isinstance(a, Tensor) and a.dtype == torch.bfloat16 else a for a in args)
        return func(*args, **(kwargs or {}))
