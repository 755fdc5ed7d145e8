"""Curves, histograms and percentiles that a report may show: each step of them holds ten users or more.

Sorted by score, a vertex of an ROC curve says of one user whether it was held in, and a bin of one user likewise, to
whoever holds the scores. Groups of ten say it of nobody.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.roc import Roc, Scores

LEAST_IN_GROUP = 10
_BINS = 30
_MOST_POINTS = 1000
_INNER = (0.05, 0.95)  # quantiles that a histogram spans,
_MARGIN = 0.3  # and so much of their distance on either side: its outer bins hold all beyond


@dataclass(frozen=True)
class Bins:
    """Users by score: k + 1 edges; shares of each side, k numbers. The outer bins hold all scores beyond them."""

    edges: tuple[float, ...]
    held_in: tuple[int, ...]
    held_out: tuple[int, ...]


def coarse_roc(held_in: Scores, held_out: Scores, least: int = LEAST_IN_GROUP) -> Roc:
    """The ROC curve at every ``least`` users or more, from the highest score on; straight lines between are below it.

    At most 1,000 points, dense at the low end, where they are read.

    Args:
        held_in: scores of members, shape (n1,).
        held_out: of non-members, shape (n0,).
        least: users between two points.
    """
    both = np.concatenate([held_in, held_out])
    order = np.argsort(-both, kind="stable")
    member = (order < held_in.size).astype(np.int64)
    ends = np.flatnonzero(np.diff(both[order], append=np.nan) != 0) + 1  # users above each distinct score
    kept: list[int] = []
    for end in ends.tolist():
        if end - (kept[-1] if kept else 0) >= least and both.size - end >= least:
            kept.append(end)
    right = np.append(0, np.cumsum(member))[[0, *kept, both.size]]
    named = np.array([0, *kept, both.size])
    shown = _thinned(named.size)
    return Roc(((named - right) / held_out.size)[shown], (right / held_in.size)[shown])


def histogram(held_in: Scores, held_out: Scores, least: int = LEAST_IN_GROUP) -> Bins:
    """About thirty bins between round numbers, neighbours joined until each holds ``least`` users of either side.

    Args:
        held_in: scores of members, shape (n1,).
        held_out: of non-members, shape (n0,).
        least: users in a bin.
    """
    both = np.concatenate([held_in, held_out])
    inner = np.quantile(both, _INNER)
    margin = _MARGIN * float(inner[1] - inner[0])
    low, high = max(float(both.min()), inner[0] - margin), min(float(both.max()), inner[1] + margin)
    step = _round_step((high - low) / _BINS)
    first, last = math.floor(low / step), math.ceil(high / step)
    edges = step * np.arange(first, max(last, first + 1) + 1)
    counts = [np.histogram(np.clip(side, edges[0], edges[-1]), edges)[0] for side in (held_in, held_out)]
    kept, gathered = [0], 0
    for i in range(len(edges) - 1):
        gathered += int(counts[0][i] + counts[1][i])
        if gathered >= least:
            kept.append(i + 1)
            gathered = 0
    if len(kept) == 1 or gathered:  # what is left over joins its neighbour
        kept = [*kept[: max(1, len(kept) - 1)], len(edges) - 1]
    kept[-1] = len(edges) - 1
    sums = [np.add.reduceat(side, kept[:-1]) for side in counts]
    return Bins(tuple(float(f"{edges[i]:.12g}") for i in kept), *(tuple(int(v) for v in side) for side in sums))


def coarse_percentiles(counts: Sequence[int]) -> list[int]:
    """P10, P25, P50, P75, P90, none of them with fewer than ten users beyond it; the median alone of under 20 users."""
    ordered = np.sort(np.asarray(counts))
    n, beyond = ordered.size, LEAST_IN_GROUP
    if n < 2 * beyond:
        return [int(ordered[(n - 1) // 2])] if n else []
    places = [round(q * (n - 1)) for q in (0.10, 0.25, 0.50, 0.75, 0.90)]
    return [int(ordered[min(max(place, beyond), n - 1 - beyond)]) for place in places]


def _round_step(width: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``width``; 1 where there is no width."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= width * (1 - 1e-9))


def _thinned(points: int) -> NDArray[np.intp]:
    if points <= _MOST_POINTS:
        return np.arange(points)
    return np.unique(np.geomspace(1, points, _MOST_POINTS).round().astype(np.intp) - 1)
