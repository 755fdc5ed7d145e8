"""Black-box group privacy, a looser accounting that Charles et al. compare with their own accounting (Figure 1)."""

import math

import numpy as np
from scipy import optimize

from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.defenses.accounting.closed_forms import SMALLEST_DELTA, check_delta
from heldin.defenses.accounting.events import PoissonGaussian, check_count
from heldin.defenses.accounting.guarantees import epsilon, loss_distribution
from heldin.defenses.accounting.loss_pmf import Array, LossPmf, deltas_on_grid, pair_delta
from heldin.defenses.accounting.rounding import rounding_mass


def black_box_epsilon(event: PoissonGaussian, group_size: int, steps: int, delta: float) -> float:
    """Return epsilon for a group, computed only from the curve of a single unit (Vadhan 2017; Charles et al., Figure
    1).

    eps = G e with the least e such that delta_1(e) (e^{G e} - 1) / (e^e - 1) <= delta. The result is inf if there is no
    such e (the "diverged" points of Figure 1).

    Args:
        event: event of a single unit, with group size 1.
        steps: number of steps T.
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


def _on_indices(pmf: LossPmf, index: np.ndarray) -> Array:
    """Return delta at the losses index * width, with the shape of ``index``; the index starts at 0."""
    deltas = deltas_on_grid(pmf)
    at = index - pmf.lowest
    # Above the highest loss only infinite losses count; below the lowest, delta is at most 1.
    values = np.where(at < deltas.size, deltas[np.clip(at, 0, deltas.size - 1)], pmf.infinity)
    return np.where(at < 0, 1.0, values)


def _log_factor(e: Array, group_size: int) -> Array:
    """Return ln((e^{G e} - 1) / (e^e - 1)), with the shape of ``e``; ln G at 0. Requires e >= 0."""
    # The form 0 / 0 at e = 0 tends to ln G, which 1e-12 gives to all digits that matter.
    small = np.maximum(e, 1e-12)
    return np.asarray((group_size - 1) * small + np.log(-np.expm1(-group_size * small)) - np.log(-np.expm1(-small)))
