"""Epsilon, delta and the ceiling on attackers of a run, from its event. No other module computes these numbers.

Every number is an upper bound on the true value. The numbers include charges for discretisation, truncation and FFT
rounding (loss_pmf.py, step_pld.py); composition.py chooses the grid.

The ceiling is the highest ROC curve of any attacker. An attacker who decides between "in" and "out" has TPR <=
ceiling(FPR) (docs/theory.md#attacker-ceilings). The ceiling is the ROC of the dominating pair, the pointwise minimum
over both add/remove directions. The ceiling bounds an attacker on one user. It bounds the ROC pooled over users only if
membership was assigned at random.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from heldin.base.errors import InputError
from heldin.defenses.accounting.closed_forms import SMALLEST_DELTA, check_delta, gaussian_delta, gaussian_epsilon
from heldin.defenses.accounting.composition import (
    area_pair,
    composed_grid_epsilon,
    deltas_of,
    grid_delta,
    grid_epsilon,
    settled_pair,
)
from heldin.defenses.accounting.events import (
    Event,
    FilteredGaussian,
    GridEvent,
    PoissonGaussian,
    TwoLevelGaussian,
    UnamplifiedGaussian,
    check_count,
    check_noise,
    check_rate,
    with_noise,
)
from heldin.defenses.accounting.loss_pmf import LossPair, LossPmf
from heldin.defenses.accounting.pure import check_pure, epsilon_with_pure
from heldin.defenses.accounting.roc_ceiling import RocCeiling, epsilon_delta_ceiling
from heldin.defenses.accounting.rounding import rounding_mass
from heldin.words.guarantee import PromiseCaution
from heldin.words.statement import Statement

Array = npt.NDArray[np.float64]
Rule: TypeAlias = Literal["all", "any"]
"""Rule for the records that a step may use: all, or any, of the entities that a record names must be drawn."""
HOLDERS = (1, 2, 4, 8, 16, 64)  # other users who name the entity, at which the bound is shown if nobody says where
EXPOSED = (1, 2, 4, 8, 16, 32, 64)  # texts at which a curve is shown if nobody says where
SMALLEST_NOISE, LARGEST_NOISE = 1e-2, 1e6  # range of noise multipliers that calibration searches
_MOMENTS = 64  # highest order of the classical moments accountant, as in its published implementations
_LOWEST_LOSS = -12.0  # below it, FFT noise times e^{-loss} would matter; the other direction covers that end


def epsilon(event: Event, steps: int, delta: float) -> float:
    """Return epsilon(delta) of ``steps`` steps, from 0 to 0.2 % above the exact value of Charles et al., eq. (2).

    The measured excess over docs/theory.md#table-of-exact-epsilons is 0.003 to 0.01 %. At delta 1e-11, it is at most
    0.02 %, for noise multipliers of 0.5 to 10, groups up to 8, rates from 1e-5 and up to 100,000 steps
    (benchmarks/accounting.py).

    | case                | value |
    |---------------------|-------|
    | noise multiplier 0  | inf   |
    | delta < 1e-11, or too small for the mass that ``steps`` steps cut off | InputError |
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


