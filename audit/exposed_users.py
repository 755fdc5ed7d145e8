"""The members at risk, and the properties that correlate with risk (Kandpal et al. 2024, section 4.1, Figure 2).

Rows about single users are only in an owner-only file. The record and the report have groups of ten or more users. In a
table sorted by score, a row about one user identifies that user to anyone who has the scores, even if numbers are
rounded or left out.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.attacks.protocol import REFERENCE_ALONE, REFERENCE_DIVERGENCE
from heldin.audit.coarse import LEAST_IN_GROUP, brief, significant
from heldin.audit.results import Correlation, ExposureGroup
from heldin.audit.scored_users import ScoredUsers
from heldin.base.artefacts import read_table, write_table
from heldin.base.errors import InputError
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import TrainingRecord, by_user
from heldin.defenses.data_side.deduplicate import Deduplicate

NEAR = Deduplicate(scope="user", threshold=0.8, ngram=3)
SMOOTHING = 0.5  # counts that every word gets besides its own
MOST_GROUPS = 5
PROPERTIES = {
    "share": "share of training",
    "reference_loss": "reference loss",
    "reference_divergence": "reference divergence",
    "word_divergence": "word divergence",
    "near_duplicates": "near-duplicates",
}

PEOPLE = "people.parquet"  # of a run: who is how exposed, for the owner alone


@dataclass(frozen=True)
class Exposed:
    """The exposure of one member, for the owner of the run only.

    Attributes:
        score: score of the primary attack; a higher score means more exposed.
        above: share of non-members with a lower score.
        share: the user's share of the training records.
        reference_loss: loss of the reference model on the attacker's texts of the user, nats per token.
        reference_divergence: lower estimate of KL(D_u || p_ref), nats per token (``attacks.reference_divergence``);
            None if the user has only one text.
        word_divergence: KL divergence of the user's words from all other users' words in training, nats, smoothed.
        near_duplicates: number of the user's training records that nearly copy an earlier record.
    """

    user: str
    score: float
    above: float
    share: float
    reference_loss: float
    reference_divergence: float | None
    word_divergence: float
    near_duplicates: int


def exposed_users(
    table: ScoredUsers,
    training: Sequence[TrainingRecord],
    *,
    attack: str,
    aggregation: str,
    listed: Collection[str] | None = None,
    trained_on: int | None = None,
) -> list[Exposed]:
    """Return the exposure of members, most exposed first.

    Args:
        table: the scored users, with the reference model's own score among the attacks.
        training: the training records, with each user's records consecutive.
        aggregation: how the scores of a user's texts become one score.
        listed: the members to list; None: all.
        trained_on: number of training records, if ``training`` has only the records of a sample of users.
    """
    scores = table.scores(attack, aggregation)
    # The reference's own score is its log-likelihood per token, higher for likelier texts; the loss is its negative.
    losses = -table.scores(REFERENCE_ALONE)
    distances = np.full(scores.size, np.nan)
    if table.has(REFERENCE_DIVERGENCE):
        # ``lifted``, not ``scores``: a user with a single text has no divergence, and is no reason to stop.
        distances = table.lifted(REFERENCE_DIVERGENCE)
    above = shares_above(scores, table.member)
    of_user = by_user(training)
    # Deduplication reads texts only, so that neither a tokenizer nor a model is asked.
    adjacent = [record for records in of_user.values() for record in records]
    left, _ = apply_defenses([NEAR], adjacent, lengths=lambda _: [], losses=lambda _: [], seed=0)
    distinct = Counter(record.user for record in left)
    divergence = word_divergences({user: [r.text for r in records] for user, records in of_user.items()})
    users = [
        Exposed(
            user=user,
            score=float(scores[i]),
            above=float(above[i]),
            share=len(of_user.get(user, ())) / max(1, trained_on or len(training)),
            reference_loss=float(losses[i]),
            reference_divergence=None if np.isnan(distances[i]) else float(distances[i]),
            word_divergence=divergence.get(user, 0.0),
            near_duplicates=len(of_user.get(user, ())) - distinct[user],
        )
        for i, user in enumerate(table.users)
        if table.member[i] and (listed is None or user in listed)
    ]
    # Equal scores by name, so that the order of the input plays no part.
    return sorted(users, key=lambda u: (-u.score, u.user))


def shares_above(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return, for each user, the share of non-members with a lower score."""
    held_out = np.sort(scores[~member])
    # Strictly lower ones: a held-out user with the same score is not distinguished.
    lower: NDArray[np.intp] = np.searchsorted(held_out, scores, "left")
    return lower / max(1, held_out.size)


