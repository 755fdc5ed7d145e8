"""Everything that an audit found, as its record keeps it. No user name, no text and no secret (``record.document``)."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from heldin.audit.answer import DecisionFacts
from heldin.audit.attack_results import AttackResult, DialSetting, Knowledge
from heldin.audit.blind import Blind
from heldin.audit.bootstrap import Estimate
from heldin.audit.utility import Gain
from heldin.base.section import Facts
from heldin.bounds.judgement import Judgement


class TrainingsFacts(Facts):
    """Independent trainings with and without one worst-case user, and the test at one threshold of their scores.

    Attributes:
        runs: number of trainings.
        with_user: number of them with the worst-case user.
        documents: number of documents of the worst-case user.
        target: what was trained: the config's defense, or none.
        pilot: number of first trainings, which picked the threshold and are not tested at it; 0 if it was fixed
            beforehand.
        threshold: a training is called "with" if its score is at least this; null where ROC bands were used.
        members: number of tested trainings with the user; null if ROC bands were used, as are the next three fields.
        true_positives: number of those called "with".
        non_members: number of tested trainings without the user.
        false_positives: number of those called "with".
        epsilon_lower: lower bound on epsilon by this test, which was chosen before looking.
        reach: the largest epsilon that the tested trainings could have certified.
        seconds_each: median time of a training, seconds.
    """

    runs: int
    with_user: int
    documents: int
    target: Literal["defense", "none"]
    pilot: int
    threshold: float | None
    members: int | None
    true_positives: int | None
    non_members: int | None
    false_positives: int | None
    epsilon_lower: float | None
    reach: float | None
    seconds_each: float


class CanaryGroup(Facts):
    """Canary users of one kind, substring length and number of training documents.

    Attributes:
        kind: how they were made.
        length: length of the substring in tokens; null for other kinds.
        documents: number of training documents; null: all they have.
        held_in: number of its users in the training data.
        held_out: number of its users outside the training data.
        auroc: AUROC of the leading attack; null if a group has fewer than two users.
    """

    kind: Literal["unseen_token", "high_temperature", "rare_phrase", "named_person", "substring", "real_rows"]
    length: int | None
    documents: int | None
    held_in: int
    held_out: int
    auroc: Estimate | None


class CanaryFacts(Facts):
    """Canary users, and how well the leading attack did on each group.

    Attributes:
        users: number of planted canary users.
        held_in: number of canary users in the training data.
        held_out: number of canary users outside the training data.
        replaced: number of real users whose place they took.
        training_texts: training texts of those held in, before any data-side defense.
        trained_on: how many of these texts such a defense kept.
        attacker_texts: number of scored texts of canary users.
        groups: results by kind, length and number of documents.
        blind: baselines that never saw the audited model.
        decision: the answer for all canary users together, from scores minus their group's median; null if a side has
            fewer than two users.
    """

    users: int
    held_in: int
    held_out: int
    replaced: int
    training_texts: int
    trained_on: int
    attacker_texts: int
    groups: list[CanaryGroup]
    blind: list[Blind]
    decision: DecisionFacts | None


@dataclass(frozen=True)
class ExposureGroup:
    """Means over a group of ten users or more with neighbouring scores; the properties are those of ``Exposed``.

    Sorted by score, a row about one user identifies that user to anyone who holds the scores: single users are in an
    owner-only file alone (``audit.exposed_users``; Kandpal et al. 2024, section 4.1, Figure 2).

    Attributes:
        users: number of users.
        above: mean share of held-out users with a lower score.
        share: mean share of the training records.
        reference_loss: mean loss under the reference model, nats per token.
        reference_divergence: mean over the users who have one, nats per token; None where they are fewer than ten.
        word_divergence: mean KL divergence of words, nats.
        near_duplicates: mean number of near-duplicate training records.
    """

    users: int
    above: float
    share: float
    reference_loss: float
    reference_divergence: float | None
    word_divergence: float
    near_duplicates: float


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of a property with the score over held-in users.

    Attributes:
        name: what the score is compared with.
        rho: the correlation; null where property or scores do not vary, or fewer than ten users have the property.
        p_value: p-value of the hypothesis of no correlation; null in the same cases.
    """

    name: str
    rho: float | None
    p_value: float | None


class ExposureFacts(Facts):
    """Correlates of exposure over all held-in users.

    Attributes:
        users: number of held-in users who are in the groups.
        of: number of held-in users, where those in the groups are a sample; null where they are all.
        groups: groups of ten or more users, most exposed first.
        correlations: correlation of each property with the score.
    """

    users: int
    of: int | None
    groups: list[ExposureGroup]
    correlations: list[Correlation]


class Results(Facts):
    """Everything that an audit found: a function of scores, membership, claims and config only.

    Attributes:
        decision: the answer, with the test behind it.
        attacks: every attack under every aggregation, the leading one first.
        blind: baselines that never saw the audited model.
        judgement: bounds, and a verdict on each claim.
        knowledge: AUROC by number of texts per user that the attacker has.
        dials: the primary attack with one of the attacker's dials changed at a time.
        canaries: results for canary users, separate from the real ones; null if there are none.
        exposure: what correlates with a high score among held-in users; null if the training data is unknown.
        trainings: results of many independent trainings; null otherwise.
        gain: the model's gain over the reference model on held-out users' scored texts; null where it was not measured.
    """

    decision: DecisionFacts
    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    knowledge: list[Knowledge] = Field(default_factory=list)
    dials: list[DialSetting] = Field(default_factory=list)
    canaries: CanaryFacts | None = None
    exposure: ExposureFacts | None = None
    trainings: TrainingsFacts | None = None
    gain: Gain | None = None
