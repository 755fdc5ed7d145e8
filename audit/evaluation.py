"""From text statistics and membership to results. Here, and only here, scores meet membership."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from attacks.protocol import AGGREGATIONS, UserScores
from attacks.scoring import TextStatistic, dial_of, user_scores
from audit.blind import BlindResult, bag_of_words, reference_alone
from audit.bootstrap import Interval, bootstrap
from audit.record_results import AttackResult, Blind, Estimate, Histogram, TprAt
from audit.reference_divergence import REFERENCE_DIVERGENCE
from audit.roc import roc_curve
from corpus.errors import InputError
from corpus.files import whole_file

REFERENCE_ALONE = "reference-alone"
NO_ATTACKS = (REFERENCE_ALONE, REFERENCE_DIVERGENCE)  # they know nothing of the target
LEVEL_UNDER_COINS = 1e-4
LEVEL_OTHERWISE = 0.01
HISTOGRAM_BINS = 30
ROC_POINTS = 1000


def write_scores(statistics: Sequence[TextStatistic], path: Path, *, of: str) -> None:
    """Write every text's statistics (owner-only: user names, but no membership); ``of`` names models and texts."""
    columns = {
        "user": [s.user for s in statistics],
        "text": [s.text for s in statistics],
        "attack": [s.attack for s in statistics],
        "statistic": [s.value for s in statistics],
    }
    with whole_file(path, private=True) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata({"of": of}), temporary)


def read_scores(path: Path, *, of: str) -> list[TextStatistic] | None:
    """What ``write_scores`` wrote, or None where there is nothing, or scores of other models or texts."""
    if not path.is_file():
        return None
    try:
        kept = pq.read_table(path)
    except pa.ArrowException:
        return None
    if (kept.schema.metadata or {}).get(b"of") != of.encode():
        return None
    table = kept.to_pydict()
    return [
        TextStatistic(*row)
        for row in zip(table["user"], table["text"], table["attack"], table["statistic"], strict=True)
    ]


def evaluate_attacks(
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    *,
    primary: str,
    aggregations: Sequence[str],
    fprs: Sequence[float],
    resamples: int,
    seed: int,
) -> list[AttackResult]:
    """Results of every attack under the first aggregation, and of the primary attack under the others.

    Args:
        statistics: of every text of the users in ``member``.
        member: user to whether held in.
        primary: the attack to lead with; its results come first.
        aggregations: of "mean", "min", "max".
        fprs: false-positive rates for the table.
        resamples: of the bootstrap.
        seed: of the bootstrap; public.
    """
    unknown = set(aggregations) - set(AGGREGATIONS)
    if unknown:
        raise InputError(f"unknown aggregation '{unknown.pop()}': choose from {', '.join(AGGREGATIONS)}")
    names = dict.fromkeys(s.attack for s in statistics if s.attack not in NO_ATTACKS and not dial_of(primary, s.attack))
    ordered = [primary, *(name for name in names if name != primary)]
    jobs = [(name, aggregations[0]) for name in ordered] + [(primary, other) for other in aggregations[1:]]
    results = []
    for attack, aggregation in jobs:
        held_in, held_out = by_side(user_scores(statistics, attack, aggregation), member)
        intervals = bootstrap(held_in, held_out, fprs, resamples=resamples, seed=seed)
        curve = roc_curve(held_in, held_out)
        shown = _thinned(curve.fpr.size)
        results.append(
            AttackResult(
                attack=attack,
                aggregation=aggregation,
                auroc=estimate_of(intervals.auroc),
                tpr_at=[TprAt(fpr=f, estimate=None if i is None else estimate_of(i)) for f, i in intervals.tpr_at],
                roc_fpr=curve.fpr[shown].tolist(),
                roc_tpr=curve.tpr[shown].tolist(),
                histogram=_histogram(held_in, held_out),
            )
        )
    return results


def blind_baselines(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    *,
    coins: bool,
    seed: int,
) -> list[Blind]:
    """The reference model alone and the bag of words; under independent coins the alarm level is 1e-4, else 0.01."""
    level = LEVEL_UNDER_COINS if coins else LEVEL_OTHERWISE
    results: list[BlindResult | None] = [bag_of_words(texts, member, seed=seed)]
    if any(s.attack == REFERENCE_ALONE for s in statistics):
        results.insert(0, reference_alone(*by_side(user_scores(statistics, REFERENCE_ALONE), member)))
    return [
        Blind(name=r.name, auroc=r.auroc, p_value=r.p_value, level=level, separates=r.p_value < level)
        for r in results
        if r is not None
    ]


def by_side(scores: UserScores, member: Mapping[str, bool]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of the held-in users and of the held-out ones, each in the order of ``member``."""
    held_in = scores.of([user for user, its in member.items() if its])
    held_out = scores.of([user for user, its in member.items() if not its])
    return held_in, held_out


def _histogram(held_in: NDArray[np.float64], held_out: NDArray[np.float64]) -> Histogram:
    edges = np.histogram_bin_edges(np.concatenate([held_in, held_out]), bins=HISTOGRAM_BINS)
    return Histogram(
        edges=edges.tolist(),
        held_in=np.histogram(held_in, edges)[0].tolist(),
        held_out=np.histogram(held_out, edges)[0].tolist(),
    )


def _thinned(points: int) -> NDArray[np.intp]:
    """Which ROC points to keep for drawing: all of a short curve, else dense at the low end, where it is read."""
    if points <= ROC_POINTS:
        return np.arange(points)
    return np.unique(np.geomspace(1, points, ROC_POINTS).round().astype(np.intp) - 1)


def estimate_of(interval: Interval) -> Estimate:
    """The interval for the record, labelled an estimate."""
    return Estimate(
        value=interval.value,
        mean=interval.mean,
        deviation=interval.deviation,
        lower=interval.lower,
        upper=interval.upper,
        method=interval.method.value,
    )
