"""Several processes that train one model: each process's share of a step, and sums over processes.

Every process makes the whole draw, which is a function of the key, and computes every n-th unit of it, n being the
number of processes: together they process exactly the sample that a single process would. Keyed noise is the same on
all processes and is added once to the sum.
"""

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.distributed as dist

from heldin.models.devices import default_device

Item = TypeVar("Item")
PATIENCE = datetime.timedelta(hours=24)  # the first process may pre-train while the others wait


_alone: ContextVar[bool] = ContextVar("alone", default=False)  # true inside the block of ``first_process_first``


def rank() -> int:
    """Number of this process; 0 if it is the only one."""
    return dist.get_rank() if dist.is_initialized() else 0


def processes() -> int:
    """Number of processes that train together; 1 if this is the only one."""
    return int(dist.get_world_size()) if _together() else 1


def own_share(items: Sequence[Item]) -> list[Item]:
    """This process's part of the units of a step."""
    # Every n-th, whole units only: a unit cut over processes would be clipped in pieces, with sensitivity 2 C and more.
    return list(items[rank() :: processes()]) if _together() else list(items)


def sum_over_ranks(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over the processes."""
    if _together():
        for tensor in tensors:
            dist.all_reduce(tensor)  # in place, in the same order on every process


def wait_for_all() -> None:
    """Return once every process has called this."""
    if _together():
        dist.barrier()


@contextmanager
def first_process_first() -> Iterator[None]:
    """Run the block on the first process alone, then on the others, which find its files."""
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
    """Join the processes that ``torchrun`` started; do nothing if there is only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    on_gpu = default_device().type == "cuda"
    if on_gpu:
        # Before the group is made: NCCL works on each process's current device, which is else the first for all.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()
