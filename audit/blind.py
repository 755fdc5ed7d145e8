"""Blind baselines: scores made without the audited model. If they separate the groups, the split causes the difference.

Under independent fair coins, a blind score separates members from non-members only by chance.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import REFERENCE_ALONE
from heldin.audit.coarse import brief, significant
from heldin.audit.preregistration import Preregistration, Sides
from heldin.audit.scored_users import ScoredUsers
from heldin.base.section import Facts
from heldin.bounds.design import BLIND_OTHERWISE, BLIND_UNDER_COINS
from heldin.bounds.roc import auroc, separation_p_value
from heldin.words.answer import ComparisonFlaw, Note
from heldin.words.statement import Statement

MAX_FEATURES = 5000
MIN_USERS_PER_SIDE = 4  # two to fit on and two to test on

REFERENCE = "reference model alone"  # name of the baseline


class Blind(Facts):
    """The separation of the groups by a baseline that never saw the audited model.

    Attributes:
        name: name of the baseline.
        auroc: AUROC over users.
        p_value: p-value of the hypothesis that the baseline does not separate the groups.
        level: significance level of the alarm.
        separates: whether the p-value is below the level.
    """

    name: str
    auroc: float
    p_value: float
    level: float
    separates: bool


def reference_alone(
    held_in: NDArray[np.float64], held_out: NDArray[np.float64], *, level: float = BLIND_OTHERWISE
) -> Blind:
    """Judge the reference model's own score of users, without the audited model; alarm at ``level``."""
    return _blind(REFERENCE, auroc(held_in, held_out), separation_p_value(held_in, held_out), level)


def bag_of_words(
    texts: Mapping[str, Sequence[str]], member: Mapping[str, bool], *, level: float = BLIND_OTHERWISE, seed: int
) -> Blind | None:
    """Judge a linear classifier on users' words, fitted on half of the users and tested on the other half, both ways.

    Each of the two tests is valid given the half for fitting. The p-value is twice the smaller p-value. The result is
    None if a group has too few users to split in half.

    Args:
        level: significance level of the alarm.
    """
    # By name: the halves must follow from the seed, not from the order in which users were scored.
    users = sorted(texts)
    labels = np.array([member[user] for user in users])
    if min(labels.sum(), (~labels).sum()) < MIN_USERS_PER_SIDE:
        return None
    if any(not re.search(r"\w", " ".join(written)) for written in texts.values()):
        return None  # a user without a single word has no bag of words
    generator = np.random.default_rng(seed)
    first = np.zeros(len(users), dtype=bool)
    # Each side is halved by itself: with one side alone nothing can be fitted or tested.
    for side in (labels, ~labels):
        rows = generator.permutation(np.flatnonzero(side))
        first[rows[: len(rows) // 2]] = True
    joined = np.array(["\n".join(texts[user]) for user in users], dtype=object)
    # Both ways, so that every user is tested once; two tests are paid for by twice the smaller p-value.
    results = [_fit_and_test(joined, labels, fit) for fit in (first, ~first)]
    area = float(np.mean([r[0] for r in results]))
    return _blind("bag of words", area, min(1.0, 2 * min(r[1] for r in results)), level)


def text_separation(ours: Sequence[tuple[str, str]], others: Sequence[str], *, seed: int) -> float | None:
    """Return how well a bag of words separates some users' texts from other texts: an AUROC, 0.5 is guessing.

    The classifier is fitted on one half and tested on the other, both ways. A user's texts are all in one half. The
    result is None with fewer than ``MIN_USERS_PER_SIDE`` users or other texts.

    Args:
        ours: pairs (user, text).
        others: texts of other people.
    """
    users = sorted({user for user, _ in ours})
    if min(len(users), len(others)) < MIN_USERS_PER_SIDE:
        return None
    generator = np.random.default_rng(seed)
    first_users = {users[i] for i in generator.permutation(len(users))[: len(users) // 2]}
    first = np.array([user in first_users for user, _ in ours] + [False] * len(others))
    first[len(ours) + generator.permutation(len(others))[: len(others) // 2]] = True
    texts = np.array([text for _, text in ours] + list(others), dtype=object)
    labels = np.array([True] * len(ours) + [False] * len(others))
    try:
        return float(np.mean([_fit_and_test(texts, labels, fit)[0] for fit in (first, ~first)]))
    except ValueError:  # no word at all in a half
        return None


def blind_baselines(table: ScoredUsers, texts: Mapping[str, Sequence[str]], fixed: Preregistration) -> list[Blind]:
    """Judge the reference model alone, if it was scored, and the bag of words, if there are enough users.

    Args:
        fixed: how membership was decided, and the seed of the bag of words' random halves.
    """
    # A much lower level where heldin drew the sides: there an alarm can only be chance or a leaked draw.
    level = BLIND_UNDER_COINS if fixed.sides.witnessed else BLIND_OTHERWISE
    member = dict(zip(table.users, table.member.tolist(), strict=True))
    baselines = [reference_alone(*table.sides(REFERENCE_ALONE), level=level)] if table.has(REFERENCE_ALONE) else []
    words = bag_of_words(texts, member, level=level, seed=fixed.seed)
    return baselines if words is None else [*baselines, words]


def blind_flaws(blind: Sequence[Blind], sides: Sides) -> list[Statement]:
    """Return the flaws of an asserted split: the groups differ even without the audited model."""
    return [
        ComparisonFlaw.GROUPS_DIFFER(baseline=b.name, auroc=b.auroc, p=b.p_value)
        for b in blind
        if b.separates and not sides.witnessed
    ]


def blind_by_chance(blind: Blind) -> Statement:
    """Return the note for a split that heldin drew: a blind baseline separates by chance, or the coins leaked."""
    return Note.BLIND_BY_CHANCE(baseline=blind.name, auroc=blind.auroc, p=blind.p_value)


def _blind(name: str, area: float, p_value: float, level: float) -> Blind:
    # The alarm is by the p-value before rounding, which could move it across the level.
    return Blind(name=name, auroc=brief(area), p_value=significant(p_value), level=level, separates=p_value < level)


def _fit_and_test(texts: NDArray[np.object_], labels: NDArray[np.bool_], fit: NDArray[np.bool_]) -> tuple[float, float]:
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import, and no record needs it to be read
    from sklearn.linear_model import LogisticRegression

    # scikit-learn's own pattern drops words of one character, and a user may write no others.
    words = TfidfVectorizer(max_features=MAX_FEATURES, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    classifier = LogisticRegression(max_iter=1000)
    # Vocabulary and weights come from the fitted half alone: given that half, the p-value of the other is valid.
    classifier.fit(words.fit_transform(texts[fit]), labels[fit])
    scores = classifier.decision_function(words.transform(texts[~fit]))
    held_in, held_out = scores[labels[~fit]], scores[~labels[~fit]]
    return auroc(held_in, held_out), separation_p_value(held_in, held_out)
