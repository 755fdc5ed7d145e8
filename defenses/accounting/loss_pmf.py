"""Privacy-loss distributions on a uniform grid: their composition, epsilon and delta.

A ``LossPmf`` is the distribution of the loss ln(upper/lower) under the upper distribution. Every mass is moved to the
grid in a way that never lowers the hockey-stick divergence H_a(upper, lower) = sup_S upper(S) - a lower(S)
("pessimistic" discretisation). All functions of this module err on the pessimistic side: dropped mass becomes infinite
loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from scipy import fft, optimize, signal

from heldin.defenses.accounting.rounding import rounding_mass

Array = npt.NDArray[np.float64]

TAIL_MASS = 1e-15  # composed mass that may leave the window; it is charged as infinite loss
MAX_WINDOW = 2**22  # longest composed grid: 32 MiB per array
_ORDERS = np.geomspace(0.25, 32.0, 12)  # Chernoff orders, in units of 1 / (composed standard deviation)


def on_grid(lowest: int, count: int, width: float) -> Array:
    """Return the losses (lowest + j) * width, j = 0..count-1, in nats."""
    return np.arange(lowest, lowest + count).astype(np.float64) * width


@dataclass(frozen=True)
class LossPmf:
    """Masses of the loss at offset + (lowest + j) * width, j = 0..n-1.

    Attributes:
        width: width of the grid, in nats.
        lowest: index of the lowest loss.
        masses: masses of the losses, shape (n,).
        infinity: mass of infinite loss.
        offset: offset of the grid, in nats.
    """

    width: float
    lowest: int
    masses: Array
    infinity: float
    offset: float = 0.0

    @property
    def losses(self) -> Array:
        """Return the grid, shape (n,), in nats, ascending."""
        return on_grid(self.lowest, self.masses.size, self.width) + self.offset

    def loss(self, j: int) -> float:
        """Return the j-th loss of the grid, in nats."""
        return (self.lowest + j) * self.width + self.offset


@dataclass(frozen=True)
class LossPair:
    """Both directions of add/remove.

    The upper distribution has the unit in for ``remove``, and has it out for ``add``.
    """

    remove: LossPmf
    add: LossPmf

    @property
    def width(self) -> float:
        """Grid width in nats, the same in both directions."""
        return self.remove.width


class WindowError(Exception):
    """The composed grid would have too many points. A larger width needs fewer points."""


Parts: TypeAlias = Sequence[tuple[LossPmf, int]]
"""One-step losses on grids of one width, each with the number of times that it runs."""


def compose(pmf: LossPmf, steps: int) -> LossPmf:
    """Return the loss of ``steps`` independent runs; see ``compose_parts``."""
    return compose_parts([(pmf, steps)])


def compose_parts(parts: Parts) -> LossPmf:
    """Return the loss of all runs of all parts: their convolution, which is never an underestimate.

    The window contains all but TAIL_MASS by Chernoff's bound. That mass and ``rounding_mass`` of all steps are added to
    infinity, and negative FFT noise is set to zero. Raises WindowError if the window would exceed MAX_WINDOW points.
    """
    total = sum(steps for _, steps in parts)
    if total == 1:
        return parts[0][0]  # nothing is cut off or rounded
    low, masses, _ = _convolved([(pmf.masses, steps) for pmf, steps in parts])
    infinity = TAIL_MASS + rounding_mass(total) + _any_infinite(parts)
    return LossPmf(parts[0][0].width, _lowest(parts) + low, masses, infinity, _offset(parts))


def compose_tilted(parts: Parts, order: float) -> LossPmf:
    """Compose like ``compose_parts``, with a small relative rounding error near the loss that ``order`` sets.

    Elsewhere the result is loose. K is the sum of the steps' log-moment functions, order > 0 is in units of 1 / nats,
    and the loss is K'(order). The masses are tilted by e^{order l}, normalised by the mgf, composed and tilted back:
    P(l) = e^{K - order l} Q(l). FFT rounding is absolute in Q, and P is tiny at the bulk of Q. The charges are:

    - every mass of Q gets the bound ``tilted_rounding`` on its own rounding (measured to hold with a margin of more
      than 100 against sums in extended precision and in integers);
    - infinity gets Q's tail above the window, at most TAIL_MASS by Chernoff's bound, where P <= e^{K - order l};
    - the first point of the window gets a mass of 1, for all mass below the window.

    Raises WindowError like ``compose_parts``.
    """
    log_mgf, tilted, largest = 0.0, [], 0.0
    for pmf, steps in parts:
        losses, own = pmf.losses, log_moment(pmf, order)[0]
        with np.errstate(divide="ignore", under="ignore"):
            tilted.append((np.exp(order * losses - own + np.log(pmf.masses)), steps))
        log_mgf += steps * own
        largest = max(largest, order * float(np.abs(losses).max()))
    low, masses, bandwidth = _convolved(tilted)
    masses += tilted_rounding(sum(steps for _, steps in parts), masses.size, largest) * bandwidth
    width, lowest, offset = parts[0][0].width, _lowest(parts) + low, _offset(parts)
    composed = on_grid(lowest, masses.size, width) + offset
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        back = np.minimum(1.0, np.exp(log_mgf - order * composed + np.log(masses)))
    back[0] += 1.0  # everything below the window
    beyond = TAIL_MASS * math.exp(min(0.0, log_mgf - order * float(composed[-1])))
    return LossPmf(width, lowest, back, beyond + _any_infinite(parts), offset)


def _any_infinite(parts: Parts) -> float:
    # 1 - prod (1 - p)^T, for any step of infinite loss, without cancellation where p is small.
    return -math.expm1(sum(steps * math.log1p(-pmf.infinity) for pmf, steps in parts))


def _lowest(parts: Parts) -> int:
    return sum(pmf.lowest * steps for pmf, steps in parts)


def _offset(parts: Parts) -> float:
    return sum(steps * pmf.offset for pmf, steps in parts)


def log_moment(pmf: LossPmf, order: float) -> tuple[float, float]:
    """Return K(order) = ln sum masses e^{order l} over finite losses, and its derivative K'(order)."""
    exponents = order * pmf.losses
    top = float(exponents[pmf.masses > 0.0].max())
    with np.errstate(under="ignore"):
        # Grid points without mass may have exponents above the top, whose overflow times 0 would be NaN.
        weights = pmf.masses * np.exp(np.minimum(exponents - top, 0.0))
    total = float(weights.sum())
    return top + math.log(total), float(weights @ pmf.losses) / total


