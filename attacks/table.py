"""The statistics of texts as a table: the result of scoring, without models."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.protocol import UserScores, lift_to_users

# Statistics that never look at the target. They are not attacks: what they find cannot be a leak.
REFERENCE_ALONE = "reference-alone"
REFERENCE_DIVERGENCE = "reference-divergence"
NO_ATTACKS = (REFERENCE_ALONE, REFERENCE_DIVERGENCE)


@dataclass(frozen=True)
class Dial:
    """One of the attacker's choices, where it differs from the leading attack's; all other choices are the same.

    Attributes:
        name: what is chosen, such as the reference.
        setting: what was chosen.
    """

    name: str
    setting: str


@dataclass(frozen=True)
class TextStatistic:
    """One attack's statistic of one text of one user.

    Attributes:
        user: whose text.
        text: the text's number among the user's texts.
        attack: name of the attack.
        value: higher means more likely held in.
        dial: the dial that differs from the leading attack's; None: the leading attack.
    """

    user: str
    text: int
    attack: str
    value: float
    dial: Dial | None = None


def user_scores(statistics: Sequence[TextStatistic], attack: str, aggregation: str = "mean") -> UserScores:
    """Lift one attack's statistics to users, without those of changed dials."""
    by_user: dict[str, list[float]] = {}
    for s in statistics:
        # A changed dial is a variant of the attack; mixed in, it would enter the same user's mean a second time.
        if s.attack == attack and s.dial is None:
            by_user.setdefault(s.user, []).append(s.value)
    return lift_to_users(attack, by_user, aggregation)
