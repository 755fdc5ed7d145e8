"""Summaries of one number per block. Their spread includes coins, seeds and trainings."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from heldin.audit.coarse import brief
from heldin.audit.utility import mean_difference
from heldin.base.section import Facts

LEAST_BLOCKS = 3  # fewer say how these models differ, not how defenses do


class Summary(Facts):
    """One quantity of a variant: the mean over blocks, with a 95 % interval.

    Attributes:
        value: mean over the blocks; the block's number if there is only one block.
        lower: lower end of a 95 % interval; null for two blocks, whose interval would be too wide to be useful.
        upper: upper end of the interval; null for two blocks.
        over: the source of the interval: users and records of one model, or blocks (coins, seeds and trainings).
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
    """Average one number per block.

    With three or more blocks, the interval is Student's t interval. With a single block, the interval is ``within``.

    Coins, seeds and trainings of different blocks are independent, and so are the blocks' numbers. An interval over the
    users of one pair of models ignores that another training would give other models (measured coverage of DeLong's
    95 %: 42 to 66 %).

    Args:
        values: one number per block, S numbers.
        within: limits of the 95 % interval over users, which only a single block uses.
        least: smallest possible value, such as 0 for an AUROC; the interval ends there.
        most: largest possible value; the interval ends there.

    If all blocks are equal, there is no interval, because width zero would claim that no other block could differ.
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
