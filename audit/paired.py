"""Whether one attack beats another on the same users: the difference of two AUROCs from paired scores. numpy only."""

import numpy as np
from numpy.typing import NDArray

from audit.roc import Scores

Z95 = 1.959963984540054
LEAST_PER_SIDE = 2


def auroc_difference(first: tuple[Scores, Scores], second: tuple[Scores, Scores]) -> tuple[float, float, float] | None:
    """AUROC of ``second`` less that of ``first`` with a 95 % interval (DeLong, DeLong and Clarke-Pearson 1988).

    An estimate: it holds for many independent users, and scores of one model are not quite independent.

    Args:
        first: scores of held-in users, shape (n1,), and of held-out users, shape (n0,).
        second: other scores of the same users in the same order.

    Returns:
        Difference, lower and upper limit; None with one user on a side, or where the scores leave no spread to estimate
        an error from (two attacks that each separate completely, say).
    """
    (in_first, out_first), (in_second, out_second) = _placements(*first), _placements(*second)
    difference = float(in_second.mean() - in_first.mean())
    if min(in_first.size, out_first.size) < LEAST_PER_SIDE:
        return None
    variances = [(b - a).var(ddof=1) / a.size for a, b in ((in_first, in_second), (out_first, out_second))]
    if not sum(variances):
        return None
    reach = Z95 * float(np.sqrt(sum(variances)))
    return difference, difference - reach, difference + reach


def _placements(held_in: Scores, held_out: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of the other side that each score exceeds (held in) or falls below (held out), ties counting half."""
    return _below(held_in, held_out), 1 - _below(held_out, held_in)


def _below(scores: Scores, others: Scores) -> NDArray[np.float64]:
    ranked = np.sort(others)
    return np.asarray(
        (np.searchsorted(ranked, scores, "left") + np.searchsorted(ranked, scores, "right")) / (2 * others.size)
    )
