"""Part 8 of the GPU benchmark: the time of each kernel in a plain step and in a ULS step, by torch.profiler.

Each case has its own process, because torch.profiler can slow the start of all later kernels. A step is profiled twice.
The first profile records only the GPU, which hardly disturbs the step; it gives the gaps between kernels. The second
also records the host's operations and the shapes of their operands, which put each kernel into a class; it uses no
recorded passes. One more step counts the bytes of the operands and results of each operation. On a CPU, operations
count as kernels, each with its time outside of the operations that it calls.
"""

import bisect
import collections
import contextlib
import enum
import functools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_base import Clock, Figure, Marks, Shape, share_of_card
from gpu_steps import NOISE, Case, Stepped, token_runs
from torch._inductor.async_compile import shutdown_compile_workers
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heldin.defenses.gradients.one_pass import release_workspace
from heldin.defenses.gradients.products import EVEN
from heldin.models import repeated
from heldin.models.attention import ALIGNED

CASES = tuple((Case(shape, 4, 16, 512), name) for shape in ("125M", "1.3B") for name in ("plain", "auto"))
WARM, TIMED, KERNELS = 5, 3, 25


class KernelClass(enum.Enum):
    PRODUCTS = "matrix products"
    ATTENTION = "attention"
    VOCABULARY_PRODUCTS = "vocabulary: matrix products"
    VOCABULARY = "vocabulary: embedding, cross entropy and other"
    NORMS = "layer norms"
    CASTS = "casts"
    ELEMENTWISE = "elementwise and reductions"
    OPTIMIZER = "optimizer"
    NOISE = "noise"
    COPIES = "memory copies and fills"
    OTHER = "other"


