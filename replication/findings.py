"""Whether a published finding is confirmed: compare a difference and its interval with the finding.

A finding of a change is confirmed if the 95 % interval of the difference is on the expected side of zero. It is not
confirmed if the interval is on the other side, or within the margin around zero. A finding of no change is confirmed if
the interval is within the margin, and not confirmed if the interval is outside the margin. Every other case cannot be
judged. Each finding is tested separately at 95 %.

For one pair of trainings, the interval covers only the choice of users. Two other trainings with the same plans would
have another difference. ``of_one_training`` adds this uncertainty to the interval of a loss.
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
    """Widen the interval of a difference in loss, in nats, that uses only one training of each variant.

    Adds twice the standard deviation between trainings, in quadrature, to each side of the interval.

    Args:
        of: the difference, with its limits over users.
        pairs: number of pairs of trainings in the difference: 2 for a difference of two differences.
    """
    value, low, high = of
    reach = 2.0 * SPREAD_OF_TRAININGS * math.sqrt(pairs)
    return value, value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)


def seen(expected: Expected, of: Change | None, margin: float = MARGIN) -> Seen:
    """Return the verdict on a finding. Without an interval (None), the finding cannot be judged.

    Args:
        expected: whether the finding states that the value falls, rises or stays.
        of: the difference with its limits.
        margin: differences within the margin count as no difference.
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
    """Return the verdict on "it falls"."""
    return more((-of[0], -of[2], -of[1]), margin)


def more(of: Change, margin: float = MARGIN) -> Seen:
    """Return the verdict on "it rises"."""
    _, low, high = of
    if low > 0:
        return "confirmed"
    return "not confirmed" if high < 0 or (low > -margin and high < margin) else "cannot be judged"


def alike(of: Change, margin: float = MARGIN) -> Seen:
    """Return the verdict on "it stays"."""
    _, low, high = of
    if low > -margin and high < margin:
        return "confirmed"
    return "not confirmed" if low > margin or high < -margin else "cannot be judged"
