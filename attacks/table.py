"""The statistics of texts as a table: what scoring leaves, and names of attacks whose dials were turned. No models."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.protocol import UserScores, lift_to_users

# statistics that know nothing of the target, and are no attacks
REFERENCE_ALONE = "reference-alone"
REFERENCE_DIVERGENCE = "reference-divergence"
NO_ATTACKS = (REFERENCE_ALONE, REFERENCE_DIVERGENCE)


@dataclass(frozen=True)
class TextStatistic:
    """One attack's statistic of one text of one user."""

    user: str
    text: int
    attack: str
    value: float


def turned(attack: str, dial: str, setting: str) -> str:
    """What an attack is called once one of its dials is turned, the others left as they are."""
    return f"{attack} [{dial}: {setting}]"


def dial_of(attack: str, name: str) -> tuple[str, str] | None:
    """Dial and setting of a name made by ``turned`` of this attack, or None."""
    if not (name.startswith(f"{attack} [") and name.endswith("]")):
        return None
    dial, colon, setting = name.removeprefix(f"{attack} [")[:-1].partition(": ")
    return (dial, setting) if colon else None


def user_scores(statistics: Sequence[TextStatistic], attack: str, aggregation: str = "mean") -> UserScores:
    """Lift one attack's statistics to users."""
    by_user: dict[str, list[float]] = {}
    for s in statistics:
        if s.attack == attack:
            by_user.setdefault(s.user, []).append(s.value)
    return lift_to_users(attack, by_user, aggregation)
