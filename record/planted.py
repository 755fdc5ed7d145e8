"""The parts of a record about a training set that heldin planted, and what a certified statement about it rests on."""

from collections.abc import Iterable
from typing import Literal

from heldin.base.facts import Facts
from heldin.base.wording import counted

UNDECLARED = "nobody has declared it"  # the whole note of a condition that heldin cannot check


class Condition(Facts):
    """A condition of a certified statement.

    Attributes:
        condition: what must hold.
        known_by: checked by heldin, declared by the person who signs, or not met.
        note: how it was checked, who declared it, or why it is not met.
    """

    condition: str
    known_by: Literal["checked", "declared", "not met"]
    note: str


class PlantedFacts(Facts):
    """A training set that heldin planted, on which somebody else trained.

    Attributes:
        planted: time at which it was written, UTC.
        plan: hash of everything about the audit that was fixed before the coins.
        training_set: hash of the training set.
        rows: number of its rows.
        skipped: rows of the original that could not be used.
        look: number of this look at a checkpoint, from 1.
        looks: number of looks that were paid for beforehand.
        declared_by: who declared what the model was trained on; null: nobody.
        conditions: of certified statements, each with how it is known.
    """

    planted: str
    plan: str
    training_set: str
    rows: int
    skipped: int
    look: int
    looks: int
    declared_by: str | None
    conditions: list[Condition]


def unmet(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Why nothing is certified, in words; empty if every condition is checked or declared."""
    left = [its for its in conditions if its.known_by == "not met"]
    said = [f"{its.note} (condition: {its.condition})" for its in left if its.note != UNDECLARED]
    # Counted here, since every verdict and note says this; each stands in full among the conditions.
    if undeclared := len(left) - len(said):
        which = counted(undeclared, "condition")
        said.append(f"nobody has declared {which} that heldin cannot check (--declared-by NAME declares them)")
    return tuple(said)
