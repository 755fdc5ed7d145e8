"""Curves, histograms and percentiles that a report may show, from one grouping of users into groups of at least ten.

Anyone who has the scores could learn from one vertex of the full ROC curve whether one user is a member. A bin with one
user reveals the same. A curve and a histogram with different cuts would reveal the same together. The curve and the
histogram therefore use one grouping, and the numbers next to them come from the same grouping. Groupings by many scores
would together reveal more (measured in tests/audit/test_coarse.py), so a record has curves of at most two scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.bounds.roc import Roc, Scores

LEAST_IN_GROUP = 10  # a number about fewer users would be about single ones
MOST_GROUPS = 12  # beside a few small ones at the top, where false positives are rare


@dataclass(frozen=True, eq=False)
class ScoreGroups:
    """k groups of users by score, the highest scores first.

    Attributes:
        held_in, held_out: number of members and non-members in each group, shape (k,).
        edges: k + 1 scores, ascending; the outer two only serve for drawing, because the outer groups are open-ended.
    """

    held_in: NDArray[np.int64]
    held_out: NDArray[np.int64]
    edges: tuple[float, ...]

    @property
    def roc(self) -> Roc:
        """Return the ROC of the rule "a member if in one of the first groups".

        Its straight lines never exceed the full curve.
        """
        fpr, tpr = (np.append(0, np.cumsum(side)) / side.sum() for side in (self.held_out, self.held_in))
        return Roc(fpr, tpr)

    def tpr(self, fpr: float) -> float:
        """Return the TPR at ``fpr``, interpolated between the vertices of ``roc``."""
        curve = self.roc
        # Right: where a group has members alone several vertices share an FPR, and the last is the highest.
        at = int(np.searchsorted(curve.fpr, fpr, "right")) - 1
        # FPR 1, the end of the curve: there is no vertex beyond.
        if at + 1 == curve.fpr.size:
            return 1.0
        share = (fpr - curve.fpr[at]) / (curve.fpr[at + 1] - curve.fpr[at])
        return float(curve.tpr[at] + share * (curve.tpr[at + 1] - curve.tpr[at]))


def grouped(held_in: Scores, held_out: Scores, least: int = LEAST_IN_GROUP) -> ScoreGroups:
    """Cut the users into groups, from the highest score down. Group sizes double until a twelfth of all users.

    Args:
        held_in: scores of members, shape (n1,).
        held_out: scores of non-members, shape (n0,).
        least: minimum number of users in a group; equal scores are never separated. Use 1 for units that are not
            people.
    """
    both = np.concatenate([held_in, held_out])
    order = np.argsort(-both, kind="stable")
    ordered, member = both[order], order < held_in.size
    # A group is at least as large as all before it, up to a twelfth: small ones only where false positives are rare.
    widest, kept = both.size // MOST_GROUPS if least > 1 else 1, [0]
    # A cut only where the score falls, and only if enough users are left for the last group.
    for end in (np.flatnonzero(np.diff(ordered) != 0) + 1).tolist():
        if end - kept[-1] >= max(least, min(kept[-1], widest)) and both.size - end >= least:
            kept.append(end)
    inside = np.add.reduceat(member.astype(np.int64), kept)
    sizes = np.diff([*kept, both.size])
    # Between two users, since an edge at a score would show that score.
    cuts = [_between(float(ordered[end]), float(ordered[end - 1])) for end in kept[1:]]
    return ScoreGroups(inside, sizes - inside, _bounded(cuts[::-1], both))


def brief(value: float, digits: int = 3) -> float:
    """Round to the decimals that a reader needs. More decimals would reveal facts about single users."""
    return round(value, digits)


def significant(value: float, digits: int = 2) -> float:
    """Round to the significant digits that a reader needs."""
    return float(f"{value:.{digits}g}")


def outwards(share: float, *, up: bool, decimals: int = 4) -> float:
    """Round a limit of a share away from the share, to a number between 0 and 1."""
    scale = 10.0**decimals
    within = round(share * scale, 6)
    return float(math.ceil(within) if up else math.floor(within)) / scale


def share_limits(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return exact two-sided limits of a share, given ``count`` among ``total`` (Clopper & Pearson 1934)."""
    tail = (1 - level) / 2
    lower = float(stats.beta.ppf(tail, count, total - count + 1)) if count else 0.0
    upper = float(stats.beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0
    # Outwards: a limit that was rounded to the nearest digit would no longer cover.
    return outwards(lower, up=False), outwards(upper, up=True)


def coarse_percentiles(counts: Sequence[int]) -> list[int]:
    """Return P10, P25, P50, P75, P90 with ten or more users beyond each; only the median for under 20 users."""
    ordered = np.sort(np.asarray(counts))
    n, beyond = ordered.size, LEAST_IN_GROUP
    if n < 2 * beyond:
        return [int(ordered[(n - 1) // 2])] if n else []
    # Moved inwards where fewer than ten users would be left beyond: near an end it is a single user's number.
    places = [round(q * (n - 1)) for q in (0.10, 0.25, 0.50, 0.75, 0.90)]
    return [int(ordered[min(max(place, beyond), n - 1 - beyond)]) for place in places]


def _between(low: float, high: float) -> float:
    """Return the number with the fewest digits between two scores, so that an edge is not any user's own score."""
    middle = low + (high - low) / 2
    for digits in range(1, 18):
        short = float(f"{middle:.{digits}g}")
        if low < short < high:
            return short
    return middle


def _bounded(cuts: Sequence[float], scores: Scores) -> tuple[float, ...]:
    """Return ascending cuts with an outer edge on each end, at about the typical distance between cuts."""
    if not cuts:
        middle = float(f"{np.median(scores):.2g}")
        # Equal scores have no range, and an interval of no width cannot be drawn.
        reach = float(f"{max(np.ptp(scores), 1e-9 * max(1.0, abs(middle))):.1g}")
        return middle - reach, middle + reach
    # Not the smallest and largest score, which belong to single users.
    apart = float(np.median(np.diff(cuts))) if len(cuts) > 1 else float(f"{max(np.ptp(scores), 1e-9):.1g}") / 2
    return float(f"{cuts[0] - apart:.6g}"), *cuts, float(f"{cuts[-1] + apart:.6g}")
