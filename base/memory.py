"""Main memory that this process may use: the machine's, or less where a container or a job has a limit."""

from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OF_THIS_PROCESS = Path("/proc/self/cgroup")


def main_memory() -> int:
    """Bytes of main memory: the least of the machine's and the limits of every cgroup that this process is in."""
    return min([int(psutil.virtual_memory().total), *_limits()])


def _limits() -> Iterator[int]:
    """Limits by Linux's control groups, of both versions; none elsewhere."""
    try:
        lines = OF_THIS_PROCESS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit of a group is one of all groups within it. In a container the path may be the host's, and only the
        # root is there.
        for group in (root, *(root / "/".join(part) for part in _beginnings(path))):
            try:
                limit = (group / name).read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if limit.isdigit():  # else "max"
                yield int(limit)


def _beginnings(path: str) -> Iterator[list[str]]:
    parts = [part for part in path.split("/") if part]
    for length in range(1, len(parts) + 1):
        yield parts[:length]
