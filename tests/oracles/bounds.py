"""Slow, obviously right twins of the bounds: sums of binomial terms, a recursion on floats, a linear programme."""

import math

import numpy as np
from scipy import optimize


def binomial(n, k, q):
    return math.comb(n, k) * q**k * (1 - q) ** (n - k)


def one_run_p_value(m, r, v, epsilon, delta):
    """Steinke et al. 2023, Theorem 5.2, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binomial(r, k, q) for k in range(v, r + 1))
    worst = max((sum(binomial(r, k, q) for k in range(v - i, v)) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, tail + 2 * m * delta * worst)


def fdp_rejects(m, r, v, inverse, alpha):
    """The recursion of docs/theory.md#one-run-curve-test to the end, without leaving early."""
    right, wrong = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        higher = max(wrong, inverse(min(1.0, right)))
        right += i / (r - i) * (higher - wrong)
        wrong = higher
    return right + wrong > r / m


def most_probable(m, r, v, lines):
    """max P(at least v of r right) over all laws p_0..p_r of the number right that f-DP with concave F allows.

    F = min over lines of slope * x + height. For every c, by swapping one user's coin and averaging over users:
    sum_{i>=c} i p_i / m <= F(sum_{i>=c} (r - i + 1) p_{i-1} / m). A linear programme.
    """
    rows, limits = [], []
    for c in range(1, r + 1):
        for slope, height in lines:
            row = np.zeros(r + 1)
            for i in range(c, r + 1):
                row[i] += i / m
                row[i - 1] -= slope * (r - i + 1) / m
            rows.append(row)
            limits.append(height)
    goal = -(np.arange(r + 1) >= v).astype(float)
    found = optimize.linprog(goal, rows, limits, np.ones((1, r + 1)), [1.0], bounds=(0, 1))
    return -found.fun


def clopper_pearson_lower(k, n, alpha):
    """The rate at which k or more hits have probability alpha, by bisection on the binomial sum."""
    if k == 0:
        return 0.0
    tail = lambda q: sum(binomial(n, i, q) for i in range(k, n + 1))  # noqa: E731
    return float(optimize.brentq(lambda q: tail(q) - alpha, 0.0, 1.0, xtol=1e-14))


def band_by_hand(held_in, held_out, threshold):
    """(members at or above, non-members at or above) one threshold."""
    return sum(x >= threshold for x in held_in), sum(x >= threshold for x in held_out)


def region_mass(counts, delta, epsilon, prior, draws, seed):
    """P(epsilon <= e) under the joint Beta posterior, by simulation."""
    rng = np.random.default_rng(seed)
    fp, tn = counts.false_positives, counts.non_members - counts.false_positives
    fn, tp = counts.members - counts.true_positives, counts.true_positives
    a, b = rng.beta(fp + prior, tn + prior, draws), rng.beta(fn + prior, tp + prior, draws)
    up = math.exp(epsilon)
    inside = (up * a + b >= 1 - delta) & (a + up * b >= 1 - delta)
    inside &= (up * (1 - a) + (1 - b) >= 1 - delta) & ((1 - a) + up * (1 - b) >= 1 - delta)
    return inside.mean()