def composed_epsilon(runs: Iterable[tuple[Event, int]], delta: float, pure: Sequence[float] = ()) -> float:
    """Return epsilon(delta) of all runs together, as exactly as ``epsilon`` of one run.

    A run is an event and its steps.

    The pairs are composed on one grid. So epsilon also holds if earlier results decide everything about later runs
    except their events and steps (Zhu, Dong, Wang 2022; docs/theory.md#several-training-runs-of-one-user). The steps of
    equal events are added up first, so many equal runs take no longer than one run.

    Args:
        pure: epsilons of further releases by pure mechanisms.

    Raises InputError like ``epsilon``. Also raises InputError for the filter, because its theorem gives no loss
        distribution.
    """
    steps: dict[GridEvent, int] = {}
    for event, count in runs:
        check_count("steps", count)
        if isinstance(event, FilteredGaussian):
            raise InputError(
                "the filtered mechanism has no privacy-loss distribution, so it cannot be composed: leave its plan out"
            )
        # The unamplified event is the whole run already.
        steps[event] = steps.get(event, 0) + (1 if isinstance(event, UnamplifiedGaussian) else count)
    if not steps:
        raise InputError("there is nothing to compose: give at least one plan")
    total = sum(steps.values())
    check_count("steps of all releases", total)
    check_delta(delta, total)
    check_pure(pure)
    if any(event.noise_multiplier == 0.0 for event in steps):
        return math.inf
    # In one order, so that the order in which runs are given changes no digit.
    ordered = tuple(sorted(steps.items(), key=repr))
    alone = composed_grid_epsilon(ordered, delta)
    return epsilon_with_pure(deltas_of(ordered, delta), pure, delta, alone + math.fsum(pure)) if pure else alone


def delta_of(event: Event, steps: int, target_epsilon: float) -> float:
    """Return delta(epsilon) of ``steps`` steps, from 0 to 0.2 % above the exact value, and at least SMALLEST_DELTA."""
    check_count("steps", steps)
    if not target_epsilon >= 0.0:
        raise InputError(f"epsilon is {target_epsilon}: give a number of at least 0")
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
    """Return the whole composed pair on the grid that resolves epsilon at this delta. The pair also bounds attackers.

    Noise must be positive. The pair dominates the run in both directions for every a > 0 (Zhu, Dong, Wang 2022). The
    pair is not tilted, so its epsilon is loose if delta is near the rounding. Use ``epsilon`` for epsilon.
    """
    check_count("steps", steps)
    check_delta(delta, steps)
    if event.noise_multiplier == 0.0:
        raise InputError(
            "noise multiplier 0 has an infinite epsilon, and no privacy-loss distribution: give a noise"
            " multiplier above 0"
        )
    if isinstance(event, FilteredGaussian):
        raise InputError(
            "the filtered mechanism has no privacy-loss distribution, because the filter's theorem gives only"
            " epsilon and delta"
        )
    # The unamplified event is the whole run already.
    steps = 1 if isinstance(event, UnamplifiedGaussian) else steps
    # Below its own rounding a whole pair has epsilon infinity, by which no grid could be chosen.
    return settled_pair(event, steps, max(delta, 4.0 * rounding_mass(steps)))


def attack_distribution(event: Event, steps: int, delta: float, area: Callable[[LossPair], float]) -> LossPair:
    """Return ``loss_distribution``, refined until its area is exact to within composition.AREA_PRECISION.

    Args:
        event: one step; noise must be positive.
        steps: number of steps T.
        delta: delta at which epsilon is resolved.
        area: function from a composed pair to the area under its ROC curve (``ceiling_of``).
    """
    pair = loss_distribution(event, steps, delta)
    assert not isinstance(event, FilteredGaussian)
    steps = 1 if isinstance(event, UnamplifiedGaussian) else steps
    return area_pair(event, steps, pair, area)


def calibrate(event: Event, steps: int, delta: float, target_epsilon: float) -> float:
    """Return a noise multiplier with epsilon(result) <= target, within 1e-4 of the least such multiplier.

    Args:
        event: one step; its noise multiplier is ignored.
        steps: number of steps T.
        target_epsilon: largest epsilon that the run may spend.

    Raises:
        InputError: no noise multiplier up to LARGEST_NOISE meets the target, or even SMALLEST_NOISE spends less.
    """
    if not (math.isfinite(target_epsilon) and target_epsilon > 0.0):
        raise InputError(f"target epsilon is {target_epsilon}: give a number above 0")

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
    """Return the caution to print with epsilon if delta exceeds 1 / units, else None.

    ``units`` is a public constant.
    """
    if delta <= 1.0 / units:
        return None
    return PromiseCaution.LARGE_DELTA(delta=delta, units=units, most=units**-1.1)


