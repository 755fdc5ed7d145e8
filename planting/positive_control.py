"""The positive control of a planted audit: whether planted rows affected the model as real rows did.

A canary user in training should be at least as easy to find as a real row that was trained on equally often. If the
model plainly learned real rows but not canary users, training did not treat canary rows like other rows.
"""

import functools
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import special

from heldin.audit.coarse import brief
from heldin.bounds.roc import error_at_chance, placements
from heldin.record.planted_facts import ControlFacts, ControlOutcome

Gains = NDArray[np.float64]

LEVEL = 0.01
POWER = 0.8  # probability to notice a filter, where a plan counts on the control
TARGET = 0.65  # AUROC of real rows from which ``plant`` proposes to notice filters
MOST_CANARIES = 20_000
_AREAS: Gains = np.round(np.arange(0.51, 0.9901, 0.005), 3)
LEAST_ROWS = 20  # of each kind of real rows, below which their AUROC says little
LEAST_CANARIES = 4  # on each side


class Filter(StrEnum):
    """A way of training that weakens the effect of canary rows on a model, and that the log does not show."""

    TOKEN_LOSS = "token loss"
    UNLEARNING = "unlearning"
    DOWN_WEIGHTING = "down-weighting"


# What is left of a canary user's effect, in terms of a real row's, at most: as measured in trainings for the first two
# (benchmarks/control_power.py), and the weight itself, as it is under SGD. Adam undoes a weight of canary rows alone.
LEFT = {Filter.TOKEN_LOSS: 0.4, Filter.UNLEARNING: 0.1, Filter.DOWN_WEIGHTING: 0.05}


def positive_control(
    trained: Gains, untrained: Gains, held_in: Gains, held_out: Gains, planned: float | None = None
) -> ControlFacts:
    """Compare canary users with real rows by their gains.

    Args:
        trained: gains of real rows that were trained on, shape (rows,).
        untrained: gains of comparable real rows that were not trained on, shape (rows,).
        held_in: mean gain of the rows of each canary user who is a member, shape (users,).
        held_out: mean gain of the rows of each canary user who is a non-member, shape (users,).
        planned: lowest AUROC of real rows for which the plan expects the control to notice filters; None: the control
            never notices filters.
    """
    counts = {
        "trained_rows": trained.size,
        "untrained_rows": untrained.size,
        "held_in": held_in.size,
        "held_out": held_out.size,
    }
    if min(trained.size, untrained.size) < LEAST_ROWS or min(held_in.size, held_out.size) < LEAST_CANARIES:
        return not_measured(**counts)
    z = float(special.ndtri(1 - LEVEL))
    rows, rows_error = _auroc(trained, untrained)
    canaries, canaries_error = _auroc(held_in, held_out)
    rows_lower, canary_lower = rows - z * rows_error, canaries - z * canaries_error
    difference_lower = rows - canaries - z * float(np.hypot(rows_error, canaries_error))
    canaries_gain = canary_lower > 0.5
    if rows_lower > 0.5 and difference_lower > 0:
        outcome = ControlOutcome.WEAKENED if canaries_gain else ControlOutcome.NO_EFFECT
    elif canaries_gain:
        outcome = ControlOutcome.PASSED
    else:
        outcome = ControlOutcome.UNDECIDED if rows_lower > 0.5 else ControlOutcome.UNUSABLE
    return ControlFacts(
        outcome=outcome,
        rows_auroc=brief(rows),
        rows_lower=brief(rows_lower),
        canary_auroc=brief(canaries),
        canary_lower=brief(canary_lower),
        difference_lower=brief(difference_lower),
        level=LEVEL,
        noticed_from=_later(planned, noticed_from(trained.size, untrained.size, 2 * min(held_in.size, held_out.size))),
        **counts,
    )


def not_measured(trained_rows: int = 0, untrained_rows: int = 0, *, held_in: int, held_out: int) -> ControlFacts:
    """Return the facts about a control that was not measured."""
    return ControlFacts(
        outcome=ControlOutcome.NOT_MEASURED,
        trained_rows=trained_rows,
        untrained_rows=untrained_rows,
        held_in=held_in,
        held_out=held_out,
        level=LEVEL,
    )


def _later(planned: float | None, measured: float | None) -> float | None:
    """Return the larger AUROC, because a control with fewer rows than planned notices less. None if either AUROC is
    unknown."""
    return None if planned is None or measured is None else max(planned, measured)


@functools.lru_cache(maxsize=1024)
def noticed_from(trained: int, untrained: int, canaries: int) -> float | None:
    """Return the lowest AUROC of real rows for which the control notices each ``Filter`` with probability ``POWER``.

    For a higher AUROC, the control may instead find that canary rows plainly had an effect. The probability of neither
    result is at most 1 - ``POWER``. Gains are assumed to be normal with equal standard deviations
    (docs/theory.md#positive-control).

    Args:
        trained: number of trained real rows in the sample.
        untrained: number of untrained real rows in the sample.
        canaries: number of canary users; half of them are members.

    Returns:
        The AUROC; None if no AUROC suffices.
    """
    if min(trained, untrained) < LEAST_ROWS or canaries < 2 * LEAST_CANARIES:
        return None
    z = float(special.ndtri(1 - LEVEL))
    left = special.ndtr(max(LEFT.values()) * special.ndtri(_AREAS))
    rows_error = _error_of(_AREAS, trained, untrained)
    canaries_error = _error_of(left, canaries - canaries // 2, canaries // 2)
    error = np.hypot(rows_error, canaries_error)
    is_below = special.ndtr((_AREAS - left) / error - z)
    noticed = np.minimum(is_below, special.ndtr((_AREAS - 0.5) / rows_error - z))
    passed = special.ndtr((left - 0.5) / canaries_error - z)
    never_undecided = np.minimum.accumulate((is_below + passed)[::-1])[::-1] >= POWER
    enough = np.flatnonzero((noticed >= POWER) & never_undecided)
    return float(_AREAS[enough[0]]) if enough.size else None


def canaries_needed(trained: int, untrained: int, area: float) -> int | None:
    """Return how many canary users the control needs to notice each filter, from this AUROC of real rows upwards.

    None if even ``MOST_CANARIES`` canary users are too few with these real rows.
    """
    low, high = 2 * LEAST_CANARIES, MOST_CANARIES

    def suffices(canaries: int) -> bool:
        noticed = noticed_from(trained, untrained, canaries)
        return noticed is not None and noticed <= area + 1e-9

    if not suffices(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return high


def _auroc(above: Gains, below: Gains) -> tuple[float, float]:
    """Return the AUROC and its standard error, which is the larger of DeLong's error and the error at chance."""
    mine, others = placements(np.sort(above), np.sort(below))  # searching in order takes half the time
    by_placements = np.sqrt(mine.var(ddof=1) / above.size + others.var(ddof=1) / below.size)
    return float(mine.mean()), max(error_at_chance(above.size, below.size), float(by_placements))


def _error_of(area: Gains, above: int, below: int) -> Gains:
    """Return the standard error of an AUROC of normal scores: the asymptotic error, or the error at chance if
    larger."""
    at = special.ndtri(area)
    # P(two of one side are above one of the other), by the bivariate normal with correlation 1/2 (Owen 1956).
    both = area - 2 * special.owens_t(at, np.sqrt(1 / 3))
    variance = (both - area**2) * (1 / above + 1 / below)
    larger: Gains = np.maximum(np.sqrt(variance), error_at_chance(above, below))
    return larger
