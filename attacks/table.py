"""The statistics of texts as a table: what scoring leaves. No models."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.protocol import UserScores, lift_to_users

# statistics that know nothing of the target, and are no attacks
REFERENCE_ALONE = "reference-alone"
REFERENCE_DIVERGENCE = "reference-divergence"
NO_ATTACKS = (REFERENCE_ALONE, REFERENCE_DIVERGENCE)


@dataclass(frozen=True)
class Dial:
    """One of the attacker's choices and how it was made, the others left as the leading attack has them.

    Attributes:
        name: what is chosen, such as the reference.
        setting: how.
    """

    name: str
    setting: str


@dataclass(frozen=True)
class TextStatistic:
    """One attack's statistic of one text of one user.

    Attributes:
        user: whose text.
        text: its number among the user's.
        attack: by name.
        value: higher speaks more for held in.
        dial: the one that was turned; None if none was.
    """

    user: str
    text: int
    attack: str
    value: float
    dial: Dial | None = None


def user_scores(statistics: Sequence[TextStatistic], attack: str, aggregation: str = "mean") -> UserScores:
    """Lift one attack's statistics, no dial turned, to users."""
    by_user: dict[str, list[float]] = {}
    for s in statistics:
        if s.attack == attack and s.dial is None:
            by_user.setdefault(s.user, []).append(s.value)
    return lift_to_users(attack, by_user, aggregation)
