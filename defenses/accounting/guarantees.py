"""Epsilon and delta of a run, computed from its event; no other module turns a mechanism into these numbers.

Every number is an upper bound on the true value: discretisation, truncation and FFT rounding are all charged
(loss_pmf.py, step_pld.py); composition.py chooses the grid.
"""

import math
from collections.abc import Callable

from scipy import optimize

from heldin.base.errors import InputError
from heldin.defenses.accounting.closed_forms import SMALLEST_DELTA, check_delta, gaussian_delta, gaussian_epsilon
from heldin.defenses.accounting.composition import area_pair, grid_delta, grid_epsilon, settled_pair
from heldin.defenses.accounting.events import (
    Event,
    FilteredGaussian,
    UnamplifiedGaussian,
    check_count,
    with_noise,
)
from heldin.defenses.accounting.loss_pmf import LossPair, rounding_mass
from heldin.words import Statement
from heldin.words.guarantee import PromiseCaution

SMALLEST_NOISE, LARGEST_NOISE = 1e-2, 1e6  # range of noise multipliers that calibration searches


def epsilon(event: Event, steps: int, delta: float) -> float:
    """epsilon(delta) of ``steps`` steps: never below the exact value of Charles et al., eq. (2), at most 0.2 % above.

    Measured: 0.003 to 0.01 % above the values in docs/theory.md#table-of-exact-epsilons; at most 0.02 % above at delta
    1e-11, with noise multipliers of 0.5 to 10, groups up to 8, rates from 1e-5 and up to 100,000 steps
    (benchmarks/accounting.py).

    | case                | value |
    |---------------------|-------|
    | noise multiplier 0  | inf   |
    | delta < 1e-11, or too small for what ``steps`` steps cut off | InputError |
    | delta above the run's total variation | 0 |
    """
    check_count("steps", steps)
    check_delta(delta, steps)
    if event.noise_multiplier == 0.0:
        return math.inf
    if isinstance(event, UnamplifiedGaussian):
        return gaussian_epsilon(event.mu, delta)
    if isinstance(event, FilteredGaussian):
        # The other half of delta pays for leaving out outliers (docs/theory.md#filtered-descent).
        return event.above_epsilon + gaussian_epsilon(math.sqrt(steps) / event.noise_multiplier, delta / 2.0)
    return grid_epsilon(event, steps, delta)


def delta_of(event: Event, steps: int, target_epsilon: float) -> float:
    """delta(epsilon) of ``steps`` steps: at most 0.2 % above the exact value, never below it or SMALLEST_DELTA."""
    check_count("steps", steps)
    if not target_epsilon >= 0.0:
        raise InputError(f"epsilon {target_epsilon} is not a number >= 0")
    if event.noise_multiplier == 0.0:
        return 1.0
    if isinstance(event, UnamplifiedGaussian):
        return max(gaussian_delta(event.mu, target_epsilon), SMALLEST_DELTA)
    if isinstance(event, FilteredGaussian):
        rest = target_epsilon - event.above_epsilon
        mu = math.sqrt(steps) / event.noise_multiplier
        # Below above_epsilon the test alone has spent more, and nothing is left to say.
        return 1.0 if rest < 0.0 else min(1.0, max(2.0 * gaussian_delta(mu, rest), SMALLEST_DELTA))
    return max(grid_delta(event, steps, target_epsilon), SMALLEST_DELTA)


def loss_distribution(event: Event, steps: int, delta: float) -> LossPair:
    """The whole composed pair on the grid that resolves epsilon at this delta; it bounds attackers too.

    Noise must be positive. The pair dominates the run in both directions for every a > 0 (Zhu, Dong, Wang 2022). It is
    not tilted, so an epsilon read off it is loose if delta is near the rounding: use ``epsilon`` instead.
    """
    check_count("steps", steps)
    check_delta(delta, steps)
    if event.noise_multiplier == 0.0:
        raise InputError("noise multiplier 0 has no privacy-loss distribution: its epsilon is infinite")
    if isinstance(event, FilteredGaussian):
        raise InputError("the filtered mechanism has no privacy-loss distribution: its theorem gives (epsilon, delta)")
    # The unamplified event is the whole run already.
    steps = 1 if isinstance(event, UnamplifiedGaussian) else steps
    # Below its own rounding a whole pair has epsilon infinity, by which no grid could be chosen.
    return settled_pair(event, steps, max(delta, 4.0 * rounding_mass(steps)))


def attack_distribution(event: Event, steps: int, delta: float, area: Callable[[LossPair], float]) -> LossPair:
    """``loss_distribution``, refined until it bounds attackers to within composition.AREA_PRECISION of an area.

    Args:
        event: one step; noise must be positive.
        steps: T.
        delta: at which epsilon is resolved.
        area: under the ROC curve of a composed pair (defenses.accounting.ceiling).
    """
    pair = loss_distribution(event, steps, delta)
    assert not isinstance(event, FilteredGaussian)
    steps = 1 if isinstance(event, UnamplifiedGaussian) else steps
    return area_pair(event, steps, pair, area)


def calibrate(event: Event, steps: int, delta: float, target_epsilon: float) -> float:
    """The noise multiplier that meets a target: epsilon(result) <= target, within 1e-4 of the least such multiplier.

    Args:
        event: one step; its own noise multiplier is ignored.
        steps: T.
        target_epsilon: most epsilon that the run may spend.

    Raises:
        InputError: no noise multiplier up to LARGEST_NOISE meets the target, or even SMALLEST_NOISE spends less.
    """
    if not (math.isfinite(target_epsilon) and target_epsilon > 0.0):
        raise InputError(f"target epsilon {target_epsilon} is not a number above 0")

    def spent(log_noise: float) -> float:
        return epsilon(with_noise(event, math.exp(log_noise)), steps, delta)

    low, high = _noise_bracket(spent, target_epsilon)

    def gap(log_noise: float) -> float:
        return math.log(max(spent(log_noise), 1e-12) / target_epsilon)

    # In logarithms, as noise multipliers range over eight decades.
    root = float(optimize.brentq(gap, low, high, xtol=2e-5)) if spent(high) < target_epsilon else high
    # The root is only that accurate: step up to the safe side.
    while spent(root) > target_epsilon:
        root += 3e-5
    return math.exp(root)


def delta_caution(delta: float, units: int) -> Statement | None:
    """Return the caution beside epsilon if delta exceeds 1 / units, else None; ``units`` is a public constant."""
    if delta <= 1.0 / units:
        return None
    return PromiseCaution.LARGE_DELTA(delta=delta, units=units, most=units**-1.1)


def _noise_bracket(spent: Callable[[float], float], target: float) -> tuple[float, float]:
    """ln noise (low, high) with epsilon above the target at low and at most the target at high."""
    smallest, largest = math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE)
    low = high = 0.0  # from noise multiplier 1 outwards
    while spent(high) > target:
        if high >= largest:
            raise InputError(
                f"target epsilon {target:g} is not reachable: the largest noise multiplier tried, {LARGEST_NOISE:g}, "
                f"spends {spent(high):.3g}; ask for a larger epsilon, fewer steps or a lower sampling rate"
            )
        low, high = high, min(largest, high + math.log(4.0))
    while spent(low) <= target:
        if low <= smallest:
            raise InputError(
                f"target epsilon {target:g} is not reached: the smallest noise multiplier tried, {SMALLEST_NOISE:g}, "
                f"spends only {spent(low):.3g}; ask for a smaller epsilon"
            )
        low, high = max(smallest, low - math.log(2.0)), low
    return low, high
