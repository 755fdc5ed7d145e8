"""Whether a published finding is seen again: a difference with its interval, held against what the finding expects.

A finding that something changes is confirmed if the 95 % interval of the difference lies on its side of zero, and not
confirmed if the interval lies on the other side, or within the margin on either side of zero. A finding that nothing
changes is confirmed if the interval lies within the margin, and not confirmed if it lies outside. Everything else
cannot be judged. Each finding is tested at its own 95 %.

The interval of one pair of trainings is over users. Two other trainings of the same plans would have another
difference, which ``of_one_training`` adds to the interval of a loss.
"""

import math
from typing import Literal

Change = tuple[float, float, float]  # value, lower and upper 95 % limit
Expected = Literal["less", "more", "alike"]
Seen = Literal["confirmed", "not confirmed", "cannot be judged"]
MARGIN = 0.1  # of an AUROC: differences within it are no differences
# Nats: standard deviation, over the five blocks of the sweep affordable, of the difference between ULS and ELS in loss
# (95 % interval of its mean -0.0230 to -0.0032, Student's t with 4 degrees of freedom).
SPREAD_OF_TRAININGS = 0.008


def of_one_training(of: Change, pairs: int = 1) -> Change:
    """Widen the interval of a difference in loss, in nats, that rests on one training of each variant.

    Twice the standard deviation of trainings is added in quadrature to the reach on each side.

    Args:
        of: the difference with its limits over users.
        pairs: pairs of trainings in it: 2 for a difference of two differences.
    """
    value, low, high = of
    reach = 2.0 * SPREAD_OF_TRAININGS * math.sqrt(pairs)
    return value, value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)


def seen(expected: Expected, of: Change | None, margin: float = MARGIN) -> Seen:
    """The verdict on a finding; without an interval (None) it cannot be judged.

    Args:
        expected: whether the finding says that it falls, rises or stays.
        of: the difference with its limits.
        margin: differences within it are no differences.
    """
    if of is None:
        return "cannot be judged"
    match expected:
        case "less":
            return less(of, margin)
        case "more":
            return more(of, margin)
        case "alike":
            return alike(of, margin)


def less(of: Change, margin: float = MARGIN) -> Seen:
    """The verdict on "it falls"."""
    return more((-of[0], -of[2], -of[1]), margin)


def more(of: Change, margin: float = MARGIN) -> Seen:
    """The verdict on "it rises"."""
    _, low, high = of
    if low > 0:
        return "confirmed"
    return "not confirmed" if high < 0 or (low > -margin and high < margin) else "cannot be judged"


def alike(of: Change, margin: float = MARGIN) -> Seen:
    """The verdict on "it stays"."""
    _, low, high = of
    if low > -margin and high < margin:
        return "confirmed"
    return "not confirmed" if low > margin or high < -margin else "cannot be judged"
