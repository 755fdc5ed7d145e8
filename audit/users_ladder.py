"""The published ladder of users: the share of plain training's gain that user-level privacy kept, by number of users.

The numbers are in ``users_ladder.yaml``, which ``python -m replication users`` writes, and docs/users.md prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from heldin.audit.blocks import Summary, over_blocks
from heldin.base.section import LARGEST, Count, NotNegative, Positive, Section
from heldin.base.yaml_files import read_yaml
from heldin.words.statement import Statement
from heldin.words.users_ladder import Ladder

FILE = Path(__file__).with_suffix(".yaml")
PLAIN = "plain"
HALF, TOLERABLE = 0.5, 0.75  # shares of the plain gain


class Trained(Section):
    """All trainings of one kind for one number of users, with one training for each block."""

    users: Count
    """Number of users. The accountant uses this number as the population."""
    training: str
    """Kind of training: plain, uls or banded."""
    optimizer: str = "Adam"
    """Optimizer: Adam, or momentum (sgd with momentum 0.9)."""
    epsilon: Positive | None
    """Epsilon of the plan; null: plain training."""
    noise_multiplier: NotNegative
    """Noise multiplier of the plan."""
    bands: Count = 1
    """Number of groups of users. The steps draw from the groups in turn."""
    gains: tuple[Annotated[float, Field(ge=-LARGEST, le=LARGEST)], ...]
    """For each block, loss of the base model minus loss of the trained model on non-members' test texts, in nats per
    token.
    """
    aurocs: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    """For each block, AUROC of the primary attack on fresh texts."""


@dataclass(frozen=True)
class Kept:
    """Private trainings of the ladder, and the share that they kept of the gain of plain training at the same rung.

    Attributes:
        trained: the private trainings.
        share: mean over the blocks, with a 95 % interval.
    """

    trained: Trained
    share: Summary

    def at_least(self, share: float) -> bool:
        """Return whether the lower 95 % limit is at least this share."""
        return self.share.lower is not None and self.share.lower >= share


@dataclass(frozen=True)
class LeastUsers:
    """The smallest rung of the ladder that kept a share of the plain gain.

    Attributes:
        training: uls or banded.
        epsilon: epsilon of the training.
        share: the share of the gain of plain training.
        users: number of users of the rung; None: no rung kept the share.
        optimizer: optimizer of that rung's training; None: no rung kept the share.
        largest: number of users of the largest rung with such a training.
    """

    training: str
    epsilon: float
    share: float
    users: int | None
    optimizer: str | None
    largest: int

    def statement(self) -> Statement:
        """Return the finding as a statement."""
        values = {"percent": 100 * self.share, "training": self.training, "epsilon": self.epsilon}
        if self.users is None:
            return Ladder.NOT_KEPT(**values, largest=self.largest)
        return Ladder.KEPT(**values, users=self.users, optimizer=self.optimizer)


def read_ladder(file: Path = FILE) -> tuple[Trained, ...]:
    """Return the published trainings."""
    return TypeAdapter(tuple[Trained, ...]).validate_python(read_yaml(file))


def kept(ladder: Sequence[Trained]) -> tuple[Kept, ...]:
    """Return the private trainings, each with the share that it kept of the gain of plain training at its rung."""
    plain = {row.users: row.gains for row in ladder if row.training == PLAIN}
    return tuple(
        Kept(row, over_blocks([own / most for own, most in zip(row.gains, plain[row.users], strict=True)]))
        for row in ladder
        if row.training != PLAIN
    )


def least_users(ladder: Sequence[Trained]) -> tuple[LeastUsers, ...]:
    """Return, for each training and epsilon, the smallest rungs that kept half and three quarters of the plain gain.

    Of several optimizers, the one that needed the fewest users counts.
    """
    rows = sorted(kept(ladder), key=lambda row: row.trained.users)
    by_kind: dict[tuple[str, float], list[Kept]] = {}
    for row in rows:
        assert row.trained.epsilon is not None
        by_kind.setdefault((row.trained.training, row.trained.epsilon), []).append(row)
    return tuple(
        _least(training, epsilon, share, own)
        for (training, epsilon), own in by_kind.items()
        for share in (HALF, TOLERABLE)
    )


def _least(training: str, epsilon: float, share: float, rows: Sequence[Kept]) -> LeastUsers:
    first = next((row.trained for row in rows if row.at_least(share)), None)
    users, optimizer = (first.users, first.optimizer) if first else (None, None)
    return LeastUsers(training, epsilon, share, users, optimizer, rows[-1].trained.users)


def least_table(least: Sequence[LeastUsers]) -> str:
    """Return the smallest rungs as plain text, a line for each."""
    return "\n".join([str(Ladder.OPENING()), *(f"  {rung.statement()}" for rung in least)])
