"""A GPU that is not there: the CPU computes, tensors say where they would be, and operations that mix devices fail.

Each storage is marked as being on the CPU or on the GPU. An operation that would meet tensors of both raises the error
that torch raises on a machine with a GPU; what it makes is marked as its operands are. An operation that would wait for
the GPU fails where ``torch.cuda.set_sync_debug_mode("error")`` asks for that. Not pretended: kernels, their rounding
and speed, streams, memory, several GPUs.
"""

import contextlib
import hashlib
import time
import weakref
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from heldin.finetune.memory import AutocastOfGpu, tensors_in
from heldin.models import repeated

MEMORY = 80 * 10**9
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
_aten = torch.ops.aten
# Their operands may be on different devices: one is copied to the other's, or says where to look.
_CROSSING = {_aten.copy_, _aten._to_copy, _aten.set_}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put}
_HALF = (torch.bfloat16, torch.float16)
# Their results' sizes, or the numbers that Python is given, are known only when the GPU has done all that it was given.
_WAITING = {
    _aten._local_scalar_dense,
    _aten.is_nonzero,
    _aten.item,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten.bincount,
    _aten._unique2,
    _aten.unique_consecutive,
    _aten.unique_dim,
}


class Mixed(RuntimeError):
    """Tensors of two devices in one operation."""


class Waited(RuntimeError):
    """An operation that waits until the GPU has done all that it was given."""


