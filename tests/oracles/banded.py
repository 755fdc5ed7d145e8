"""Banded noise with dense matrices, and the exact law of all outputs of a tiny run, every coin enumerated.

Nothing here knows an accountant, a recursion or a sampler of heldin.
"""

import itertools
import math

import numpy as np
from scipy import stats


def matrix(bands, steps):
    """C, shape (steps, steps): column t has binom(2k, k) / 4^k in row t + k, over the norm of all b numbers."""
    raw = [math.comb(2 * k, k) / 4**k for k in range(bands)]
    c = np.zeros((steps, steps))
    for t in range(steps):
        for k in range(min(bands, steps - t)):
            c[t + k, t] = raw[k] / math.sqrt(sum(r * r for r in raw))
    return c


def error(bands, steps, sums=None):
    """|A C^-1|_F / sqrt(T), with A the lower triangle of ones unless ``sums`` is given."""
    a = np.tril(np.ones((steps, steps))) if sums is None else sums
    return float(np.linalg.norm(a @ np.linalg.inv(matrix(bands, steps))) / math.sqrt(steps))


def densities(c, sigma, parts, contributions, points):
    """Density of y = C x + sigma z at points (n, T), in clip norms.

    Args:
        parts: for each user the steps in which it may take part, and the rate of its coins.
        contributions: (user, step, outputs before the step, shape (n, step)) -> (n,), what the user adds to x.
    """
    coins = [(user, step, rate) for user, (steps, rate) in enumerate(parts) for step in steps]
    total = np.zeros(len(points))
    for bits in itertools.product((False, True), repeat=len(coins)):
        chance = math.prod(rate if bit else 1.0 - rate for bit, (_, _, rate) in zip(bits, coins, strict=True))
        x = np.zeros(points.shape)
        for bit, (user, step, _) in zip(bits, coins, strict=True):
            if bit:
                x[:, step] += contributions(user, step, points[:, :step])
        total += chance * stats.norm.pdf(points - x @ c.T, scale=sigma).prod(axis=1)
    return total


def grid(steps, reach, number):
    """Points of a grid, shape (number^steps, steps), and the volume of a cell."""
    axis = np.linspace(-reach, reach, number)
    points = np.stack([each.ravel() for each in np.meshgrid(*[axis] * steps, indexing="ij")], axis=1)
    return points, float((axis[1] - axis[0]) ** steps)


def divergence(upper, lower, cell, epsilon):
    """H_{e^epsilon} of two densities at the points of a grid."""
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum() * cell)
