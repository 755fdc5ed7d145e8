"""The interface of an attack, and its result. An attack sees texts and token scores, never membership.

Models score tokens first. An attack then computes one statistic per text without any model.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.access import Access
from heldin.base.errors import InputError
from heldin.base.section import Facts
from heldin.models.token_scores import TokenScores
from heldin.words.attacks import AttackUses
from heldin.words.statement import Statement

# (statistics, user by user, shape (t,); index of each user's first, shape (n,)) -> scores, shape (n,)
Aggregation = Callable[[NDArray[np.float64], NDArray[np.intp]], NDArray[np.float64]]

# ``reduceat`` returns the next user's first value for an empty user, and minimum and maximum pass a NaN on. So
# ``lift_to_users`` refuses a user without texts, and ``UserScores`` one with a NaN.
AGGREGATIONS: Mapping[str, Aggregation] = {
    "mean": lambda values, starts: np.add.reduceat(values, starts) / np.diff(np.append(starts, values.size)),
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
}
# The value of "aggregation" for an attack that gives one value of each user.
TOGETHER = "together"
ANSWER = "answer"  # the dial of preference pairs: one answer alone in place of the margin
RULES: Mapping[str, Aggregation] = {**AGGREGATIONS, TOGETHER: lambda values, starts: values[starts]}


class Uses(StrEnum):
    """The data that a statistic uses in addition to the text. The data decide whether scores may be certified.

    A bound from one run holds if the scores depend only on the released model and on inputs that are independent of the
    audited users' coins (docs/theory.md#conditions-of-one-run).
    """

    MODEL = "model"
    OTHER_TEXTS = "other_texts"
    REHEARSAL = "rehearsal"
    SHADOW_MODELS = "shadow_models"
    COINS = "coins"

    @property
    def stated(self) -> Statement:
        """Return the data that the statistic uses, as words for a sentence."""
        return AttackUses[self.name]()

    @property
    def certifiable(self) -> bool:
        """Return whether bounds may use the attack: not if one user's score was fitted to another user's coin."""
        return self is not Uses.COINS


class AttackFacts(Facts):
    """The facts about an attack that a record has, so a report does not need the attack's code.

    Attributes:
        uses: the texts and labels that the attack learns from.
        needs_reference: whether the attack also uses the reference model.
        needs_vocabulary: whether the attack needs more of the target than log-probabilities of a text's own tokens.
        of_training_texts: whether the attack is intended for the exact training documents.
        access: the attacker's access to a model.
    """

    uses: Uses
    needs_reference: bool
    needs_vocabulary: bool
    of_training_texts: bool
    access: Access = Access.LOG_PROBABILITIES


# The direction is set here and nowhere else: AUROC, bounds and verdicts all read "higher" as "held in", and a flipped
# sign would turn a leak into a model that looks safe.
class Attack(ABC):
    """A statistic of texts. A higher value always means that the texts' author is more likely a member.

    The constructor takes no arguments except the name, because a config names the class. The attack sees no membership:
    it gets texts, authors' names and token scores. (The code of a package's attack runs in this process and can read
    files.) ``heldin.testing.check_attack`` tests an attack.

    Attributes:
        name: the attack's name in configs and reports.
        uses: the texts and labels that the attack learns from.
        needs_reference: whether the attack needs the reference model's scores.
        needs_moments: whether the attack needs mean and standard deviation over the vocabulary under the target.
        needs_ranks: whether the attack needs the ranks of tokens under the target.
        needs_ids: whether the attack needs token ids.
        compares_tokens: whether the attack compares tokens, or means over tokens, between target and reference. heldin
            skips such an attack if the two models have different tokenizers, because the values would mean nothing.
        of_users: whether the attack gives one value per user, so there is nothing to aggregate over texts.
        of_training_texts: whether the attack is made for the exact training documents, and loses evidence on other
            texts.
        of_pairs: whether the attack applies to preference pairs. The score of a pair is the margin of the chosen over
            the rejected answer (``TokenScores``). If false, heldin skips the attack for pairs.
        access: the attacker's access to a model. At levels weaker than log-probabilities, token scores contain only
            answers.
    """

    uses: ClassVar[Uses]
    needs_reference: ClassVar[bool] = False
    needs_moments: ClassVar[bool] = False
    needs_ranks: ClassVar[bool] = False
    needs_ids: ClassVar[bool] = False
    compares_tokens: ClassVar[bool] = False
    of_users: ClassVar[bool] = False
    of_training_texts: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    access: ClassVar[Access] = Access.LOG_PROBABILITIES

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def needs_vocabulary(self) -> bool:
        """Return whether the attack needs more of the target than log-probabilities of a text's own tokens."""
        return self.needs_moments or self.needs_ranks

    def facts(self) -> AttackFacts:
        """Return the record's facts about the attack."""
        return AttackFacts(
            uses=self.uses,
            needs_reference=self.needs_reference,
            needs_vocabulary=self.needs_vocabulary,
            of_training_texts=self.of_training_texts,
            access=self.access,
        )

    @abstractmethod
    def statistics(
        self,
        owners: Sequence[str],
        texts: Sequence[str],
        target: Sequence[TokenScores],
        reference: Sequence[TokenScores | None],
    ) -> "list[TextStatistic]":
        """Return the statistic of every text. A statistic of a whole user is returned as the user's text number 0.

        Args:
            owners: user of each of m texts; the texts of a user are consecutive.
            texts: the scored part of each text.
            target: scores of the texts under the target.
            reference: scores of the texts under the reference model.

        Raises:
            InputError: a needed score is missing, or the two models have different tokens.
        """