@dataclass(frozen=True)
class Operation:
    """An operation of the host, or a named range, with the shapes and types of its operands."""

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel: its begin and duration in seconds, and the operations that started it, outermost first."""

    name: str
    begin: float
    seconds: float
    operations: tuple[Operation, ...] = ()


_PRODUCTS = {
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_scaled_mm", "_addmm_activation"),
    *("mm_", "addmm_", "baddbmm_", "addbmm_", "addr"),
}
_REDUCTIONS = {
    *("sum", "mean", "norm", "amax", "max", "any", "all", "linalg_vector_norm", "cumsum", "logsumexp", "index_add_"),
    *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "nll_loss_forward", "gather"),
    *("nll_loss_backward", "cat", "index", "index_add", "index_select", "index_put_", "_index_put_impl_", "scatter_"),
    *("scatter_add_", "copy_", "clone", "arange", "tril", "triu", "sort", "bincount", "nll_loss2d_forward"),
}
_FILLS = {"zero_", "fill_"}
_PRODUCT_KERNELS = re.compile(r"gemm|nvjet|splitk|cutlass.*mm|xmma", re.IGNORECASE)
_ATTENTION_KERNELS = re.compile(r"flash_|fmha|attention|sdpa", re.IGNORECASE)
_ELEMENTWISE_KERNELS = re.compile(r"elementwise|reduce|softmax|CatArray|index|scatter|gather|multi_tensor|triton_")


def kernel_class(name: str, operations: Sequence[Operation], vocabulary: int) -> KernelClass:
    """Return the class of a kernel.

    Args:
        name: name of the kernel; empty if only its operation is known.
        operations: operations that started the kernel, outermost first; empty if the host was not recorded, and then
            the name decides.
        vocabulary: size of the model's vocabulary; no other dimension of the model is a multiple of it.
    """
    names = [operation.name for operation in operations]
    inner = next((n.removeprefix("aten::") for n in reversed(names) if n.startswith("aten::")), "")
    types = operations[-1].types if operations else ()
    if NOISE in names or inner == "normal_":
        return KernelClass.NOISE
    if any(n.startswith("Optimizer.step") for n in names) or "_fused_adam" in inner:
        return KernelClass.OPTIMIZER
    if _ATTENTION_KERNELS.search(name) or any(_is_attention(n) for n in names):
        return KernelClass.ATTENTION
    product = inner in _PRODUCTS or _PRODUCT_KERNELS.search(name) is not None
    if any(_sees(operation, vocabulary) for operation in operations) or any("embedding" in n.lower() for n in names):
        return KernelClass.VOCABULARY_PRODUCTS if product else KernelClass.VOCABULARY
    if product:
        return KernelClass.PRODUCTS
    if any("layer_norm" in n or "LayerNorm" in n for n in names) or "layer_norm" in name:
        return KernelClass.NORMS
    if inner == "_to_copy" or (inner == "copy_" and len({its for its in types[:2] if its}) > 1):
        return KernelClass.CASTS
    if inner in _FILLS or name.startswith(("Memcpy", "Memset")):
        return KernelClass.COPIES
    if inner in _REDUCTIONS or _is_pointwise(inner) or _ELEMENTWISE_KERNELS.search(name):
        return KernelClass.ELEMENTWISE
    return KernelClass.OTHER


def _is_attention(name: str) -> bool:
    squeezed = name.replace("_", "").lower()
    return "scaleddotproduct" in squeezed or "flashattention" in squeezed or "flexattention" in squeezed


def _sees(operation: Operation, vocabulary: int) -> bool:
    # A head may have rows of zeros (models.attention), or its last columns apart (defenses.gradients.products).
    sizes = (vocabulary, vocabulary + -vocabulary % ALIGNED, vocabulary - vocabulary % EVEN)
    return any(size > 0 and size % its == 0 for shape in operation.shapes for size in shape for its in sizes)


@functools.cache
def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name else None
    if packet is None:
        return False
    tagged = any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
    return tagged or name.startswith("_foreach_")


def kernels_of(trace: Sequence[Mapping[str, Any]]) -> list[Kernel]:
    """Return the kernels in a trace's events, sorted by their begin.

    Args:
        trace: "traceEvents" in an export of torch.profiler; times are in microseconds.
    """
    events = [event for event in trace if event.get("ph") == "X"]
    host = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    threads: dict[Any, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for event in host:
        threads[event["pid"], event["tid"]].append(event)
    lanes = {thread: _Lane(lane) for thread, lane in threads.items()}
    on_gpu = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    starts = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    kernels = []
    for event in on_gpu:
        start = starts.get(event.get("args", {}).get("correlation"))
        lane = None if start is None else lanes.get((start["pid"], start["tid"]))
        path = () if lane is None or start is None else lane.at(float(start["ts"]))
        kernels.append(Kernel(event["name"], float(event["ts"]) / 1e6, float(event["dur"]) / 1e6, path))
    if not on_gpu:
        kernels = [kernel for lane in lanes.values() for kernel in lane.operations()]
    return sorted(kernels, key=lambda kernel: kernel.begin)


class _Lane:
    """The nested operations of one thread of the host."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._events = sorted(events, key=lambda event: (float(event["ts"]), -float(event["dur"])))
        self._begins = [float(event["ts"]) for event in self._events]
        self._ends = [float(event["ts"]) + float(event["dur"]) for event in self._events]
        self._outer: list[int | None] = []
        open_: list[int] = []
        for number, begin in enumerate(self._begins):
            while open_ and self._ends[open_[-1]] <= begin:
                open_.pop()
            self._outer.append(open_[-1] if open_ else None)
            open_.append(number)

    def at(self, time: float) -> tuple[Operation, ...]:
        """Return the operations that are running at this time, outermost first."""
        number: int | None = bisect.bisect_right(self._begins, time) - 1
        if number is not None and number < 0:
            return ()
        while number is not None and self._ends[number] < time:
            number = self._outer[number]
        return self._path(number)

    def operations(self) -> Iterator[Kernel]:
        """Yield the operations as kernels, each with the time in which it calls no other operation."""
        own = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
        for number, outer in enumerate(self._outer):
            if outer is not None:
                own[outer] -= self._ends[number] - self._begins[number]
        for number, event in enumerate(self._events):
            if event["name"].startswith("aten::"):
                yield Kernel(event["name"], self._begins[number] / 1e6, own[number] / 1e6, self._path(number))

    def _path(self, number: int | None) -> tuple[Operation, ...]:
        path = []
        while number is not None:
            path.append(_operation(self._events[number]))
            number = self._outer[number]
        return tuple(reversed(path))


