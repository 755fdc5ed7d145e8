"""Slow, obviously right shadow-model ratios: one user at a time, by matrices; and the one pooled variance of before."""

import numpy as np
from scipy import stats


def predictive_ratio(t, scores, included, prior):
    """Bayesian regression of one user's scores on a middle (flat prior) and a shift (conjugate prior).

    The prior of the shift has the precision kappa per unit of noise: trust = K / (kappa + K).
    """
    models = len(scores)
    side = np.where(included, 1.0, -1.0)
    design = np.stack([np.ones(models), side], axis=1)
    y = scores - side * prior.gap / 2
    kappa = np.inf if prior.trust == 0 else models * (1 / prior.trust - 1)
    if np.isinf(kappa):
        design = design[:, :1]
    before = np.diag([0.0, kappa][: design.shape[1]])
    precision = design.T @ design + before
    mean = np.linalg.solve(precision, design.T @ y)
    alpha = prior.freedom / 2 + (models - 1) / 2
    beta = prior.freedom * prior.variance / 2 + (y @ y - mean @ precision @ mean) / 2
    densities = []
    for at in (1.0, -1.0):
        row = np.array([1.0, at])[: design.shape[1]]
        scale = np.sqrt(beta / alpha * (1 + row @ np.linalg.solve(precision, row)))
        densities.append(stats.t(2 * alpha, row @ mean + at * prior.gap / 2, scale).logpdf(t))
    return densities[0] - densities[1]


def pooled_variance_ratio(target, shadows, included):
    """Two normal densities around each user's own means, with one variance of all (LiRA; before BaVarIA)."""
    users = range(len(target))
    means = [[np.mean(shadows[included[:, u] == its, u]) for its in (True, False)] for u in users]
    left = sum((shadows[k, u] - means[u][0 if included[k, u] else 1]) ** 2 for k in range(len(shadows)) for u in users)
    deviation = np.sqrt(left / (shadows.size - 2 * len(target)))
    sides = [stats.norm(mean, deviation).logpdf(target) for mean in np.array(means).T]
    return sides[0] - sides[1]