def order_at(parts: Parts, epsilon: float) -> float:
    """Return the order >= 0 that minimises the Chernoff bound K(order) - order epsilon, where K'(order) = epsilon.

    K is summed over all steps of all parts.
    """

    def excess(log_order: float) -> float:
        return sum(steps * log_moment(pmf, math.exp(log_order))[1] for pmf, steps in parts) - epsilon

    low, high = math.log(1e-6), math.log(1e6)
    if excess(low) >= 0.0:
        return 0.0
    return math.exp(high if excess(high) <= 0.0 else float(optimize.brentq(excess, low, high, xtol=1e-3)))


def compose_pair(pair: LossPair, steps: int) -> LossPair:
    """Compose both directions; see ``compose``."""
    return LossPair(compose(pair.remove, steps), compose(pair.add, steps))


def delta_at(pmf: LossPmf, epsilon: float) -> float:
    """Return H_{e^epsilon}(upper, lower): infinity + sum over losses l > epsilon of mass (1 - e^(epsilon - l))."""
    first = max(0, math.floor((epsilon - pmf.offset) / pmf.width) - pmf.lowest)
    # Only the grid from about epsilon on: lower losses add nothing to delta.
    losses = (pmf.lowest + np.arange(first, pmf.masses.size)) * pmf.width + pmf.offset
    above = losses > epsilon
    tail = pmf.masses[first:][above]
    return min(1.0, pmf.infinity + float(-np.expm1(epsilon - losses[above]) @ tail))


def deltas_on_grid(pmf: LossPmf) -> Array:
    """Return delta at every grid loss, shape (n,), from sums of non-negative terms. No digits of a small delta cancel.

    delta_{j-1} - delta_j = (1 - e^-width) C_j, C_j = sum_{i>=j} mass_i e^{-(l_i - l_j)} = mass_j + e^-width C_{j+1}.
    """
    carried = signal.lfilter([1.0], [1.0, -math.exp(-pmf.width)], pmf.masses[:0:-1])  # C_{n-1}, ..., C_1
    gains = -math.expm1(-pmf.width) * carried
    return np.asarray(pmf.infinity + np.append(np.cumsum(gains)[::-1], 0.0))


def epsilon_at(pmf: LossPmf, delta: float) -> float:
    """Return the smallest epsilon >= 0 with delta(epsilon) <= delta; inf if infinite loss alone exceeds delta."""
    # Between two grid losses delta(epsilon) = infinity + A - e^epsilon B is inverted in closed form, in logarithms
    # relative to the grid point, so that losses above 700 do not underflow.
    if pmf.infinity > delta:
        return math.inf
    deltas = deltas_on_grid(pmf)
    j = int(np.searchsorted(-deltas, -delta))  # first grid loss with delta_j <= delta
    if j == 0:
        # below the lowest loss delta(epsilon) = infinity + A - e^(epsilon - l_0) B with all the masses in A and B
        mass = float(pmf.masses.sum())
        discounted = float(pmf.masses @ np.exp(-pmf.width * np.arange(pmf.masses.size)))
        ratio = (pmf.infinity + mass - delta) / discounted if discounted > 0.0 else 0.0
        return max(0.0, pmf.loss(0) + math.log(ratio)) if ratio > 0 else 0.0
    # on [l_{j-1}, l_j] delta falls from deltas[j-1] in proportion to e^epsilon - e^{l_{j-1}}
    share = float((deltas[j - 1] - delta) / (deltas[j - 1] - deltas[j]))
    return max(0.0, pmf.loss(j) + math.log(share + (1.0 - share) * math.exp(-pmf.width)))


