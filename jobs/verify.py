"""Recompute every number of a record from scores, ledger and plan, and report the differences.

No model runs. heldin trusts the scores if their models and texts match the models and texts of the record. Only
training could reproduce the loss curves, so heldin compares them with the checkpoint's log.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.artefacts import State, listed_files, require_not_purged, state_of_file
from heldin.base.progress import Reporter
from heldin.jobs.checkpoint.audit import audit_again
from heldin.jobs.retraining.engine import body_again
from heldin.jobs.run import run_again
from heldin.record.differences import Difference, compared
from heldin.record.document import MEASURES, Body, read_record
from heldin.stages.families import require_same_code

NOT_RECOMPUTED = ("the scores themselves (no model is run)", "names, times, command and environment")
OF_MEASURES = {"extraction": "the probabilities of extraction, and which texts also occur elsewhere (no model is run)"}
ALSO_NOT_RECOMPUTED = {
    "run": (
        "the loss curves, except by comparison with the checkpoint's log",
        "gradient norms of canary users' records",
    ),
    "audit": ("the facts about the models",),
    "planted": (),
    "trainings": (),
}
# An audited model may be gone, or be behind an endpoint that costs money.
_TAKEN_AS_THEY_ARE = {
    "run": (),
    "audit": ("target", "reference", "per_text"),
    "planted": (),
    "trainings": (),
}


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        by_digest: files whose digest is unchanged.
        changed: files that have changed or are missing.
        not_checked: all other files, which heldin did not compare.
        not_recomputed: descriptions of the results that heldin did not recompute.
    """

    compared: int
    differences: tuple[Difference, ...]
    by_digest: tuple[str, ...]
    changed: tuple[str, ...]
    not_checked: tuple[str, ...]
    not_recomputed: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Return whether nothing differs."""
        return not (self.differences or self.changed)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        files = {name: list(getattr(self, name)) for name in ("by_digest", "changed", "not_checked", "not_recomputed")}
        differences = [vars(difference) for difference in self.differences]
        return {"agrees": self.agrees, "compared": self.compared, "differences": differences, **files}


def verify(folder: Path, reporter: Reporter) -> Verification:
    """Recompute ``folder``'s record, and compare the other files with their digests.

    Raises:
        InputError: the folder has no record; a file that the record needs is missing, damaged, or belongs to another
            run; or the code of a package in the config changed after the record was made.
    """
    record = read_record(folder / "record.json", checked=False)
    require_not_purged(folder)
    require_same_code(record.kinds)
    match record.kind:
        case "run":
            again = run_again(folder, reporter)
        case "audit":
            again = audit_again(folder, record, reporter)
        case "planted":
            # By name: audits of planted sets build on jobs, which do not import them.
            again = importlib.import_module("heldin.planting.audit").planted_again(folder, record, reporter)
        case "trainings":
            again = body_again(folder, reporter)
    # Every field of the body by default: a new one is compared without anybody thinking of it.
    names = list(Body.model_fields)
    for name in _TAKEN_AS_THEY_ARE[record.kind]:
        names.remove(name)
    parts = [compared(name, getattr(record, name), getattr(again, name)) for name in names]
    states = _states(folder)
    of_state = {state: tuple(name for name, file_state in states.items() if file_state is state) for state in State}
    return Verification(
        sum(count for count, _ in parts),
        tuple(difference for _, differences in parts for difference in differences),
        of_state[State.WHOLE],
        (*of_state[State.CHANGED], *of_state[State.ABSENT]),
        of_state[State.UNLISTED],
        (
            *NOT_RECOMPUTED,
            *ALSO_NOT_RECOMPUTED[record.kind],
            *(_of_measure(name) for name in record.measures if name in OF_MEASURES or name not in MEASURES),
        ),
    )


def _of_measure(name: str) -> str:
    return OF_MEASURES.get(name, f"the values of {name} (no model is run)")


def _states(folder: Path) -> dict[str, State]:
    """Return the state of every file and link in a folder and its subfolders, by relative path."""
    states: dict[str, State] = {}
    for path in sorted((folder, *folder.rglob("*"))):
        if path.is_symlink():
            states[path.relative_to(folder).as_posix()] = State.UNLISTED
        elif path.is_dir():
            lost = (path / name for name in listed_files(path) if not (path / name).exists())
            states |= {file.relative_to(folder).as_posix(): State.ABSENT for file in lost}
        else:
            states[path.relative_to(folder).as_posix()] = state_of_file(path)
    return states


def table(verification: Verification) -> str:
    """Return the result as plain text."""
    lines = [f"{verification.compared} values compared, {len(verification.differences)} differ"]
    lines += [f"  {difference.line()}" for difference in verification.differences]
    lines += [f"changed since it was written: {name}" for name in verification.changed]
    if verification.by_digest:
        lines.append(f"compared by digest: {', '.join(verification.by_digest)}")
    if verification.not_checked:
        lines.append(f"not checked: {', '.join(verification.not_checked)}")
    return "\n".join([*lines, *(f"not recomputed: {item}" for item in verification.not_recomputed)])
