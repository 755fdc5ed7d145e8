"""One step of an event as a privacy-loss distribution: mixtures of Gaussians, solved by vectorised Newton iterations.

The pair is P = sum_k w_k N(c_k, s^2) (the unit is in) against Q = N(0, s^2) (the unit is out). Charles et al., Theorem
1, has c = 0..G and w = Binom(G, p). The loss L(x) = ln P/Q = ln sum_k w_k exp(c_k x / s^2 - c_k^2 / (2 s^2)) is
increasing and convex in x. Newton's method, started on the right, therefore finds all points where L crosses the grid,
in one vectorised run.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from scipy import special, stats

from heldin.defenses.accounting.closed_forms import STEP_TAIL
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    Event,
    FilteredGaussian,
    GridEvent,
    PoissonGaussian,
    TwoLevelGaussian,
    UnamplifiedGaussian,
)
from heldin.defenses.accounting.loss_pmf import Array, LossPair, LossPmf, from_dp_accounting, mix, on_grid

MAX_CELLS = 2**21
_NEWTON_STEPS = 100
_BLOCK = 2**20  # exponents at a time: 8 MiB


class GridError(Exception):
    """The one-step grid would have too many cells. A larger width needs fewer cells."""


@dataclass(frozen=True)
class Mixture:
    """sum_k weights_k N(sensitivities_k, deviation^2) against N(0, deviation^2), in units of the clip norm.

    Attributes:
        deviation: standard deviation of all components, > 0.
        sensitivities: means of the components, shape (k,), >= 0, at least one positive.
        weights: weights of the components, shape (k,), > 0.
        missing: mass that the weights leave out. In the remove direction it has infinite loss; in the add direction it
            is missing from the lower distribution. Either way, a hockey-stick divergence can only rise.
    """

    deviation: float
    sensitivities: Array
    weights: Array
    missing: float = 0.0


def binomial_mixture(deviation: float, group_size: int, rate: float) -> Mixture:
    """Return N(Binom(group_size, rate), deviation^2) of Charles et al., Theorem 1, without a tail of mass STEP_TAIL."""
    counts = np.arange(group_size + 1)
    # Atom k stays while P(count >= k), not its own weight, is above STEP_TAIL: what is missing is a bounded tail.
    kept = np.append(True, stats.binom.sf(counts[:-1], group_size, rate) > STEP_TAIL)
    weights = np.asarray(stats.binom.pmf(counts, group_size, rate))
    missing = 0.0 if kept.all() else STEP_TAIL
    kept &= weights > 0.0  # at rate 1 the lower atoms have none, and their logarithm would be -inf
    return Mixture(deviation, counts[kept].astype(np.float64), weights[kept], missing)


def two_level_mixtures(
    deviation: float, user_rate: float, entity_rate: float, holders: int, entity_sensitivity: float
) -> tuple[list[Mixture], Array, float]:
    """Return N(a + c n b, deviation^2) for each number n of holders in the cohort, with user coin a and entity coin b.

    Args:
        deviation: standard deviation of the noise.
        user_rate: probability of a = 1.
        entity_rate: probability of b = 1.
        holders: maximum of n, which is Binom(holders, user_rate).
        entity_sensitivity: the factor c.

    Returns:
        The mixtures by ascending n, their probabilities, shape (mixtures,), and the mass left out. Each n with an upper
        tail below STEP_TAIL is left out. A lower tail below STEP_TAIL is added to the next higher n, whose divergence
        is larger.
    """
    counts = np.arange(holders + 1)
    upper = np.append(1.0, stats.binom.sf(counts[:-1], holders, user_rate))  # P(at least n), shape (holders + 1,)
    chances = np.asarray(stats.binom.pmf(counts, holders, user_rate))
    first = int(np.searchsorted(stats.binom.cdf(counts, holders, user_rate), STEP_TAIL, side="right"))
    last = int(np.flatnonzero(upper > STEP_TAIL)[-1])
    chances[first] += chances[:first].sum()
    coins = np.outer([1.0 - user_rate, user_rate], [1.0 - entity_rate, entity_rate])  # (a, b)
    mixtures = []
    for n in counts[first : last + 1]:
        shifts = np.add.outer([0.0, 1.0], [0.0, entity_sensitivity * n])
        mixtures.append(Mixture(deviation, shifts[coins > 0.0], coins[coins > 0.0]))
    return mixtures, chances[first : last + 1], 0.0 if last == holders else STEP_TAIL


def loss_range(mixture: Mixture) -> tuple[float, float]:
    """Return losses (low, high), in nats. The interval contains all but STEP_TAIL of each distribution."""
    low, high = _loss(np.array(_cut(mixture)), mixture)[0]
    return float(low), float(high)


def mixture_step(mixture: Mixture, width: float, offset: float = 0.0) -> LossPair:
    """Return both directions of one step on the grid of multiples of ``width`` nats.

    The discretisation is pessimistic connect-the-dots.

    ``offset`` is the offset of the grid of ``remove``; the grid of ``add`` has its negative.

    For every a > 0, H_a of the discretised pair is at least H_a of the true pair, in both directions. The mass of each
    grid cell is split between the two ends of the cell, so that the masses under P and under Q do not change
    (Doroshenko et al. 2022, Algorithm 1). Mass outside the grid moves to the next higher loss or to infinity.

    Raises GridError if the grid would have more than MAX_CELLS cells.
    """
    low, high = loss_range(mixture)
    first = math.floor((low - offset) / width)
    last = max(math.ceil((high - offset) / width), first + 1)
    # Before anything of that size is allocated.
    if last - first > MAX_CELLS:
        raise GridError(f"{last - first} grid cells of {width} nats, at most {MAX_CELLS}")
    targets = on_grid(first, last - first + 1, width) + offset  # shape (cells + 1,)
    inside, outside = _cell_masses(_inverse_loss(targets, mixture), mixture)
    remove = _connect(inside[1:-1], outside[1:-1], targets[:-1], width)
    remove[0] += inside[0]  # losses below the grid, moved up to its first point
    # The add direction has the loss -L: the same cells from the other end, with P and Q exchanged.
    add = _connect(outside[-2:0:-1], inside[-2:0:-1], -targets[:0:-1], width)
    add[0] += outside[-1]  # likewise
    return LossPair(
        LossPmf(width, first, remove, float(inside[-1]) + mixture.missing, offset),
        LossPmf(width, -last, add, float(outside[0]), -offset),
    )


def public_average(
    mixtures: Sequence[Mixture], chances: Array, missing: float, width: float, offset: float = 0.0
) -> LossPair:
    """Return the average of the mixtures' loss distributions on one grid: a step that publishes the mixture that it
    used.

    Args:
        mixtures: the mixtures, at least one.
        chances: probability of each mixture, shape (mixtures,).
        missing: probability of all other mixtures, charged as infinite loss in both directions.
        width: width of the grid, in nats.
        offset: offset of the grid of ``remove``.

    Raises GridError like ``mixture_step``.
    """
    # The widest first: a grid that is too fine for it is refused before the others are made.
    pair, total = mixture_step(mixtures[-1], width, offset), float(chances[-1])
    for part, chance in zip(mixtures[-2::-1], chances[-2::-1].tolist(), strict=True):
        step, share = mixture_step(part, width, offset), total / (total + chance)
        pair, total = LossPair(mix(pair.remove, step.remove, share), mix(pair.add, step.add, share)), total + chance
    return LossPair(*(_rest_infinite(pmf, missing) for pmf in (pair.remove, pair.add)))


def _rest_infinite(pmf: LossPmf, missing: float) -> LossPmf:
    kept = 1.0 - missing
    return replace(pmf, masses=kept * pmf.masses, infinity=kept * pmf.infinity + missing)


def _loss(x: Array, mixture: Mixture) -> tuple[Array, Array]:
    """Return L and dL/dx at x, shape (n,) each. The function works in blocks, with exponents of shape (block, k)."""
    blocks = np.array_split(x, 1 + x.size * mixture.weights.size // _BLOCK)
    values, slopes = zip(*(_loss_block(block, mixture) for block in blocks), strict=True)
    return np.concatenate(values), np.concatenate(slopes)


def _loss_block(x: Array, mixture: Mixture) -> tuple[Array, Array]:
    variance = mixture.deviation**2
    c = mixture.sensitivities
    exponents = np.multiply.outer(x, c / variance)  # (n,) -> (n, k)
    exponents += np.log(mixture.weights) - c**2 / (2.0 * variance)
    # ``logsumexp`` by hand, since the slope needs the same exponentials.
    top = exponents.max(axis=1)
    exponents -= top[:, None]
    np.exp(exponents, out=exponents)
    total = exponents.sum(axis=1)
    return top + np.log(total), (exponents @ c) / (total * variance)


def _inverse_loss(targets: Array, mixture: Mixture) -> Array:
    """Return x with L(x) = target, shape (n,); -inf if the target is at or below the infimum of L."""
    # Atom 0 with any one atom k bounds L from below, so its crossing bounds x from above. Newton's method starts at the
    # least of these; on a convex increasing function the iterations then decrease monotonically to the root.
    variance = mixture.deviation**2
    at_zero = mixture.sensitivities == 0.0
    floor = math.log(mixture.weights[at_zero].sum()) if at_zero.any() else -math.inf
    reachable = targets > floor
    y = targets[reachable]
    beyond = y + np.log(-np.expm1(floor - y))  # ln(e^y - w_0)
    x = np.full(y.shape, math.inf)
    for shift, weight in zip(mixture.sensitivities[~at_zero], mixture.weights[~at_zero], strict=True):
        np.minimum(x, (beyond - math.log(weight)) * (variance / shift) + shift / 2.0, out=x)
    active = np.arange(y.size)
    for _ in range(_NEWTON_STEPS):
        value, slope = _loss(x[active], mixture)
        # Never to the right: rounding near the root would let the iterations wander.
        move = np.maximum((value - y[active]) / slope, 0.0)
        x[active] -= move
        active = active[move > 1e-13 * (mixture.deviation + np.abs(x[active]))]
        if not active.size:
            break
    edges = np.full(targets.shape, -math.inf)
    # Each root is exact to rounding only, but a cell of negative width would have negative mass.
    edges[reachable] = np.maximum.accumulate(x)
    return edges


def _cell_masses(edges: Array, mixture: Mixture) -> tuple[Array, Array]:
    """Return masses of P and Q below the first edge, between edges and above the last edge, shape (edges + 1,) each."""

    def masses(shift: float) -> Array:
        # Differences of the smaller tail keep their relative precision on both sides of the centre.
        z = (edges - shift) / mixture.deviation
        below, above = special.ndtr(z), special.ndtr(-z)
        middle = np.where(z[:-1] > 0.0, above[:-1] - above[1:], below[1:] - below[:-1])
        return np.concatenate([below[:1], middle, above[-1:]])

    inside = np.zeros(edges.size + 1)
    for shift, weight in zip(mixture.sensitivities, mixture.weights, strict=True):
        inside += weight * masses(float(shift))
    return inside, masses(0.0)


def _connect(upper: Array, lower: Array, starts: Array, width: float) -> Array:
    """Return masses at the grid points, shape (cells + 1,), from the masses of the cells under both distributions.

    Cell i spans the losses [starts_i, starts_i + width]. Its upper mass u and lower mass v become b at the high end and
    u - b at the low end with b = (u - e^starts v) / (1 - e^-width), which preserves u and v (Doroshenko et al.,
    Algorithm 1).
    """
    # A lower mass that underflowed to zero sends the whole cell to its high end, which is the safe side.
    with np.errstate(divide="ignore"):
        scaled = np.exp(np.minimum(starts + np.log(lower), np.log(upper)))  # e^starts v, at most u
    # Every loss of the cell is at least its start, so that e^starts v <= u but for rounding.
    high = np.clip((upper - scaled) / -math.expm1(-width), 0.0, upper)
    points = np.zeros(upper.size + 1)
    points[1:] += high
    points[:-1] += upper - high
    return points


def _cut(mixture: Mixture) -> tuple[float, float]:
    """Return x below which Q has mass STEP_TAIL, and x above which P has this mass, rounded outwards.

    P is right of Q.
    """
    reach = -mixture.deviation * float(special.ndtri(STEP_TAIL))
    # By bisection; ``high`` always keeps at most STEP_TAIL of P above it. P lies to the right of Q, so that P has even
    # less below -reach than Q, and Q even less above ``high`` than P.
    low, high = reach - 1e-9 * reach, reach + float(mixture.sensitivities.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        tail = float(mixture.weights @ special.ndtr((mixture.sensitivities - middle) / mixture.deviation))
        low, high = (middle, high) if tail > STEP_TAIL else (low, middle)
    return -reach, high


def one_step(event: GridEvent, width: float, offset: float = 0.0) -> LossPair:
    """Return the event's one-step dominating pair on a grid of ``width`` nats.

    For UnamplifiedGaussian, the pair is of the whole run.

    ``offset`` is the offset of the grid (``mixture_step``); a hard cohort cap ignores it. Raises GridError if the grid
    is too fine.
    """
    match event:
        case PoissonGaussian() | UnamplifiedGaussian():
            return mixture_step(mixture(event), width, offset)
        case TwoLevelGaussian():
            return public_average(*_two_level(event), width, offset)
        case CappedPoissonGaussian():
            pld = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
                event.population, event.rate, event.cap, event.noise_multiplier, value_discretization_interval=width
            )
            # dp-accounting has no public name for the two directions' masses.
            return LossPair(from_dp_accounting(pld._pmf_remove), from_dp_accounting(pld._pmf_add))
        case _:
            assert_never(event)


def mixture(event: PoissonGaussian | UnamplifiedGaussian) -> Mixture:
    """Return the event's step as a mixture of Gaussians. Noise must be positive."""
    match event:
        case PoissonGaussian():
            return binomial_mixture(event.noise_multiplier, event.group_size, event.rate)
        case UnamplifiedGaussian():
            return Mixture(1.0 / event.mu, np.ones(1), np.ones(1))  # N(1, 1 / mu^2) against N(0, 1 / mu^2)
        case _:
            assert_never(event)


