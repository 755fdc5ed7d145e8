"""Several processes that train one model: each process's share of a step, and sums over processes.

Every process makes the whole draw, which is a function of the key. Each of n processes computes every n-th unit of the
draw, so all processes together process exactly the sample of a single process. Keyed noise is the same on all
processes, and is added once to the sum.
"""

import datetime
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import write_text
from heldin.models.devices import default_device, device_name

Item = TypeVar("Item")
Result = TypeVar("Result")
BUCKET = 2**24  # numbers of a sum over processes
PATIENCE = datetime.timedelta(hours=24)  # the first process may pre-train while the others wait


_alone: ContextVar[bool] = ContextVar("alone", default=False)  # true inside the block of ``first_process_first``


def rank() -> int:
    """Number of this process; 0 if there is only one process."""
    return dist.get_rank() if dist.is_initialized() else 0


def leads() -> bool:
    """Return whether this process acts for all processes, because it is the first or the only process."""
    return rank() == 0 or not _together()


def same_as_first(value: bool) -> bool:
    """Return the first process's answer, because processes may answer differently while files change."""
    if not _together():
        return value
    answer: list[object] = [value]
    dist.broadcast_object_list(answer)
    return bool(answer[0])


def of_first(metrics: dict[str, float]) -> dict[str, float]:
    """Return the first process's metrics.

    With a difference in the last bit, processes could stop at different steps.
    """
    if not _together():
        return metrics
    answer: list[object] = [metrics]
    dist.broadcast_object_list(answer)
    shared: dict[str, float] = answer[0]  # type: ignore[assignment]
    return shared


def shared_out(items: Sequence[Item], compute: Callable[[list[Item]], Sequence[Result]]) -> list[Result]:
    """Return a result for each item, in order. One process computes each result and sends the result to all
    processes."""
    if not _together():
        return list(compute(list(items)))
    mine = compute(own_share(items))
    parts: list[Sequence[Result]] = [[] for _ in range(processes())]
    dist.all_gather_object(parts, mine)
    return [parts[i % len(parts)][i // len(parts)] for i in range(len(items))]


def processes() -> int:
    """Number of processes that train together; 1 if there is only one process."""
    return int(dist.get_world_size()) if _together() else 1


def own_share(items: Sequence[Item]) -> list[Item]:
    """Return this process's share of the units of a step."""
    # Every n-th, whole units only: a unit cut over processes would be clipped in pieces, with sensitivity 2 C and more.
    return list(items[rank() :: processes()]) if _together() else list(items)


def sum_over_ranks(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor with its sum over the processes."""
    if _together():
        in_buckets(tensors)


def least_over_ranks(value: float, device: torch.device) -> float:
    """Return the smallest of the processes' values; ``device`` is this process's device."""
    if not _together():
        return value
    least = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return float(least)


def in_buckets(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replace each tensor with its sum over the processes of a group.

    heldin sends small tensors together, because a model has hundreds of small tensors.

    Args:
        tensors: tensors with the same shapes and order on every process.
        group: group of processes; None: all processes.
    """
    for small in _buckets(tensors):
        if len(small) == 1 and small[0].is_contiguous():
            dist.all_reduce(small[0], group=group)
            continue
        flat = torch.cat([tensor.flatten() for tensor in small])
        dist.all_reduce(flat, group=group)
        for tensor, part in zip(small, torch.split(flat, [tensor.numel() for tensor in small]), strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors in order, in groups of consecutive tensors of one type with up to ``BUCKET`` numbers."""
    runs: list[list[torch.Tensor]] = []
    for tensor in tensors:
        if runs and runs[-1][0].dtype == tensor.dtype and sum(t.numel() for t in runs[-1]) + tensor.numel() <= BUCKET:
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
    return runs


def require_agreement(subject: str, remedy: str, *values: float | str) -> None:
    """Raise ResumableError unless these values are the same on every process.

    Args:
        subject: name of the values in the error message.
        remedy: advice if the values differ.
    """
    if not _together():
        return
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, values)
    differing = [number for number, other in enumerate(gathered) if other != gathered[0]]
    if differing:
        raise ResumableError(f"processes 0 and {differing[0]} do not have the same {subject}: {remedy}")


def require_like_devices() -> None:
    """Raise InputError unless all processes have the same model of device."""
    if not _together():
        return
    name = device_name(default_device())
    names: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    other = next((i for i, device in enumerate(names) if device != names[0]), None)
    if other is not None:
        # Their noise differs, so that copies of the model would part.
        raise InputError(
            f"process 0 has {names[0]} and process {other} has {names[other]}: train on devices of the same model"
        )


def require_shared_folder(folder: Path) -> None:
    """Raise InputError unless every process can write and read the same files in this folder."""
    if not _together():
        return
    mark = folder / ".processes"
    token: list[object] = [secrets.token_hex(8) if rank() == 0 else None]
    dist.broadcast_object_list(token)
    if rank() == 0:
        write_text(mark, str(token[0]))
    dist.barrier()
    seen = mark.is_file() and mark.read_text(encoding="utf-8") == token[0]
    everybody: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, seen)
    if rank() == 0:
        mark.unlink(missing_ok=True)
    if not all(everybody):
        raise InputError(
            f"process {everybody.index(False)} does not see '{folder}' of process 0: name a folder that all machines"
            " share"
        )


def wait_for_all() -> None:
    """Return once every process has called this."""
    if _together():
        dist.barrier()


@contextmanager
def first_process_first() -> Iterator[None]:
    """Run the block on the first process, then on the other processes, which find the files of the first."""
    # Inside the block a process counts as the only one: a training there that waited for the others would never end.
    if rank() > 0:
        wait_for_all()
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)
    if rank() == 0:
        wait_for_all()


def _together() -> bool:
    return dist.is_initialized() and not _alone.get()


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that ``torchrun`` started. With a single process, do nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    if default_device().type == "cuda":
        # Before the group is made: NCCL works on each process's current device, which is else the first for all.
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
        dist.init_process_group("nccl", timeout=PATIENCE, device_id=own)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
    except BaseException:
        # The failure is reported, whatever becomes of the group.
        with suppress(Exception):
            _leave_at_once()
        raise
    dist.destroy_process_group()


def _leave_at_once() -> None:
    """Leave the group without waiting for the other processes.

    The other processes may wait for this process, but torchrun ends them.
    """
    # NCCL's ``destroy`` waits until all that was begun is done, which it never is once a process has failed.
    abort = getattr(distributed_c10d, "_abort_process_group", dist.destroy_process_group)
    if dist.get_backend() == "nccl":
        abort()
    else:
        dist.destroy_process_group()
