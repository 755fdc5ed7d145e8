"""All results of an audit for its record, without user names, texts or secrets (``record.document``)."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from heldin.attacks.access import Access
from heldin.audit.answer import DecisionFacts
from heldin.audit.attack_results import AttackResult, DialSetting, Knowledge
from heldin.audit.blind import Blind
from heldin.audit.bootstrap import Estimate
from heldin.audit.utility import Gain
from heldin.base.section import Facts
from heldin.bounds.judgement import Judgement


class TrainingsFacts(Facts):
    """Independent trainings with and without one worst-case user, and the test of their scores at one threshold.

    Attributes:
        runs: number of trainings.
        with_user: number of trainings with the worst-case user.
        documents: number of documents of the worst-case user.
        target: the defense of the trainings: the config's defense, or none.
        pilot: number of first trainings, which chose the threshold and are not tested; 0 if the threshold was fixed
            beforehand.
        threshold: the attack classifies a training as "with" if its score is at least this number; null if ROC bands
            were used.
        members: number of tested trainings with the user; null if ROC bands were used, as are the next three fields.
        true_positives: number of tested trainings with the user that the attack classified as "with".
        non_members: number of tested trainings without the user.
        false_positives: number of tested trainings without the user that the attack classified as "with".
        epsilon_lower: lower bound on epsilon by this test, which was fixed before anyone saw a score.
        reach: the largest epsilon that the tested trainings could have certified.
        seconds_each: median time of a training, in seconds.
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

    @property
    def is_control(self) -> bool:
        """Whether the models were trained without the config's defense."""
        return self.target != "defense"


class CanaryGroup(Facts):
    """Canary users of one kind, substring length and number of training documents.

    Attributes:
        kind: kind of the canary users.
        length: length of the substring in tokens; null for other kinds.
        documents: number of training documents; null if all documents are used.
        held_in: number of the group's users in the training data.
        held_out: number of the group's users outside the training data.
        auroc: AUROC of the primary attack; null if there are fewer than two members or two non-members.
    """

    kind: str
    length: int | None
    documents: int | None
    held_in: int
    held_out: int
    auroc: Estimate | None


class CanaryFacts(Facts):
    """The canary users, and the results of the primary attack on each group.

    Attributes:
        users: number of planted canary users.
        held_in: number of canary users in the training data.
        held_out: number of canary users outside the training data.
        of_real_rows: number of canary users who have only real rows as records.
        replaced: number of real users whom canary users replaced.
        training_texts: number of training texts of canary members, before any data-side defense.
        trained_on: number of training texts of canary members that the data-side defense kept.
        attacker_texts: number of scored texts of canary users.
        groups: results by kind, length and number of documents.
        blind: baselines that never saw the audited model.
        decision: the answer for all canary users together, from scores minus the median of the user's group; null for
            fewer than two members or non-members.
    """

    users: int
    held_in: int
    held_out: int
    of_real_rows: int
    replaced: int
    training_texts: int
    trained_on: int
    attacker_texts: int
    groups: list[CanaryGroup]
    blind: list[Blind]
    decision: DecisionFacts | None


