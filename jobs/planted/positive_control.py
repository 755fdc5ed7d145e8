"""The positive control of a planted audit: whether planted rows had the effect on the model that real rows had.

A canary user that was trained on is meant to be at least as easy to find as a real row that was trained on as often. If
real rows were plainly learned and canary users were not, they were not trained on like the other rows.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from heldin.audit.coarse import brief
from heldin.bounds.roc import placements
from heldin.record.planted_facts import ControlFacts, ControlOutcome

Gains = NDArray[np.float64]

LEVEL = 0.01
_POWER = 0.95  # probability to notice that canary rows had no effect
LEAST_ROWS = 20  # of each kind of real rows, below which their AUROC says little
LEAST_CANARIES = 4  # on each side


def positive_control(trained: Gains, untrained: Gains, held_in: Gains, held_out: Gains) -> ControlFacts:
    """Compare canary users with real rows by how much each gained.

    Args:
        trained: gains of real rows that were trained on, shape (rows,).
        untrained: gains of comparable real rows that were not.
        held_in: mean gain of each held-in canary user's rows, shape (users,).
        held_out: the same for held-out ones.
    """
    counts = {
        "trained_rows": trained.size,
        "untrained_rows": untrained.size,
        "held_in": held_in.size,
        "held_out": held_out.size,
    }
    if min(trained.size, untrained.size) < LEAST_ROWS or min(held_in.size, held_out.size) < LEAST_CANARIES:
        return ControlFacts(outcome=ControlOutcome.NOT_MEASURED, level=LEVEL, **counts)
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
        **counts,
    )


def detectable_auroc(trained: int, untrained: int, canaries: int) -> float:
    """Return how plainly real rows must be learned for the control to notice that canary rows had no effect.

    Args:
        trained: real rows that were trained on, in the sample.
        untrained: real rows that were not.
        canaries: canary users, half of them held in.
    """
    in_, out = canaries - canaries // 2, canaries // 2
    error = np.hypot(_error_at_chance(trained, untrained), _error_at_chance(in_, out))
    return float(0.5 + (special.ndtri(1 - LEVEL) + special.ndtri(_POWER)) * error)


def _error_at_chance(above: int, below: int) -> float:
    return float(np.sqrt((above + below + 1) / (12 * above * below)))


def _auroc(above: Gains, below: Gains) -> tuple[float, float]:
    """Return the AUROC, and its standard error: the larger of DeLong's and that of scores at chance."""
    mine, others = placements(np.sort(above), np.sort(below))  # searching in order takes half the time
    by_placements = np.sqrt(mine.var(ddof=1) / above.size + others.var(ddof=1) / below.size)
    return float(mine.mean()), max(_error_at_chance(above.size, below.size), float(by_placements))
