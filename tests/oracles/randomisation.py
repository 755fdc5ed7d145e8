"""The randomisation test by the book: every assignment, one at a time, every statistic by its definition."""

import itertools

import numpy as np
from scipy import stats


def standardised_auroc(scores, member):
    """Mann-Whitney's U less its mean, over its deviation with ties, by counting pairs."""
    held_in, held_out = scores[member], scores[~member]
    pairs = [(a > b) + 0.5 * (a == b) for a in held_in for b in held_out]
    n1, n0, n = held_in.size, held_out.size, scores.size
    _, ties = np.unique(scores, return_counts=True)
    variance = n1 * n0 / 12 * (n + 1 - sum(int(t) ** 3 - int(t) for t in ties) / (n * (n - 1)))
    return 0.0 if variance < 1e-9 else (sum(pairs) - n1 * n0 / 2) / np.sqrt(variance)


def tpr(scores, member, fpr):
    """Largest share of members above a threshold that names at most floor(fpr x n0) others."""
    allowed = int(np.floor(fpr * (~member).sum() + 1e-9))
    best = 0
    for threshold in [*scores, np.inf]:
        named = scores >= threshold
        if (named & ~member).sum() <= allowed:
            best = max(best, int((named & member).sum()))
    return best / member.sum()


def all_coins(users):
    """Every assignment of coins with nobody's side empty."""
    for bits in itertools.product([False, True], repeat=users):
        if 0 < sum(bits) < users:
            yield np.array(bits)


def exact_p(scores, member, statistic):
    """P(statistic of a random assignment >= the observed one), all assignments counted."""
    observed = statistic(scores, member)
    found = [statistic(scores, drawn) >= observed - 1e-12 for drawn in all_coins(member.size)]
    return float(np.mean(found))


def largest(scores, member):
    return max(standardised_auroc(row, member) for row in scores)


def mann_whitney_p(scores, member):
    """Two-sided asymptotic p-value, of scipy."""
    return stats.mannwhitneyu(
        scores[member], scores[~member], alternative="two-sided", method="asymptotic", use_continuity=False
    ).pvalue
