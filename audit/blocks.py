"""Summaries over several blocks: one number from each, with the spread over coins, seeds and trainings at once."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from heldin.audit.coarse import brief
from heldin.audit.utility import mean_difference
from heldin.base.section import Facts

LEAST_BLOCKS = 3  # fewer say how these models differ, not how defenses do


class Summary(Facts):
    """A number of a variant.

    Attributes:
        value: mean over the blocks, or the number of the one block.
        lower: lower end of a 95 % interval; null for two blocks, whose interval would be wider than any number.
        upper: upper end likewise.
        over: what the interval is over: users and records of one model, or blocks (coins, seeds and trainings).
        label: kind of statement.
    """

    value: float
    lower: float | None
    upper: float | None
    over: Literal["users", "blocks"]
    label: Literal["estimate"] = "estimate"


def over_blocks(
    values: Sequence[float],
    within: tuple[float, float] | None = None,
    *,
    digits: int = 3,
    least: float = -math.inf,
    most: float = math.inf,
) -> Summary:
    """Mean of one number a block; from three blocks on with Student's t interval, of one block with its own interval.

    Coins, seeds and trainings of different blocks are independent, so that their numbers are; an interval over the
    users of one pair of models leaves out that another training would give other models (measured coverage of DeLong's
    95 %: 42 to 66 %).

    Args:
        values: a number of each block, S of them.
        within: limits of the 95 % interval over users, used for one block only.
        least: smallest possible value, such as 0 of an AUROC: an interval ends there.
        most: largest possible value.

    Blocks that do not differ at all have no interval: it would have no width, and say that another block could not
    differ.
    """
    mean = float(np.mean(values))
    if len(values) >= LEAST_BLOCKS:
        spread = mean_difference(np.zeros(len(values)), np.asarray(values, dtype=np.float64))
        assert spread is not None
        if min(values) == max(values):
            return Summary(value=brief(mean, digits), lower=None, upper=None, over="blocks")
        lower, upper = (brief(min(max(bound, least), most), digits) for bound in (spread.lower, spread.upper))
        return Summary(value=brief(mean, digits), lower=lower, upper=upper, over="blocks")
    limits = within if len(values) == 1 else None
    low, high = (None, None) if limits is None else (brief(limit, digits) for limit in limits)
    return Summary(value=brief(mean, digits), lower=low, upper=high, over="users")
