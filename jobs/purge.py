"""Remove the secrets of a finished run, audit or sweep: keys, ledgers, scores, weights. Results remain readable.

heldin deletes only files with its own names, in folders with content that heldin wrote, and never follows links.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heldin.audit.exposed_users import PEOPLE
from heldin.base.artefacts import INDEX, PURGED, TABLE, listed_files
from heldin.base.errors import InputError
from heldin.base.files import is_held, one_process_at_a_time, read_json, write_text
from heldin.base.progress import LOG
from heldin.jobs.retraining import OPTIONS
from heldin.record.document import read_record
from heldin.record.planted_files import AUDITS, CONTROL, MANIFEST, SEAL, TRAINING
from heldin.record.planted_files import LOG as TRAINING_LOG
from heldin.record.sweep import TUNING
from heldin.stages.families import KINDS
from heldin.stages.measures.tables import SHADOW, tables_in
from heldin.stages.run_folder import TENSORBOARD, TRACKERS
from heldin.stages.train.previous import KEPT as PREVIOUS

# What may be kept, and what each is called in a folder.
KEPT = {
    "record": (
        "record.json",
        "comparison.json",
        "plan.json",
        PREVIOUS,
        "config.yaml",
        KINDS,
        "sweep.json",
        "seconds.json",
        MANIFEST,
    ),
    "report": ("report.pdf", "report.html"),
    "log": (LOG, TRACKERS, TENSORBOARD),
    "model": ("checkpoints",),
}
# The order in which they go: without the key, coins and noise cannot be drawn again, whatever is left after a kill.
_SECRETS = ("ledger", "scores.csv", TRAINING_LOG, SHADOW)
_OF_TRAININGS = ("runs", "work")
_OF_PLANTED = (TRAINING,)  # whoever compares it with the corpus sees who is held in
_OF_SWEEPS = ("shared", "progress")  # copies of corpus and models for the machines of a cluster; what processes said
_STATE = ("state.json", OPTIONS, INDEX)
_FINAL = "final"  # within checkpoints, the model itself; the others hold states of the optimizer
_LEDGERS = ("ledger.json", "cell.json", "key", SEAL)
_LOST = {
    "ledger": "who was a member; that coins and noise came from the key whose hash is in the record",
    "scores": "the record's numbers that depend on scores (heldin verify, heldin report --scores)",
    "model": "the model behind the record's fingerprint (heldin export)",
}


@dataclass(frozen=True)
class Purged:
    """The files that a purge removed, or would remove.

    Attributes:
        folders: the folder; for a sweep, also its tuning folders and the folders of its cells.
        removed: files and folders to remove, as paths relative to the folder.
        kept: files that heldin wrote and keeps.
        others: files that heldin did not write, and does not remove.
        unverifiable: results that can no longer be verified.
    """

    folders: tuple[Path, ...]
    removed: tuple[str, ...]
    bytes: int
    kept: tuple[str, ...]
    others: tuple[str, ...]
    unverifiable: tuple[str, ...]


def plan_purge(folder: Path, keep: Collection[str]) -> Purged:
    """Return the files that a purge of ``folder`` would remove. Changes no file.

    Args:
        folder: folder of a run, an audit, a planted training set or a sweep.
        keep: types of files to keep, from ``KEPT``.

    Raises:
        InputError: the folder has another type, it is a cell of a sweep, or ``keep`` has an unknown type.
    """
    unknown = sorted(set(keep) - KEPT.keys())
    if unknown:
        raise InputError(f"--keep {unknown[0]}: choose from {', '.join(KEPT)}")
    folders = _folders(folder)
    removed = [path for place in folders for path in _removed(place, keep)]
    mine = {name for names in KEPT.values() for name in names} | {PURGED}
    left = [
        path
        for place in folders
        for path in sorted(place.iterdir())
        if path not in removed and path not in folders and path.name not in ("cells", TUNING, AUDITS)
    ]
    return Purged(
        folders,
        tuple(str(path.relative_to(folder)) for path in removed),
        sum(_size(path) for path in removed),
        tuple(str(path.relative_to(folder)) for path in left if path.name in mine),
        tuple(str(path.relative_to(folder)) for path in left if path.name not in mine),
        _lost_with({path.name for path in removed}),
    )


def _lost_with(gone: Collection[str]) -> tuple[str, ...]:
    """Return the results that nobody can verify without these types of files."""
    scores = any(name in (*_SECRETS[1:], *_OF_TRAININGS) or name.endswith(TABLE) for name in gone)
    lost = {"ledger": "ledger" in gone, "scores": scores, "model": "checkpoints" in gone}
    return tuple(_LOST[name] for name, is_lost in lost.items() if is_lost)


def purge(folder: Path, keep: Collection[str]) -> Purged:
    """Remove the secrets of each folder in turn, and mark the folder as purged. After a kill, call this function again
    to continue.

    ``purge`` unlinks files; backups, snapshots and a disk's erased blocks may still contain them.

    Raises:
        InputError: ``plan_purge`` raises, or a process is working in the folder.
    """
    plan = plan_purge(folder, keep)
    with one_process_at_a_time(folder):
        for place in plan.folders:
            if place != folder and is_held(place):
                raise InputError(f"a process is working on '{place}': wait for this process, or stop this process")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for place in plan.folders:
            # First: a folder with a part of its secrets is no folder to go on with.
            # What it is, too, since a purge that is killed takes that with the ledger.
            marks = {"planted": True} if _is_planted(place) else {}
            write_text(place / PURGED, json.dumps({"purged": now, "kept": sorted(keep), **marks}) + "\n")
            for path in list(_removed(place, keep)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return plan


def _folders(folder: Path) -> tuple[Path, ...]:
    above = folder.resolve().parents
    if (folder / "ledger" / "cell.json").is_file() and len(above) > 2 and (above[2] / "sweep.json").is_file():
        raise InputError(
            f"'{folder}' is a cell of the sweep '{above[2]}', and shares its coins with other cells: purge the sweep"
        )
    own = [place for place in (folder, folder / TUNING) if _is_sweep(place)]
    if own:
        # The keys of the cells' coins before the cells: each of them says who was held in.
        cells = [path for place in own for path in sorted(place.glob("cells/*/*")) if path.is_dir()]
        return (*dict.fromkeys((folder, *own)), *(path for path in cells if not path.is_symlink()))
    if not _is_run_or_audit(folder):
        raise InputError(
            f"'{folder}' is not the folder of a run, audit, planted training set or sweep: name another folder"
        )
    audits = sorted(path for path in folder.glob(f"{AUDITS}/*") if path.is_dir() and not path.is_symlink())
    return (folder, *(audits if _is_planted(folder) else ()))


def _is_sweep(folder: Path) -> bool:
    if folder.is_symlink():
        return False
    # Where the plan was not kept, the mark and the folder of the cells are left.
    return "cells" in _content(folder / "sweep.json") or (
        "purged" in _content(folder / PURGED) and (folder / "cells").is_dir()
    )


def _is_planted(folder: Path) -> bool:
    return (
        "heldin" in _content(folder / MANIFEST)
        or "planted" in _content(folder / PURGED)
        or (folder / "ledger" / SEAL).is_file()
    )


def _is_run_or_audit(folder: Path) -> bool:
    if "purged" in _content(folder / PURGED) or _is_of_trainings(folder):
        return True
    if any((folder / "ledger" / name).is_file() for name in _LEDGERS):
        return True
    # An audit that was interrupted leaves its tables.
    if any((folder / name).is_file() for name in _listed_tables(folder)):
        return True
    try:
        read_record(folder / "record.json", checked=False)
    except InputError:
        return False
    return True


def _is_of_trainings(folder: Path) -> bool:
    return {"config", "options"} <= set(_content(folder / OPTIONS))


def _content(path: Path) -> dict[str, object]:
    """Return the JSON object in a file; empty if the file contains no object."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _removed(folder: Path, keep: Collection[str]) -> Iterator[Path]:
    """Yield the paths to remove, secrets first. The paths include temporary files of killed processes."""
    trainings = _OF_TRAININGS if _is_of_trainings(folder) else ()
    batch = _OF_SWEEPS if _is_sweep(folder) or _is_sweep(folder / TUNING) else ()
    planted = _OF_PLANTED if _is_planted(folder) else ()
    gone = [
        *_SECRETS,
        # Each measure's table, as measures declare them and as the list of artefacts has them, which may be lost.
        *dict.fromkeys((PEOPLE, CONTROL, *tables_in(folder), *_listed_tables(folder))),
        *trainings,
        *planted,
        *batch,
        *_STATE,
        *(n for kind, names in KEPT.items() if kind not in keep for n in names),
    ]
    for name in gone:
        if (folder / name).is_symlink() or (folder / name).exists():
            yield folder / name
    checkpoints = folder / "checkpoints"
    if "model" in keep and checkpoints.is_dir() and not checkpoints.is_symlink():
        yield from (path for path in sorted(checkpoints.iterdir()) if path.name != _FINAL)
    named = (*gone, *(n for names in KEPT.values() for n in names))
    yield from sorted({path for name in named for path in folder.glob(f".{name}.*.tmp")})


