"""Users' scores joined to membership. Only this module turns text scores into user scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import AGGREGATIONS, RULES, Dial, TextStatistic
from heldin.base.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoredUsers:
    """n users, their membership, and every attack's statistic of each of their texts.

    Attributes:
        users: names, in the order of all arrays.
        member: whether each user is a member, shape (n,).
        texts: for each attack and changed dial, the user's index and the statistic of every text, shape (t,) each,
            sorted by user.
    """

    users: tuple[str, ...]
    member: NDArray[np.bool_]
    texts: Mapping[tuple[str, Dial | None], tuple[NDArray[np.intp], Array]]

    @property
    def attacks(self) -> tuple[tuple[str, Dial | None], ...]:
        """The attacks with their changed dials, in the order of scoring."""
        return tuple(self.texts)

    def has(self, attack: str) -> bool:
        """Return whether the attack was scored with no dial changed."""
        return (attack, None) in self.texts

    def scores(self, attack: str, aggregation: str = "mean", dial: Dial | None = None) -> Array:
        """Return the score of every user, shape (n,); higher means more likely a member.

        Raises InputError for an attack that was not scored, an unknown aggregation, a user without a text, or a score
        that is not finite. The message gives the user's position in the order of names.
        """
        scores = self.lifted(attack, aggregation, dial)
        # Refused, not dropped: whether a score is finite may depend on the coins, and who is scored must not
        # (docs/theory.md#randomisation-test).
        bad = np.flatnonzero(~np.isfinite(scores))
        if not bad.size:
            return scores
        if (self.texts[attack, dial][0] == bad[0]).any():
            raise InputError(
                f"attack '{attack}': the score of user number {bad[0] + 1}, in the order of names, is"
                f" {scores[bad[0]]}, not a finite number. Score this user again"
            )
        raise InputError(f"attack '{attack}' has no score for {bad.size} of {len(self.users)} users: score every user")

    def sides(self, attack: str, aggregation: str = "mean") -> tuple[Array, Array]:
        """Return the scores of members and of non-members, shapes (n1,) and (n0,)."""
        return self.split(self.scores(attack, aggregation))

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return the values, shape (n,), of members and of non-members, shapes (n1,) and (n0,)."""
        return values[self.member], values[~self.member]

    def lifted(self, attack: str, aggregation: str = "mean", dial: Dial | None = None) -> Array:
        """Return ``scores``, with NaN for users without a text."""
        if aggregation not in RULES:
            raise InputError(f"unknown aggregation '{aggregation}': choose from {', '.join(AGGREGATIONS)}")
        if (attack, dial) not in self.texts:
            raise InputError(
                f"attack '{attack}' has no score for any of {len(self.users)} users: choose another attack"
            )
        of_user, values = self.texts[attack, dial]
        scores = np.full(len(self.users), np.nan)
        # The first text of each user who has any; texts are ordered by user.
        starts = np.flatnonzero(np.diff(of_user, prepend=-1))
        # ``reduceat`` does not take an empty list.
        if not starts.size:
            return scores
        # (texts,) -> (users,)
        scores[of_user[starts]] = RULES[aggregation](values, starts)
        return scores


def scored_users(statistics: Sequence[TextStatistic], member: Mapping[str, bool]) -> ScoredUsers:
    """Join statistics to membership.

    Args:
        statistics: statistics of texts; statistics of users who are not in ``member`` are dropped.
        member: whether each user is a member; the table uses the order of this mapping.
    """
    number = {user: i for i, user in enumerate(member)}
    rows: dict[tuple[str, Dial | None], tuple[list[int], list[float]]] = {}
    for s in statistics:
        at = number.get(s.user)
        # Users who are not in ``member``, such as those who are always in, take part in no comparison.
        if at is not None:
            of_user, values = rows.setdefault((s.attack, s.dial), ([], []))
            of_user.append(at)
            values.append(s.value)
    texts = {}
    for attack, (of_user, values) in rows.items():
        # Stable: the texts of a user stay in the order in which they were scored.
        order = np.argsort(np.array(of_user, dtype=np.intp), kind="stable")
        texts[attack] = (np.array(of_user, dtype=np.intp)[order], np.array(values, dtype=np.float64)[order])
    return ScoredUsers(tuple(member), np.array(list(member.values()), dtype=np.bool_), texts)
