"""Bootstrap over users, with members and non-members resampled separately. The statistical unit is the user."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.audit.coarse import brief
from heldin.base.section import Facts
from heldin.bounds.roc import Scores, auroc, fpr_is_resolved, tpr_at_fpr

CELLS_PER_BLOCK = 4_000_000  # users x resamples held in memory at once


class Method(StrEnum):
    """The method of an interval."""

    BOOTSTRAP = "bootstrap percentile"
    EXACT = "exact for complete separation"


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % interval.

    The interval is an estimate. Users' scores share one model, so the coverage is nominal, not certified
    (docs/theory.md#conditions-of-one-run).

    Attributes:
        value: the statistic of the observed scores.
        mean: mean over the resamples.
        deviation: standard deviation over the resamples.
        lower: lower end of the interval.
        upper: upper end of the interval.
        at_most: 95 % quantile over the resamples.
        method: how the interval was made.
    """

    value: float
    mean: float
    deviation: float
    lower: float
    upper: float
    at_most: float
    method: Method


class Estimate(Facts):
    """A number with its 95 % interval, rounded.

    Attributes:
        value: the statistic of the observed scores.
        mean: mean over the resamples.
        deviation: standard deviation over the resamples.
        lower: lower end of the interval.
        upper: upper end of the interval.
        method: how the interval was made.
        label: kind of statement.
    """

    value: float
    mean: float
    deviation: float
    lower: float
    upper: float
    method: str
    label: Literal["estimate"] = "estimate"

    @staticmethod
    def of(interval: Interval) -> "Estimate":
        """Return the interval, rounded to the digits of a record."""
        return Estimate(
            value=brief(interval.value),
            mean=brief(interval.mean),
            deviation=brief(interval.deviation),
            lower=brief(interval.lower),
            upper=brief(interval.upper),
            method=interval.method.value,
        )


@dataclass(frozen=True)
class BootstrapResult:
    """The AUROC, and the TPR at each FPR (None if there are too few non-members to show that FPR)."""

    auroc: Interval
    tpr_at: tuple[tuple[float, Interval | None], ...]


def bootstrap(
    held_in: Scores, held_out: Scores, fprs: Sequence[float], *, resamples: int = 2000, seed: int = 0
) -> BootstrapResult:
    """Bootstrap the AUROC of one score and its TPR at fixed FPRs, with both groups resampled separately.

    Args:
        held_in: scores of members, shape (n1,).
        held_out: scores of non-members, shape (n0,).
        fprs: false-positive rates.
    """
    return bootstrap_each(held_in[None], held_out[None], fprs, resamples=resamples, seed=seed)[0]


