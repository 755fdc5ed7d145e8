"""List all runs, audits and sweeps in a folder tree: for the terminal, or as a web page with links to the reports.

This module reads documents as plain JSON and builds no records, so thousands of folders take only seconds. The list
names no people.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heldin.audit.decision import Answer
from heldin.base.artefacts import PURGED, OtherSchemaError, read_document
from heldin.base.errors import InputError
from heldin.base.files import is_held
from heldin.base.machine import version
from heldin.base.progress import LOG
from heldin.base.wording import counted
from heldin.bounds.verdict import Outcome
from heldin.record.compare import wrapped
from heldin.record.planted_files import MANIFEST
from heldin.record.sweep import FILE, read_sweep
from heldin.reports.blocks import Block, Paragraph, Report, ReportSection, Small, Table
from heldin.reports.sweep_findings import answer_of_sweep, answer_on_canaries

_DEPTH = 4  # levels of folders of folders of runs
# Any of these is in a folder that heldin has begun to write.
_BEGUN = {LOG, "ledger", PURGED}
_HEAD = ("date", "kind", "answer", "people", "epsilon", "path")
_WIDTHS = (10, 9, 14, 9, 10)  # of all columns but the last
_GAP = 2


class RunState(StrEnum):
    """The state of a folder: finished, or the reason why it has no result."""

    DONE = "done"
    NOT_AUDITED = "not audited"  # a planted set
    UNFINISHED = "unfinished"
    RUNNING = "running"
    PURGED = "purged"
    DAMAGED = "damaged"
    OTHER_VERSION = "other version"


class RunKind(StrEnum):
    """The kind of a folder. The names of a run and of the three kinds of audits are the names in the records."""

    RUN = "run"
    AUDIT = "audit"
    PLANTED = "planted"
    TRAININGS = "trainings"
    SWEEP = "sweep"
    SET = "planted set"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class ListedRun:
    """A folder with a run, an audit, a sweep or a planted set.

    Attributes:
        created: UTC time when the record in the folder was written; None without a record.
        answer: answer on page one; None if there is no answer.
        canaries_leak: whether planted canary users leak, whatever the answer for real users.
        contradicted: whether a claim is contradicted.
        members: number of audited members; None without audited users.
        non_members: number of audited non-members; None without audited users.
        epsilon: epsilon of the training's guarantee; for a sweep, epsilon of the selected variant; None without a
            guarantee.
        unit: unit that the guarantee protects; None without epsilon.
        report: path of the web page, or of the PDF if there is no page; None if there is neither.
        problem: one line with the reason why the folder has no result; None if there is a result.
    """

    path: Path
    kind: RunKind
    state: RunState
    created: str | None = None
    answer: Answer | None = None
    canaries_leak: bool = False
    contradicted: bool = False
    members: int | None = None
    non_members: int | None = None
    epsilon: float | None = None
    unit: str | None = None
    report: Path | None = None
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name; paths are strings."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**named, "path": str(self.path), "report": None if self.report is None else str(self.report)}

    def cells(self, root: Path) -> list[str]:
        """Return the cells of a table row; the path is relative to ``root``."""
        outcome = [self.answer.value if self.answer is not None else self.state.value]
        outcome += ["canary users leak"] if self.canaries_leak else []
        outcome += ["claim contradicted"] if self.contradicted else []
        people = "" if self.members is None else f"{self.members} + {self.non_members}"
        epsilon = "" if self.epsilon is None else f"{self.epsilon:.3g} per {self.unit}"
        path = os.path.relpath(self.path, root)
        return [(self.created or "")[:10], self.kind.value, "; ".join(outcome), people, epsilon, path]


def list_runs(folder: Path) -> list[ListedRun]:
    """Return heldin's results in ``folder`` and its subfolders, the newest first; results without a date come last.

    A sweep is one entry, without its training runs. A damaged or unfinished folder is an entry in that state.

    Raises:
        InputError: the folder does not exist.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder '{folder}': give the folder with your runs")
    rows = sorted(_listed(folder, _DEPTH), key=lambda row: str(row.path))
    return sorted(rows, key=lambda row: row.created or "", reverse=True)


def _listed(folder: Path, depth: int) -> Iterator[ListedRun]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:  # another user's: no run of this one
        return
    if "sweep.json" in names:
        yield _sweep(folder, names)
    elif MANIFEST in names and "ledger" in names:
        audits = [row for name in names if name == "audits" for row in _listed(folder / name, 1)]
        yield from audits or [ListedRun(folder, RunKind.SET, RunState.NOT_AUDITED)]
    elif "record.json" in names:
        yield _finished(folder, names)
    elif _BEGUN & set(names):
        yield _unfinished(folder, names, RunKind.UNKNOWN)
    elif depth:
        for name in names:
            if not name.startswith(".") and (folder / name).is_dir():
                yield from _listed(folder / name, depth - 1)