@dataclass(frozen=True)
class ExposureGroup:
    """Means over a group of ten or more users with similar scores.

    In a table sorted by score, a row about one user identifies that user to anyone who has the scores. Rows about
    single users are therefore only in an owner-only file (``audit.exposed_users``; Kandpal et al. 2024, section 4.1,
    Figure 2).

    Attributes:
        users: number of users.
        above: mean share of non-members with a lower score.
        share: mean share of the training records.
        reference_loss: mean loss under the reference model, nats per token.
        reference_divergence: mean divergence, nats per token, of users for whom it is known; null for fewer than ten.
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
    """Spearman's correlation of a property with the score, over members.

    Attributes:
        name: name of the property.
        rho: the correlation; null if the property or the scores do not vary, or fewer than ten users have the property.
        p_value: p-value of the hypothesis of no correlation; null whenever ``rho`` is null.
    """

    name: str
    rho: float | None
    p_value: float | None


class ExposureFacts(Facts):
    """Properties that correlate with exposure among members.

    Attributes:
        users: number of members in the groups.
        of: number of all members, if the groups contain only a sample of members; null if the groups contain all
            members.
        groups: groups of ten or more users, most exposed first.
        correlations: correlation of each property with the score.
    """

    users: int
    of: int | None
    groups: list[ExposureGroup]
    correlations: list[Correlation]


Group = Literal["held in", "held out", "canary users held in", "canary users held out"]


class Emitted(Facts):
    """The number of people with a text that this number of queries emits with at least the stated probability.

    Attributes:
        queries: number of continuations of one prefix that the attacker samples.
        users: number of people with such a text under the audited model.
        lower, upper: exact 95 % limits (Clopper & Pearson 1934) of the share of ``users`` among people with a long
            enough text; null if nobody has one.
        only_theirs: number of people with such a text whose suffix occurs in no known text of others; null if no texts
            of others are known.
        reference: number of people with such a text under the reference model; null if its tokenizer differs.
    """

    queries: int
    users: int
    lower: float | None
    upper: float | None
    only_theirs: int | None
    reference: int | None


class ExtractionGroup(Facts):
    """Members or non-members.

    Attributes:
        group: the authors of the texts.
        users: number of users.
        measured: number of users with at least one text that is long enough.
        texts: number of the users' texts that are long enough; heldin measured one window of each text.
        too_short: number of the users' texts that are too short.
        in_others: number of texts whose suffix also occurs in another person's training text; null if the training
            texts are unknown.
        in_public: number of texts whose suffix also occurs in a public text; null if there are no public texts.
        emitted: counts of people, one entry for each number of queries.
    """

    group: Group
    users: int
    measured: int
    texts: int
    too_short: int
    in_others: int | None
    in_public: int | None
    emitted: list[Emitted]


class ExtractionFacts(Facts):
    """How many people have a training text that the model reproduces when it is sampled.

    Attributes:
        prefix: number of tokens that the attacker gives.
        suffix: number of tokens that the model must then emit.
        temperature: temperature of the sampling.
        top_k: number of likeliest tokens from which the attacker samples; null: the attacker samples from all tokens.
        probability: probability with which at least one of the queries must emit the suffix.
        groups: members and non-members, first of real users, then of canary users if there are any.
    """

    prefix: int
    suffix: int
    temperature: float
    top_k: int | None
    probability: float
    groups: list[ExtractionGroup]

    def of(self, group: Group) -> ExtractionGroup | None:
        """Return the people of one group; None if there are none."""
        return next((counts for counts in self.groups if counts.group == group), None)


class MarkExposure(Facts):
    """Ranks of some canary users' marks under one model.

    Attributes:
        highest: number of marks that rank above every candidate.
        first_percent: number of marks that rank in the first hundredth among the candidates and the mark.
        median: median exposure in bits; null for fewer than ten canary users.
    """

    highest: int
    first_percent: int
    median: float | None


class MarkSide(Facts):
    """Members or non-members among the canary users of one group.

    Attributes:
        users: number of canary users.
        target: ranks of their marks under the audited model.
        lower, upper: exact 95 % limits of the share of ``target.highest`` (Clopper & Pearson 1934); null without users.
        reference: ranks of their marks under the reference model.
    """

    users: int
    target: MarkExposure
    lower: float | None
    upper: float | None
    reference: MarkExposure


class MarkGroup(Facts):
    """Canary users of one kind and substring length.

    Attributes:
        kind: kind of the canary users.
        length: length of the substring in tokens; null for other kinds.
        candidates: smallest number of unplanted marks with which a mark is ranked; 0 if no such mark can be drawn.
        held_in: results of canary users who are members.
        held_out: results of canary users who are non-members, as the control.
    """

    kind: str
    length: int | None
    candidates: int
    held_in: MarkSide
    held_out: MarkSide


class MarkFacts(Facts):
    """Exposure of canary users' marks (the secrets that their texts share).

    Attributes:
        groups: results by kind and length.
    """

    groups: list[MarkGroup]


class LevelFacts(Facts):
    """The answer for an attacker at another level than the deciding level.

    Attributes:
        access: access of the attacker.
        primary: name of this attacker's primary attack.
        decision: the answer, with the test that decided it; the test includes the attacks of weaker attackers.
    """

    access: Access
    primary: str
    decision: DecisionFacts


class Results(Facts):
    """All results of an audit. They depend only on scores, membership, claims and config.

    Attributes:
        access: access of the deciding attacker.
        levels: the answers for attackers with other access, strongest first; ``judgement`` has the verdicts on claims
            for all levels.
        decision: the answer, with the test behind it.
        attacks: every attack under every aggregation, the primary attack first.
        blind: baselines that never saw the audited model.
        judgement: bounds, and a verdict on each claim.
        knowledge: AUROC for each number of texts per user that the attacker may have.
        dials: the primary attack, with one changed setting in each entry.
        canaries: results for canary users, separate from real users; null if there are none.
        exposure: properties that correlate with a high score among members; null if the training data is unknown.
        trainings: results of many independent trainings; null otherwise.
        gain: the model's gain over the reference model on non-members' scored texts; null if it was not measured.
    """

    access: Access = Access.LOG_PROBABILITIES
    levels: list[LevelFacts] = Field(default_factory=list)
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
