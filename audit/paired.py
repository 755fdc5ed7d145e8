"""Whether one AUROC is above another, for two attacks on the same users or for two runs. numpy only."""

import math
from typing import Literal

import numpy as np

from heldin.audit.coarse import brief
from heldin.base.section import Facts
from heldin.bounds.roc import Scores, placements

Z95 = 1.959963984540054
LEAST_PER_SIDE = 2


class Difference(Facts):
    """Difference of two AUROCs, with a 95 % interval.

    Attributes:
        value: the second AUROC minus the first.
        lower: lower end of the interval.
        upper: upper end of the interval.
        label: kind of statement.
    """

    value: float
    lower: float
    upper: float
    label: Literal["estimate"] = "estimate"

    def brief(self, digits: int = 3) -> "Difference":
        """In few digits, as a record keeps it."""
        value, lower, upper = (brief(number, digits) for number in (self.value, self.lower, self.upper))
        return Difference(value=value, lower=lower, upper=upper)


def auroc_difference(first: tuple[Scores, Scores], second: tuple[Scores, Scores]) -> Difference | None:
    """AUROC of ``second`` minus that of ``first`` with a 95 % interval (DeLong, DeLong and Clarke-Pearson 1988).

    An estimate: it holds for many independent users, and scores of one model are not quite independent.

    Args:
        first: scores of held-in users, shape (n1,), and of held-out users, shape (n0,).
        second: other scores of the same users in the same order.

    Returns:
        The difference; None if a side has one user, an attack separates the sides completely, or the scores are equal,
        since then there is no spread to estimate an error from.
    """
    (in_first, out_first), (in_second, out_second) = placements(*first), placements(*second)
    difference = float(in_second.mean() - in_first.mean())
    if min(in_first.size, out_first.size) < LEAST_PER_SIDE:
        return None
    # Complete separation has no spread of its own: the interval would show the other attack's alone.
    if {in_first.mean(), in_second.mean()} & {0.0, 1.0}:
        return None
    # Of each user's own difference: attacks on the same users are correlated, which two separate errors do not show.
    variances = [(b - a).var(ddof=1) / a.size for a, b in ((in_first, in_second), (out_first, out_second))]
    if not sum(variances):
        return None
    reach = Z95 * float(np.sqrt(sum(variances)))
    return Difference(value=difference, lower=difference - reach, upper=difference + reach)


def independent_difference(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float, float]:
    """``second`` minus ``first`` for independent samples, each (value, 95 % limits) (MOVER; Zou and Donner 2008).

    Asymmetric limits stay asymmetric, such as the exact limit of groups that are separated completely.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    return b - a, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low)
