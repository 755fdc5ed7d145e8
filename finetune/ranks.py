"""Several processes that train one model: who does what share of a step, and the sum over all.

Every process knows the whole draw, which is a function of the key, and computes every ``size``-th unit of it: together
they process the very sample that one process would. Keyed noise is the same on all, added once to the sum.
"""

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")
PATIENCE = datetime.timedelta(hours=24)  # the first process may pre-train while the others wait


def rank() -> int:
    """Number of this process; 0 alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def processes() -> int:
    """How many train together; 1 alone."""
    return int(dist.get_world_size()) if dist.is_initialized() else 1


def own_share(items: Sequence[Item]) -> list[Item]:
    """This process's part of the units of a step."""
    return list(items[rank() :: processes()])


def sum_over_ranks(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over the processes."""
    if dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)


def wait_for_all() -> None:
    """Go on when every process has come here."""
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def first_process_first() -> Iterator[None]:
    """The first process does the block alone, then the others, who find its files."""
    if rank() > 0:
        wait_for_all()
    yield
    if rank() == 0:
        wait_for_all()


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that ``torchrun`` started; nothing if there is but one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()
