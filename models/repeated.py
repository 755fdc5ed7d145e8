"""Repeated training passes on a GPU: compile their layers and losses, and record their kernels.

A GPU finishes a small model's pass before the host has started its kernels one by one. heldin records passes of a shape
that occurred more than ``RECORDED`` times as a CUDA graph, which the host starts as a whole. A replay repeats the
recorded kernels. If memory runs out, heldin drops all recordings before it makes a pass smaller.

Compiling takes half a minute, which pays off after ``REPEATED`` passes of one shape. A compiled layer keeps values in
float32 that single operations round to bfloat16. Compiled losses over the vocabulary read the logits once.

If compiling or recording fails, training continues without compiling or recording, and reports this in one line of the
log.
"""

import collections
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoBlock

from heldin.models.devices import is_out_of_memory, kind_of

Result = TypeVar("Result")
Compute = Callable[..., Tensor]
RECORDED = 8  # passes of a shape before one is recorded, which takes as long as about three
REPEATED = 500  # passes of a shape before layers are compiled for it: these take as long as compiling
# Floating-point operations of a pass that take a GPU longer than the 25 ms in which the host starts its kernels: 50 ms
# at half of an H200's peak.
LASTING = 2e13
VARIANTS = 32  # of a compiled layer, at most
WIDTHS = 64  # lengths of recorded passes are multiples of it, so that few are recorded


@dataclass(frozen=True)
class _Recording:
    operands: tuple[Tensor, ...]
    result: Tensor
    replay: Callable[[], object]
    compiled: bool


@dataclass
class _Repeats:
    """Facts about a model's passes. Has no reference to the model, because Python could then never free the model."""

    seen: "collections.Counter[object]" = field(default_factory=collections.Counter)
    recordings: dict[object, _Recording] = field(default_factory=dict)
    flat: Tensor = field(default_factory=lambda: torch.zeros(0))
    sums: dict[str, Tensor] = field(default_factory=dict)  # parts of ``flat``
    places: tuple[tuple[str, int], ...] = ()
    weights: int = 0
    pool: Any = None


_REPEATS: "weakref.WeakKeyDictionary[nn.Module, _Repeats]" = weakref.WeakKeyDictionary()
_COMPILED: "weakref.WeakKeyDictionary[nn.Module, dict[nn.Module, Callable[..., Any]]]" = weakref.WeakKeyDictionary()
_IN_COMPILED: ContextVar[bool] = ContextVar("in_compiled", default=False)
_cannot_compile = _cannot_record = False


def in_compiled() -> bool:
    """Return whether the current pass goes through compiled layers."""
    return _IN_COMPILED.get()


def records(model: nn.Module, modules: Iterable[nn.Module], parameters: Mapping[str, nn.Parameter]) -> bool:
    """Return whether short passes are recorded once they repeat.

    heldin does not record passes if activations are recomputed, if a pass draws random numbers, or if several processes
    or devices share the model.

    Args:
        modules: modules of the model.
        parameters: trainable parameters of the model, by name.
    """
    weights = parameters.values()
    if _cannot_record or kind_of(next(iter(weights)).device) != "cuda" or dist.is_initialized():
        return False
    if hasattr(model, "hf_device_map") or any(weight.dtype != torch.float32 for weight in weights):
        return False
    return not any(getattr(module, "gradient_checkpointing", False) or _draws(module) for module in modules)