class TextAttack(Attack):
    """A statistic of one text at a time."""

    @abstractmethod
    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the statistic of one text, from its scores under the target and the reference model."""

    def statistics(
        self,
        owners: Sequence[str],
        texts: Sequence[str],
        target: Sequence[TokenScores],
        reference: Sequence[TokenScores | None],
    ) -> "list[TextStatistic]":
        """Return the statistic of every text."""
        values = map(self.statistic, texts, target, reference)
        return [
            TextStatistic(user, number, self.name, value)
            for user, number, value in zip(owners, places_of(owners), values, strict=True)
        ]


def places_of(owners: Sequence[str]) -> list[int]:
    """Return the number of each text among its user's texts, which are consecutive."""
    return [number for _, own in itertools.groupby(owners) for number, _ in enumerate(own)]


@dataclass(frozen=True)
class UserScores:
    """One score for each user; a higher score means more likely a member.

    Attributes:
        users: n names, each once.
        values: scores of the users, shape (n,), finite.

    Raises:
        InputError: a score is NaN or infinite (the message has its number), a user occurs twice, or lengths differ.
    """

    attack: str
    users: tuple[str, ...]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.users),):
            raise InputError(
                f"attack '{self.attack}' gave {self.values.size} scores for {len(self.users)} users: return one"
                " score for each user"
            )
        # A user is the unit: two scores would count one coin twice.
        if len(set(self.users)) != len(self.users):
            raise InputError(f"attack '{self.attack}' gave one user two scores: return one score for each user")
        # Refused, not filtered out: a dropped user would change n between attacks, and not at random.
        bad = np.flatnonzero(~np.isfinite(self.values))
        if bad.size:
            raise InputError(
                f"attack '{self.attack}': score number {bad[0] + 1} of {self.values.size} is"
                f" {self.values[bad[0]]}. Return a finite score for every user"
            )

    def of(self, users: Sequence[str]) -> NDArray[np.float64]:
        """Return the scores of the named users, in this order. Raises InputError for a user without a score."""
        row = {user: i for i, user in enumerate(self.users)}
        # An error and not a NaN, for the same reason: every attack must be judged on the same users.
        missing = [user for user in users if user not in row]
        if missing:
            raise InputError(
                f"attack '{self.attack}' gave no score for {len(missing)} of {len(users)} users: return a score"
                " for every user"
            )
        return self.values[[row[user] for user in users]]


def lift_to_users(attack: str, statistics: Mapping[str, Sequence[float]], aggregation: str = "mean") -> UserScores:
    """Aggregate each user's text statistics to the user's score (Kandpal et al. 2024, section 3 and Table 6).

    Args:
        statistics: for each user, the statistics of the user's texts, at least one.
        aggregation: "mean", "min" or "max"; "together" if there is one value per user.

    Raises:
        InputError: the aggregation is unknown, or a user has no text.
    """
    if aggregation not in RULES:
        raise InputError(f"unknown aggregation '{aggregation}': choose from {', '.join(AGGREGATIONS)}")
    empty = next((user for user, values in statistics.items() if not len(values)), None)
    if empty is not None:
        raise InputError(f"attack '{attack}': user '{empty}' has no text to score. Leave this user out")
    values = np.array([value for of_user in statistics.values() for value in of_user], dtype=np.float64)
    # (users,): where each user's texts begin among all texts
    starts = np.cumsum([0, *map(len, statistics.values())])[:-1]
    # (texts,) -> (users,); without any user there is nothing to reduce
    scores = RULES[aggregation](values, starts) if statistics else values
    return UserScores(attack, tuple(statistics), np.asarray(scores, dtype=np.float64))


# Statistics that never look at the target. They are not attacks: what they find cannot be a leak.
REFERENCE_ALONE = "reference-alone"
REFERENCE_DIVERGENCE = "reference-divergence"
NO_ATTACKS = (REFERENCE_ALONE, REFERENCE_DIVERGENCE)


@dataclass(frozen=True)
class Dial:
    """One choice of the attacker that differs from the primary attack. All other choices are the same.

    Attributes:
        name: name of the choice, such as the reference.
        setting: value of the choice.
    """

    name: str
    setting: str


@dataclass(frozen=True)
class TextStatistic:
    """One attack's statistic of one text of one user.

    Attributes:
        user: the author of the text.
        text: the text's number among the user's texts.
        value: a higher value means more likely a member.
        dial: the changed dial; None: the primary attack.
    """

    user: str
    text: int
    attack: str
    value: float
    dial: Dial | None = None


def how_aggregated(aggregation: str) -> str:
    """Return words for the rule that makes one score of the values of a user's texts."""
    return "all texts together" if aggregation == TOGETHER else f"{aggregation} over texts"


def label_of(attack: str, aggregation: str, dial: Dial | None) -> str:
    """Return the name of a score for readers: the attack, the aggregation and the changed dial."""
    turned = "" if dial is None else f"; {dial.name}: {dial.setting}"
    return f"{attack} ({how_aggregated(aggregation)}{turned})"


def user_scores(statistics: Sequence[TextStatistic], attack: str, aggregation: str = "mean") -> UserScores:
    """Aggregate one attack's statistics to users. The result ignores statistics with a changed dial."""
    by_user: dict[str, list[float]] = {}
    for s in statistics:
        # A changed dial is a variant of the attack; mixed in, it would enter the same user's mean a second time.
        if s.attack == attack and s.dial is None:
            by_user.setdefault(s.user, []).append(s.value)
    return lift_to_users(attack, by_user, aggregation)
