"""Blind baselines: scores made without the audited model. If these separate the groups, the split is to blame.

Under independent fair coins a blind score cannot tell held-in from held-out users, except by chance.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from heldin.bounds.roc import auroc, separation_p_value

MAX_FEATURES = 5000
MIN_USERS_PER_SIDE = 4


@dataclass(frozen=True)
class BlindResult:
    """How well a blind score separates the groups; ``p_value`` is of "not at all"."""

    name: str
    auroc: float
    p_value: float


def reference_alone(held_in: NDArray[np.float64], held_out: NDArray[np.float64]) -> BlindResult:
    """The reference model's own score of users, without the audited model."""
    return BlindResult("reference model alone", auroc(held_in, held_out), separation_p_value(held_in, held_out))


def bag_of_words(texts: Mapping[str, Sequence[str]], member: Mapping[str, bool], *, seed: int) -> BlindResult | None:
    """A linear classifier on users' words, fitted on one half of the users and tested on the other, both ways.

    The two tests are each valid given the half that was fitted on; the p-value is twice the smaller one. None where a
    side has too few users to cut in half.

    Args:
        texts: the attacker's texts by user.
        member: whether each user is held in.
        seed: of the halving.
    """
    users = sorted(texts)
    labels = np.array([member[user] for user in users])
    if min(labels.sum(), (~labels).sum()) < MIN_USERS_PER_SIDE:
        return None
    if any(not re.search(r"\w", " ".join(its)) for its in texts.values()):
        return None  # a user without a single word: there is no bag to look into
    generator = np.random.default_rng(seed)
    first = np.zeros(len(users), dtype=bool)
    for side in (labels, ~labels):
        rows = generator.permutation(np.flatnonzero(side))
        first[rows[: len(rows) // 2]] = True
    documents = np.array(["\n".join(texts[user]) for user in users], dtype=object)
    results = [_fit_and_test(documents, labels, fit) for fit in (first, ~first)]
    area = float(np.mean([r[0] for r in results]))
    return BlindResult("bag of words", area, min(1.0, 2 * min(r[1] for r in results)))


def _fit_and_test(
    documents: NDArray[np.object_], labels: NDArray[np.bool_], fit: NDArray[np.bool_]
) -> tuple[float, float]:
    words = TfidfVectorizer(max_features=MAX_FEATURES, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(words.fit_transform(documents[fit]), labels[fit])
    scores = classifier.decision_function(words.transform(documents[~fit]))
    held_in, held_out = scores[labels[~fit]], scores[~labels[~fit]]
    return auroc(held_in, held_out), separation_p_value(held_in, held_out)