def _listed_tables(folder: Path) -> list[str]:
    return [name for name in listed_files(folder) if name.endswith(TABLE)]


def _size(path: Path) -> int:
    if path.is_symlink():
        return 0
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def lines(purged: Purged, *, done: bool) -> list[str]:
    """Return lines for a terminal about removed and kept files; a name that occurs in many cells is listed once."""
    where = f" in {len(purged.folders)} folders" if len(purged.folders) > 1 else ""

    def names(paths: tuple[str, ...]) -> str:
        # Of each path the part within its own folder, the innermost of those that hold it.
        own = set()
        for path in (purged.folders[0] / name for name in paths):
            holder = max(
                (place for place in purged.folders if path.is_relative_to(place)), key=lambda place: len(place.parts)
            )
            own.add(str(path.relative_to(holder)))
        return ", ".join(sorted(own)) or "nothing"

    output = [
        f"{'removed' if done else 'would remove'} {purged.bytes:,} bytes{where}: {names(purged.removed)}",
        f"{'stays' if done else 'would stay'}: {names(purged.kept)}",
    ]
    if purged.others:
        output.append(f"kept, because heldin did not write them: {', '.join(purged.others)}")
    tense = "can no longer be verified" if done else "could no longer be verified"
    output += [f"{tense}: {loss}" for loss in purged.unverifiable]
    if _is_planted(purged.folders[0]):
        output.append("audits in other folders (--out) contain scores too: purge each of them")
    return [*output, "clear the cache with heldin cache --clear; delete backups and snapshots yourself"]
