"""Slow, obviously right statistics of users' texts: loops over tokens, nothing flat.

A world is {user: [text, ...]}; a text is a list of tokens (id, log p_target, log p_reference, rank under the target).
"""

import functools
import math
from fractions import Fraction

import numpy as np


def ratios(text):
    return [target - reference for _, target, reference, _ in text]


def pooled(world):
    return {user: _mean([d for text in texts for d in ratios(text)]) for user, texts in world.items()}


def centred(world, *, shrinkage=10, bins=20):
    """By user, the statistic of each text; every mean is taken anew over the tokens of all the other users."""
    references = [reference for texts in world.values() for text in texts for _, _, reference, _ in text]
    edges = sorted({float(np.quantile(references, k / bins)) for k in range(1, bins)})

    @functools.cache
    def difficulty(reference):
        return sum(edge <= reference for edge in edges)

    def expected(user, token, reference):
        others = [
            (other, where, target - its)
            for name, texts in world.items()
            if name != user
            for text in texts
            for other, target, its, _ in text
            for where in [difficulty(its)]
        ]
        everybody = _mean([d for _, _, d in others])
        as_hard = [d for _, where, d in others if where == difficulty(reference)]
        wider = (sum(as_hard) + shrinkage * everybody) / (len(as_hard) + shrinkage)
        same = [d for other, _, d in others if other == token]
        return (sum(same) + shrinkage * wider) / (len(same) + shrinkage)

    return {
        user: [_mean([t - r - expected(user, token, r) for token, t, r, _ in text]) for text in texts]
        for user, texts in world.items()
    }


def weighted(world):
    """DerSimonian and Laird's estimates from sums over users, and the ratio of densities from them."""
    y = pooled(world)
    n = {user: sum(map(len, texts)) for user, texts in world.items()}
    left, freedom = 0.0, 0
    for user, texts in world.items():
        left += sum(len(text) * (_mean(ratios(text)) - y[user]) ** 2 for text in texts)
        freedom += len(texts) - 1
    if not freedom:
        left = sum((d - y[user]) ** 2 for user, texts in world.items() for text in texts for d in ratios(text))
        freedom = max(1, sum(n.values()) - len(n))
    sigma2 = left / freedom
    w = {user: n[user] / sigma2 for user in world}
    fixed = sum(w[u] * y[u] for u in w) / sum(w.values())
    q = sum(w[u] * (y[u] - fixed) ** 2 for u in w)
    scale = sum(w.values()) - sum(its**2 for its in w.values()) / sum(w.values())
    tau2 = max(0.0, (q - (len(w) - 1)) / scale) if scale > 0 else 0.0
    variance = {u: tau2 + sigma2 / n[u] for u in w}
    mu = sum(y[u] / variance[u] for u in w) / sum(1 / variance[u] for u in w)
    return {u: (y[u] - mu) / variance[u] for u in w}


def ez(world):
    """The authors' score of one sequence, of a user's texts joined to one."""
    scores = {}
    for user, texts in world.items():
        errors = [target - reference for text in texts for _, target, reference, rank in text if rank != 0]
        rise = sum(d for d in errors if d > 0)
        fall = abs(sum(d for d in errors if d < 0))
        scores[user] = 0.0 if len(errors) < 2 else rise / max(fall, 1e-3)
    return scores


def windows(world, sizes=(2, 3, 4, 6, 9, 13, 18, 25, 32, 40)):
    """Votes counted in exact arithmetic, window by window."""
    scores = {}
    for user, texts in world.items():
        shares = []
        for size in sizes:
            votes = []
            for text in texts:
                exact = [Fraction(float(target)) - Fraction(float(reference)) for _, target, reference, _ in text]
                width = min(size, len(exact))
                votes += [sum(exact[i : i + width]) > 0 for i in range(len(exact) - width + 1)]
            shares.append(_mean([float(vote) for vote in votes]))
        scores[user] = _mean(shares)
    return scores


def _mean(values):
    return math.fsum(values) / len(values)