class _Places:
    """Where each storage would be. What torch made by itself, without being told where, is wherever it is used."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[torch.UntypedStorage, torch.device] = weakref.WeakKeyDictionary()
        self.pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.may_wait = True

    def of(self, tensor: Tensor) -> torch.device | None:
        return self._of.get(tensor.untyped_storage())

    def put(self, made: Any, device: torch.device, *, again: bool = False) -> None:
        for tensor in tensors_in(made):
            if again or self.of(tensor) is None:
                self._of[tensor.untyped_storage()] = device

    def wait(self, what: str) -> None:
        """Note that an operation waits for the GPU."""
        if not self.may_wait:
            raise Waited(f"called a synchronizing CUDA operation: {what}")


class _Operations(TorchDispatchMode):
    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = func.overloadpacket
        met = args[0] if packet in _INDEXING else (args, kwargs)
        if packet in _INDEXING and packet is not _aten.index:
            met = (args[0], args[2])
        tensors = tensors_in(met)
        places = {self._places.of(t) for t in tensors}
        device = GPU if GPU in places else CPU if CPU in places else None
        if packet not in _CROSSING and device == GPU:
            astray = [t for t in tensors if t.dim() and self._places.of(t) == CPU]
            if astray:
                shapes = ", ".join(f"{tuple(t.shape)} on {self._places.of(t) or 'any device'}" for t in tensors)
                raise Mixed(f"{func}: expected all tensors to be on the same device, but found {shapes}")
        if packet is _aten.index and device != GPU:
            asked = [t for t in tensors_in(args[1]) if self._places.of(t) == GPU]
            if asked:
                raise Mixed(f"{func}: indices should be on the same device as the indexed tensor (cpu)")
        chosen = args[1] if packet in _INDEXING else []
        if device == GPU and (packet in _WAITING or any(t is not None and t.dtype == torch.bool for t in chosen)):
            self._places.wait(str(func))
        with torch._C.DisableTorchFunction():
            made = func(*args, **kwargs)
        if device is not None:
            self._places.put(made, self._places.of(args[0]) or device if packet in _CROSSING else device)
            # An operand that torch had made by itself is where the others are, from here on.
            self._places.put(tensors, device)
        return made


class _Move(torch.autograd.Function):
    """A copy on another device; its gradient goes back to where the tensor was."""

    @staticmethod
    def forward(ctx, tensor, places, device):
        ctx.places, ctx.origin = places, places.of(tensor)
        moved = tensor.clone()
        places.put(moved, device, again=True)
        return moved

    @staticmethod
    def backward(ctx, gradient):
        back = gradient.clone()
        ctx.places.put(back, ctx.origin, again=True)
        return back, None, None


def _place(value: Any) -> torch.device | None:
    """The device that an argument names."""
    if isinstance(value, torch.device):
        return GPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cpu" or value.split(":")[0] == "cuda"):
        return _place(torch.device(value))
    return None


def _here(value: Any) -> Any:
    """The argument with the CPU in place of the GPU."""
    if isinstance(value, Tensor):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(_here, value))
    if type(value) is dict:
        return {key: _here(part) for key, part in value.items()}
    return CPU if _place(value) == GPU else value


class _Functions(TorchFunctionMode):
    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places
        self._special = {
            torch.Tensor.device.__get__: self._device,
            torch.Tensor.is_cuda.__get__: lambda t: self._places.of(t) == GPU,
            torch.Tensor.is_cpu.__get__: lambda t: self._places.of(t) != GPU,
            torch.Tensor.get_device: lambda t: 0 if self._places.of(t) == GPU else -1,
            torch.Tensor.pin_memory: self._pinned,
            torch.Tensor.is_pinned: lambda t, *_: t.untyped_storage() in self._places.pinned,
            torch.Tensor.cuda: lambda t, *_, **how: self._moved(t, GPU, at_once=how.get("non_blocking", False)),
            torch.Tensor.cpu: lambda t, *_, **__: self._moved(t, CPU),
            torch.Tensor.to: self._to,
            torch.Tensor.numpy: self._numpy,
            torch.Tensor.tolist: self._tolist,
            torch.Tensor.__array__: self._array,
            torch.bmm: self._product(torch.bmm),
            torch.mm: self._product(torch.mm),
            torch.Tensor.bmm: self._product(torch.bmm),
            torch.Tensor.mm: self._product(torch.mm),
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.device, torch._C._nn._parse_to):
            return func(*args, **kwargs)
        if (special := self._special.get(func)) is not None:
            return special(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        asked = _place(kwargs.get("device"))
        made = func(*_here(args), **_here(kwargs))
        given = tensors_in((args, kwargs))
        if asked is not None and isinstance(made, Tensor):
            # A factory with a device of its own: ``torch.zeros_like(x, device=...)`` too.
            if given and any(made.untyped_storage() is t.untyped_storage() for t in given):
                return self._moved(made, asked)
            if func is torch.tensor and asked == GPU:
                self._places.wait("torch.tensor with numbers that are not pinned")
            self._places.put(made, asked, again=True)
        elif not given:
            self._places.put(made, CPU)
        return made

    def _device(self, tensor):
        kind = torch.Tensor.device.__get__(tensor)
        return GPU if kind.type == "cpu" and self._places.of(tensor) == GPU else kind

    def _pinned(self, tensor, *_):
        if self._places.of(tensor) == GPU:
            raise RuntimeError("cannot pin a tensor of a GPU: only dense CPU tensors can be pinned")
        pinned = self._moved(tensor, CPU, copy=True, at_once=True)
        self._places.pinned.add(pinned.untyped_storage())
        return pinned

    def _moved(self, tensor, device, *, copy=False, at_once=False):
        self._places.put(tensor, device)
        if not copy and self._places.of(tensor) == device:
            return tensor
        if self._places.of(tensor) != device and not (at_once and tensor.untyped_storage() in self._places.pinned):
            self._places.wait(f"a copy of {tuple(tensor.shape)} to {device} from memory that is not pinned")
        return _Move.apply(tensor, self._places, device)

    def _to(self, tensor, *args, **kwargs):
        given = [*args, *(kwargs.get(name) for name in ("other", "device", "dtype"))]
        dtype, asked = None, None
        for value in given:
            if isinstance(value, Tensor):
                dtype, asked = value.dtype, self._device(value)
            elif isinstance(value, torch.dtype):
                dtype = value
            else:
                asked = _place(value) or asked
        if asked is not None:
            how = {"copy": kwargs.get("copy", False), "at_once": kwargs.get("non_blocking", False)}
            tensor = self._moved(tensor, asked, **how)
        return tensor if dtype is None else tensor.to(dtype)

    def _tolist(self, tensor):
        if self._places.of(tensor) == GPU:
            self._places.wait("tolist")
        return tensor.tolist()

    def _numpy(self, tensor, *args, **kwargs):
        if self._places.of(tensor) == GPU:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return tensor.numpy(*args, **kwargs)

    def _array(self, tensor, *args, **kwargs):
        return self._numpy(tensor).__array__(*args, **kwargs)

    def _product(self, function):
        def product(left, right, out_dtype=None, out=None, **kwargs):
            if out_dtype is None:
                return function(left, right, out=out, **kwargs)
            if self._places.of(left) != GPU:
                raise NotImplementedError(f"{resolve_name(function)}: out_dtype is only there for CUDA")
            if left.dtype not in _HALF or right.dtype != left.dtype or out_dtype != torch.float32:
                raise RuntimeError(f"out_dtype {out_dtype} of {left.dtype} and {right.dtype}")
            if out is not None and out.dtype != out_dtype:
                raise RuntimeError(f"out_dtype {out_dtype}, out of {out.dtype}")
            if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
                raise NotImplementedError("out_dtype has no derivative")
            return function(left.float(), right.float(), out=out)

        return product


class _Autocast(contextlib.ExitStack):
    """``torch.autocast`` of the GPU: that of the CPU, with what a GPU's keeps in float32."""

    def __init__(self, device_type: str, dtype=None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        super().__init__()
        self._one = _real_autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self._gpu = device_type == "cuda" and enabled

    def __enter__(self):
        super().__enter__()
        self.enter_context(self._one)
        if self._gpu:
            self.enter_context(AutocastOfGpu())
        return self


_real_autocast = torch.autocast


class _Event:
    """A mark in what a GPU was given; to wait for it is not to wait for what came after."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed, self._at = enable_timing, 0.0

    def record(self, stream=None) -> None:
        """Set the mark."""
        self._at = time.perf_counter()

    def elapsed_time(self, other: "_Event") -> float:
        """Milliseconds until another mark."""
        if not (self._timed and other._timed):
            raise RuntimeError("both events must be timed")
        return 1000 * (other._at - self._at)

    def synchronize(self) -> None:
        """Wait for it."""


class _Generator(torch.Generator):
    """A generator with a place in its stream, as a GPU's."""

    def __new__(cls, device=None):
        return super().__new__(cls)

    def set_offset(self, offset: int) -> "_Generator":
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        digest = hashlib.sha256(f"{self.initial_seed()} {offset}".encode()).digest()
        return self.manual_seed(int.from_bytes(digest[:8], "big"))


def _captured(_, compute):
    """A recorded pass: it is computed again where a GPU would start its kernels again."""
    made = []
    return SimpleNamespace(clone=made.pop), lambda: made.append(compute())


def pretend(patch) -> contextlib.ExitStack:
    """Let torch pretend that there is a GPU, until the stack is closed.

    Args:
        patch: pytest's monkeypatch.
    """
    import peft  # noqa: F401

    cuda = torch.cuda
    properties = SimpleNamespace(total_memory=MEMORY, major=9, minor=0, name="pretended GPU", multi_processor_count=132)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "device": lambda _: contextlib.nullcontext(),
        "get_device_name": lambda *_: "pretended GPU",
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda *_: (MEMORY // 2, MEMORY),
        "memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_allocated": lambda *_: 1,
        "max_memory_reserved": lambda *_: 1,
        "reset_peak_memory_stats": lambda *_: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "current_stream": lambda *_: None,
        "Event": _Event,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda *_: None,
    }.items():
        patch.setattr(cuda, name, value)
    patch.setattr(repeated, "_on_other_stream", lambda compute: compute())
    patch.setattr(repeated, "_capture", _captured)
    patch.setattr(torch, "autocast", _Autocast)
    patch.setattr(torch.amp, "autocast", _Autocast)
    patch.setattr(torch, "Generator", _Generator)
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    patch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": enabled("cpu"))
    patch.setattr(torch, "get_autocast_dtype", lambda kind="cpu": dtype("cpu"))
    stack, places = contextlib.ExitStack(), _Places()

    def set_sync_debug_mode(mode: str) -> None:
        places.may_wait = mode != "error"

    patch.setattr(cuda, "set_sync_debug_mode", set_sync_debug_mode)
    functions, run_backward = _Functions(places), torch.autograd._engine_run_backward

    def backward(*args, **kwargs):
        # torch leaves the mode before it runs backward; what is computed anew there asks for devices too.
        with functions:
            return run_backward(*args, **kwargs)

    patch.setattr(torch.autograd, "_engine_run_backward", backward)
    # Checkpointing compares devices as well, from within functions that torch runs without the mode.
    compared = checkpoint._allowed_determinism_checks_to_fns
    patch.setitem(compared, "default", lambda t: {"shape": t.shape, "dtype": t.dtype})
    stack.enter_context(functions)
    stack.enter_context(_Operations(places))
    return stack
