"""An exact, slow accountant with no loss grid: delta(epsilon) as a contour integral of the loss's moments.

    delta(epsilon) = 1 / (2 pi i) * int_{c - i inf}^{c + i inf} M(s)^T e^{-s epsilon} / (s (s + 1)) ds,
    M(s) = int upper^{1+s} lower^{-s} dx,

(docs/theory.md#contour-integral), the line c > 0 through the saddle point, both integrals by the trapezoid rule, which
converges exponentially for analytic integrands. It shares nothing with `defenses`: only the two densities are the same.
"""

import math

import numpy as np
from scipy import optimize, special, stats


def binomial_gaussian(deviation: float, group_size: int, rate: float, points: int = 8_000):
    """x-grid weights and losses of Q = N(0, s^2) and P = N(Binom(G, p), s^2): (log Q dx, L), shapes (points,)."""
    c = np.arange(group_size + 1)
    log_w = stats.binom.logpmf(c, group_size, rate)
    x = np.linspace(-14.0 * deviation, 14.0 * deviation + 2.0 * group_size, points)
    log_q = stats.norm.logpdf(x, scale=deviation) + math.log(x[1] - x[0])
    loss = special.logsumexp(log_w + np.multiply.outer(x, c) / deviation**2 - c**2 / (2 * deviation**2), axis=1)
    return log_q, loss


def two_level(deviation: float, user_rate: float, entity_rate: float, holders: int, sensitivity: float, points=8_000):
    """The same for a public n ~ Binom(holders, user_rate) beside x, and P = N(a + sensitivity n b, s^2) given n."""
    parts = []
    for n in range(holders + 1):
        shifts = np.array([0.0, 1.0, sensitivity * n, 1.0 + sensitivity * n])
        coins = np.outer([1.0 - entity_rate, entity_rate], [1.0 - user_rate, user_rate]).ravel()
        shifts, coins = shifts[coins > 0], coins[coins > 0]
        chance = stats.binom.logpmf(n, holders, user_rate)
        if chance < math.log(1e-22):
            continue
        x = np.linspace(-14.0 * deviation, 14.0 * deviation + 2.0 * shifts.max(), points)
        log_q = chance + stats.norm.logpdf(x, scale=deviation) + math.log(x[1] - x[0])
        tilted = np.log(coins) + np.multiply.outer(x, shifts) / deviation**2 - shifts**2 / (2 * deviation**2)
        parts.append((log_q, special.logsumexp(tilted, axis=1)))
    log_q, loss = zip(*parts, strict=True)
    return np.concatenate(log_q), np.concatenate(loss)


def delta(log_q, loss, steps: int, epsilon: float, direction: str, *, reach: float = 12.0) -> float:
    """Exact delta(epsilon) of one direction ("remove": upper P; "add": upper Q). Raises if it did not converge."""
    losses = loss if direction == "remove" else -loss
    log_upper = log_q + loss if direction == "remove" else log_q

    def log_moment(s: float) -> float:
        return float(special.logsumexp(log_upper + s * losses))

    def exponent(s: float) -> float:
        return steps * log_moment(s) - s * epsilon - math.log(s) - math.log1p(s)

    best = optimize.minimize_scalar(lambda u: exponent(math.exp(u)), bounds=(-7.0, 7.0), method="bounded")
    c = math.exp(best.x)
    scale = log_moment(c)
    weights = np.exp(log_upper + c * losses - scale)
    kept = weights > 1e-25
    weights, values = weights[kept], losses[kept]
    mean = float(weights @ values)
    spread = math.sqrt(steps * float(weights @ (values - mean) ** 2) + 1.0 / c**2)
    points = int(50 * reach)
    t = np.linspace(0.0, reach / spread, points)
    ratio = _turned(weights, values - mean, t)
    s = c + 1j * t
    shift = 1j * t * (steps * mean - epsilon)
    integrand = np.exp(steps * np.log(ratio) + shift) * (c * (c + 1)) / (s * (s + 1))
    if abs(integrand[-1]) > 1e-9:
        raise ArithmeticError(f"the contour did not converge: {abs(integrand[-1]):.1e} left at the end")
    integral = np.trapezoid(integrand.real, t) / math.pi
    return float(math.exp(exponent(c)) * integral)


def _turned(weights, values, t):
    """sum_j weights_j exp(i t values_j) at evenly spaced t that begin at 0, shape (t,).

    The points of a block are turned from those of the first, which costs a product and no exponential each.
    """
    turns = np.exp(1j * np.multiply.outer(t[:50], values))
    parts = [turns @ (weights * np.exp(1j * u * values)) for u in t[::50]]
    return np.concatenate(parts)[: t.size]


def epsilon(log_q, loss, steps: int, target_delta: float, direction: str, bracket, *, reach: float = 12.0) -> float:
    """Exact epsilon(delta) of one direction, the root inside the bracket."""

    def gap(e: float) -> float:
        return math.log(delta(log_q, loss, steps, e, direction, reach=reach)) - math.log(target_delta)

    return float(optimize.brentq(gap, *bracket, xtol=1e-8))


def deltas(log_q, loss, steps: int, epsilons, direction: str, *, most: int = 100_000):
    """Exact delta at epsilons close to one another, shape (k,), or None where the contour does not converge.

    One line for all of them, through the saddle point of the first, followed until what is left cannot matter: so far
    that laws of few, large jumps (steps times rate around 1) converge too. most: points of the line.
    """
    ends = np.asarray(epsilons, dtype=float)
    losses = loss if direction == "remove" else -loss
    log_upper = log_q + loss if direction == "remove" else log_q

    def exponent(s: float) -> float:
        moment = float(special.logsumexp(log_upper + s * losses))
        return steps * moment - s * ends[0] - math.log(s) - math.log1p(s)

    best = optimize.minimize_scalar(lambda u: exponent(math.exp(u)), bounds=(-7.0, 9.0), method="bounded")
    c = math.exp(best.x)
    scale = float(special.logsumexp(log_upper + c * losses))
    weights = np.exp(log_upper + c * losses - scale)
    kept = weights > 1e-22
    weights, values = weights[kept] / weights.sum(), losses[kept]
    mean = float(weights @ values)
    spread = math.sqrt(steps * float(weights @ (values - mean) ** 2) + 1.0 / c**2)
    gap, total, block = 0.02 / spread, np.zeros(ends.size), 400
    turns = np.exp(1j * np.multiply.outer(gap * np.arange(block), values - mean))
    for first in range(0, most, block):
        t = gap * (first + np.arange(block))
        # The turns within a block are those of the first; each block begins where the one before ends.
        ratio = turns @ (weights * np.exp(1j * t[0] * (values - mean)))
        s = c + 1j * t
        common = np.exp(steps * np.log(ratio)) * (c * (c + 1)) / (s * (s + 1))
        terms = (common[:, None] * np.exp(1j * np.multiply.outer(t, steps * mean - ends))).real
        total += terms.sum(axis=0) - (0.5 * terms[0] if first == 0 else 0.0)
        if np.abs(common[-block // 4 :]).max() * t[-1] < 1e-6 * np.abs(total).min() * gap:
            return total * gap / math.pi * np.exp(steps * scale - c * ends - math.log(c) - math.log1p(c))
    return None
