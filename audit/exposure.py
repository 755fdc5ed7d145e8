"""Who is at risk: each held-in user's score beside what might explain it (Kandpal et al. 2024, section 4.1, Figure 2).

Pseudonyms are stable within a run and say nothing of the name: a keyed hash under the run's secret key.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attacks.scoring import TextStatistic, user_scores
from audit.reference_divergence import REFERENCE_DIVERGENCE
from corpus.coins import keyed_digest
from defenses.data_side import Deduplicate, TrainingRecord, apply_defenses, by_user

NEAR = Deduplicate(scope="user", threshold=0.8, ngram=3)
SMOOTHING = 0.5
SHOWN = 10
PROPERTIES = ("share of training", "reference loss", "reference divergence", "word divergence", "near-duplicates")


@dataclass(frozen=True)
class Exposed:
    """A held-in user.

    Attributes:
        pseudonym: of the user.
        score: of the primary attack; higher is more exposed.
        rank: share of held-out users whose score is below it.
        share: of the training records that are this user's.
        reference_loss: of the attacker's texts of the user under the reference model, nats per token.
        reference_divergence: KL(D_u || p_ref) from below, nats per token (``audit.reference_divergence``); None where
            no text of the user has another beside it.
        divergence: KL divergence of the user's words from everybody else's in training, nats, smoothed.
        near_duplicates: training records of the user that are nearly copies of an earlier one.
    """

    pseudonym: str
    score: float
    rank: float
    share: float
    reference_loss: float
    reference_divergence: float | None
    divergence: float
    near_duplicates: int


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of a property with the score over held-in users; None where it does not vary."""

    name: str
    rho: float | None
    p_value: float | None


def exposure(
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    training: Sequence[TrainingRecord],
    *,
    attack: str,
    aggregation: str,
    reference_alone: str,
    key: bytes,
) -> tuple[list[Exposed], list[Correlation]]:
    """Every held-in user, most exposed first, and what goes with exposure.

    Args:
        statistics: of every scored user's texts; the reference model alone among the attacks.
        member: scored user to whether held in.
        training: records that were trained on, users' next to each other.
        attack: the primary attack.
        aggregation: over texts.
        reference_alone: name of the reference model's own statistic, mean token log-probability.
        key: the run's secret key, for pseudonyms.
    """
    found = user_scores(statistics, attack, aggregation)
    score = dict(zip(found.users, found.values.tolist(), strict=True))
    losses = {user: -value for user, value in _means(statistics, reference_alone).items()}
    held_out = np.sort([score[user] for user, its in member.items() if not its])
    distances = _means(statistics, REFERENCE_DIVERGENCE)
    of_user = by_user(training)
    left, _ = apply_defenses([NEAR], training, lengths=lambda _: [], losses=lambda _: [], seed=0)
    distinct = Counter(record.user for record in left)
    divergence = word_divergences({user: [r.text for r in its] for user, its in of_user.items()})
    users = [
        Exposed(
            pseudonym=f"user-{keyed_digest(key, 'pseudonym', user).hex()[:8]}",
            score=score[user],
            rank=float(np.searchsorted(held_out, score[user], "left") / max(1, held_out.size)),
            share=len(of_user.get(user, ())) / max(1, len(training)),
            reference_loss=losses[user],
            reference_divergence=distances.get(user),
            divergence=divergence.get(user, 0.0),
            near_duplicates=len(of_user.get(user, ())) - distinct[user],
        )
        for user, its in member.items()
        if its
    ]
    users.sort(key=lambda u: (-u.score, u.pseudonym))
    columns = [
        (u.share, u.reference_loss, u.reference_divergence, u.divergence, float(u.near_duplicates)) for u in users
    ]
    return users, [
        _correlation(name, [row[i] for row in columns], [u.score for u in users]) for i, name in enumerate(PROPERTIES)
    ]


def word_divergences(texts: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """KL(words of a user || words of all others), nats: a bag-of-words distance of D_u from D_-u.

    Each of the V words seen gets SMOOTHING counts more on both sides, so that it is finite.
    """
    counts = {user: Counter(word for text in its for word in text.lower().split()) for user, its in texts.items()}
    everybody = Counter[str]()
    for of_user in counts.values():
        everybody.update(of_user)
    total, size = sum(everybody.values()), len(everybody)
    return {user: _divergence(of_user, everybody, total, size) for user, of_user in counts.items()}


def _divergence(own: Counter[str], everybody: Counter[str], total: int, size: int) -> float:
    mine = sum(own.values())
    p_total, q_total = mine + SMOOTHING * size, total - mine + SMOOTHING * size
    seen = sum(
        (count + SMOOTHING)
        / p_total
        * math.log((count + SMOOTHING) / p_total * q_total / (everybody[word] - count + SMOOTHING))
        for word, count in own.items()
    )
    unseen = sum(
        SMOOTHING / p_total * math.log(SMOOTHING / p_total * q_total / (count + SMOOTHING))
        for word, count in everybody.items()
        if word not in own
    )
    return max(0.0, seen + unseen)


def _means(statistics: Sequence[TextStatistic], name: str) -> dict[str, float]:
    """A statistic's mean by user; of the users that have any."""
    if not any(s.attack == name for s in statistics):
        return {}
    found = user_scores(statistics, name, "mean")
    return dict(zip(found.users, found.values.tolist(), strict=True))


def _correlation(name: str, column: Sequence[float | None], of: Sequence[float]) -> Correlation:
    """Over the users who have the property."""
    values = [value for value in column if value is not None]
    scores = [score for value, score in zip(column, of, strict=True) if value is not None]
    if len(values) < 3 or len(set(values)) < 2 or len(set(scores)) < 2:
        return Correlation(name, None, None)
    found = stats.spearmanr(values, scores)
    return Correlation(name, float(found.statistic), float(found.pvalue))
