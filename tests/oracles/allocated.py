"""Most bytes that torch's own allocator had given out while something ran, as its profiler saw them."""

import gc
from collections.abc import Callable

import torch


def most_allocated(work: Callable[[], object]) -> int:
    """Most bytes at one time, on a CPU, of what ``work`` allocates."""
    # What an earlier measurement left in circles would be given back during the work, and be missing from its sum.
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    events = [its for its in profile.profiler.kineto_results.events() if its.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda its: its.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
