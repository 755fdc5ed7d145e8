"""Remove the secrets of a finished run, audit or sweep: keys, ledgers, scores, weights. What decided stays readable.

A file is removed only if heldin writes one of that name there; whatever else lies in the folder is left and named.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import is_held, one_process_at_a_time, write_text
from heldin.base.log_file import LOG
from heldin.base.purged import MARK
from heldin.record.sweep import TUNING

# What may be kept, and what each is called in a folder.
KEPT = {
    "record": ("record.json", "comparison.json", "plan.json", "config.yaml", "sweep.json"),
    "report": ("report.pdf", "report.html"),
    "log": (LOG,),
    "model": ("checkpoints",),
}
# The order in which they go: without the key, coins and noise cannot be drawn again, whatever is left after a kill.
_SECRETS = ("ledger", "scores.parquet", "scores.csv", "losses.parquet", "people.parquet", "runs", "work", "shadow")
_STATE = ("state.json", "trainings.json", "trials.json")
_FINAL = "final"  # within checkpoints, the model itself; the others hold states of the optimizer
_LOST = {
    "ledger": "who was held in; that coins and noise followed from the key whose hash the record names",
    "scores": "the record's numbers from scores (heldin verify, heldin report --scores)",
    "model": "the model behind the record's fingerprint (heldin export)",
}


@dataclass(frozen=True)
class Purged:
    """What a purge would remove, or removed.

    Attributes:
        folders: the folder, and for a sweep its cells.
        removed: files and folders, relative to the folder.
        bytes: their size.
        kept: what stays of what heldin wrote.
        others: what heldin did not write, and leaves.
        unverifiable: what can no longer be verified.
    """

    folders: tuple[Path, ...]
    removed: tuple[str, ...]
    bytes: int
    kept: tuple[str, ...]
    others: tuple[str, ...]
    unverifiable: tuple[str, ...]


def plan_purge(folder: Path, keep: Collection[str]) -> Purged:
    """What a purge of ``folder`` would remove; nothing is changed.

    Args:
        folder: folder of a run, an audit or a sweep.
        keep: what stays, of ``KEPT``.

    Raises:
        InputError: it is none of these, or ``keep`` names something else.
    """
    unknown = sorted(set(keep) - KEPT.keys())
    if unknown:
        raise InputError(f"--keep {unknown[0]}: choose from {', '.join(KEPT)}")
    folders = _folders(folder)
    removed = [path for its in folders for path in _removed(its, keep)]
    known = {name for names in KEPT.values() for name in names} | {*_SECRETS, *_STATE, MARK, "cells", TUNING}
    left = [path for its in folders for path in sorted(its.iterdir()) if path not in removed]
    lost = [_LOST["ledger"]] if any(path.name == "ledger" for path in removed) else []
    lost += [_LOST["scores"]] if any(path.name in _SECRETS[1:] for path in removed) else []
    lost += [_LOST["model"]] if any("checkpoints" in path.parts and path.name != "resume" for path in removed) else []
    return Purged(
        folders,
        tuple(str(path.relative_to(folder)) for path in removed),
        sum(_size(path) for path in removed),
        tuple(str(path.relative_to(folder)) for path in left if path.name in known - {"cells", TUNING}),
        tuple(str(path.relative_to(folder)) for path in left if path.name not in known),
        tuple(lost),
    )


def purge(folder: Path, keep: Collection[str]) -> Purged:
    """Remove it, cell by cell, and mark each folder; a purge that was killed goes on when it is called again.

    Files are unlinked: backups, snapshots and what a disk keeps of erased blocks are beyond it.

    Raises:
        InputError: as ``plan_purge``, or a process works in the folder.
    """
    found = plan_purge(folder, keep)
    with one_process_at_a_time(folder):
        for its in found.folders:
            if its != folder and is_held(its):
                raise InputError(f"a process works on '{its}': wait for it, or stop it")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for its in found.folders:
            # First: a folder with a part of its secrets is no folder to go on with.
            write_text(its / MARK, json.dumps({"purged": now, "kept": sorted(keep)}) + "\n")
            for path in _removed(its, keep):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return found


def _folders(folder: Path) -> tuple[Path, ...]:
    of_its_own = [folder, folder / TUNING]
    cells = sorted(path for its in of_its_own for path in its.glob("cells/*/*") if path.is_dir())
    if (folder / "sweep.json").is_file() or (cells and (folder / MARK).is_file()):
        # The keys of the cells' coins before the cells: each of them says who was held in.
        return (*(its for its in of_its_own if its.is_dir()), *cells)
    if not any((folder / name).exists() for name in ("record.json", "ledger", MARK, *_STATE)):
        raise InputError(f"'{folder}' holds no run, audit or sweep")
    return (folder,)


def _removed(folder: Path, keep: Collection[str]) -> Iterator[Path]:
    """What goes, secrets first."""
    for name in (*_SECRETS, *_STATE):
        if (folder / name).exists():
            yield folder / name
    for what, names in KEPT.items():
        for name in names:
            path = folder / name
            if not path.exists():
                continue
            if what not in keep:
                yield path
            elif what == "model":
                yield from (its for its in sorted(path.iterdir()) if its.name != _FINAL)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def lines(found: Purged, *, done: bool) -> list[str]:
    """What goes and what stays, for a terminal: of a sweep the number of cells."""
    where = f" in {len(found.folders) - 1} cells and the folder itself" if len(found.folders) > 1 else ""
    names = sorted({name.split("/")[3] if name.startswith("cells/") else name for name in found.removed})
    stays = sorted({name.split("/")[3] if name.startswith("cells/") else name for name in found.kept})
    said = [
        f"{'removed' if done else 'would remove'} {found.bytes:,} bytes{where}: {', '.join(names) or 'nothing'}",
        f"{'stays' if done else 'would stay'}: {', '.join(stays) or 'nothing'}",
    ]
    if found.others:
        said.append(f"not heldin's, and left: {', '.join(found.others)}")
    tense = "can no longer be verified" if done else "could no longer be verified"
    said += [f"{tense}: {what}" for what in found.unverifiable]
    return [*said, "the cache has its own command, heldin cache --clear; backups and snapshots are beyond heldin"]
