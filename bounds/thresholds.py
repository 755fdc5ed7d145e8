"""Lower bounds on epsilon from independent trainings: Clopper-Pearson at thresholds, and its Gaussian conversion.

All functions here require INDEPENDENT TRAININGS (docs/theory.md#independent-trainings). Each score comes from a
separate training, with or without the user, and the trainings share no randomness. Scores of many users under one model
are not independent: bounds/judgement.py then refuses these bounds in favour of bounds/one_run.py. Thresholds are fixed
before looking, or chosen on one half of the trainings and used on the other. The error probability covers several
thresholds. A threshold that is chosen after looking gives a wrong bound in up to 14.5 % of audits, at a nominal 5 %
(tests/coverage).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from heldin.base.errors import InputError
from heldin.bounds.roc import epsilon_of_rates, rate_at_least, rate_at_most
from heldin.bounds.scores import LabelledScores, check_alpha, check_bound_delta, labelled
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.roc_ceiling import RocCeiling

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """The counts of decisions at one threshold.

    Attributes:
        true_positives: number of members called "in".
        false_positives: number of non-members called "in".
    """

    true_positives: int
    members: int
    false_positives: int
    non_members: int

    def __post_init__(self) -> None:
        if not (0 <= self.true_positives <= self.members and 0 <= self.false_positives <= self.non_members):
            raise InputError(f"{self}: the attack flags more training runs than there are. Correct the counts")
        if self.members == 0 or self.non_members == 0:
            raise InputError("a bound needs training runs of both groups: give training runs with and without the user")


@dataclass(frozen=True)
class ThresholdBound:
    """A lower bound on epsilon (and mu) at confidence 1 - alpha.

    Attributes:
        alpha: total error probability.
        mu: lower bound on mu, if mu-GDP is assumed; None otherwise.
    """

    epsilon: float
    alpha: float
    threshold: float
    counts: Counts
    mu: float | None = None


def clopper_pearson(counts: Counts, delta: float, *, alpha: float = 0.05, pairs: int = 2) -> float:
    """Return a lower bound on epsilon at one threshold fixed beforehand (Jagielski, Ullman, Oprea 2020, section 4).

    Args:
        delta: delta of the bound, in [0, 1).
        alpha: total error probability; each of the two rates of each pair gets alpha / (2 pairs).
        pairs: number K of pre-registered (threshold, direction) pairs. With 1, the bound uses only the rule "in if
            score >= threshold", ln((TPR - delta) / FPR). With 2 or more, it uses both directions.
    """
    check_bound_delta(delta)
    # alpha / (2 K): two limits for each pair, on the safe side where both directions share them.
    tpr, fpr = limits(counts, check_alpha(alpha) / (2 * pairs))
    if pairs == 1:
        return math.log(max(1.0, (tpr - delta) / fpr))
    return float(epsilon_of_rates(np.array(tpr), np.array(fpr), delta))


def gaussian_conversion(
    counts: Counts, delta: float, *, alpha: float = 0.05, thresholds: int = 1
) -> tuple[float, float]:
    """Return lower bounds (epsilon, mu) for a mu-GDP mechanism: Nasr et al. 2023, section 4.

    First mu = Phi^-1(TPR_lo) - Phi^-1(FPR_hi), with each limit at alpha / (2 thresholds), then epsilon of mu-GDP at
    delta. The two directions give equal values of mu. The bounds are valid only for independent trainings, and only if
    the mechanism's trade-off curve is Gaussian.

    Args:
        counts: the counts at one threshold over independent trainings.
        delta: delta of the bound, in (0, 1).
        alpha: total error probability.
        thresholds: number of pre-registered thresholds.
    """
    tpr, fpr = limits(counts, check_alpha(alpha) / (2 * thresholds))
    # No members or all non-members called "in": the quantiles are infinite and show no leak.
    mu = max(0.0, float(special.ndtri(tpr) - special.ndtri(fpr))) if tpr > 0.0 and fpr < 1.0 else 0.0
    return (gaussian_epsilon(mu, delta) if mu > 0.0 else 0.0), mu


def limits(counts: Counts, alpha: float) -> tuple[float, float]:
    """Return (lower limit of the TPR, upper limit of the FPR), each at level alpha."""
    tpr = rate_at_least(counts.true_positives, counts.members, alpha)
    return float(tpr), float(rate_at_most(counts.false_positives, counts.non_members, alpha))


def counts_at(scores: LabelledScores, threshold: float) -> Counts:
    """Return the counts of the rule "in if score >= threshold"."""
    held_in, held_out = scores.held_in, scores.held_out
    return Counts(int((held_in >= threshold).sum()), held_in.size, int((held_out >= threshold).sum()), held_out.size)


def threshold_bound(
    scores: LabelledScores, thresholds: Sequence[float], delta: float, *, alpha: float = 0.05, attacks: int = 1
) -> ThresholdBound:
    """Return the best Clopper-Pearson bound over thresholds fixed beforehand. alpha covers K = 2 len(thresholds) pairs.

    Args:
        delta: delta of the bound, in [0, 1).
        alpha: total error probability.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.
    """
    level = check_alpha(alpha, attacks)
    if not len(thresholds):
        raise InputError("no threshold was fixed beforehand: give a threshold, or use split halves")
    tries = [(t, counts_at(scores, t)) for t in thresholds]
    # Two directions at each threshold: K = 2 len(thresholds), all paid for, so the best may be taken.
    bounds = [(clopper_pearson(c, delta, alpha=level, pairs=2 * len(tries)), t, c) for t, c in tries]
    epsilon, threshold, counts = max(bounds, key=lambda bound: bound[0])
    return ThresholdBound(epsilon, alpha, threshold, counts)


def threshold_gaussian_bound(
    scores: LabelledScores, thresholds: Sequence[float], delta: float, *, alpha: float = 0.05, attacks: int = 1
) -> ThresholdBound:
    """Return the best Gaussian conversion over thresholds fixed beforehand.

    The conditions are in ``gaussian_conversion``.

    Delta is in (0, 1); see ``threshold_bound`` for the other arguments.
    """
    level = check_alpha(alpha, attacks)
    if not len(thresholds):
        raise InputError("no threshold was fixed beforehand: give a threshold, or use split halves")
    tries = [(t, counts_at(scores, t)) for t in thresholds]
    bounds = [(gaussian_conversion(c, delta, alpha=level, thresholds=len(tries)), t, c) for t, c in tries]
    (epsilon, mu), threshold, counts = max(bounds, key=lambda bound: bound[0])
    return ThresholdBound(epsilon, alpha, threshold, counts, mu)


def split_bound(
    scores: LabelledScores, delta: float, *, alpha: float = 0.05, attacks: int = 1, seed: int = 0
) -> ThresholdBound:
    """Choose threshold and direction on one half, and return the Clopper-Pearson bound on the other half (K = 1).

    See ``threshold_bound`` for the arguments.
    """
    check_bound_delta(delta)
    level = check_alpha(alpha, attacks)
    choose, test = halves(scores, seed)
    # Chosen on trainings that the limits below never see, so that one pair is all there is to pay for.
    threshold, mirrored = _best_threshold(choose, delta, level)
    counts = counts_at(test, threshold)
    tpr, fpr = limits(counts, level / 2)
    ratio = (1.0 - fpr - delta) / (1.0 - tpr) if mirrored else (tpr - delta) / fpr
    return ThresholdBound(math.log(max(1.0, ratio)), alpha, threshold, counts)


def split_gaussian_bound(
    scores: LabelledScores, delta: float, *, alpha: float = 0.05, attacks: int = 1, seed: int = 0
) -> ThresholdBound:
    """Return the Gaussian conversion of one half of the trainings at the threshold chosen on the other half.

    The conditions are those of ``gaussian_conversion``.

    Delta is in (0, 1); see ``threshold_bound`` for the other arguments.
    """
    level = check_alpha(alpha, attacks)
    choose, test = halves(scores, seed)
    levels, tpr, fpr = _limits_everywhere(choose, level / 2)
    with np.errstate(invalid="ignore"):
        mu = np.nan_to_num(special.ndtri(tpr) - special.ndtri(fpr), nan=-np.inf)
    # On one half; the counts come from the other.
    threshold = float(levels[int(np.argmax(mu))])
    counts = counts_at(test, threshold)
    epsilon, bound = gaussian_conversion(counts, delta, alpha=level)
    return ThresholdBound(epsilon, alpha, threshold, counts, bound)


def thresholds_violate(
    scores: LabelledScores, thresholds: Sequence[float], ceiling: RocCeiling, *, alpha: float = 0.05, attacks: int = 1
) -> bool:
    """Return whether the TPR at a threshold fixed beforehand is above the ceiling at its FPR, at level alpha in total.

    See ``threshold_bound`` for the arguments.
    """
    # Two limits per threshold; the ceiling already covers both directions.
    level = check_alpha(alpha, attacks) / (2 * len(thresholds))
    rates = (limits(counts_at(scores, t), level) for t in thresholds)
    return any(tpr > ceiling.tpr_at(fpr) for tpr, fpr in rates)


def halves(scores: LabelledScores, seed: int) -> tuple[LabelledScores, LabelledScores]:
    """Split members and non-members at random into two halves. Raises InputError for a group of fewer than two."""
    held_in, held_out = scores.held_in, scores.held_out
    if min(held_in.size, held_out.size) < 2:
        raise InputError(
            f"{held_in.size} members and {held_out.size} non-members cannot be halved: give at least two of each"
        )
    generator = np.random.default_rng(seed)
    # At random, not by row: trainings may be listed in any order, also by score.
    a, b = generator.permutation(held_in), generator.permutation(held_out)
    i, j = a.size // 2, b.size // 2
    return _unchecked(a[:i], b[:j]), _unchecked(a[i:], b[j:])


def _unchecked(held_in: Array, held_out: Array) -> LabelledScores:
    """Join two groups like ``labelled``, but also accept constant scores."""
    if np.unique(np.concatenate([held_in, held_out])).size > 1:
        return labelled(held_in, held_out)
    # A half may be constant although the whole is not; it is no error, its thresholds just say nothing.
    half = object.__new__(LabelledScores)
    member = np.arange(held_in.size + held_out.size) < held_in.size
    for name, value in (("scores", np.concatenate([held_in, held_out])), ("member", member), ("users", None)):
        object.__setattr__(half, name, value)
    return half


def _limits_everywhere(scores: LabelledScores, alpha: float) -> tuple[Array, Array, Array]:
    """Return (thresholds, lower TPR limits, upper FPR limits) at each distinct score, each limit at level alpha."""
    levels = np.unique(scores.scores)
    held_in, held_out = np.sort(scores.held_in), np.sort(scores.held_out)
    # At or above each level: (k,).
    above_in = held_in.size - np.searchsorted(held_in, levels).astype(np.float64)
    above_out = held_out.size - np.searchsorted(held_out, levels).astype(np.float64)
    n1, n0 = np.full(levels.size, held_in.size, float), np.full(levels.size, held_out.size, float)
    return levels, rate_at_least(above_in, n1, alpha), rate_at_most(above_out, n0, alpha)


def _best_threshold(scores: LabelledScores, delta: float, alpha: float) -> tuple[float, bool]:
    """Return the threshold with the best bound on these scores, and whether its direction is mirrored."""
    levels, tpr, fpr = _limits_everywhere(scores, alpha / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # By the bound itself, not the accuracy: few false positives are worth more than many right calls. (2, k)
        ratios = np.nan_to_num(np.stack([(tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr)]), nan=0.0)
    direction, index = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    return float(levels[index]), bool(direction == 1)