@functools.lru_cache(maxsize=256)
def one_step_range(event: GridEvent) -> float:
    """Return the width, in nats, of the interval with the one-step loss, for a first grid."""
    if isinstance(event, TwoLevelGaussian):
        low, high = loss_range(_two_level(event)[0][-1])  # of the most holders at once
        return high - low
    # Only the width of a first grid hangs on it, so that the uncapped twin of a capped event is near enough.
    twin = (
        event if not isinstance(event, CappedPoissonGaussian) else PoissonGaussian(event.noise_multiplier, event.rate)
    )
    low, high = loss_range(mixture(twin))
    return high - low


def _two_level(event: TwoLevelGaussian) -> tuple[list[Mixture], Array, float]:
    return two_level_mixtures(
        event.noise_multiplier, event.user_rate, event.entity_rate, event.holders, event.entity_sensitivity
    )


def absence_loss(event: GridEvent) -> float:
    """Return ln of the probability that the unit is not in a step. The one-step loss often has exactly this value.

    The result is 0 if the unit is always in the step, or if this module does not build the one-step distribution.
    """
    if not isinstance(event, PoissonGaussian) or event.rate == 1.0:
        return 0.0
    return event.group_size * math.log1p(-event.rate)


def to_dp_event(event: Event, steps: int) -> dp_event.DpEvent:
    """Return the whole run as a dp-accounting event for its PLD accountant under add/remove.

    dp-accounting has no event for two-level sampling or the filter.
    """
    match event:
        case PoissonGaussian(noise_multiplier=s, rate=rate, group_size=1):
            single = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(s))
        case PoissonGaussian():
            # A mixture without noise has no loss; its weights, all that is read here, do not depend on the deviation.
            parts = (
                mixture(event) if event.noise_multiplier > 0 else binomial_mixture(1.0, event.group_size, event.rate)
            )
            weights = parts.weights / parts.weights.sum()  # dp-accounting refuses a sum that is not one
            single = dp_event.MixtureOfGaussiansDpEvent(
                event.noise_multiplier, parts.sensitivities.tolist(), weights.tolist()
            )
        case CappedPoissonGaussian():
            single = dp_event.TruncatedSubsampledGaussianDpEvent(
                event.population, event.rate, event.cap, event.noise_multiplier
            )
        case UnamplifiedGaussian():
            return dp_event.GaussianDpEvent(1.0 / event.mu)  # of the whole run: not composed again
        case TwoLevelGaussian() | FilteredGaussian():
            return dp_event.UnsupportedDpEvent()
        case _:
            assert_never(event)
    return dp_event.SelfComposedDpEvent(single, steps)
