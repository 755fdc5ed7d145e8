"""The Gaussian mechanism in closed form, and the deltas for which heldin can compute epsilon."""

import math

from scipy import optimize, special

from heldin.base.errors import InputError

SMALLEST_DELTA = 1e-11
STEP_TAIL = 1e-20  # one-step mass that may be cut off (rare atoms, far tails); it is charged as infinite loss


def check_delta(delta: float, steps: int) -> None:
    """Raise InputError unless SMALLEST_DELTA <= delta < 1 and delta is well above the mass that steps cut off."""
    if not 0.0 < delta < 1.0:
        raise InputError(
            f"delta {delta} is outside (0, 1): choose a delta below 1 / number of users, for example n^-1.1"
        )
    if delta < SMALLEST_DELTA:
        raise InputError(
            f"delta {delta:g} is below {SMALLEST_DELTA:g}, and heldin's rounding of privacy losses would then"
            " change epsilon: give a larger delta"
        )
    # Rare atoms and the two far tails of each step: together at most a hundredth of the delta accepted below.
    cut = 3.0 * STEP_TAIL * steps
    if delta < 100.0 * cut:
        raise InputError(
            f"delta {delta:g} is too small for {steps} steps, because the accountant drops up to {cut:.1g} of the"
            " probability mass: give a larger delta"
        )


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of N(mu, 1) against N(0, 1): Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    The source is Balle and Wang 2018, Theorem 8.
    """
    if math.isinf(mu):
        return 1.0
    # In logarithms, so that e^epsilon does not overflow.
    first = float(special.log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(special.log_ndtr(-mu / 2.0 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(0.0, second - first))  # rounding must not make delta negative


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon >= 0 with gaussian_delta(mu, epsilon) = delta, rounded up by 1e-9; 0 if delta(0) <= delta."""
    check_delta(delta, 1)
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # Where Phi(-t) <= e^(-t^2 / 2) alone brings delta below the target, so that the root lies under it.
    high = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + 1.0
    root = float(optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))
    return root * (1.0 + 1e-9) + 1e-12