def pair_epsilon(pair: LossPair, delta: float) -> float:
    """Return epsilon(delta) under add/remove: the larger value of the two directions."""
    return max(epsilon_at(pair.remove, delta), epsilon_at(pair.add, delta))


def pair_delta(pair: LossPair, epsilon: float) -> float:
    """Return delta(epsilon) under add/remove: the larger value of the two directions."""
    return max(delta_at(pair.remove, epsilon), delta_at(pair.add, epsilon))


def mix(first: LossPmf, second: LossPmf, weight: float) -> LossPmf:
    """Return the loss if ``first`` runs with public probability ``weight``, else ``second``. The two losses share one
    grid."""
    low = min(first.lowest, second.lowest)
    high = max(first.lowest + first.masses.size, second.lowest + second.masses.size)
    masses = np.zeros(high - low)
    for part, share in ((first, weight), (second, 1.0 - weight)):
        start = part.lowest - low
        masses[start : start + part.masses.size] += share * part.masses
    return LossPmf(first.width, low, masses, weight * first.infinity + (1.0 - weight) * second.infinity, first.offset)


def from_dp_accounting(pmf: pld_pmf.PLDPmf) -> LossPmf:
    """Return a dp-accounting pmf as a LossPmf."""
    dense = pmf.to_dense_pmf()
    masses = np.asarray(dense._probs, dtype=np.float64)
    return LossPmf(float(dense._discretization), int(dense._lower_loss), masses, float(dense._infinity_mass))


def _convolved(parts: Sequence[tuple[Array, int]]) -> tuple[int, Array, float]:
    """Return the convolution of all parts, with multiplicities, as (first index, masses >= 0, bandwidth).

    The function uses the FFT. Mass outside the window wraps into the window, which only adds mass. ``bandwidth`` bounds
    the mean size of the spectrum without any one of its factors, and is at most about the largest composed mass.
    Rounding is proportional to bandwidth.
    """
    low, high = _window(parts)
    size = high - low + 1
    length = fft.next_fast_len(max(size, *(masses.size for masses, _ in parts)), real=True)
    if length > MAX_WINDOW:
        raise WindowError(f"a composed grid of {length} points")
    powered, factor = None, None
    for masses, steps in parts:
        spectrum = fft.rfft(masses, length)
        power, own = _power(spectrum, steps), np.abs(spectrum)
        powered = power if powered is None else powered * power
        factor = own if factor is None else np.minimum(factor, own)
    assert powered is not None
    assert factor is not None
    # Index i of the sum stands at i modulo the length: turn the first index of the window to the front.
    composed = np.roll(fft.irfft(powered, length), -(low % length))[:size]
    factor = np.maximum(factor, 1e-300)  # a frequency of 0 contributes 0, not 0 / 0
    return low, np.maximum(composed, 0.0), float((np.abs(powered) / factor).mean())


def tilted_rounding(steps: int, points: int, largest_exponent: float) -> float:
    """Return the error of one mass of a composed tilted pmf of total mass 1, divided by its bandwidth.

    A transform of non-negative masses of sum 1 has an error of a small multiple of log2(points) 2^-53 at each
    frequency. The tilt's exponentials have an error of their exponent times 2^-53. The errors of ``steps`` factors add
    up.
    """
    return steps * 2.0**-53 * (8.0 * math.log2(max(points, 2)) + 2.0 * largest_exponent)


def _power(values: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Return values ** exponent by repeated squaring, because numpy's complex power is several times slower."""
    result: npt.NDArray[np.complex128] | None = None
    base = values
    while exponent:
        if exponent & 1:
            result = base.copy() if result is None else result * base
        exponent >>= 1
        if exponent:
            base = base * base
    assert result is not None
    return result


def _window(parts: Sequence[tuple[Array, int]]) -> tuple[int, int]:
    """Return the first and last index of a window with all mass of the sum of the parts except TAIL_MASS.

    The bound is Chernoff's, with half of TAIL_MASS at each end.
    """
    centred, mean, variance, low, high = [], 0.0, 0.0, 0.0, 0.0
    for masses, steps in parts:
        index = np.flatnonzero(masses).astype(np.float64)
        weights = masses[masses != 0.0]
        total = float(weights.sum())
        middle = float(index @ weights) / total
        index -= middle
        centred.append((index, weights, steps))
        mean += steps * middle
        variance += steps * float(index**2 @ weights) / total
        high += float((masses.size - 1) * steps)
    most, spread = high, math.sqrt(max(variance, 1e-300))
    bound = math.log(2.0 / TAIL_MASS)
    # Chernoff's bound holds at every order, so that the tightest of several does too; the range need not be optimal.
    for order in _ORDERS / max(spread, 1e-3):
        for sign in (1.0, -1.0):
            log_mgf = 0.0
            for index, weights, steps in centred:
                exponents = sign * order * index
                top = float(exponents.max())
                log_mgf += steps * (top + math.log(float(np.exp(exponents - top) @ weights)))
            reach = (log_mgf + bound) / order
            if sign > 0:
                high = min(high, mean + reach)
            else:
                low = max(low, mean - reach)
    return max(0, math.floor(low)), min(int(most), math.ceil(high))
