"""The content of the cache, its size and its removal. heldin can make all cached files again, but some files take
long."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from heldin.base.errors import InputError
from heldin.base.files import cache_root, one_process_at_a_time, stop_using
from heldin.base.wording import counted

KINDS = {
    "corpora": "corpora as stores: people's texts",
    "scores": "token scores by model, from which anyone who has the model can work out texts",
    "answers": "texts that models wrote in audits of text-only attackers, which may contain people's texts",
    "pretrained": "base models that were pre-trained here",
    "references": "reference models that were trained here",
    "sweeps": "copies for the cells of a sweep on a cluster: people's texts",
    "pld": "the accountant's loss distributions",
    "plugins": "results of checks of packages' kinds",
}


@dataclass(frozen=True)
class CachePart:
    """One kind of cached files.

    Attributes:
        kind: name of the kind and of its folder.
        holds: description of the contents.
        path: the folder, which may not exist.
        entries: number of files and folders in the folder.
        size: bytes of all files below the folder.
    """

    kind: str
    holds: str
    path: Path
    entries: int
    size: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return {**asdict(self), "path": str(self.path)}


def parts(kind: str | None = None) -> list[CachePart]:
    """Return the cached files of every kind, or of one kind. Raises InputError for an unknown kind."""
    if kind is not None and kind not in KINDS:
        raise InputError(f"the cache has no kind '{kind}': choose from {', '.join(KINDS)}")
    return [_part(name, cache_root() / name) for name in ([kind] if kind else KINDS)]


def clear(chosen: Sequence[CachePart]) -> int:
    """Remove these parts, and return their size in bytes. If a part is in use, the function removes nothing.

    Raises:
        InputError: a process uses one of the parts.
    """
    present = [part for part in chosen if part.path.is_dir()]
    removed = []
    with ExitStack() as locks:
        # Every part is locked before the first is removed: all, or none.
        for part in present:
            stop_using(part.path)  # its own lock would refuse the removal
            try:
                locks.enter_context(one_process_at_a_time(part.path))
            except InputError as error:
                raise InputError(
                    f"'{part.path}' is in use by {_user_of(part.path)}, so heldin removed nothing: wait until this"
                    " process ends, or stop the process"
                ) from error
        for part in present:
            # In the same folder, so that renaming is one step of the file system and never a copy.
            removed.append(part.path.with_name(f".{part.kind}.{os.getpid()}.tmp"))
            part.path.rename(removed[-1])  # a process that waits for the lock makes a new folder
    for folder in removed:
        shutil.rmtree(folder)
    return sum(part.size for part in present)


def lines(parts: Sequence[CachePart]) -> list[str]:
    """Return the listing for a terminal."""
    rows = [
        f"{part.kind:<12}{_readable(part.size):>10}  {counted(part.entries, 'item'):<14}{part.holds}" for part in parts
    ]
    return [*rows, f"{'together':<12}{_readable(sum(part.size for part in parts)):>10}  in {cache_root()}"]


def _readable(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def _part(kind: str, path: Path) -> CachePart:
    entries = len(list(path.iterdir())) if path.is_dir() else 0
    return CachePart(kind, KINDS[kind], path, entries, sum(_sizes(path)))


def _sizes(path: Path) -> Iterator[int]:
    for where, _, names in os.walk(path):
        # Of links their own size: what they point to is not removed with them.
        for name in names:
            try:
                yield (Path(where) / name).lstat().st_size
            except FileNotFoundError:  # a running process removed it meanwhile
                continue


def _user_of(folder: Path) -> str:
    """Return the name of a process that has the folder open, if this user may see the process."""
    for process in psutil.process_iter():
        # psutil lists open files, and no folders.
        with suppress(OSError, psutil.Error):
            opened = {handle.readlink() for handle in Path(f"/proc/{process.pid}/fd").iterdir()}
            if folder.resolve() in opened and process.pid != os.getpid():
                return f"process {process.pid} ({process.name()})"
    return "another process"
