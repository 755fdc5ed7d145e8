"""Test for any leak: redraw the coins, and count how often chance alone gives the observed result.

Conditions and proofs: docs/theory.md#randomisation-test.

H0: the scores do not depend on who is a member. Then the drawn assignment is one draw of its law like any other. So p =
(1 + #{redraws with a statistic at least as large}) / (1 + B) is exact under any dependence between users, texts or
attacks. This module meets conditions (a) and (b) at the lines marked below. The caller must meet (c), the choice of
scored users and texts does not depend on coins, and (d), no score was fitted on labels.

There are two families, each with its own error probability: the largest standardised AUROC (Westfall and Young 1993,
max-T), and the smallest p-value of a true-positive rate at a low false-positive rate (min-P). Only numpy is used.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.base.errors import InputError

Array = NDArray[np.float64]
Members = NDArray[np.bool_]

REDRAWS = 10_000
MARGIN = 0.85  # quantile of the two margins: both hold in about four of five audits
_CELLS = 4_000_000  # users x redraws looked at together


class Law(StrEnum):
    """How heldin draws and redraws the assignment."""

    COINS = "independent fair coins"
    PERMUTATION = "permutations"


@dataclass(frozen=True, eq=False)
class FamilyTest:
    """The test of K scores of the same n users against chance.

    Attributes:
        law: how heldin redrew the members.
        auroc_p: p-value of "no score separates the groups", from the largest standardised AUROC.
        auroc_adjusted: step-down adjusted p-value of each score, shape (K,).
        reversed_p: p-value of "no score is higher for non-members", from the smallest standardised AUROC.
        fprs: the F false-positive rates that this many users can show; may be empty.
        tpr_p: p-value of "no score separates the groups", from the smallest p-value of any TPR at any of ``fprs``; 1 if
            ``fprs`` is empty.
        tpr_adjusted: step-down adjusted p-values, shape (K, F).
        auroc_margin: 0.85 quantile over redraws of the largest standardised AUROC: how far the best of these dependent
            scores deviates by chance. For planning.
        tpr_margins: 0.85 quantile of the largest TPR at each FPR f of ``fprs``, minus f, in units of sqrt(4 f (1 - f) /
            n).
    """

    law: Law
    redraws: int
    auroc_p: float
    auroc_adjusted: Array
    reversed_p: float
    fprs: tuple[float, ...]
    tpr_p: float
    tpr_adjusted: Array
    auroc_margin: float
    tpr_margins: tuple[float, ...]


def randomisation_test(
    scores: Array,
    member: Members,
    *,
    law: Law,
    fprs: Sequence[float],
    redraws: int = REDRAWS,
    seed: int = 0,
) -> FamilyTest:
    """Test a family of scores.

    Args:
        scores: scores, shape (K, n), finite; higher means more likely a member.
        member: whether each user is a member, shape (n,); both groups must be non-empty.
        law: how the assignment was drawn.
        fprs: false-positive rates; rates that this many users cannot show are left out.
        seed: public seed of the redraws, independent of the coins.

    Raises:
        InputError: there are no members or no non-members.
    """
    if member.all() or not member.any():
        raise InputError("all users are in one group, so there is nothing to compare: give users of both groups")
    table = ScoreTable.of(scores)
    # Condition (c) for rates: which are tested must not depend on the coins, so the expected number of held-out users
    # decides and not the number drawn.
    shown = tuple(f for f in fprs if f * _held_out(member, law) >= 1 - 1e-9)
    areas, rates = [], []
    # Condition (b): the observed assignment is the first block and goes through the same two functions as the redraws.
    for drawn in drawn_assignments(member, law, redraws, seed):
        areas.append(table.standardised_aurocs(drawn))
        rates.append(table.tprs(drawn, shown))
    area, rate = np.concatenate(areas), np.concatenate(rates)  # row 0 is the observed one
    adjusted = _step_down(area)
    # By p-values: standardised rates have heavy tails, which cost power (docs/theory.md#randomisation-test).
    flat = _step_down(-p_values_among(rate.reshape(redraws + 1, -1))) if shown else np.ones(0)
    return FamilyTest(
        law=law,
        redraws=redraws,
        auroc_p=float(adjusted.min()),
        auroc_adjusted=adjusted,
        reversed_p=float(_step_down(-area).min()),
        fprs=shown,
        tpr_p=float(flat.min()) if shown else 1.0,
        tpr_adjusted=flat.reshape(len(scores), len(shown)),
        # Redraws alone: the margin is what chance does, and the observed row may be a leak.
        auroc_margin=float(np.quantile(area[1:].max(axis=1), MARGIN)),
        tpr_margins=_tpr_margins(rate[1:], shown, member.size),
    )


def least_redraws(level: float) -> int:
    """Return the fewest redraws whose smallest p-value, 1 / (1 + B), is at most ``level``."""
    return math.ceil(1 / level - 1e-9) - 1


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The ranks, ties and orders of K scores of n users, which all redraws share."""

    twice_ranks: Array  # (n, K): twice the mid-ranks, whole numbers
    ties: Array  # (K,): sum of t^3 - t over ties, over n (n - 1)
    order: NDArray[np.intp]  # (K, n): highest score first
    ends: tuple[NDArray[np.intp], ...]  # of each score: places where a run of equal scores ends

    @staticmethod
    def of(scores: Array) -> "ScoreTable":
        """Rank the scores, shape (K, n)."""
        order = np.argsort(-scores, axis=1, kind="stable")
        ends, ties = [], []
        for row, places in zip(scores, order, strict=True):
            # NaN differs from every number, so that the last place always ends a run.
            falls = np.diff(row[places], append=np.nan) != 0
            ends.append(np.flatnonzero(falls))
            runs = np.diff(np.append(-1, ends[-1])).astype(np.float64)
            ties.append(float((runs**3 - runs).sum()))
        n = scores.shape[1]
        twice = 2 * stats.rankdata(scores, axis=1).T
        return ScoreTable(twice, np.array(ties) / (n * (n - 1)), order, tuple(ends))

    def standardised_aurocs(self, drawn: Members) -> Array:
        """Return (AUROC - 1/2) over its deviation under H0 given the group sizes, shape (b, K).

        The draws have shape (b, n). For equal scores, the result is 0.

        The variance is the variance of the Mann-Whitney statistic with ties: n1 n0 / 12 (n + 1 - sum(t^3 - t) / (n (n -
        1))).
        """
        n1 = drawn.sum(axis=1, dtype=np.float64)[:, None]
        n0 = drawn.shape[1] - n1
        # Sums of whole numbers, so exact: rounding could place a redraw below the observed statistic that it equals.
        twice_u = drawn.astype(np.float64) @ self.twice_ranks - n1 * (n1 + 1)
        variance = n1 * n0 / 12 * (drawn.shape[1] + 1 - self.ties)
        # Zero where all scores are equal; the statistic is then 0, its mean under H0.
        possible = variance > 1e-9
        return np.where(possible, (twice_u - n1 * n0) / (2 * np.sqrt(np.where(possible, variance, 1))), 0.0)

    def tprs(self, drawn: Members, fprs: Sequence[float]) -> Array:
        """Return, for each redraw, score and FPR in ``fprs``, the highest TPR of any threshold with at most that FPR.

        ``drawn`` has shape (b, n); the result has shape (b, K, F).
        """
        rates = np.zeros((len(drawn), len(self.order), len(fprs)))
        if not fprs:
            return rates
        n1 = drawn.sum(axis=1)
        # Held-out users who may be named, of each redraw's own number; a product may lie just below a whole number.
        allowed = np.floor(np.outer(drawn.shape[1] - n1, fprs) + 1e-9).astype(np.int32)  # (b, F)
        for k, (order, ends) in enumerate(zip(self.order, self.ends, strict=True)):
            rates[:, k] = _right(drawn, order, ends, allowed) / n1[:, None]
        return rates


