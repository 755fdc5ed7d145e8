"""Bootstrap over users, held-in and held-out resampled apart. The statistical unit is the user. numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from audit.roc import Scores, auroc, fpr_is_resolved, tpr_at_fpr

CELLS_PER_BLOCK = 4_000_000


class Method(StrEnum):
    """How an interval was made."""

    BOOTSTRAP = "bootstrap percentile"
    EXACT = "exact for complete separation"


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % interval; ``mean``, ``deviation``, ``at_most`` (95 % quantile) are over the resamples.

    An estimate: users' scores share one model, so its coverage is nominal, not certified (accounting.md section 4h).
    """

    value: float
    mean: float
    deviation: float
    lower: float
    upper: float
    at_most: float
    method: Method


@dataclass(frozen=True)
class BootstrapResult:
    """AUROC and TPR at each FPR (None where the held-out users cannot resolve it)."""

    auroc: Interval
    tpr_at: tuple[tuple[float, Interval | None], ...]


def bootstrap(
    held_in: Scores, held_out: Scores, fprs: Sequence[float], *, resamples: int = 2000, seed: int = 0
) -> BootstrapResult:
    """Stratified bootstrap of AUROC and of TPR at fixed FPRs.

    Args:
        held_in: scores, shape (n1,).
        held_out: scores, shape (n0,).
        fprs: false-positive rates.
        resamples: number of resamples.
        seed: of the resampling; public.
    """
    levels, members = np.unique(np.concatenate([held_in, held_out]), return_inverse=True)
    order_in, order_out = members[: held_in.size], members[held_in.size :]
    generator = np.random.default_rng(seed)
    block = max(1, CELLS_PER_BLOCK // levels.size)
    areas: list[NDArray[np.float64]] = []
    rates: list[NDArray[np.float64]] = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        counts_in = _resampled_counts(order_in, levels.size, size, generator)
        counts_out = _resampled_counts(order_out, levels.size, size, generator)
        above_in, above_out = counts_in.cumsum(1), counts_out.cumsum(1)  # (size, levels), highest score first
        concordant = (counts_out * (above_in - counts_in / 2)).sum(1)
        areas.append(concordant / (held_in.size * held_out.size))
        rates.append(np.array([_tpr(above_in, above_out, f) for f in fprs]).reshape(len(fprs), size).T)
    area, rate = np.concatenate(areas), np.concatenate(rates)
    tprs = []
    for j, fpr in enumerate(fprs):
        value = tpr_at_fpr(held_in, held_out, fpr)
        tprs.append((fpr, None if value is None else _percentile(value, rate[:, j])))
    value = auroc(held_in, held_out)
    if value in (0.0, 1.0):
        return BootstrapResult(_separated(value, min(held_in.size, held_out.size)), tuple(tprs))
    return BootstrapResult(_percentile(value, area), tuple(tprs))


def separation_lower_limit(pairs: int, level: float = 0.025) -> float:
    """Lower limit for the AUROC when all scores of one side exceed all of the other.

    Of ``pairs`` disjoint in/out pairs all are concordant; were the AUROC A, that would happen with probability at most
    A ** pairs, so A is above level ** (1 / pairs) (Clopper-Pearson with all successes). Valid for independent scores.
    """
    return float(level ** (1 / pairs))


def _separated(value: float, pairs: int) -> Interval:
    limit = separation_lower_limit(pairs)
    lower, upper = (limit, 1.0) if value == 1.0 else (0.0, 1.0 - limit)
    return Interval(value, value, 0.0, lower, upper, upper, Method.EXACT)


def _percentile(value: float, samples: NDArray[np.float64]) -> Interval:
    lower, upper, at_most = map(float, np.percentile(samples, [2.5, 97.5, 95]))
    return Interval(value, float(samples.mean()), float(samples.std(ddof=1)), lower, upper, at_most, Method.BOOTSTRAP)


def _resampled_counts(
    order: NDArray[np.intp], levels: int, size: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """How often each level is drawn in each resample, highest level first, shape (size, levels)."""
    drawn = order[generator.integers(0, order.size, (size, order.size))]
    offsets = np.arange(size)[:, None] * levels
    counts = np.bincount((drawn + offsets).ravel(), minlength=size * levels).reshape(size, levels)
    return counts[:, ::-1].astype(np.int64)


def _tpr(above_in: NDArray[np.int64], above_out: NDArray[np.int64], fpr: float) -> NDArray[np.float64]:
    n1, n0 = int(above_in[0, -1]), int(above_out[0, -1])
    if not fpr_is_resolved(n0, fpr):
        return np.zeros(len(above_in))
    allowed = (above_out <= fpr * n0 + 1e-9).sum(1)  # how many thresholds stay within the rate
    padded = np.concatenate([np.zeros((len(above_in), 1), dtype=np.int64), above_in], axis=1)
    return np.asarray(padded[np.arange(len(above_in)), allowed] / n1)
