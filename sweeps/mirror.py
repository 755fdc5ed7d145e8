"""Copies of a sweep's records and reports elsewhere: ledgers, keys and scores stay where they are, always."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from heldin.base.errors import InputError
from heldin.base.progress import Reporter

# Of the sweep's folder and of each cell's. Nothing of ``ledger`` and no table of users is ever among them.
_COPIED = ("comparison.json", "record.json", "report.pdf", "report.html")
_MODEL = Path("checkpoints") / "final"


def open_mirror(url: str) -> tuple[Any, str]:
    """The file system of ``url`` and the folder in it, which is made. Raises InputError if it cannot be had."""
    try:
        system, folder = fsspec.core.url_to_fs(url)
        system.makedirs(folder, exist_ok=True)
    except Exception as error:  # each file system has errors of its own
        raise InputError(f"--mirror {url}: {type(error).__name__}: {error}") from error
    return system, folder


def mirror(out: Path, url: str, *, models: bool, reporter: Reporter) -> int:
    """Copy what may be copied of the sweep in ``out`` to ``url``, each file whole or not at all; the number of files.

    Args:
        out: folder of the sweep.
        url: where to, as fsspec reads it: a folder, s3://..., gs://...
        models: whether the cells' models are copied too.

    Raises:
        InputError: the place cannot be written.
    """
    system, folder = open_mirror(url)
    files = list(_files(out, models=models))
    with reporter.track("mirror", len(files), "files") as advance:
        for file in files:
            target = str(PurePosixPath(folder) / file.relative_to(out).as_posix())
            try:
                system.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
                system.put_file(str(file), f"{target}.part")
                system.mv(f"{target}.part", target)
            except Exception as error:
                raise InputError(f"--mirror {url}: '{target}': {type(error).__name__}: {error}") from error
            advance(1)
    return len(files)


def _files(out: Path, *, models: bool) -> Iterator[Path]:
    for folder in (out, *sorted(out.glob("cells/*/*"))):
        for name in _COPIED:
            if (folder / name).is_file():
                yield folder / name
        if models and (folder / _MODEL).is_dir():
            yield from sorted(path for path in (folder / _MODEL).rglob("*") if path.is_file())
