"""Limits of AUROCs and true-positive rates: intervals of several scores at once, and one-sided upper limits.

The module also computes the difference of two AUROCs, from two attacks on the same users or from two runs.

All these numbers are estimates. Users' scores of one run share one model, so the coverage is nominal
(docs/theory.md#conditions-of-one-run).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.audit.bootstrap import separation_lower_limit
from heldin.audit.coarse import brief
from heldin.base.section import Facts
from heldin.bounds.roc import Scores, error_at_chance, placements

Z95 = 1.959963984540054
LEAST_PER_SIDE = 2


class AurocDifference(Facts):
    """Difference of two AUROCs or of two mean losses, with a 95 % interval.

    Attributes:
        value: the second number minus the first.
        lower: lower end of the interval.
        upper: upper end of the interval.
        label: kind of statement.
    """

    value: float
    lower: float
    upper: float
    label: Literal["estimate"] = "estimate"

    def brief(self, digits: int = 3) -> "AurocDifference":
        """Return the difference, rounded to a record's digits."""
        value, lower, upper = (brief(number, digits) for number in (self.value, self.lower, self.upper))
        return AurocDifference(value=value, lower=lower, upper=upper)


def auroc_difference(first: tuple[Scores, Scores], second: tuple[Scores, Scores]) -> AurocDifference | None:
    """Return the AUROC of ``second`` minus the AUROC of ``first``, with a 95 % interval.

    The method is from DeLong, DeLong and Clarke-Pearson (1988).

    The interval is an estimate. It assumes many independent users, but the scores under one model are not quite
    independent.

    Args:
        first: scores of members, shape (n1,), and of non-members, shape (n0,).
        second: other scores of the same users in the same order.

    Returns:
        The difference; None if a group has one user, an attack separates the groups completely, or the scores are
        equal. In these cases there is no spread from which to estimate an error.
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
    return AurocDifference(value=difference, lower=difference - reach, upper=difference + reach)


def independent_difference(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return ``second`` minus ``first`` for independent samples, each as (value, lower, upper) with 95 % limits.

    Asymmetric limits stay asymmetric, for example the exact limit of completely separated groups. The method is MOVER
    (Zou and Donner 2008).
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    return b - a, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low)


Array = NDArray[np.float64]

CONFIDENCE = 0.95
Z_ONE_SIDED = 1.6448536269514722  # 95 %
_DRAWS = 20_000
_SEED = 0  # of the normal draws for the largest of K dependent deviations


@dataclass(frozen=True, eq=False)
class AurocLimits:
    """AUROCs of K scores and their upper limits.

    Attributes:
        auroc: AUROC of each score, shape (K,).
        lower: lower ends of the simultaneous 95 % intervals, shape (K,).
        upper: upper ends of the simultaneous 95 % intervals, shape (K,).
        at_most: one-sided 95 % upper limit of each single score, shape (K,).
    """

    auroc: Array
    lower: Array
    upper: Array
    at_most: Array


def auroc_limits(held_in: Array, held_out: Array) -> AurocLimits:
    """Return intervals that hold for all K scores at once, under any dependence, and one-sided upper limits.

    The covariance of the K AUROCs is from DeLong, DeLong and Clarke-Pearson (1988). The largest of the K standardised
    deviations is simulated from the normal law with the same correlation. Limits are computed on the logit scale. A
    score that separates the groups completely has the exact limit of that case, at level 0.025 / K. The upper limit of
    a single score is max(AUROC, 1/2) plus 1.645 times the larger of two deviations: the one under H0, and DeLong's.

    Args:
        held_in: scores of members, shape (K, n1).
        held_out: scores of non-members, shape (K, n0).
    """
    k, n1, n0 = len(held_in), held_in.shape[1], held_out.shape[1]
    placed = [placements(a, b) for a, b in zip(held_in, held_out, strict=True)]
    areas = np.array([in_.mean() for in_, _ in placed])
    if min(n1, n0) < 2:  # one user on a side shows no spread: nothing is excluded
        return AurocLimits(areas, np.zeros(k), np.ones(k), np.ones(k))
    covariance = _covariance(placed)
    deviation = np.sqrt(np.diag(covariance))
    reach = _largest_deviation(covariance) * deviation
    # Half a pair away from 0 and 1, where the logit is infinite.
    inside = np.clip(areas, 0.5 / (n1 * n0), 1 - 0.5 / (n1 * n0))
    # Delta method: the logit's derivative is 1 / (A (1 - A)). On this scale no interval leaves [0, 1].
    slope = inside * (1 - inside)
    logit = np.log(inside / (1 - inside))
    lower, upper = (1 / (1 + np.exp(-(logit + sign * reach / slope))) for sign in (-1, 1))
    # Complete separation has no spread for DeLong to see; 0.025 / K is Bonferroni's share of each score and side.
    exact = separation_lower_limit(min(n1, n0), 0.025 / k)
    lower = np.where(areas == 1, exact, np.where(areas == 0, 0.0, lower))
    upper = np.where(areas == 0, 1 - exact, np.where(areas == 1, 1.0, upper))
    # Deviation of an AUROC at chance. Upper limits take the larger of this and DeLong's, which errs towards no claim.
    by_chance = error_at_chance(n1, n0)
    # Around 1/2 at least: a score that strays below chance excludes no more than one at chance
    # (docs/theory.md#randomisation-test). Each limit at full level: the claim is about all scores together.
    at_most = np.minimum(1.0, np.maximum(areas, 0.5) + Z_ONE_SIDED * np.maximum(deviation, by_chance))
    return AurocLimits(areas, lower, upper, at_most)


def tpr_at_most(estimate: float, resampled: float, fpr: float, members: int) -> float:
    """Return a one-sided 95 % upper limit of the TPR at ``fpr``, around max(estimate, fpr).

    The limit is the larger of two. The bootstrap's 95 % quantile includes the error of the estimated threshold. Clopper
    and Pearson's limit at the given threshold covers small counts.

    Args:
        estimate: the observed TPR.
        resampled: 95 % quantile of the bootstrapped TPR.
        fpr: the false-positive rate.
        members: number of members n1.
    """
    centre = max(estimate, fpr)
    # Just short of all members: a Beta law whose second parameter is 0 does not exist.
    seen = min(members - 1e-9, centre * members)
    exact = float(stats.beta.ppf(CONFIDENCE, seen + 1, members - seen))
    # The bootstrap's reach above its own estimate, laid on the centre.
    return min(1.0, max(centre + max(0.0, resampled - estimate), exact))


def _covariance(placed: Sequence[tuple[Array, Array]]) -> Array:
    """Return DeLong's covariance of K AUROCs from their users' placements, shape (K, K)."""
    sides = (np.array([placements[side] for placements in placed]) for side in (0, 1))
    # (K, n) -> (K, K) for each side; for one score ``np.cov`` gives a plain number.
    return np.asarray(sum(np.atleast_2d(np.cov(values)) / values.shape[1] for values in sides))


def _largest_deviation(covariance: Array) -> float:
    """Return the 95 % quantile of the largest of K standardised normal deviations with this covariance."""
    deviation = np.sqrt(np.diag(covariance))
    # A score without spread has no standardised deviation and takes no part; its interval is the exact one or a point.
    kept = deviation > 0
    if kept.sum() < 2:
        return Z95
    correlation = (covariance / np.outer(deviation, deviation).clip(1e-300))[np.ix_(kept, kept)]
    # Equal scores make the matrix singular, where Cholesky fails; negative eigenvalues are rounding.
    values, vectors = np.linalg.eigh(correlation)
    drawn = np.random.default_rng(_SEED).standard_normal((_DRAWS, values.size))
    largest = np.abs(drawn @ (vectors * np.sqrt(values.clip(0))).T).max(axis=1)
    return float(np.quantile(largest, CONFIDENCE))
