"""Noise that is correlated over steps: the banded square root of the prefix sum, and the noise in sums over steps.

C is lower triangular and Toeplitz, with ``bands`` coefficients and columns of norm at most 1. The noise of the steps is
C^-1 z with independent normal z, so parts of the noise cancel in sums over steps. docs/theory.md#banded-noise explains
how the coefficients affect epsilon.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]


@functools.lru_cache(maxsize=64)
def banded_square_root(bands: int) -> tuple[float, ...]:
    """Return c_0 to c_(b-1) of C: binom(2k, k) / 4^k, divided by the norm of all coefficients.

    Before the division, these are the first coefficients of (1 - x)^(-1/2), whose square is the prefix sum (Kalinin and
    Lampert 2024). One band gives the number 1, which is independent noise.
    """
    if bands == 1:
        return (1.0,)
    k = np.arange(1, bands)
    raw = np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])
    # The first column is the longest: later columns are cut off by the last step.
    return tuple((raw / np.linalg.norm(raw)).tolist())


def moved_by(momentum: float, decay: float, steps: int) -> Series:
    """Return how far a gradient moves the weights within 0, 1, ... further steps, in units of the learning rate.

    Args:
        momentum: momentum of SGD.
        decay: share by which the weights shrink in a step.
    """
    pushes = momentum ** np.arange(steps)
    moved = np.empty(steps)
    so_far = 0.0
    for step in range(steps):
        so_far = (1.0 - decay) * so_far + pushes[step]
        moved[step] = so_far
    return moved


def noise_response(coefficients: Sequence[float], steps: int) -> Series:
    """Return the first column of C^-1: the noise that one z adds to its own step and to the steps after it."""
    column = np.zeros(steps)
    for step in range(steps):
        reach = min(len(coefficients), step + 1)
        earlier = sum(coefficients[i] * column[step - i] for i in range(1, reach))
        column[step] = (float(step == 0) - earlier) / coefficients[0]
    return column


def step_error(coefficients: Sequence[float], steps: int) -> float:
    """Return |C^-1|_F / sqrt(T), the root mean square of the noise of a single step, for sigma = 1."""
    times = steps - np.arange(steps)
    return float(np.sqrt((times * noise_response(coefficients, steps) ** 2).sum() / steps))


def workload_error(coefficients: Sequence[float], steps: int, momentum: float = 0.0, decay: float = 0.0) -> float:
    """Return |A C^-1|_F / sqrt(T), the root mean square of the noise in the weights over all steps, for sigma = 1.

    A is the optimizer's linear map of the gradients; for plain SGD, A gives sums. The error does not measure utility.
    """
    made = np.convolve(moved_by(momentum, decay, steps), noise_response(coefficients, steps))[:steps]
    # Entry k of this column is on a diagonal of steps - k entries.
    times = steps - np.arange(steps)
    return float(np.sqrt((times * made**2).sum() / steps))