def _draws(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0


def is_short(model: nn.Module, tokens: int) -> bool:
    """Return whether a GPU computes a pass of this many tokens faster than the host starts its kernels."""
    repeats = _repeats_of(model)
    if not repeats.weights:
        repeats.weights = sum(parameter.numel() for parameter in model.parameters())
    return 6 * repeats.weights * tokens < LASTING


def sums_of_recorded(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return zeros in the shapes of these parameters, at the addresses that the model's recorded passes add to.

    If the addresses of the parameters changed, this function drops all recordings.
    """
    repeats = _repeats_of(model)
    # Where memory is rehearsed, tensors lie nowhere.
    places = tuple((name, p.data_ptr() if p.device.type == "cuda" else id(p)) for name, p in parameters.items())
    if repeats.places == places:
        repeats.flat.zero_()
    else:
        repeats.recordings.clear()
        repeats.places = places
        device = next(iter(parameters.values())).device
        repeats.flat = torch.zeros(sum(_aligned(p.numel()) for p in parameters.values()), device=device)
        repeats.sums = _as_parameters(repeats.flat, parameters)
    return repeats.sums


def copied_sums(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return a copy of the sums that recorded passes have added up."""
    return _as_parameters(_REPEATS[model].flat.clone(), parameters)


def _as_parameters(flat: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Split one tensor into views in the shapes of these parameters, so one kernel can fill or copy all of them."""
    parts = torch.split(flat, [_aligned(p.numel()) for p in parameters.values()])
    return {name: part[: p.numel()].view(p.shape) for part, (name, p) in zip(parts, parameters.items(), strict=True)}


def _aligned(numbers: int) -> int:
    return -(-numbers // 64) * 64


def repeated(model: nn.Module, kind: object, compute: Compute, operands: Sequence[Tensor], *, recorded: bool) -> Tensor:
    """Return ``compute(*operands)``, compiled or recorded if passes of this kind and these shapes repeat.

    Args:
        kind: kind of pass; all passes of one kind compute the same function.
        compute: function that uses only the operands, the model's weights and ``sums_of_recorded``, and waits for no
            GPU. It must create every other tensor itself.
        operands: tensors on the model's device.
        recorded: result of ``records``; if true, ``sums_of_recorded`` was called in this step.

    Raises:
        Exception: any exception of ``compute``, which may already have changed the sums.
    """
    if operands[0].device.type != "cuda":
        return compute(*operands)
    repeats, half = _repeats_of(model), torch.is_autocast_enabled("cuda")
    key = (kind, half, *(operand.shape for operand in operands))
    repeats.seen[key] += 1
    often = half and not _cannot_compile and repeats.seen[key] > REPEATED
    compiles = often and (recorded or not any(getattr(m, "gradient_checkpointing", False) for m in model.modules()))
    # Of compiled passes a few come first: a compiler may make another variant for the second.
    early = repeats.seen[key] - compiles * REPEATED <= RECORDED
    with compiled_layers(model) if compiles else contextlib.nullcontext():
        if early or not recorded or _cannot_record or not is_short(model, operands[0].numel()):
            return compute(*operands)
        recording = repeats.recordings.get(key)
        if recording is None or recording.compiled != compiles:
            return _first_recorded(repeats, key, compute, operands, compiles)
    for mine, given in zip(recording.operands, operands, strict=True):
        mine.copy_(given)
    recording.replay()
    return recording.result.clone()


def _repeats_of(model: nn.Module) -> _Repeats:
    repeats = _REPEATS.get(model)
    if repeats is None:
        repeats = _REPEATS[model] = _Repeats()
    return repeats


def _first_recorded(
    repeats: _Repeats, key: object, compute: Compute, operands: Sequence[Tensor], compiled: bool
) -> Tensor:
    """Compute a pass, and record it for later passes."""
    global _cannot_record
    mine = tuple(operand.clone() for operand in operands)
    # A half-precision copy of a weight that was made before would be read by a recording for ever.
    with _without_cached_casts():
        result = _on_other_stream(lambda: compute(*mine)).clone()
        try:
            made, replay = _capture(repeats, lambda: compute(*mine))
            repeats.recordings[key] = _Recording(mine, made, replay, compiled)
        except Exception as error:
            _cannot_record = True
            repeats.recordings.clear()
            _renew_generator(mine[0].device)
            _warn("passes are not recorded here", error)
    return result


def _renew_generator(device: torch.device) -> None:
    """Give a GPU's own generator a state that is in no recording.

    Otherwise the generator would wait for the end of a failed recording.
    """
    if torch.cuda.default_generators:
        own = torch.cuda.default_generators[device.index or 0]
        with contextlib.suppress(RuntimeError):  # training itself needs no number of it
            own.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


@contextlib.contextmanager
def _without_cached_casts() -> Iterator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _on_other_stream(compute: Callable[[], Tensor]) -> Tensor:
    """Return the result of ``compute`` on a separate stream, on which torch prepares everything for a recording."""
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    other.wait_stream(here)
    with torch.cuda.stream(other):
        result = compute()
    here.wait_stream(other)
    return result


def _capture(repeats: _Repeats, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
    """Return the output tensor of ``compute``, not yet computed, and a function that computes it."""
    graph = torch.cuda.CUDAGraph()
    # What other threads do, such as those of a compiler, is not part of it and does not disturb it.
    with torch.cuda.graph(graph, pool=repeats.pool, capture_error_mode="thread_local"):
        made = compute()
    repeats.pool = graph.pool()  # recordings of a model follow one another, in the same memory
    return made, graph.replay


def forget_recordings(model: nn.Module | None = None) -> bool:
    """Drop the recordings of a model. If ``model`` is None, drop all recordings, and record nothing from now on.

    Returns:
        Whether there was a recording, whose memory is now free.
    """
    global _cannot_record
    _cannot_record = _cannot_record or model is None
    models = [model] if model is not None else list(_REPEATS)
    forgotten = [repeats for other in models if (repeats := _REPEATS.pop(other, None)) is not None]
    return any(repeats.recordings for repeats in forgotten)


@contextlib.contextmanager
def compiled_layers(model: nn.Module) -> Iterator[None]:
    """Route the training passes in this block through compiled layers."""
    if model not in _COMPILED:
        blocks = [layer for layer in model.modules() if isinstance(layer, GPTNeoBlock)]
        # Of two kinds of layers, with one text or several, shorter or longer than a window.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
        _COMPILED[model] = {layer: torch.compile(layer._call_impl, dynamic=True) for layer in blocks}
    layers, token = _COMPILED[model], _IN_COMPILED.set(True)
    for layer, compiled in layers.items():
        # What ``nn.Module.compile`` sets for good; scoring and per-unit rules have other shapes, or hooks.
        vars(layer)["_compiled_call_impl"] = compiled
    try:
        with _without_cached_casts():  # a compiler makes another variant for each state of that
            yield
    finally:
        _IN_COMPILED.reset(token)
        for layer in layers:
            vars(layer).pop("_compiled_call_impl")


def without_compiling(compute: Callable[[], Result]) -> Result:
    """Return the result of ``compute``. If compiling fails for the first time in this process, run it without compiled
    layers."""
    global _cannot_compile
    try:
        return compute()
    except Exception as error:
        if _cannot_compile or not _COMPILED or is_out_of_memory(error):
            raise
        _cannot_compile = True
        _warn("layers are not compiled here", error)
    # Out here, where the error is gone: its traceback would keep the failed pass's tensors.
    return compute()


def _warn(message: str, error: BaseException) -> None:
    reason = next(iter(str(error).splitlines()), "")[:200]
    logging.getLogger(__name__).warning("%s: %s: %s", message, type(error).__name__, reason)