def _operation(event: Mapping[str, Any]) -> Operation:
    told = event.get("args", {})
    return Operation(event["name"], tuple(_flat(told.get("Input Dims", []))), tuple(told.get("Input type", [])))


def _flat(shapes: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of operands. The shapes of a list of tensors are nested one level deeper."""
    for shape in shapes:
        if shape and isinstance(shape[0], list):
            yield from _flat(shape)
        elif isinstance(shape, list):
            yield tuple(shape)


def busy_seconds(kernels: Iterable[Kernel]) -> float:
    """Return the seconds in which at least one kernel ran."""
    seconds, until = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda its: its.begin):
        end = kernel.begin + kernel.seconds
        seconds += max(0.0, end - max(until, kernel.begin))
        until = max(until, end)
    return seconds


def most_costly(kernels: Sequence[Kernel], vocabulary: int) -> list[dict[str, Any]]:
    """Return calls, seconds and share of the most expensive kernels, by name, class and innermost operation."""
    whole = sum(kernel.seconds for kernel in kernels)
    groups: dict[tuple[str, str, str], list[Kernel]] = collections.defaultdict(list)
    for kernel in kernels:
        operation = kernel.operations[-1].name if kernel.operations else ""
        groups[_short(kernel.name), kernel_class(kernel.name, kernel.operations, vocabulary).value, operation].append(
            kernel
        )
    rows = []
    for (name, kind, operation), group in groups.items():
        seconds = sum(kernel.seconds for kernel in group)
        largest = max(group, key=lambda its: its.seconds)
        shapes = [list(shape) for shape in largest.operations[-1].shapes if shape][:4] if largest.operations else []
        rows.append(
            {
                "kernel": name,
                "class": kind,
                "operation": operation,
                "calls": len(group),
                "seconds": seconds,
                "share": seconds / whole,
                "longest": {"seconds": largest.seconds, "shapes": shapes},
            }
        )
    return sorted(rows, key=lambda row: -float(row["seconds"]))[:KERNELS]


def _short(name: str) -> str:
    """Return a kernel's name without the parts that all templates of torch share, at most 160 characters."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "c10::", "std::", "at::"):
        name = name.replace(noise, "")
    return name[:160]


def seconds_by_class(kernels: Iterable[Kernel], vocabulary: int) -> dict[str, dict[str, float]]:
    """Return the number of kernels and their seconds by class, the most expensive class first."""
    taken: dict[str, dict[str, float]] = {}
    for kernel in kernels:
        row = taken.setdefault(
            kernel_class(kernel.name, kernel.operations, vocabulary).value, {"calls": 0, "seconds": 0.0}
        )
        row["calls"] += 1
        row["seconds"] += kernel.seconds
    return dict(sorted(taken.items(), key=lambda item: -item[1]["seconds"]))


class _Moved(TorchDispatchMode):
    """Counts the bytes of operands and results of the operations in this block, by class. Views move no bytes."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self.bytes: dict[str, int] = collections.defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operands = [its for its in tree_leaves((args, kwargs)) if isinstance(its, torch.Tensor)]
        results = [its for its in tree_leaves(result) if isinstance(its, torch.Tensor)]
        held = {its.untyped_storage().data_ptr() for its in operands}
        allocates = func._overloadpacket.__name__.startswith("empty")
        if not func.is_view and not allocates and not _returns_view(func, held, results):
            operation = Operation(
                f"aten::{func._overloadpacket.__name__}",
                tuple(tuple(its.shape) for its in (*operands, *results)),
                tuple(str(its.dtype) for its in operands),
            )
            kind = kernel_class("", [operation], self._vocabulary)
            self.bytes[kind.value] += sum(its.numel() * its.element_size() for its in (*operands, *results))
        return result


def _returns_view(func: Any, held: set[int], results: Sequence[torch.Tensor]) -> bool:
    """Return whether an operation wrote nothing and returned the memory of its operands."""
    return (
        not func._schema.is_mutable
        and bool(results)
        and all(its.untyped_storage().data_ptr() in held for its in results)
    )


def profile_step(case: Case, name: str, shape: Shape, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Return the seconds of a step by class of kernel, its gaps, and the most expensive kernels.

    Args:
        name: "plain" or "auto", with the meanings of part 2.
    """
    model = shape.model(device)
    stepped, clock = Stepped(name, model, token_runs(case, shape), device), Clock(device)
    numbers = iter(range(WARM + TIMED + 3))
    for _ in range(WARM):
        stepped(next(numbers), Marks(device))
    shutdown_compile_workers()
    seconds = []
    for _ in range(TIMED):
        began = clock()
        stepped(next(numbers), Marks(device))
        seconds.append(clock() - began)
    step = statistics.median(seconds)
    about = f"{case.about}, {'ULS' if name == 'auto' else name}"
    print(f"  {about}: {step:.4f} s a step before it is profiled", flush=True)

    on_gpu = device.type == "cuda"
    alone, alone_seconds = _traced(
        stepped, next(numbers), device, [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    )
    with _unrecorded(model):
        whole, whole_seconds = _traced(
            stepped, next(numbers), device, [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        )
    if not alone or not whole:
        raise RuntimeError("torch.profiler recorded no kernel")
    try:
        with torch.compiler.set_stance("force_eager"), _unrecorded(model), _Moved(shape.vocabulary) as moved:
            stepped(next(numbers), Marks(device))
        moved_bytes: dict[str, int] | None = dict(moved.bytes)
    except Exception as error:  # the rest of the profile is worth having without
        print(f"  {about}: bytes were not counted: {type(error).__name__}: {error}", flush=True)
        moved_bytes = None
    release_workspace(model)

    gaps = max(0.0, step - busy_seconds(alone))  # recording takes the host time that a step does not
    classes = seconds_by_class(whole, shape.vocabulary)
    for kind, row in classes.items():
        if moved_bytes is not None:
            row["bytes"] = moved_bytes.get(kind, 0)
    figures = [
        Figure(f"{about}: seconds of a step", step),
        Figure(f"{about}: share of the card", share_of_card(shape, case.tokens, step, device)),
        Figure(f"{about}: seconds without a kernel", gaps),
        *(Figure(f"{about}: seconds of {kind}", row["seconds"]) for kind, row in classes.items()),
    ]
    told = {
        "step": step,
        "step with the GPU recorded": alone_seconds,
        "step with host and GPU recorded": whole_seconds,
        "gaps": gaps,
        "kernels": len(whole),
        "ways": stepped.passes.effort.ways,
        "classes": classes,
        "most costly": most_costly(whole, shape.vocabulary),
    }
    for row in told["most costly"]:
        print(f"  {row['seconds']:.5f} s {row['share']:6.1%} x{row['calls']:<5} {row['class']}: {row['kernel'][:90]}")
    return figures, {"profile": {about: told}}


@contextlib.contextmanager
def _unrecorded(model: torch.nn.Module) -> Iterator[None]:
    """Start the kernels of passes in this block one by one, because the operations of recorded passes are unknown."""
    before = repeated.RECORDED
    repeated.forget_recordings(model)
    repeated.RECORDED = sys.maxsize
    try:
        yield
    finally:
        repeated.RECORDED = before


def _traced(
    stepped: Stepped, number: int, device: torch.device, activities: Sequence[ProfilerActivity]
) -> tuple[list[Kernel], float]:
    """Return the kernels of a step, and its seconds including the wait for its end."""
    clock = Clock(device)
    with torch.profiler.profile(activities=activities, record_shapes=ProfilerActivity.CPU in activities) as profiled:
        began = clock()
        stepped(number, Marks(device))
        seconds = clock() - began
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return kernels_of(json.loads(path.read_text(encoding="utf-8"))["traceEvents"]), seconds