def _noise_bracket(spent: Callable[[float], float], target: float) -> tuple[float, float]:
    """Return ln noise (low, high). Epsilon is above the target at low, and at most the target at high."""
    smallest, largest = math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE)
    low = high = 0.0  # from noise multiplier 1 outwards
    while spent(high) > target:
        if high >= largest:
            raise InputError(
                f"target epsilon {target:g} is out of reach: even the largest noise multiplier, {LARGEST_NOISE:g},"
                f" spends {spent(high):.3g}. Give a larger epsilon, fewer steps or a lower sampling rate"
            )
        low, high = high, min(largest, high + math.log(4.0))
    while spent(low) <= target:
        if low <= smallest:
            raise InputError(
                f"target epsilon {target:g} is out of reach: even the smallest noise multiplier,"
                f" {SMALLEST_NOISE:g}, spends only {spent(low):.3g}. Give a smaller epsilon"
            )
        low, high = max(smallest, low - math.log(2.0)), low
    return low, high


def sensitive_epsilon(event: TwoLevelGaussian, steps: int, delta: float, rule: Rule) -> float:
    """Return epsilon of a user and a recognised entity (docs/theory.md#two-level-sampling).

    Args:
        event: one step, with the coins' rate as its entity rate.
        rule: which records a step may use. Under "any", the holders' updates change for both outcomes of the entity's
            own coin.
    """
    return epsilon(event if rule == "all" else replace(event, entity_rate=1.0), steps, delta)


def missed_epsilon(event: TwoLevelGaussian, steps: int, delta: float) -> float:
    """Return epsilon of a user and a name that the recogniser missed in one text of another user.

    The text may also name recognised entities. Other records share the coins of these entities, so no separate coin
    hides the name.

    Args:
        event: one step; its entity rate and holders are ignored.
    """
    return epsilon(replace(event, entity_rate=1.0, holders=1), steps, delta)


def two_level_epsilon(event: TwoLevelGaussian, steps: int, delta: float, rule: Rule) -> float:
    """Return epsilon of a user and an entity that up to ``event.holders`` other users name.

    The recogniser finds the entity, or misses it in one text.

    Without holders, the result is the epsilon of the user alone (docs/theory.md#two-level-sampling).

    Args:
        event: one step, with the coins' rate as its entity rate.
        rule: which records a step may use.
    """
    if event.holders == 0:
        return epsilon(PoissonGaussian(event.noise_multiplier, event.user_rate), steps, delta)
    return max(missed_epsilon(event, steps, delta), sensitive_epsilon(event, steps, delta, rule))


