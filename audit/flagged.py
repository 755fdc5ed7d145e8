"""The people whom an attack flags, because their scores are above one threshold: counts, with exact limits.

The threshold is the end of a group of users (``audit.coarse``). So every count covers at least ten people, and is a
point of the curve in the record. Among these ends, heldin takes the one whose share of flagged non-members is nearest
to the audit's stated false-positive rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from heldin.attacks.protocol import Dial, label_of
from heldin.audit.coarse import ScoreGroups, share_limits
from heldin.base.section import Facts


@dataclass(frozen=True)
class CountedAttack:
    """An attack under one aggregation, perhaps with one dial changed, and the users in groups by its score."""

    attack: str
    aggregation: str
    dial: Dial | None
    groups: ScoreGroups


class AttackChoice(StrEnum):
    """How heldin chose the attack whose flagged people it counts."""

    PRIMARY = "primary"  # before any score was seen
    DECIDING = "deciding"  # the strongest of those that pass the test of all attacks
    BEST = "best"  # it flags most members beyond its share of non-members, whatever chance explains


class Flagged(Facts):
    """The people above one threshold of an attack. The limits of both shares are from Clopper and Pearson (1934).

    The limits hold at 95 % for all attacks from which this attack was chosen (Bonferroni). They also hold for the
    threshold, whose rank hardly depends on who is a member (tests/coverage/test_flagged.py).

    Attributes:
        attack: name of the attack.
        aggregation: how the scores of a user's texts become one score.
        dial: the changed setting of the attacker (dial); null for the primary settings.
        setting: setting of the changed dial; null for the primary settings.
        choice: rule that chose the attack.
        among: number of attacks from which heldin chose this one; 1 for the primary attack.
        members: flagged members.
        of_members: all members.
        members_limits: limits of the share of members that this threshold flags.
        others: flagged non-members.
        of_others: all non-members.
        others_limits: limits of the share of non-members that this threshold flags.
    """

    attack: str
    aggregation: str
    dial: str | None
    setting: str | None
    choice: AttackChoice
    among: int
    members: int
    of_members: int
    members_limits: tuple[float, float]
    others: int
    of_others: int
    others_limits: tuple[float, float]

    @property
    def label(self) -> str:
        """Name of the attack with its settings, as in the answer."""
        dial = None if self.dial is None or self.setting is None else Dial(self.dial, self.setting)
        return label_of(self.attack, self.aggregation, dial)

    @property
    def members_share(self) -> float:
        """Share of members that are flagged."""
        return self.members / self.of_members

    @property
    def others_share(self) -> float:
        """Share of non-members that are wrongly flagged."""
        return self.others / self.of_others


def flagged_by(attack: CountedAttack, fpr: float, choice: AttackChoice, among: int = 1) -> Flagged | None:
    """Return the people whom an attack flags; None if there are too few users for two groups.

    Args:
        fpr: the false-positive rate that the threshold should approximate.
        among: number of attacks from which this attack was chosen.
    """
    members, others = attack.groups.held_in, attack.groups.held_out
    if members.size < 2:
        return None
    wrong = np.cumsum(others)[:-1]
    # Of two ends that are equally near the first: it flags fewer people wrongly.
    end = int(np.argmin(np.abs(wrong / others.sum() - fpr)))
    flagged, of_members, of_others = int(members[: end + 1].sum()), int(members.sum()), int(others.sum())
    level = 1 - 0.05 / among
    return Flagged(
        attack=attack.attack,
        aggregation=attack.aggregation,
        dial=None if attack.dial is None else attack.dial.name,
        setting=None if attack.dial is None else attack.dial.setting,
        choice=choice,
        among=among,
        members=flagged,
        of_members=of_members,
        members_limits=share_limits(flagged, of_members, level),
        others=int(wrong[end]),
        of_others=of_others,
        others_limits=share_limits(int(wrong[end]), of_others, level),
    )


def best_of(attacks: Sequence[CountedAttack], fpr: float) -> Flagged | None:
    """Return the people whom the best attack flags: it has the largest share of members minus share of non-members."""
    counted = [flagged_by(attack, fpr, AttackChoice.BEST, len(attacks)) for attack in attacks]
    known = [flagged for flagged in counted if flagged is not None]
    return max(known, key=lambda flagged: flagged.members_share - flagged.others_share, default=None)
