"""This machine and process: main memory, installed packages, worker processes, and the quiet switch."""

import atexit
import importlib.metadata
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

UNINSTALLED = "source tree, not installed"
CGROUPS = Path("/sys/fs/cgroup")
OF_THIS_PROCESS = Path("/proc/self/cgroup")


def version() -> str:
    """Return heldin's version; ``UNINSTALLED`` if heldin runs from a source tree without installation."""
    return installed_versions(["heldin"]).get("heldin", UNINSTALLED)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return a map from package to version. The map omits packages that are not installed."""
    return {name: known for name in packages if (known := version_of(name)) is not None}


@cache  # a version is in a long file, which is parsed as a mail
def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main_memory() -> int:
    """Return the main memory in bytes: the smallest of the machine's memory and this process's cgroup limits."""
    return min([int(psutil.virtual_memory().total), *_limits()])


def _limits() -> Iterator[int]:
    """Yield the memory limits of Linux control groups, versions 1 and 2; no limits on other systems."""
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


def start_worker() -> None:
    """Prepare a worker process: the parent handles Ctrl-C, and the worker ends quietly when the parent ends."""
    # Ctrl-C reaches every process of the terminal's group: each worker would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    # If the parent is killed, nobody else ends a worker in the middle of its work.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    atexit.register(_leave)


def _leave() -> None:
    # Its work is done and sent. While Python takes itself apart, libraries would print what they still hold.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    # sys.exit in a thread ends that thread alone.
    os._exit(1)


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Hide progress in this process from now on (``heldin --quiet``), or show progress again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether heldin shows only answers and errors."""
    return _quiet
