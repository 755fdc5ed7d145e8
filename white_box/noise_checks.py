"""Check the noise of whole trainings in coordinates without gradients: size, distribution and independence."""

import math

import numpy as np
from numpy.typing import NDArray

from heldin.white_box import laws
from heldin.white_box.canaries import Array
from heldin.white_box.check import LEVEL, Check, tested

_MOST_KS = 200_000  # numbers whose law is tested
_ROWS = 1000  # of a block of correlations


def noise_checks(noise: NDArray[np.float32], trainings: int = 1) -> tuple[Check, ...]:
    """Check that the noise is N(0, 1), independent between trainings, steps and coordinates. Two-sided.

    The first check tests the stated deviation. The other checks divide the noise by its measured deviation, so a wrong
    deviation raises only one alarm. They treat the measured deviation as exact, because T P is in the thousands.

    Args:
        noise: noise divided by the stated deviation, shape (trainings x T, P).
        trainings: number of consecutive trainings, each with T steps.
    """
    z = noise.astype(np.float64)
    rows, places = z.shape
    deviation = math.sqrt(float(np.square(z).mean()))
    whole = laws.deviations(np.square(z).sum(), z.size, LEVEL)
    detects = f"{whole.times} the stated deviation in all steps of the training runs"
    checks = [tested("noise deviation over the stated one", "coordinates", whole, 1.0, detects)]
    # No noise at all has its alarm above, and leaves nothing to divide by.
    if deviation == 0.0:
        return tuple(checks)
    u = z / deviation
    step = laws.deviations(np.square(u).sum(axis=1), places, LEVEL)
    place = laws.deviations(np.square(u).sum(axis=0), rows, LEVEL)
    mean = laws.means(u.sum(), u.size, LEVEL)
    law = laws.distances([u.ravel()[:: max(1, u.size // _MOST_KS)]], LEVEL)
    of_step = f"one step of {step.times} the deviation"
    of_place = f"one quiet coordinate of {place.times} the deviation in all steps"
    checks += [
        tested("noise mean", "coordinates", mean, 0.0, f"a mean of {mean.smallest:.2g} deviations"),
        tested("noise distance from normal", "coordinates", law, 0.0, f"a distribution off by {law.smallest:.2g}"),
        tested("noise of the most deviant step", "state", step, 1.0, of_step),
        tested("noise of the most deviant coordinate", "coordinates", place, 1.0, of_place),
    ]
    return (*checks, *_between_steps(u, trainings), *_between_places(u))


def _between_steps(u: Array, trainings: int) -> list[Check]:
    rows, places = u.shape
    steps = rows // trainings
    if rows == 1:
        return []
    # (rows, places) -> (places,): what the steps have in common grows with their number, the rest with its root.
    kept = laws.deviations(np.square(u.sum(axis=0)).sum() / rows, places, LEVEL)
    pairs = laws.correlations(np.array([_largest(u)]), np.array([places]), LEVEL, rows * (rows - 1) // 2)
    share = 100 * _share(kept.smallest, rows)
    common = f"a part that is common to the steps of all training runs, with {share:.2g} % of the variance"
    any_two = f"a correlation of {pairs.smallest:.2g} between any two of {rows} steps, of one training or of two"
    checks = [
        tested("noise kept from step to step", "state", kept, 1.0, common),
        tested("noise shared by two steps of training runs", "state", pairs, 0.0, any_two),
    ]
    if steps > 1:
        # (trainings, places, steps): no pair spans two trainings.
        sums, counts = laws.lag_sums(u.reshape(trainings, steps, places).transpose(0, 2, 1))
        lags = laws.products(sums, counts, LEVEL)
        detects = f"a correlation of {lags.smallest:.2g} between all steps so many apart, up to half of {steps}"
        checks.append(tested("noise against a later step's", "state", lags, 0.0, detects))
    return checks


def _between_places(u: Array) -> list[Check]:
    rows, places = u.shape
    if places == 1:
        return []
    common = laws.deviations(np.square(u.sum(axis=1)).sum() / places, rows, LEVEL)  # (rows, places) -> (rows,)
    along = laws.products(*laws.lag_sums(u), LEVEL)
    share = 100 * _share(common.smallest, places)
    of_all = f"a part that is common to all quiet coordinates, with {share:.2g} % of the variance"
    at_one = f"a correlation of {along.smallest:.2g} between quiet coordinates at one distance"
    return [
        tested("noise common to coordinates", "coordinates", common, 1.0, of_all),
        tested("noise against another coordinate's", "coordinates", along, 0.0, at_one),
    ]


def _largest(u: Array) -> float:
    """Return the largest correlation between two rows. Computes a block of rows at a time."""
    unit = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
    largest = 0.0
    for start in range(0, len(unit), _ROWS):
        block = np.abs(unit[start : start + _ROWS] @ unit[start:].T)
        largest = max(largest, float(np.triu(block, 1).max(initial=0.0)))
    return largest


def _share(times: float, number: int) -> float:
    """Return the share of variance that ``number`` values must have in common to multiply their sum's deviation by
    ``times``."""
    return min(1.0, (times**2 - 1.0) / max(1, number - 1))