def bootstrap_each(
    held_in: NDArray[np.float64],
    held_out: NDArray[np.float64],
    fprs: Sequence[float],
    *,
    resamples: int = 2000,
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
) -> list[BootstrapResult]:
    """Bootstrap K scores of the same users, with shared resamples.

    Args:
        held_in: scores of members, shape (K, n1).
        held_out: scores of non-members, shape (K, n0).
        fprs: false-positive rates.
        advance: called with 1 for each score after its last resample.
    """
    n1, n0 = held_in.shape[1], held_out.shape[1]
    ranked = [RankedScores.of(a, b) for a, b in zip(held_in, held_out, strict=True)]
    areas, rates = np.empty((len(ranked), resamples)), np.empty((len(ranked), resamples, len(fprs)))
    generator = np.random.default_rng(seed)
    block = max(1, CELLS_PER_BLOCK // max(n1, n0))
    for start in range(0, resamples, block):
        rows = slice(start, min(start + block, resamples))
        size = rows.stop - rows.start
        # How often each user is drawn, once for all K scores: (size, n1) and (size, n0).
        counts_in, counts_out = _resampled(n1, size, generator), _resampled(n0, size, generator)
        for k, score in enumerate(ranked):
            areas[k, rows], rates[k, rows] = score.resampled(counts_in, counts_out, fprs)
            if advance and rows.stop == resamples:
                advance(1)
    return [_result(a, b, fprs, area, rate) for a, b, area, rate in zip(held_in, held_out, areas, rates, strict=True)]


def separation_lower_limit(pairs: int, level: float = 0.025) -> float:
    """Return a lower limit for the AUROC if all scores of one group exceed all scores of the other.

    All ``pairs`` disjoint pairs of a member and a non-member are then concordant. With AUROC A, the probability of this
    is at most A ** pairs, so A is above level ** (1 / pairs) (Clopper-Pearson with all successes). The limit is valid
    for independent scores.
    """
    return float(level ** (1 / pairs))


@dataclass(frozen=True, eq=False)
class RankedScores:
    """The users ranked by one score, highest first, and how the two groups rank against each other.

    Attributes:
        order_in, order_out: indices that sort members and non-members, shapes (n1,), (n0,).
        above, at_least: for each non-member in this order, the number of members who score higher (``above``), or at
            least as high (``at_least``).
        ends: for each non-member, the position where the scores equal to this user's score end, shape (n0,).
    """

    order_in: NDArray[np.intp]
    order_out: NDArray[np.intp]
    above: NDArray[np.intp]
    at_least: NDArray[np.intp]
    ends: NDArray[np.intp]

    @staticmethod
    def of(held_in: Scores, held_out: Scores) -> "RankedScores":
        """Rank the two groups of one score."""
        order_in, order_out = (np.argsort(-side, kind="stable") for side in (held_in, held_out))
        # Negated scores ascend, as ``searchsorted`` needs; left counts the strictly higher, right also the equal ones.
        falling_in, falling_out = -held_in[order_in], -held_out[order_out]
        above = np.searchsorted(falling_in, falling_out, "left")
        at_least = np.searchsorted(falling_in, falling_out, "right")
        return RankedScores(
            order_in, order_out, above, at_least, np.searchsorted(falling_out, falling_out, "right") - 1
        )

    def resampled(
        self, counts_in: NDArray[np.int32], counts_out: NDArray[np.int32], fprs: Sequence[float]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return AUROCs (b,) and TPRs (b, F) of b resamples.

        The counts (b, n1) and (b, n0) state how often each resample has each user.
        """
        drawn_out = counts_out[:, self.order_out]
        known = np.zeros((len(counts_in), counts_in.shape[1] + 1), dtype=np.int32)  # held-in draws above each place
        np.cumsum(counts_in[:, self.order_in], axis=1, dtype=np.int32, out=known[:, 1:])
        n1, n0 = counts_in.shape[1], counts_out.shape[1]
        # Twice the Mann-Whitney count, so that a tie, which is one half, stays whole; 2 n1 n0 may exceed 32 bits.
        twice = np.einsum("bj,bj->b", known[:, self.above] + known[:, self.at_least], drawn_out, dtype=np.int64)
        rates = np.zeros((len(counts_in), len(fprs)))
        # held-out users named together with each of them: its equals cannot be left out
        wrong = np.cumsum(drawn_out, axis=1, dtype=np.int32)[:, self.ends]
        for j, fpr in enumerate(fprs):
            # These zeros are never read: ``_result`` gives None for the rate by the same rule.
            if not fpr_is_resolved(n0, fpr):
                continue
            # The threshold lies just above the first held-out user who may not be named: only higher members are named.
            # fpr * n0 may lie a rounding error below a whole number.
            first = (wrong <= fpr * n0 + 1e-9).sum(axis=1)
            # Where every held-out user may be named, all n1 members are.
            places = np.append(self.above, n1)[first]
            rates[:, j] = known[np.arange(len(known)), places] / n1
        return twice / (2 * n1 * n0), rates


def _resampled(users: int, size: int, generator: np.random.Generator) -> NDArray[np.int32]:
    """Return how often each user is drawn in each resample, shape (size, users)."""
    drawn = generator.integers(0, users, (size, users))
    drawn += np.arange(size)[:, None] * users  # each row counts in bins of its own
    return np.bincount(drawn.ravel(), minlength=size * users).reshape(size, users).astype(np.int32)


def _result(
    held_in: Scores,
    held_out: Scores,
    fprs: Sequence[float],
    areas: NDArray[np.float64],
    rates: NDArray[np.float64],
) -> BootstrapResult:
    tprs = []
    for j, fpr in enumerate(fprs):
        value = tpr_at_fpr(held_in, held_out, fpr)
        tprs.append((fpr, None if value is None else _percentile(value, rates[:, j])))
    value = auroc(held_in, held_out)
    if value in (0.0, 1.0):  # no resample would differ: the percentile interval would have no width
        # Users of the smaller side make as many disjoint pairs, each with a user of its own from the other side.
        return BootstrapResult(_separated(value, min(held_in.size, held_out.size)), tuple(tprs))
    return BootstrapResult(_percentile(value, areas), tuple(tprs))


def _separated(value: float, pairs: int) -> Interval:
    limit = separation_lower_limit(pairs)
    lower, upper = (limit, 1.0) if value == 1.0 else (0.0, 1.0 - limit)
    return Interval(value, value, 0.0, lower, upper, upper, Method.EXACT)


def _percentile(value: float, samples: NDArray[np.float64]) -> Interval:
    lower, upper, at_most = map(float, np.percentile(samples, [2.5, 97.5, 95]))
    return Interval(value, float(samples.mean()), float(samples.std(ddof=1)), lower, upper, at_most, Method.BOOTSTRAP)
