"""The finished cells of a sweep, with their records and owner-only files, and which of them can be compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heldin.audit.exposed_users import PEOPLE, Exposed, read_people
from heldin.audit.utility import UserLoss
from heldin.base.artefacts import TABLE, State, listed_files, state_of
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.bounds.roc import Scores, auroc
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import Record, masked, read_record
from heldin.stages.measures.tables import LOSSES, SCORES, read_losses
from heldin.stages.run_config import RunConfig
from heldin.sweeps.sweep_config import PlacedCell


@dataclass(frozen=True, eq=False)
class Finished:
    """A cell that has a record, with its owner-only files.

    Attributes:
        users: names of the n audited users.
        scores: score of each user by the primary attack, shape (n,).
        member: whether each user is a member, shape (n,).
        losses: losses of each non-member.
        people: the members; empty if only entities are audited.
    """

    cell: PlacedCell
    record: Record
    users: tuple[str, ...]
    scores: Scores
    member: np.ndarray
    losses: Mapping[str, UserLoss]
    people: tuple[Exposed, ...]

    @property
    def auroc(self) -> float:
        """AUROC of the primary attack. It is unrounded, because similar models would not differ at a record's three
        decimals."""
        return auroc(*self.sides)

    @property
    def loss(self) -> float | None:
        """Mean over non-members of the loss on their test texts, unrounded; None if the record has no loss."""
        if self.record.utility is None:
            return None
        return float(np.mean([user.loss for user in self.losses.values()]))

    @property
    def sides(self) -> tuple[Scores, Scores]:
        """Scores of members and scores of non-members."""
        return self.scores[self.member], self.scores[~self.member]


def is_finished(folder: Path) -> bool:
    """Return whether a cell has a record and unchanged tables. Otherwise ``heldin run`` makes them again.

    This function does not check the ledger and the model, because no command makes a ledger again.
    """
    try:
        record = read_record(folder / "record.json")
    except InputError:
        return False
    required = {SCORES} if record.utility is None else {SCORES, LOSSES}
    there = {*listed_files(folder), *(path.name for path in folder.iterdir())}
    tables = {*required, *(name for name in there if name.endswith(TABLE))}
    return all(state_of(folder / name) is State.WHOLE for name in tables)


def finished_cells(
    cells: Sequence[PlacedCell], plan: str, reporter: Reporter
) -> tuple[dict[str, Finished], dict[str, str]]:
    """Return the comparable cells by name, and the problem of each other cell that has a record.

    Args:
        cells: cells of a sweep, in order.
        plan: hash of the plan; every record must contain this hash.
    """
    finished: dict[str, Finished] = {}
    problems: dict[str, str] = {}
    with reporter.track("comparison", len(cells), "cells") as advance:
        for cell in cells:
            if (cell.folder / "record.json").is_file():
                try:
                    finished[cell.name] = read_finished(cell)
                except InputError as error:
                    problems[cell.name] = str(error)
            advance(1)
    problems |= _problems(finished, plan)
    return {name: cell for name, cell in finished.items() if name not in problems}, problems


def read_finished(cell: PlacedCell) -> Finished:
    """Read the record and the scores of a finished cell."""
    record = read_record(cell.folder / "record.json")
    scores = leading_scores(cell.folder)
    people = cell.folder / PEOPLE
    return Finished(
        cell,
        record,
        tuple(score.user for score in scores),
        np.array([score.score for score in scores]),
        np.array([score.member for score in scores], dtype=np.bool_),
        read_losses(cell.folder),
        tuple(read_people(people)) if people.is_file() else (),
    )


def _problems(finished: Mapping[str, Finished], plan: str) -> dict[str, str]:
    """Return, for each cell that must not share coins, the condition that it violates
    (docs/theory.md#cells-that-share-coins)."""
    problems: dict[str, str] = {}
    models = {cell.record.target.fingerprint: name for name, cell in finished.items()}
    keys = Counter(cell.record.split.key_commitment for cell in finished.values())
    # Of the first cell of each kind: the others must agree with it.
    seen: dict[tuple[str, str], tuple[str | None, str]] = {}
    for name, cell in finished.items():
        record, where, placed = cell.record, cell.record.cell, cell.cell
        if where is None or (where.sweep, where.block, where.variant) != (plan, placed.block, placed.variant.name):
            problems[name] = (
                "the record has another plan, and this plan was not fixed before the coins: remove the cell's folder"
            )
            continue
        stated = masked(placed.config.model_dump(mode="json"))
        if record.config != stated:
            problems[name] = "the record has a config that differs from the sweep's plan: remove the cell's folder"
            continue
        if keys[record.split.key_commitment] > 1:
            problems[name] = (
                "the training had the key of another cell, so the two cells differ by un-noised data: remove the"
                " cell's folder"
            )
            continue
        source = models.get(record.reference.fingerprint, name)
        if source != name:
            problems[name] = (
                f"the cell was scored with the model of cell {source}, but the two cells share coins:"
                " remove the cell's folder"
            )
            continue
        # Named alike, made alike: a file or folder that changed meanwhile makes another comparison.
        same = (
            ("has coins that differ from", f"{where.block}/{where.group}", record.split.ledger_commitment),
            ("has a corpus that differs from", placed.config.corpus.model_dump_json(), record.corpus.fingerprint),
            ("has a reference model that differs from", _reference_of(placed.config), record.reference.fingerprint),
        )
        for relation, key, value in same:
            first, other = seen.setdefault((relation, key), (value, name))
            if first != value:
                problems[name] = (
                    f"the cell {relation} cell {other}'s: remove the cell's folder, or start the sweep in a new folder"
                )
    return problems


def _reference_of(config: RunConfig) -> str:
    """Return the settings that determine the primary reference model."""
    named = config.attack.reference
    return named or f"{config.seed} {config.corpus.model_dump_json()} {config.model.model_dump_json()}"
