"""Slow, obviously right ROC statistics: every pair, every threshold, every resample by hand."""

import numpy as np


def pairwise_auroc(held_in, held_out):
    return sum((a > b) + 0.5 * (a == b) for a in held_in for b in held_out) / (len(held_in) * len(held_out))


def best_tpr(held_in, held_out, fpr):
    """Highest share of held-in scores at or above a threshold that at most ``fpr`` of held-out scores reach."""
    best = 0.0
    for threshold in [*held_in, *held_out]:
        if np.mean(np.asarray(held_out) >= threshold) <= fpr + 1e-12:
            best = max(best, float(np.mean(np.asarray(held_in) >= threshold)))
    return best


def naive_bootstrap(held_in, held_out, fprs, resamples, seed):
    """AUROC and best TPRs of stratified resamples, shape (resamples, 1 + len(fprs))."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(resamples):
        a = generator.choice(held_in, len(held_in))
        b = generator.choice(held_out, len(held_out))
        rows.append([pairwise_auroc(a, b), *(best_tpr(a, b, f) for f in fprs)])
    return np.array(rows)
