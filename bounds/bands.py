"""Simultaneous ROC bands from independent trainings, and the test whether an ROC violates a ceiling.

All functions here require INDEPENDENT TRAININGS, one per score (docs/theory.md#roc-bands); scores may be tied. Scores
of users under one model are not independent, so the bands are then indicative at best. For one run, use
bounds/one_run.py.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from heldin.base.errors import InputError
from heldin.bounds.roc import auroc, epsilon_of_rates, rate_at_least, rate_at_most
from heldin.bounds.scores import LabelledScores, check_alpha, check_bound_delta
from heldin.defenses.accounting.roc_ceiling import RocCeiling

Array = NDArray[np.float64]

_DEVIATIONS = 9.0  # standard deviations that the crossing probability follows; the rest counts as crossing
LARGEST = 50_000  # trainings of one group; above it, local levels would take minutes


@dataclass(frozen=True, eq=False)
class RocBand:
    """Limits that hold at all k thresholds at once with confidence 1 - alpha.

    Attributes:
        thresholds: the distinct scores, highest first, shape (k,).
        fpr: upper limits of the FPR at each threshold, shape (k,).
        tpr: lower limits of the TPR at each threshold, shape (k,).
        alpha: error probability of the whole band.
    """

    thresholds: Array
    fpr: Array
    tpr: Array
    alpha: float

    def epsilon(self, delta: float) -> float:
        """Return the best lower bound on epsilon over all thresholds and directions; the band covers the choice."""
        check_bound_delta(delta)
        return float(epsilon_of_rates(self.tpr, self.fpr, delta).max())

    def exceeds(self, ceiling: RocCeiling) -> bool:
        """Return whether the band is above the ceiling anywhere. If so, the ceiling is rejected at level alpha."""
        # The ceiling rises with the FPR, so at the upper limit of the FPR it is at its most lenient.
        return bool(np.any(self.tpr > np.interp(self.fpr, ceiling.fpr, ceiling.tpr)))


@dataclass(frozen=True)
class RocTest:
    """The test whether an ROC violates a ceiling, by two bands at alpha / 2 each.

    Attributes:
        local_levels: whether the band with equal local levels exceeds the ceiling.
        dkw: whether the DKW band exceeds the ceiling.
        alpha: error probability of the test.
    """

    local_levels: bool
    dkw: bool
    alpha: float

    @property
    def contradicted(self) -> bool:
        """Return whether the ceiling is rejected at level alpha."""
        return self.local_levels or self.dkw


def equal_local_level_band(scores: LabelledScores, *, alpha: float = 0.05, attacks: int = 1) -> RocBand:
    """Return a band of pointwise Beta limits; some limit fails with probability alpha.

    Each group has its own pointwise level eta. With k members at or above a threshold, TPR >= BetaInv(eta1; k, n1 + 1 -
    k). With j non-members at or above it, FPR <= BetaInv(1 - eta0; j + 1, n0 - j). The error probability of each group
    is alpha / 2. The band is exact for continuous scores (Berk and Jones 1979; Aldor-Noiman et al. 2013), and
    conservative for tied scores. It is tight at FPR below 2 %.
    """
    level = check_alpha(alpha, attacks) / 2.0
    thresholds, k, j, n1, n0 = _counts(scores)
    eta1, eta0 = local_level(n1, level), local_level(n0, level)
    return RocBand(thresholds, rate_at_most(j, n0, eta0), rate_at_least(k, n1, eta1), alpha)


def dkw_band(scores: LabelledScores, *, alpha: float = 0.05, attacks: int = 1) -> RocBand:
    """Return the band TPR - e1, FPR + e0 with e = sqrt(ln(2 / alpha) / (2 n)).

    The method is from Massart 1990, one-sided, with alpha / 2 for each group. The band is tight in the middle of the
    curve.
    """
    level = check_alpha(alpha, attacks)
    thresholds, k, j, n1, n0 = _counts(scores)
    # Massart's inequality at alpha / 2 a group; one-sided, since a test needs no upper limit of the TPR.
    tpr, fpr = k / n1 - dkw_width(n1, level), j / n0 + dkw_width(n0, level)
    return RocBand(thresholds, np.minimum(fpr, 1.0), np.maximum(tpr, 0.0), alpha)


def dkw_width(trials: int, alpha: float) -> float:
    """Return sqrt(ln(2 / alpha) / (2 n)) for n trainings of one group: one-sided, at alpha / 2."""
    return math.sqrt(math.log(2.0 / alpha) / (2.0 * trials))


def violates(scores: LabelledScores, ceiling: RocCeiling, *, alpha: float = 0.05, attacks: int = 1) -> RocTest:
    """Compare both bands, each at alpha / 2, with the ceiling (docs/theory.md#roc-bands).

    Args:
        alpha: total error probability.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.
    """
    local, dkw = both_bands(scores, alpha=alpha, attacks=attacks)
    return RocTest(local is not None and local.exceeds(ceiling), dkw.exceeds(ceiling), alpha)


def both_bands(scores: LabelledScores, *, alpha: float = 0.05, attacks: int = 1) -> tuple[RocBand | None, RocBand]:
    """Return the bands (equal local levels, DKW), each at alpha / 2. Together they hold with confidence 1 - alpha.

    If a group has more than ``LARGEST`` trainings, the first band is None, and its half of alpha is not spent.
    """
    level = check_alpha(alpha, attacks) / 2.0
    # Too many trainings for local levels: the DKW band keeps to its own half of alpha.
    small = max(scores.held_in.size, scores.held_out.size) <= LARGEST
    return equal_local_level_band(scores, alpha=level) if small else None, dkw_band(scores, alpha=level)


def auroc_at_least(scores: LabelledScores, *, alpha: float = 0.05, attacks: int = 1) -> float:
    """Return AUROC - sqrt(ln(1 / alpha) (1 / n1 + 1 / n0) / 2): McDiarmid 1989; ties count half."""
    level = check_alpha(alpha, attacks)
    held_in, held_out = scores.held_in, scores.held_out
    # One member moves the AUROC by at most 1 / n1, one non-member by 1 / n0: the condition of McDiarmid's inequality.
    width = math.sqrt(math.log(1.0 / level) * (1.0 / held_in.size + 1.0 / held_out.size) / 2.0)
    return auroc(held_in, held_out) - width


def auroc_epsilon(least: float, delta: float) -> float:
    """Return the smallest epsilon that allows AUROC A = ``least``: ln((1 - delta)^2 / (1 - A) - 1)."""
    check_bound_delta(delta)
    # Solves A = 1 - (1 - delta)^2 / (1 + e^epsilon) (docs/theory.md#attacker-ceilings) for e^epsilon.
    odds = (1.0 - delta) ** 2 / max(1.0 - least, 1e-300) - 1.0
    return math.log(odds) if odds > 1.0 else 0.0


@functools.lru_cache(maxsize=256)
def local_level(trials: int, alpha: float) -> float:
    """Return eta: all n uniform order statistics exceed their eta-quantiles with probability 1 - alpha.

    eta has a relative accuracy of 0.1 % and is rounded down. Raises InputError for more than 50,000 trainings of a
    group.
    """
    check_alpha(alpha)
    if trials > LARGEST:
        raise InputError(
            f"{trials} training runs of one group are too many for the exact ROC band: choose the DKW band"
        )

    def excess(log_eta: float) -> float:
        # Both in logarithms, so that no step of the search makes eta negative.
        return math.log(crossing_probability(trials, math.exp(log_eta)) / alpha)

    if trials == 1:
        return alpha  # one uniform number is below its eta-quantile, eta, with probability eta
    # By the secant method. The result is lowered by 0.1 %, more than its tolerance, so that the band errs on the
    # conservative side.
    # A starting point and no more: the search corrects it.
    near = math.log(alpha / (1.0 + 6.5 * math.log(trials)))
    return math.exp(float(optimize.newton(excess, near, x1=near + 0.1, tol=2e-4)) - 1e-3)


def crossing_probability(trials: int, eta: float) -> float:
    """Return P(some k: U_(k) < BetaInv(eta; k, n + 1 - k)) for n uniform order statistics U_(1) <= ... <= U_(n).

    The recursion over the number of points below each limit is exact: it conditions a Poisson process on n points
    (Moscovich and Nadler 2017, section 2). The recursion is truncated at 9 standard deviations, so the result is at
    least the true value, and exceeds it by less than 1e-12. Time grows as n^1.5.
    """
    ranks = np.arange(1.0, trials + 1.0)
    at = special.betaincinv(ranks, trials + 1.0 - ranks, eta)
    # Expected points of a Poisson process of rate n between one limit and the next.
    steps = trials * np.diff(at, prepend=0.0)
    spread = _DEVIATIONS * np.sqrt(trials * at * (1.0 - at)) + 20.0
    # Fewer points than this are dropped, and so are larger steps: what is dropped counts as crossing.
    lowest = np.maximum(0, np.floor(trials * at - spread)).astype(np.int64)
    longest = (steps + 9.0 * np.sqrt(steps) + 20.0).astype(np.int64)
    state, first = np.ones(1), 0  # unscaled probabilities of first, first + 1, ... points
    for k in range(1, trials + 1):
        state = np.convolve(state, _poisson(steps[k - 1], int(longest[k - 1])))
        cut = max(0, int(lowest[k - 1]) - first)
        state, first = state[cut : k - first], max(first, int(lowest[k - 1]))  # at most k - 1 points below limit k
        if not state.size:
            return 1.0
    # The other points lie above the last limit; dividing by P(n points) conditions the process on n.
    left = stats.poisson.pmf(trials - first - np.arange(state.size), trials * (1.0 - float(at[-1])))
    inside = float((state * left).sum() / stats.poisson.pmf(trials, trials))
    return min(1.0, max(0.0, 1.0 - inside))


def _poisson(mean: float, longest: int) -> Array:
    counts = np.arange(longest + 1.0)
    # ``xlogy``: 0 log 0 is 0 where a step has no length.
    return np.asarray(np.exp(special.xlogy(counts, mean) - mean - special.gammaln(counts + 1.0)))


def _counts(scores: LabelledScores) -> tuple[Array, Array, Array, int, int]:
    """Return the distinct scores, highest first, with the numbers of members and non-members at or above each."""
    levels = np.unique(scores.scores)[::-1]
    held_in, held_out = np.sort(scores.held_in), np.sort(scores.held_out)
    # Left, so that scores equal to the threshold count as above it.
    k = held_in.size - np.searchsorted(held_in, levels)
    j = held_out.size - np.searchsorted(held_out, levels)
    return levels, k.astype(np.float64), j.astype(np.float64), held_in.size, held_out.size