def _finished(folder: Path, names: Sequence[str]) -> ListedRun:
    try:
        return _of_record(folder, read_document(folder / "record.json"), _report(folder, names))
    except OtherSchemaError as error:
        return ListedRun(folder, RunKind.UNKNOWN, RunState.OTHER_VERSION, problem=str(error))
    except InputError as error:
        return ListedRun(folder, RunKind.UNKNOWN, RunState.DAMAGED, problem=str(error))
    except (KeyError, TypeError, ValueError, AttributeError):
        # Whole by its digest, and no record: nobody but a person can have written it.
        problem = f"'{folder / 'record.json'}' is not a record"
        return ListedRun(folder, RunKind.UNKNOWN, RunState.DAMAGED, problem=problem)


def _of_record(folder: Path, record: dict[str, Any], report: Path | None) -> ListedRun:
    split, training, canaries = record["split"], record["training"], record["canaries"]
    kind = RunKind(record["kind"])
    people = kind is not RunKind.TRAININGS and split["audited"] != "canaries"
    epsilon = None if training is None else training["epsilon"]
    return ListedRun(
        path=folder,
        kind=kind,
        state=RunState.DONE,
        created=datetime.fromisoformat(record["created"]).isoformat(timespec="seconds"),
        answer=Answer(record["decision"]["decision"]["answer"]),
        canaries_leak=canaries is not None and canaries["decision"]["decision"]["answer"] == Answer.LEAKS,
        contradicted=any(verdict["outcome"] == Outcome.CONTRADICTED for verdict in record["judgement"]["verdicts"]),
        members=int(split["held_in"]) if people else None,
        non_members=int(split["held_out"]) if people else None,
        epsilon=None if epsilon is None else float(epsilon),
        unit=None if epsilon is None else str(training["unit"]),
        report=report,
    )


def _sweep(folder: Path, names: Sequence[str]) -> ListedRun:
    if FILE not in names:
        return _unfinished(folder, names, RunKind.SWEEP)
    try:
        result = read_sweep(folder)
    except OtherSchemaError as error:
        return ListedRun(folder, RunKind.SWEEP, RunState.OTHER_VERSION, problem=str(error))
    except InputError as error:
        return ListedRun(folder, RunKind.SWEEP, RunState.DAMAGED, problem=str(error))
    selected = result.shipping.variant if result.shipping is not None else None
    asked = [variant.name for variant in result.variants] if selected is None else [selected]
    first = next((cell for cell in result.cells if cell.held_in is not None), None)
    epsilon, unit = next(((v.epsilon, v.unit) for v in result.variants if v.name == selected), (None, None))
    return ListedRun(
        path=folder,
        kind=RunKind.SWEEP,
        state=RunState.UNFINISHED if any(cell.missing for cell in result.cells) else RunState.DONE,
        created=result.created,
        answer=answer_of_sweep(result),
        canaries_leak=any(answer_on_canaries(result, name) is Answer.LEAKS for name in asked),
        contradicted=result.tuning_contradicted or any(variant.jointly_contradicted for variant in result.variants),
        members=None if first is None else first.held_in,
        non_members=None if first is None else first.held_out,
        epsilon=epsilon,
        unit=None if epsilon is None else unit,
        report=_report(folder, names),
    )


def _unfinished(folder: Path, names: Sequence[str], kind: RunKind) -> ListedRun:
    if PURGED in names:
        return ListedRun(folder, kind, RunState.PURGED, report=_report(folder, names))
    return ListedRun(folder, kind, RunState.RUNNING if is_held(folder) else RunState.UNFINISHED)


def _report(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in ("report.html", "report.pdf") if name in names), None)


def runs_table(runs: Sequence[ListedRun], folder: Path, width: int) -> str:
    """Return a table at most ``width`` characters wide, followed by the problems of damaged folders."""
    if not runs:
        return f"no runs in '{folder}'"
    last = width - sum(_WIDTHS) - _GAP * len(_WIDTHS)
    rows = [line for row in (_HEAD, *(run.cells(folder) for run in runs)) for line in wrapped(row, (*_WIDTHS, last))]
    problems = [line for run in runs if run.problem for line in wrapped((f"problem: {run.problem}",), (width,))]
    return "\n".join([*rows, *problems, *wrapped((summary(runs, folder),), (width,))])


def summary(runs: Sequence[ListedRun], folder: Path) -> str:
    """Return the number of folders in each state."""
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{states[state]:,} {state.value}" for state in RunState if states[state])
    return f"{counted(len(runs), 'folder')} in '{folder}'{f': {counts}' if counts else ''}"


def runs_page(runs: Sequence[ListedRun], folder: Path) -> Report:
    """Return a page with links to the reports in its first column. The addresses are relative to ``folder``."""
    order = (len(_HEAD) - 1, *range(len(_HEAD) - 1))
    rows = [[run.cells(folder)[i] for i in order] for run in runs]
    links = ["" if run.report is None else quote(os.path.relpath(run.report, folder)) for run in runs]
    blocks: list[Block] = [
        Paragraph(summary(runs, folder)),
        Table([_HEAD[i] for i in order], rows, links=links),
        Small("People: audited members and non-members. Epsilon: of the guarantee of the training."),
        *(Small(run.problem) for run in runs if run.problem),
    ]
    return Report("Runs and audits", version(), "Internal: do not publish.", [ReportSection("runs", "", blocks)])