def exposure_groups(users: Sequence[Exposed]) -> list[ExposureGroup]:
    """Return up to five groups of equal size, ten or more users each, from users sorted by exposure.

    The list is empty for fewer than ten users.
    """
    count = min(MOST_GROUPS, len(users) // LEAST_IN_GROUP)
    if not count:
        return []
    # Parts differ in size by one at most, and the smallest has at least ten users, by the choice of ``count``.
    groups = [[users[i] for i in rows] for rows in np.array_split(np.arange(len(users)), count)]
    return [
        ExposureGroup(
            users=len(members),
            above=_mean([u.above for u in members]),
            share=_mean([u.share for u in members]),
            reference_loss=_mean([u.reference_loss for u in members]),
            reference_divergence=_mean_of_group([u.reference_divergence for u in members]),
            word_divergence=_mean([u.word_divergence for u in members]),
            near_duplicates=_mean([u.near_duplicates for u in members]),
        )
        for members in groups
    ]


def correlations(users: Sequence[Exposed]) -> list[Correlation]:
    """Return the correlation of each property with the score, over the users who have the property."""
    scores = [u.score for u in users]
    return [_correlation(label, [getattr(u, name) for u in users], scores) for name, label in PROPERTIES.items()]


def write_people(users: Sequence[Exposed], path: Path) -> None:
    """Write the table of single users. Only its owner can read the file."""
    columns = {field.name: [getattr(u, field.name) for u in users] for field in fields(Exposed)}
    # A row names a person and how exposed that person is.
    write_table(columns, path)


def read_people(path: Path) -> list[Exposed]:
    """Read a file of ``write_people``. Raises InputError if the file is missing or was changed."""
    table = read_table(path)
    if table is None:
        raise InputError(f"'{path}' is missing or was changed: repeat the command that made the folder")
    return [Exposed(**row) for row in table.to_pylist()]


def word_divergences(texts: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return KL(words of a user || words of all others), in nats, a bag-of-words distance of D_u from D_-u.

    Each of the V distinct words gets ``SMOOTHING`` extra counts on both sides, so the divergence is finite.
    """
    counts = {
        user: Counter(word for text in written for word in text.lower().split()) for user, written in texts.items()
    }
    # The sums over everybody are taken once; each user is then subtracted, in time linear in that user's words.
    everybody = Counter[str]()
    for of_user in counts.values():
        everybody.update(of_user)
    total, size = sum(everybody.values()), len(everybody)
    logs = math.fsum(math.log(count + SMOOTHING) for count in everybody.values())
    return {user: _divergence(of_user, everybody, total, size, logs) for user, of_user in counts.items()}


def _divergence(own: Counter[str], everybody: Counter[str], total: int, size: int, logs: float) -> float:
    """Return one user's divergence; ``logs`` sums log(count + SMOOTHING) over all ``size`` words of ``everybody``."""
    mine = sum(own.values())
    # Totals of the two smoothed distributions, over the same words, so that each sums to one.
    p_total, q_total = mine + SMOOTHING * size, total - mine + SMOOTHING * size
    scale = math.log(q_total / p_total)
    seen = math.fsum(
        (count + SMOOTHING) * (math.log((count + SMOOTHING) / (everybody[word] - count + SMOOTHING)) + scale)
        for word, count in own.items()
    )
    # words the user does not write enter as a sum over all words minus the user's own: linear in the texts read
    logs_unseen = logs - math.fsum(math.log(everybody[word] + SMOOTHING) for word in own)
    unseen = SMOOTHING * ((size - len(own)) * (math.log(SMOOTHING) + scale) - logs_unseen)
    # A divergence is never negative; rounding of equal distributions may be.
    return max(0.0, (seen + unseen) / p_total)


def _mean(values: Sequence[float]) -> float:
    """Round the mean to two digits. An exact mean over a few users may reveal who they are."""
    return significant(float(np.mean(values)))


def _mean_of_group(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None if there are too few for a group."""
    there = [value for value in values if value is not None]
    return _mean(there) if len(there) >= LEAST_IN_GROUP else None


def _correlation(name: str, column: Sequence[float | None], exposure: Sequence[float]) -> Correlation:
    """Return the correlation over the users who have the property."""
    values = [value for value in column if value is not None]
    scores = [score for value, score in zip(column, exposure, strict=True) if value is not None]
    # Ranks that do not vary have no correlation, and one over a few users would be about them.
    if len(values) < LEAST_IN_GROUP or len(set(values)) < 2 or len(set(scores)) < 2:
        return Correlation(name, None, None)
    result = stats.spearmanr(values, scores)
    return Correlation(name, brief(float(result.statistic), 2), significant(float(result.pvalue)))