def ceiling_of(event: Event, steps: int, delta: float) -> RocCeiling:
    """Return the ceiling of a run.

    The area of the result is never below the area of the exact ceiling, and at most about 5e-4 above.

    delta only sets the minimum fineness of the loss grid. Without noise, the ceiling allows any TPR.
    """
    if event.noise_multiplier == 0.0:
        return RocCeiling(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    if isinstance(event, FilteredGaussian):
        return epsilon_delta_ceiling(epsilon(event, steps, delta), delta)
    return pld_ceiling(attack_distribution(event, steps, delta, _area))


def pld_ceiling(pair: LossPair) -> RocCeiling:
    """Return the pointwise minimum of the two directions' ROC curves, which is never below the true ceiling."""
    remove, add = remove_roc(pair.remove), add_roc(pair.add)
    fpr = np.union1d(remove[0], add[0])
    gap = np.interp(fpr, *remove) - np.interp(fpr, *add)
    # The curves cross between vertices too: without these points the minimum would be cut short, below the ceiling.
    crossing = np.flatnonzero(gap[:-1] * gap[1:] < 0.0)
    share = gap[crossing] / (gap[crossing] - gap[crossing + 1])
    fpr = np.union1d(fpr, fpr[crossing] + share * np.diff(fpr)[crossing])
    return RocCeiling(fpr, np.minimum(np.interp(fpr, *remove), np.interp(fpr, *add)))


def _area(pair: LossPair) -> float:
    return pld_ceiling(pair).auroc


def remove_roc(pmf: LossPmf) -> tuple[Array, Array]:
    """Return (FPR, TPR) vertices of the rule that calls "in" on the largest losses first; upper = in, lower = out."""
    # Beyond the last loss kept, l, the curve is below its tangent of slope e^l, which reaches TPR 1 at
    # FPR + (1 - TPR) e^-l.
    losses, masses = _descending(pmf)
    tpr = np.append(pmf.infinity, pmf.infinity + np.cumsum(masses))
    fpr = np.append(0.0, np.cumsum(masses * np.exp(-losses)))
    full = fpr[-1] + max(0.0, 1.0 - tpr[-1]) * math.exp(-float(losses[-1]))
    return _ascending(np.append(fpr, full), np.append(tpr, 1.0))


def add_roc(pmf: LossPmf) -> tuple[Array, Array]:
    """Return (FPR, TPR) vertices of the rule that calls "out" on the largest losses first; upper = out.

    If these losses have masses U under out and L under in, then FPR = 1 - U and TPR = 1 - L. Before the first vertex,
    the curve is at most that vertex's TPR.
    """
    # 1 - U and 1 - L lose digits where they are small and the curve is steep, so every vertex moves up and to the left
    # by the most that n additions may have rounded.
    losses, masses = _descending(pmf)
    rounding = (masses.size + 1) * 2.0**-52
    upper = np.append(pmf.infinity, pmf.infinity + np.cumsum(masses))
    lower = np.append(0.0, np.cumsum(masses * np.exp(-losses)))
    fpr, tpr = 1.0 - upper[::-1] - rounding, 1.0 - lower[::-1] + rounding
    return _ascending(np.append(fpr, 1.0), np.append(tpr, 1.0))


def _descending(pmf: LossPmf) -> tuple[Array, Array]:
    losses, masses = pmf.losses[::-1], pmf.masses[::-1]
    kept = losses >= _LOWEST_LOSS
    return losses[kept], masses[kept]


def _ascending(fpr: Array, tpr: Array) -> tuple[Array, Array]:
    """Return the vertices inside the unit square, from FPR 0 (at the first vertex's TPR) to (1, 1)."""
    inside = (fpr >= 0.0) & (fpr <= 1.0)
    fpr, tpr = fpr[inside], np.maximum.accumulate(np.clip(tpr[inside], 0.0, 1.0))
    return np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([tpr[:1], tpr, [1.0]])


def moments_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Return epsilon of the classical moments accountant: min over whole l <= 64 of (T alpha(l) - ln(delta)) / l.

    alpha(l) = ln E_Q[(P / Q)^(l + 1)] is the larger log-moment of one Poisson-sampled Gaussian step (Abadi et al. 2016,
    Theorem 2 and section 3.2). Lai et al. base their epsilons on this accountant; ``epsilon`` is tighter.

    Args:
        noise_multiplier: noise standard deviation over clip norm; 0 gives inf.
        rate: probability that the unit is in a step.
        steps: number of steps T.
    """
    check_count("steps", steps)
    check_delta(delta, 1)
    check_rate(rate)
    check_noise(noise_multiplier)
    if noise_multiplier == 0.0:
        return math.inf
    order = np.arange(1, _MOMENTS + 1)[:, None]
    k = np.arange(_MOMENTS + 2)[None, :]
    # The binomial expansion of E_Q[(1 - p + p L)^(l + 1)], E_Q[L^k] = exp(k (k - 1) / (2 s^2)): shape (orders, k).
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = stats.binom.logpmf(k, order + 1, rate)
    alpha = special.logsumexp(chance + k * (k - 1) / (2.0 * noise_multiplier**2), axis=1)
    return float(np.min((steps * alpha - math.log(delta)) / order[:, 0]))
