"""ROC curves of user scores, and limits of their rates. A higher score means member; ties count half."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]
Scores = Array


@dataclass(frozen=True)
class Roc:
    """An empirical ROC curve from (0, 0) to (1, 1): one point per distinct score.

    Attributes:
        fpr: share of non-members at or above each threshold, increasing, shape (k + 1,).
        tpr: share of members at or above each threshold, shape (k + 1,).
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]


def roc_curve(held_in: Scores, held_out: Scores) -> Roc:
    """Return the ROC of the rule "member if score >= threshold", over all thresholds.

    Args:
        held_in: scores of members, shape (n1,), n1 >= 1.
        held_out: scores of non-members, shape (n0,), n0 >= 1.
    """
    levels = np.unique(np.concatenate([held_in, held_out]))[::-1]
    # Negated, so that "right" counts the scores at or above each level.
    above_in = np.searchsorted(np.sort(-held_in), -levels, side="right")
    above_out = np.searchsorted(np.sort(-held_out), -levels, side="right")
    return Roc(np.concatenate([[0.0], above_out / held_out.size]), np.concatenate([[0.0], above_in / held_in.size]))


def auroc(held_in: Scores, held_out: Scores) -> float:
    """Return P(member's score > non-member's score) plus half the ties: the Mann-Whitney statistic divided by n1 n0."""
    # A tie with a non-member counts one half: once among those below, and not among those at or below.
    others = np.sort(held_out)
    twice = np.searchsorted(others, held_in, side="left").sum() + np.searchsorted(others, held_in, side="right").sum()
    return float(twice / (2 * held_in.size * held_out.size))


def placements(held_in: Scores, held_out: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of the other group that each score exceeds (member) or falls below (non-member).

    Ties count half. The results have shapes (n1,) and (n0,), and the mean of each is the AUROC (DeLong, DeLong and
    Clarke-Pearson 1988).
    """
    return _share_below(held_in, held_out), 1 - _share_below(held_out, held_in)


def error_at_chance(held_in: int, held_out: int) -> float:
    """Return the standard error of the AUROC if scores carry no information, for these numbers of users."""
    return float(np.sqrt((held_in + held_out + 1) / (12 * held_in * held_out)))


def fpr_is_resolved(held_out: int, fpr: float) -> bool:
    """Return whether this many non-members can show an FPR: it must allow at least one false positive."""
    # A product such as 49 * (1 / 49) lies just below a whole number.
    return held_out * fpr >= 1 - 1e-9


def tpr_at_fpr(held_in: Scores, held_out: Scores, fpr: float) -> float | None:
    """Return the highest TPR of a threshold whose FPR is at most ``fpr``, without interpolation.

    The result is None if the number of non-members times ``fpr`` is below one, because no such rate can be observed.
    Reports print it as "N/A".
    """
    if not fpr_is_resolved(held_out.size, fpr):
        return None
    curve = roc_curve(held_in, held_out)
    # An interpolated point is a rule that flips coins, and no threshold that somebody could have used.
    return float(curve.tpr[curve.fpr <= fpr + 1e-12].max())


def separation_p_value(held_in: Scores, held_out: Scores) -> float:
    """Return the two-sided Mann-Whitney p-value of "the scores of both groups have the same distribution"."""
    # Two-sided: groups that differ by themselves may differ either way.
    return float(stats.mannwhitneyu(held_in, held_out, alternative="two-sided").pvalue)


def _share_below(scores: Scores, others: Scores) -> NDArray[np.float64]:
    ranked = np.sort(others)
    return np.asarray(
        (np.searchsorted(ranked, scores, "left") + np.searchsorted(ranked, scores, "right")) / (2 * others.size)
    )


def rate_at_least(hits: int | Array, trials: int | Array, alpha: float) -> Array:
    """Return the one-sided lower limit of a binomial rate at level alpha (Clopper-Pearson 1934); 0 for no hits."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    # ``where`` computes both branches: 1e-300 keeps the unused one from being NaN.
    return np.where(k > 0, special.betaincinv(np.maximum(k, 1e-300), n - k + 1.0, alpha), 0.0)


def rate_at_most(hits: int | Array, trials: int | Array, alpha: float) -> Array:
    """Return the one-sided upper limit of a binomial rate at level alpha (Clopper-Pearson 1934); 1 for all hits."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    # The inverse of the complement, since 1 - alpha would round a small alpha.
    return np.where(k < n, special.betainccinv(k + 1.0, np.maximum(n - k, 1e-300), alpha), 1.0)


def epsilon_of_rates(tpr: Array, fpr: Array, delta: float) -> Array:
    """Return max(0, ln((TPR - delta) / FPR), ln((1 - FPR - delta) / (1 - TPR))), elementwise.

    The formula is Theorem 2.1 of Kairouz, Oh, Viswanath 2015, in both directions. With a lower limit of the TPR and an
    upper limit of the FPR, the result is a lower bound.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.stack([(tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr)])
        # A ratio below 1, or 0 / 0 at an end of the curve, says nothing: epsilon 0.
        return np.asarray(np.nan_to_num(np.log(np.maximum(ratios, 1.0)), nan=0.0).max(axis=0))
