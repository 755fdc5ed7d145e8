"""Looser accountants to compare with the exact one: black-box group privacy and Renyi DP."""

import contextlib
import logging
import math
from collections.abc import Iterator

import numpy as np
from dp_accounting import rdp
from scipy import optimize, special

from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.defenses.accounting.closed_forms import SMALLEST_DELTA, check_delta
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    Event,
    FilteredGaussian,
    PoissonGaussian,
    TwoLevelGaussian,
    UnamplifiedGaussian,
    check_count,
)
from heldin.defenses.accounting.guarantees import epsilon, loss_distribution
from heldin.defenses.accounting.loss_pmf import Array, LossPmf, deltas_on_grid, pair_delta, rounding_mass
from heldin.defenses.accounting.step_pld import mixture, to_dp_event

# Orders a of the Renyi divergences that are tried. Fewer orders only loosen the bound.
ORDERS = np.concatenate([np.arange(1.05, 11.0, 0.05), np.arange(11.0, 64.0), [80.0, 96.0, 128.0, 192.0, 256.0]])
_MOST_TILTS, _TILTS = 1e9, 2**22  # log-likelihood ratios: of all, and of one piece of the quadrature


def black_box_epsilon(event: PoissonGaussian, group_size: int, steps: int, delta: float) -> float:
    """Epsilon for a group from the single unit's curve alone (Vadhan 2017; Charles et al., Figure 1).

    eps = G e with the least e such that delta_1(e) (e^{G e} - 1) / (e^e - 1) <= delta, or inf if there is none (the
    "diverged" points of Figure 1).

    Args:
        event: of a single unit, group size 1.
        steps: T.
    """
    check_count("group size", group_size, MANY)
    check_delta(delta, steps)
    if event.group_size != 1:
        raise InputError(
            f"black-box group privacy starts from a single unit, but the event has group size {event.group_size}"
        )
    if group_size == 1 or event.noise_multiplier == 0.0:
        return epsilon(event, steps, delta)
    # Resolved at the smallest delta that a whole pair shows: the conversion needs a far smaller one than the result's.
    pair = loss_distribution(event, steps, max(SMALLEST_DELTA, 8.0 * rounding_mass(steps)))
    width = pair.width
    last = max(p.lowest + p.masses.size - 1 for p in (pair.remove, pair.add))
    # One index for both directions, whose grids begin and end elsewhere; losses index * width from 0 on.
    index = np.arange(max(last, 0) + 1)
    curve = np.maximum(*(_on_indices(p, index) for p in (pair.remove, pair.add)))
    with np.errstate(divide="ignore"):
        enough = np.log(curve) + _log_factor(index.astype(np.float64) * width, group_size) <= math.log(delta)
    # delta_1 has a floor of about steps * 2^-53 + 1e-15 from truncation and rounding; large groups need far less.
    if not enough.any():
        return math.inf
    first = int(np.argmax(enough))  # the least e on the grid; the product need not fall everywhere
    if first == 0:
        return 0.0

    def gap(e: float) -> float:
        return math.log(pair_delta(pair, e)) + float(_log_factor(np.array([e]), group_size)[0]) - math.log(delta)

    low, high = (first - 1) * width, first * width
    if gap(high) > 0.0:  # the grid values round differently in the last digit
        return group_size * high
    return group_size * (float(optimize.brentq(gap, low, high, xtol=1e-12)) + 1e-11)  # above the root's own error


def rdp_epsilon(event: Event, steps: int, delta: float) -> float | None:
    """Epsilon by Renyi DP (Mironov 2017), with dp-accounting's conversion; None for groups of many thousands.

    Raises InputError for a hard cohort cap, two-level sampling and a filter: no such accountant is known.
    """
    check_count("steps", steps)
    # As for one step: no composed distribution is cut off here, so that more steps need no larger delta.
    check_delta(delta, 1)
    if event.noise_multiplier == 0.0:
        return math.inf
    match event:
        case CappedPoissonGaussian():
            raise InputError(
                "no Renyi accountant exists for a hard cohort cap: leave the cap out or use epsilon by PLD"
            )
        case FilteredGaussian():
            raise InputError("no Renyi accountant exists for the concentration filter: use epsilon")
        case TwoLevelGaussian():
            raise InputError("no Renyi accountant exists for two-level sampling: use epsilon")
        # dp-accounting has no Renyi accountant for mixtures of Gaussians: integrate the divergences numerically.
        case PoissonGaussian(group_size=g) if g > 1:
            divergences = mixture_rdp(event, ORDERS)
            return None if divergences is None else float(rdp.compute_epsilon(ORDERS, steps * divergences, delta)[0])
        case PoissonGaussian() | UnamplifiedGaussian():
            with _quiet_absl():
                accountant = rdp.RdpAccountant()
                accountant.compose(to_dp_event(event, steps))
                return float(accountant.get_epsilon(delta))


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Keep dp-accounting's warnings off the terminal."""
    # It prints one for each order that does not converge; leaving these orders out only loosens the bound.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def mixture_rdp(event: PoissonGaussian, orders: Array) -> Array | None:
    """max over directions of R_a(P, Q), R_a(Q, P) of one step, shape of orders; trapezoid rule, spacing s/4.

    None for a group so large that this would take minutes.
    """
    # The tail of atoms below STEP_TAIL is left out: at most steps * STEP_TAIL of delta, which is not charged here.
    parts = mixture(event)
    s, c = parts.deviation, parts.sensitivities
    # At order a the integrand of component c peaks near a c, and falls like a Gaussian of deviation s about it.
    reach = float(orders.max() * c.max()) + 14.0 * s
    if 8.0 * reach / s * c.size > _MOST_TILTS:
        return None
    x = np.arange(-reach, reach, s / 4.0)
    log_q = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi)) + math.log(s / 4.0)
    at_zero = np.log(parts.weights) - c**2 / (2.0 * s**2)
    # A few points at a time: all of them times all components may be more than fits into memory.
    pieces = np.array_split(x, math.ceil(x.size * c.size / _TILTS))
    loss = np.concatenate([special.logsumexp(np.multiply.outer(piece, c / s**2) + at_zero, axis=1) for piece in pieces])
    # With p = q e^L: the integrals of p^a q^(1 - a) and of q^a p^(1 - a).
    remove = [float(special.logsumexp(log_q + a * loss)) / (a - 1.0) for a in orders]
    add = [float(special.logsumexp(log_q - (a - 1.0) * loss)) / (a - 1.0) for a in orders]
    return np.maximum(0.0, np.maximum(remove, add))  # quadrature may fall below 0 by its last digits


def _on_indices(pmf: LossPmf, index: np.ndarray) -> Array:
    """delta at the losses index * width, shape of index; index starts at 0."""
    deltas = deltas_on_grid(pmf)
    at = index - pmf.lowest
    # Above the highest loss only infinite losses count; below the lowest, delta is at most 1.
    values = np.where(at < deltas.size, deltas[np.clip(at, 0, deltas.size - 1)], pmf.infinity)
    return np.where(at < 0, 1.0, values)


def _log_factor(e: Array, group_size: int) -> Array:
    """ln((e^{G e} - 1) / (e^e - 1)), shape of e >= 0; ln G at 0."""
    # The form 0 / 0 at e = 0 tends to ln G, which 1e-12 gives to all digits that matter.
    small = np.maximum(e, 1e-12)
    return np.asarray((group_size - 1) * small + np.log(-np.expm1(-group_size * small)) - np.log(-np.expm1(-small)))
