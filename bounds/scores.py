"""Scores joined to membership: the input of every bound. No score is dropped, and no user is counted twice."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import ConstantScores, InputError, TooFewUsers
from heldin.base.wording import counted
from heldin.words.evidence import Refusal


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Scores and membership of m users (or m independent trainings). A higher score means more likely a member.

    Attributes:
        scores: scores, shape (m,), finite.
        member: whether each user is a member, shape (m,).
        users: names for messages, shape (m,); None: messages use row numbers.

    Raises:
        InputError: lengths differ, a score is NaN or infinite (the message names the user), or a user occurs twice.
        TooFewUsers: there is only one group.
        ConstantScores: all scores are equal.
    """

    scores: NDArray[np.float64]
    member: NDArray[np.bool_]
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.scores.ndim != 1 or self.scores.shape != self.member.shape:
            raise InputError(
                f"scores have shape {self.scores.shape}, but membership has shape {self.member.shape}: give one"
                " score and one membership per user"
            )
        names = self.users
        if names is not None and len(names) != self.scores.size:
            raise InputError(f"{len(names)} users but {self.scores.size} scores: give one score per user")
        if names is not None and len(set(names)) != len(names):
            raise InputError("a user has two scores: give one score per user")
        # To drop a user would change m, which every bound counts, by what the model says of that user.
        bad = np.flatnonzero(~np.isfinite(self.scores))
        if bad.size:
            raise InputError(
                f"the score in row {bad[0]} is {self.scores[bad[0]]}, not a finite number: score this user again"
            )
        if self.member.all() or not self.member.any():
            raise TooFewUsers((Refusal.NOBODY_HELD_OUT if self.member.any() else Refusal.NOBODY_HELD_IN)())
        # Guesses on equal scores are coin flips of the auditor: no test has anything to look at.
        if self.scores.min() == self.scores.max():
            raise ConstantScores(Refusal.ALL_EQUAL(scores=self.scores.size, value=float(self.scores[0])))

    @property
    def held_in(self) -> NDArray[np.float64]:
        """Scores of members, shape (n1,)."""
        return self.scores[self.member]

    @property
    def held_out(self) -> NDArray[np.float64]:
        """Scores of non-members, shape (n0,)."""
        return self.scores[~self.member]


def labelled(held_in: NDArray[np.float64], held_out: NDArray[np.float64]) -> LabelledScores:
    """Join two groups of scores, shapes (n1,) and (n0,), with members first."""
    member = np.concatenate([np.ones(held_in.size, dtype=np.bool_), np.zeros(held_out.size, dtype=np.bool_)])
    return LabelledScores(np.concatenate([held_in, held_out]).astype(np.float64), member)


def join(scores: Mapping[str, float], members: Set[str], non_members: Set[str]) -> LabelledScores:
    """Join scores to membership by user name, sorted by name.

    Raises InputError if a user is in both groups, or has a score without membership or membership without a score.
    """
    # Two coins for one name: no theorem has such a unit.
    both = sorted(members & non_members)
    if both:
        raise InputError(f"{counted(len(both), 'user')} in both groups: put each user in one group only")
    known = members | non_members
    stray = sorted(set(scores) - known)
    if stray:
        raise InputError(
            f"the membership of {counted(len(stray), 'user')} with a score is missing: give the membership of"
            " every user"
        )
    missing = sorted(known - set(scores))
    if missing:
        raise InputError(f"the score of {counted(len(missing), 'user')} with membership is missing: score every user")
    # By name: ties are broken by place, which must not depend on the order of scoring.
    users = tuple(sorted(scores))
    values = np.array([scores[user] for user in users], dtype=np.float64)
    return LabelledScores(values, np.array([user in members for user in users], dtype=np.bool_), users)


def check_alpha(alpha: float, attacks: int = 1) -> float:
    """Return the error probability of each of ``attacks`` attacks: alpha / attacks (Bonferroni).

    Raises InputError unless 0 < alpha < 1 and attacks >= 1.
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"error level {alpha} is outside (0, 1): give a number such as 0.05 (95 % confidence)")
    if attacks < 1:
        raise InputError(f"a bound for {attacks} attacks is impossible: give at least one attack")
    return alpha / attacks


def check_bound_delta(delta: float) -> None:
    """Raise InputError unless 0 <= delta < 1 (0 is pure differential privacy)."""
    if not 0.0 <= delta < 1.0:
        raise InputError(f"delta {delta} is outside [0, 1): choose a delta below 1 / number of users")