def _right(
    drawn: Members, order: NDArray[np.intp], ends: NDArray[np.intp], allowed: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Count the members above the lowest threshold that flags at most ``allowed`` (b, F) non-members; shape (b, F)."""
    most = int(allowed.max())
    depth = order.size
    # A shortcut: under chance few thresholds lie further down the list than this; else the whole list is read. No
    # result changes, since deeper thresholds name more held-out users than any rate allows.
    for guess in (3 * most + 60, 8 * most + 300):
        if guess < depth:
            wrong = np.cumsum(~drawn[:, order[:guess]], axis=1, dtype=np.int32)
            if (wrong[:, -1] > most).all():
                depth = guess
                break
    else:
        wrong = np.cumsum(~drawn[:, order], axis=1, dtype=np.int32)
    # Thresholds lie at the ends of runs only: equal scores cannot be separated.
    kept = ends[ends < depth]
    at_ends = wrong if kept.size == depth else wrong[:, kept]
    padded = np.concatenate([[0], kept + 1])
    right = np.empty(allowed.shape, dtype=np.int64)
    for j in range(allowed.shape[1]):
        reached = (at_ends <= allowed[:, j, None]).sum(axis=1)  # thresholds within the rate
        # Users at or above the lowest threshold within the rate, 0 if there is none: (b,).
        named = padded[reached]
        right[:, j] = named - np.where(named > 0, wrong[np.arange(len(wrong)), np.maximum(named, 1) - 1], 0)
    return right


def drawn_assignments(member: Members, law: Law, redraws: int, seed: int) -> Iterator[Members]:
    """Yield blocks (b, n) of assignments, the observed assignment first."""
    # The observed one counts as a redraw of itself, which is the 1 in (1 + #) / (1 + B).
    yield member[None]
    generator = np.random.default_rng(seed)
    block = max(1, _CELLS // member.size)
    left = redraws
    while left:
        size = min(block, left)
        # Condition (a): the redraws have the law of the assignment.
        if law is Law.PERMUTATION:
            drawn = generator.permuted(np.tile(member, (size, 1)), axis=1)
        else:
            drawn = _coins(generator, size, member.size)
        left -= len(drawn)
        yield drawn


def _coins(generator: np.random.Generator, size: int, users: int) -> Members:
    """Return at least one row of fair coins. Rows with an empty group are left out."""
    while True:
        # One random bit for a coin: comparing a double with 1/2 would draw 64.
        bits = np.frombuffer(generator.bytes(size * (-(-users // 8))), dtype=np.uint8).reshape(size, -1)
        drawn = np.unpackbits(bits, axis=1, count=users).astype(np.bool_)
        # An audit with an empty side is refused, so the law is that of coins given that neither side is empty.
        both = drawn.any(axis=1) & ~drawn.all(axis=1)
        if both.any():
            return drawn[both]


def _held_out(member: Members, law: Law) -> float:
    """Return the expected number of non-members, without looking at the coins."""
    return float((~member).sum()) if law is Law.PERMUTATION else member.size / 2


def _step_down(statistics: Array) -> Array:
    """Return Westfall and Young's step-down adjusted p-values, shape (S,), of statistics (B + 1, S).

    Larger statistics are more extreme.

    Row 0 is observed. The steps go from the most extreme statistic to the least. Each statistic is compared with the
    largest of the statistics that have not had their step.
    """
    order = np.argsort(-statistics[0], kind="stable")
    left = np.maximum.accumulate(statistics[:, order[::-1]], axis=1)[:, ::-1]  # the largest of this one and the rest
    p = (left >= left[0]).mean(axis=0)  # the observed row counts itself: (1 + #) / (1 + B)
    adjusted = np.empty(order.size)
    # Running maximum: a less extreme score never gets a smaller p-value than one before it.
    adjusted[order] = np.maximum.accumulate(p)
    return adjusted


def p_values_among(statistics: Array) -> Array:
    """Return the p-value of each statistic among all rows, shape (B + 1, S); a larger statistic is more extreme."""
    # Each row among the same rows, itself included: all rows are treated alike, as condition (b) asks.
    rows = len(statistics)
    p_values = np.empty_like(statistics)
    for column in range(statistics.shape[1]):
        ordered = np.sort(statistics[:, column])
        p_values[:, column] = (rows - np.searchsorted(ordered, statistics[:, column], "left")) / rows
    return p_values


def _tpr_margins(rates: Array, fprs: Sequence[float], users: int) -> tuple[float, ...]:
    best = rates.max(axis=1)  # (B, F): of all scores
    return tuple(
        float(np.quantile((best[:, j] - f) / math.sqrt(4 * f * (1 - f) / users), MARGIN)) for j, f in enumerate(fprs)
    )
