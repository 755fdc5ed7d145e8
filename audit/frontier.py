"""The variants of a sweep that another variant beats: it is no worse in any measure and shown to be better in one.

Guarantees are exact. AUROC and loss are compared within a block, because the cells of a block share their users. The
test is Student's t over the blocks, with Holm's correction over all pairs and both measures
(docs/theory.md#variants-that-are-dominated).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.bounds.verdict import holm

LEVEL = 0.05  # probability that anything is wrongly called better, at most
SLACK = 1.1  # ratio up to which two numbers of gradients count as alike: cohorts are drawn


@dataclass(frozen=True)
class Position:
    """The measures of a variant. For every measure, smaller is better.

    Attributes:
        epsilon: the epsilon guaranteed to every user; infinity without a guarantee.
        delta: delta of the guarantee for users, or of the guarantee for records.
        auroc: AUROC of the primary attack in each block, unrounded.
        loss: loss on non-members' test texts in each block, nats per token, unrounded.
        gradients: mean number of record gradients in a cell. Seconds are not used, because they depend on other jobs.
        epsilon_per_record: the epsilon guaranteed to every record, at most ``epsilon``; infinity without a guarantee.
        canaries: mean AUROC of the canary group with the highest AUROC; 0 without canary users.
    """

    name: str
    epsilon: float
    delta: float
    auroc: tuple[float, ...]
    loss: tuple[float, ...]
    gradients: float
    epsilon_per_record: float = math.inf
    canaries: float = 0.0


def dominated(positions: Sequence[Position]) -> dict[str, list[str]]:
    """Return, for each variant, the names of the variants that beat it.

    The list is empty if no variant is shown to beat it.

    Args:
        positions: variants of one group, all with the same S blocks in one order. With fewer than three blocks no
            variant is shown to be better, because another training would give other models.
    """
    beaten_by: dict[str, list[str]] = {position.name: [] for position in positions}
    pairs = list(itertools.combinations(positions, 2))
    if not pairs or len(positions[0].auroc) < LEAST_BLOCKS:
        return beaten_by
    differences = [
        np.subtract(first, other) for a, b in pairs for first, other in ((a.auroc, b.auroc), (a.loss, b.loss))
    ]
    adjusted = holm([_p_value(difference) for difference in differences])
    for i, (a, b) in enumerate(pairs):
        told_apart = [j for j in (2 * i, 2 * i + 1) if adjusted[j] <= LEVEL]
        # A difference below zero speaks for the first of the two.
        if _no_worse(a, b) and any(differences[j].mean() < 0 for j in told_apart):
            beaten_by[b.name].append(a.name)
        if _no_worse(b, a) and any(differences[j].mean() > 0 for j in told_apart):
            beaten_by[a.name].append(b.name)
    return beaten_by


def _no_worse(first: Position, other: Position) -> bool:
    """Return whether ``first`` is at least as good in every measure."""
    # A promise to records alone is more than none. Of two variants that promise nothing, delta says nothing.
    nothing = math.isinf(min(other.epsilon, other.epsilon_per_record))
    epsilons = first.epsilon <= other.epsilon and first.epsilon_per_record <= other.epsilon_per_record
    promise = epsilons and (nothing or first.delta <= other.delta)
    measured = np.mean(first.auroc) <= np.mean(other.auroc) and np.mean(first.loss) <= np.mean(other.loss)
    # What canary users show can leak counts too, where real users show nothing.
    return bool(
        promise and measured and first.canaries <= other.canaries and first.gradients <= SLACK * other.gradients
    )


def _p_value(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a mean difference of zero."""
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(differences.size)
    # No spread at all is no evidence: numbers that were rounded look so.
    if error == 0.0:
        return 1.0
    return float(2.0 * special.stdtr(differences.size - 1, -abs(mean) / error))
