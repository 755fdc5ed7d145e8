"""Slow twin of the composition of different plans: losses rounded to a fine grid, convolved term by term."""

import numpy as np
from scipy import stats

WIDTH = 1e-3


def bracket(plans, delta: float) -> tuple[float, float]:
    """(lower, upper) bound on epsilon(delta) under add/remove of all plans, each (noise, rate, steps) with rate < 1.

    Every loss of a step is rounded down for the lower and up for the upper bound, without transform or window.
    """
    found = []
    for up in (0, 1):
        both = []
        for upper in ("with", "without"):
            start, masses = 0, np.ones(1)
            for noise, rate, steps in plans:
                first, own = _step(noise, rate, upper, up)
                for _ in range(steps):
                    start, masses = start + first, np.convolve(masses, own)
            both.append(_epsilon((start + np.arange(masses.size)) * WIDTH, masses, delta))
        found.append(max(both))
    return found[0], found[1]


def _step(noise, rate, upper, up):
    """Index of the lowest loss, and the masses, of (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2), or reversed."""
    # L(x) = ln(1 - q + q exp((2 x - 1) / (2 s^2))) rises in x: cells of x between its grid values.
    high = np.log1p(rate * np.expm1((2 * 12 * noise + 1) / (2 * noise**2)))
    low = np.log1p(-rate) + 1e-12
    first, last = int(np.floor(low / WIDTH)), int(np.ceil(high / WIDTH))
    grid = np.arange(first + 1, last) * WIDTH
    x = noise**2 * np.log((np.expm1(grid) + rate) / rate) + 0.5
    edges = np.concatenate([[-np.inf], x, [np.inf]])
    out = np.diff(stats.norm.cdf(edges, 0, noise))
    if upper == "without":
        # The loss is -L: cell [l, l + h] of L is [-l - h, -l] here.
        return -last + up, out[::-1]
    return first + up, (1 - rate) * out + rate * np.diff(stats.norm.cdf(edges, 1, noise))


def _epsilon(losses, masses, delta):
    def at(epsilon):
        above = losses > epsilon
        return float(masses[above] @ -np.expm1(epsilon - losses[above]))

    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle) > delta else (low, middle)
    return high
