"""Exposure of canary users' marks: the rank of a mark's probability among marks that were never planted.

Carlini, Liu, Erlingsson, Kos, Song (2019, arXiv:1802.08232): exposure is log2 of the number of marks minus log2 of the
rank of the planted mark. heldin ranks the planted mark in a sample of the marks that it might have drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class MarkScores:
    """The probabilities of n marks, planted and candidate. The file is owner-only, because it names users.

    Attributes:
        recipes: the recipe that drew each mark; marks are compared within a recipe.
        users: the canary user who has the mark; None for a candidate.
        planted: whether the mark is in a canary user's texts, shape (n,). True for every canary user's mark, and for a
            candidate equal to a canary user's mark.
        target: log-probability, in nats, under the audited model, shape (n,).
        reference: log-probability, in nats, under the reference model, shape (n,).
    """

    recipes: Sequence[str]
    users: Sequence[str | None]
    planted: NDArray[np.bool_]
    target: NDArray[np.float64]
    reference: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MarkRanks:
    """Ranks of n canary users' marks, 1 for the likeliest.

    Attributes:
        users: the canary users with the marks, n names.
        candidates: number of other marks in each mark's ranking, shape (n,).
        target: rank under the audited model, shape (n,).
        reference: rank under the reference model, shape (n,).
    """

    users: Sequence[str]
    candidates: NDArray[np.int64]
    target: NDArray[np.int64]
    reference: NDArray[np.int64]


def ranks(scores: MarkScores) -> MarkRanks:
    """Return the rank of every canary user's mark among the candidates of its recipe.

    A candidate that is equally likely, or is itself planted, counts as likelier. Under a model that was not trained on
    the mark, the probability of a rank of at most r is therefore at most r / (candidates + 1).
    """
    recipes = np.array(scores.recipes, dtype=np.str_)
    drawn = np.array([user is None for user in scores.users], dtype=np.bool_)
    rows, users = np.flatnonzero(~drawn), [user for user in scores.users if user is not None]
    counts, under = np.zeros(rows.size, dtype=np.int64), np.ones((2, rows.size), dtype=np.int64)
    for recipe in dict.fromkeys(scores.recipes):
        candidates = (recipes == recipe) & drawn
        mine = recipes[rows] == recipe
        counts[mine] = candidates.sum()
        hit = int((candidates & scores.planted).sum())
        for row, values in enumerate((scores.target, scores.reference)):
            others = np.sort(values[candidates & ~scores.planted])
            below = np.searchsorted(others, values[rows[mine]], "left")
            under[row, mine] = 1 + hit + others.size - below
    return MarkRanks(users, counts, *under)


def exposures(rank: NDArray[np.int64], candidates: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return log2 (candidates + 1) - log2 rank, in bits: 0 for the least likely mark, 1 for a mark of median rank."""
    return np.log2(candidates + 1) - np.log2(rank)
