"""The epsilon between two Gaussians, by which Andrew et al. 2024 estimate epsilon in their paper."""

import math

from scipy import optimize, special

from heldin.base.errors import InputError
from heldin.defenses.accounting.closed_forms import check_delta


def two_gaussian_epsilon(mean: float, deviation: float, delta: float) -> float:
    """epsilon(delta) between N(0, 1) and N(mean, deviation^2), both directions: the paper's own estimate of epsilon.

    Andrew et al. 2024, section 3: the log-ratio is quadratic, so its two roots bound the sets where it exceeds epsilon.
    At deviation 1 the result is the Gaussian mechanism's epsilon.
    """
    check_delta(delta, 1)
    if not (math.isfinite(mean) and deviation > 0.0):
        raise InputError(f"mean {mean} and deviation {deviation} are not those of a Gaussian")

    def excess(epsilon: float) -> float:
        # Both orders; the second after a change of scale that makes its lower law N(0, 1).
        forward = _divergence(mean, deviation, epsilon)
        return max(forward, _divergence(-mean / deviation, 1.0 / deviation, epsilon)) - delta

    # Even at epsilon 0 the divergence is within delta.
    if excess(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
        if high > 1e6:
            return math.inf
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _divergence(mean: float, deviation: float, epsilon: float) -> float:
    """P(A) - e^eps Q(A) for P = N(mean, deviation^2), Q = N(0, 1), A = {ln dP/dQ > eps}."""
    a = 0.5 - 0.5 / deviation**2  # ln ratio = a x^2 + b x + c
    b = mean / deviation**2
    c = -0.5 * (mean / deviation) ** 2 - math.log(deviation) - epsilon
    # Equal deviations: the log-ratio is a line, with one root.
    if abs(a) < 1e-12:
        # The same law twice.
        if b == 0.0:
            return 0.0
        root = -c / b
        p, q = (
            special.ndtr(math.copysign(1.0, b) * (mean - root) / deviation),
            special.ndtr(math.copysign(1.0, -b) * root),
        )
        return float(p - math.exp(min(epsilon, 700.0)) * q)
    disc = b * b - 4.0 * a * c
    # No root: the log-ratio is below epsilon everywhere (A is empty) or above it everywhere (A is everything).
    if disc <= 0.0:
        return 0.0 if a < 0.0 else 1.0 - math.exp(min(epsilon, 700.0))
    low, high = sorted(((-b - math.sqrt(disc)) / (2.0 * a), (-b + math.sqrt(disc)) / (2.0 * a)))

    def outside(centre: float, scale: float) -> float:
        return float(special.ndtr((low - centre) / scale) + special.ndtr((centre - high) / scale))

    def between(centre: float, scale: float) -> float:
        return float(special.ndtr((high - centre) / scale) - special.ndtr((low - centre) / scale))

    # A wider P wins in both tails, a narrower one in the middle.
    mass = outside if a > 0.0 else between
    return mass(mean, deviation) - math.exp(min(epsilon, 700.0)) * mass(0.0, 1.0)
