"""The parts of a record that describe what was audited: corpus, split, models, training, environment. No results."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from heldin.base.section import Facts
from heldin.base.wording import counted, with_version
from heldin.corpus.sources.bad_rows import Skipped
from heldin.defenses.accounting.roc_ceiling import RocCeiling
from heldin.record.plan_fit import PlanFit, warnings_of
from heldin.words.guarantee import AUDITS, EarlierText, Watched, without_conditions
from heldin.words.page_one import Guaranteed
from heldin.words.statement import Statement

# Log-spaced, like the axis of the figure; 0 closes the curve, where delta alone allows a TPR above 0.
CEILING_FPRS = np.concatenate([[0.0], np.geomspace(1e-4, 1, 120)])
UNLIKELY = 0.01  # p-value below which chance does not explain that the groups lost rows unevenly
LARGEST_DRIFT = 1e-3  # nats per token that a probe text's score may move before a model counts as changed
PLAIN = "none"  # the name of training without a defense


class SkippedRows(Facts):
    """Rows of a group that were left out when its texts were read.

    Attributes:
        group: the file of members or of non-members, or the corpus of both.
        rows: number of all rows.
        without_text: rows without text.
        unusable: other rows that could not be used.
        users: number of users, with those who are lost.
        users_with: users with a skipped row; rows whose user is not known count for nobody.
        users_lost: users who have no other row.
    """

    group: Literal["corpus", "held-in", "held-out"]
    rows: int
    without_text: int
    unusable: int
    users: int
    users_with: int
    users_lost: int

    @classmethod
    def of(
        cls, group: Literal["corpus", "held-in", "held-out"], skipped: Skipped, *, users: int, records: int
    ) -> "SkippedRows":
        """Return the facts about a corpus of which so many users and records are left."""
        return cls(
            group=group,
            rows=records + skipped.rows,
            without_text=skipped.without_text,
            unusable=skipped.unusable,
            users=users + skipped.users_lost,
            users_with=skipped.users,
            users_lost=skipped.users_lost,
        )


class TurnFacts(Facts):
    """Rows that are turns, and which of these counted.

    Attributes:
        format: how rows hold them: "messages", "conversations" or "prompt-completion".
        column: of the messages, or of the prompt.
        counting: what deduplication, caps and canary users worked on: "all", a role, or "completion".
        loss: what bore the loss.
        attack: what was scored.
        mask_from: what showed which parts are the assistant's: the template's own marks, TRL's variant of it, or the
            positions of turns in its text; null where no template wrote the rows.
        template: hash of the template, its variant, its options and the special tokens that it may write.
    """

    format: str
    column: str
    counting: str
    loss: str
    attack: str
    mask_from: str | None
    template: str | None


class CorpusFacts(Facts):
    """The texts.

    Attributes:
        fingerprint: hash of users, ids and texts.
        users: number of users with a record.
        records: number of records of all users.
        skipped: rows that were left out, of each file or of the corpus.
        skipped_alike: p-value of Fisher's exact tests, corrected for two, that members and non-members have skipped
            rows, and lose all their rows, equally often; null if both are in one corpus.
        records_per_audited_user: coarse percentiles (``audit.coarse``).
        dropped_by_pattern: users dropped by the name patterns.
        dropped_by_minimum: users with too few records.
        dropped_by_maximum: users with too many records.
        dropped_by_sampling: users left out to stay within the maximum number of users.
        public_users: users whose records pre-trained the base model.
        public_records: number of records of these users.
        text_unit: what a record of the corpus is: a record of the source, or a sentence.
        turns: rows that are turns; null: rows are texts.
    """

    fingerprint: str
    users: int
    records: int
    skipped: list[SkippedRows]
    skipped_alike: float | None = None
    records_per_audited_user: list[int]
    dropped_by_pattern: int
    dropped_by_minimum: int
    dropped_by_maximum: int
    dropped_by_sampling: int
    public_users: int
    public_records: int
    text_unit: str = "record"
    turns: TurnFacts | None = None

    @property
    def lost_unevenly(self) -> bool:
        """Whether one of the two groups lost rows, or people, more often than chance explains."""
        return self.skipped_alike is not None and self.skipped_alike < UNLIKELY


KnownBy = Literal["measured", "declared", "not known"]


class Count(Facts):
    """A number of texts or users.

    Attributes:
        count: the number; null if it is not known.
        known_by: how heldin knows it.
    """

    count: int | None
    known_by: KnownBy


class Overlaps(Facts):
    """Texts that both groups have (exact matches), counted and not removed.

    Attributes:
        scored_texts_in_same_users_training: scored texts that are also in the same user's training records. In a run on
            rows of turns, here and below: texts of which a turn that counts is a turn, of any role, of these records.
        scored_texts_in_other_users_training: scored texts that are in another user's training records.
        held_out_texts_in_training: texts of non-members that were trained on.
        held_out_users_in_training: non-members whose names are in the training data.
        held_out_texts_in_held_in: scored texts of non-members that members have too.
        audited_texts_in_public: texts of audited users that pre-trained the base model.
    """

    scored_texts_in_same_users_training: Count
    scored_texts_in_other_users_training: Count
    held_out_texts_in_training: Count
    held_out_users_in_training: Count
    held_out_texts_in_held_in: Count
    audited_texts_in_public: Count


class TrainingFile(Facts):
    """The file that the user of an audit named as the training data, searched for the audited users.

    Attributes:
        texts: number of scored texts of members.
        texts_there: those of them that the file has, word for word.
        members_there: members whose names are in the file.
    """

    texts: int
    texts_there: int
    members_there: int


class SplitFacts(Facts):
    """Members and non-members: how they were chosen, and how heldin knows it.

    Attributes:
        assignment: the rule that decided who is a member.
        known_by: how heldin knows it.
        certifiable: whether the assignment supports a certified bound.
        reason: why it does, or why it does not.
        held_in: number of members (users and entities), or of trainings with the worst-case user.
        held_out: number of non-members (users and entities), or of trainings without the worst-case user.
        always_in: number of users who are trained on and not audited.
        records_by_part: number of records by what they are used for.
        key_commitment: hash of the secret key behind coins and noise; null if heldin drew none.
        ledger_commitment: hash of the ledger; null if heldin drew no coins.
        overlaps: texts that both groups have.
        audited: whose membership is tested.
        training_file: the file that was named as the training data; null if none was named or needed.
    """

    assignment: str
    known_by: KnownBy
    certifiable: bool
    reason: Statement
    held_in: int
    held_out: int
    always_in: int
    records_by_part: dict[str, int]
    key_commitment: str | None
    ledger_commitment: str | None
    overlaps: Overlaps
    audited: Literal["users", "entities", "both", "canaries"] = "users"
    training_file: TrainingFile | None = None

    @property
    def standing_reason(self) -> str:
        """Return the reason in words."""
        return str(self.reason)


class AnswerFacts(Facts):
    """What an endpoint that generates text was like while it was audited.

    Attributes:
        top_k: number of next tokens whose log-probabilities it lists; 0: none.
        seed: whether the same seed gives the same text.
        temperature: whether different seeds gave different texts, when it was tried out.
        samples: number of continuations.
        refused: how many of them it refused, or a filter held back.
        repeated: how many began with the text that they should continue; that part was removed.
        other_length: how many had more tokens than were asked for, or were cut off before that many.
        same: number of cuts after which all continuations were equal.
        cuts: number of cuts with at least two continuations.
        changed: whether the server named several models, or answered public words otherwise at the end; null if it
            answers them differently each time.
    """

    top_k: int
    seed: bool
    temperature: bool
    samples: int
    refused: int
    repeated: int
    other_length: int
    same: int
    cuts: int
    changed: bool | None


class EndpointFacts(Facts):
    """The connection to a model behind an endpoint.

    Attributes:
        url: address of the server.
        style: style of the interface that answered.
        tokenizer: tokenizer of the model; null if texts were sent as they are.
        window: context window in tokens; null if texts were sent as they are.
        drift: how far a probe text's score moved from the first score to the last, nats per token.
        answers: what its answers were like; null if it was asked for log-probabilities.
    """

    url: str
    style: str
    tokenizer: str | None
    window: int | None
    drift: float
    answers: AnswerFacts | None = None


class AdapterFacts(Facts):
    """An adapter and its base.

    Attributes:
        base: the base model that was loaded, by folder or hub name.
        named: the base model that the adapter's config names, if its user named ``base`` in its place; null: the same.
        beside: number of other adapters and models in the adapter's folder, which were not loaded.
    """

    base: str
    named: str | None
    beside: int


class ModelFacts(Facts):
    """A model.

    Attributes:
        name: the name by which it was loaded, or its origin.
        parameters: number of parameters; null behind an endpoint.
        fingerprint: hash of the weights; behind an endpoint, of address, name, style and tokenizer.
        architecture: class of the model in transformers.
        endpoint: how the model was reached; null for a model that was loaded locally.
        stored: how the files hold the weights, such as bf16, or the format of quantised ones; null if it is not known.
        adapter: the adapter and its base; null if there is none.
    """

    name: Statement
    parameters: int | None
    fingerprint: str
    architecture: str
    endpoint: EndpointFacts | None = None
    stored: str | None = None
    adapter: AdapterFacts | None = None

    @property
    def loaded(self) -> str:
        """Return how the weights are stored, and what the adapter is on, as clauses; "" if nothing is known."""
        parts = [f"weights stored as {self.stored}"] if self.stored else []
        if self.adapter is not None:
            named = f" (its config names '{self.adapter.named}')" if self.adapter.named else ""
            parts.append(f"an adapter on '{self.adapter.base}'{named}")
            if self.adapter.beside:
                parts.append(f"not loaded: {counted(self.adapter.beside, 'other model')} in its folder")
        return ", ".join(parts)


class CurvePoint(Facts):
    """Measurements after some optimizer steps; losses in nats per token.

    Attributes:
        step: number of optimizer steps so far.
        epoch: epochs of training so far.
        train_loss: loss on the last batches.
        held_in_loss: loss on members' validation texts; null if they have none, as entities may.
        held_out_loss: loss on non-members' validation texts; null if they have none, as entities may.
        auroc: AUROC of the attack on samples of members and non-members.
        public_loss: loss on public users' validation texts; null if none are set aside.
    """

    step: int
    epoch: float
    train_loss: float
    held_in_loss: float | None = None
    held_out_loss: float | None = None
    auroc: float
    public_loss: float | None = None


class Ceiling(Facts):
    """The curve that no attacker's ROC curve exceeds in expectation if the guarantee holds.

    Attributes:
        auroc: area under the curve.
        fpr: false-positive rates of points on it.
        tpr: true-positive rates of the same points.
    """

    auroc: float
    fpr: list[float]
    tpr: list[float]

    @staticmethod
    def of(curve: RocCeiling) -> "Ceiling":
        """Return the curve at 121 false-positive rates: 0, and 120 from 1e-4 to 1."""
        return Ceiling(
            auroc=curve.auroc, fpr=CEILING_FPRS.tolist(), tpr=[float(curve.tpr_at(fpr)) for fpr in CEILING_FPRS]
        )


class RemovalFacts(Facts):
    """The records that a data-side defense removed from training, or changed.

    Attributes:
        name: name of the data defense.
        before: number of records before it.
        removed: number of records it removed.
        users: number of users who lost records, or whose texts it changed.
        changed: number of records whose text it changed; null for one that removes records.
    """

    name: Statement
    before: int
    removed: int
    users: int
    changed: int | None = None

    @property
    def did(self) -> str:
        """Return the effect and the number of records, for a sentence."""
        return f"left out {self.removed:,}" if self.changed is None else f"changed {self.changed:,}"


class EpsilonAt(Facts):
    """The guarantee for people of one exposure.

    Attributes:
        exposed: number of records, or of holders (``ByExposure.counted``).
        epsilon: epsilon of such a person; null if it is infinite.
    """

    exposed: int
    epsilon: float | None


class ByExposure(Facts):
    """The guarantee by exposure. It follows from the plan alone.

    Attributes:
        counted: what ``exposed`` counts: records that a person wrote or is named in, or users who name an entity.
        exposed: the exposure for which the run's epsilon holds.
        curve: the guarantee, by ascending exposure.
        group_size: most records of a user; null without caps.
        entity_cap: most records that name an entity; null without caps.
        claimed: epsilon that the method's paper claims without a valid proof; null for other methods.
    """

    counted: Literal["records", "holders"]
    exposed: int
    curve: list[EpsilonAt]
    group_size: int | None
    entity_cap: int | None
    claimed: float | None = None


class ExposedShare(Facts):
    """The share of people who occur in at most a given number of training records, and their guarantee.

    Attributes:
        exposed: the number of records.
        epsilon: epsilon of a person with that many records; null if it is above 1,000 and was not computed.
        users: share of users with at most that many records, among users with any record.
        entities: the same for recognised entities; null without a source of entities.
    """

    exposed: int
    epsilon: float | None
    users: float
    entities: float | None


class EarlierPlan(Facts):
    """A plan by which models were released before, about the same people.

    Attributes:
        digest: SHA-256 of the plan's file.
        times: number of releases by the plan.
        unit: what the plan protects.
        epsilon: epsilon of one release; null without a guarantee.
        delta: of that guarantee; null without one.
    """

    digest: str
    times: int
    unit: str
    epsilon: float | None
    delta: float | None


class EarlierReleases(Facts):
    """What the config states about earlier releases, and what they promise together with this one.

    Attributes:
        plans: plans of earlier releases; empty if the config states that there are none.
        epsilon: of all releases together, at this plan's delta; null if no epsilon covers them all.
        together: the guarantee of all releases with its conditions; null without one.
    """

    plans: list[EarlierPlan]
    epsilon: float | None
    together: Statement | None

    @property
    def releases(self) -> int:
        """Return the number of earlier releases."""
        return sum(plan.times for plan in self.plans)


class DeclaredFacts(Facts):
    """Who declares what the steps of a training did.

    Attributes:
        package: distribution, or top-level module.
        version: of the distribution; null for modules that were not installed.
        sha256: of the package's Python files.
        audit: what a white-box audit of the step found: "passed", "failed", "inconclusive" or "not run".
    """

    package: str
    version: str | None
    sha256: str
    audit: Watched

    @property
    def stated(self) -> Statement:
        """Return whose word epsilon is, and whether somebody looked."""
        package = with_version(self.package, self.version)
        return Guaranteed.DECLARED(package=package, audit=AUDITS[self.audit]())


class PreferenceFacts(Facts):
    """The objective of a training on preference pairs.

    Attributes:
        objective: dpo or orpo.
        beta: beta of dpo, or the weight of the odds ratio.
        label_smoothing: share of the pairs that are taken to be the wrong way round.
        reference: whether the model before training is the reference.
    """

    objective: str
    beta: float
    label_smoothing: float
    reference: bool


class TrainingFacts(Facts):
    """The training of the target, and its guarantee.

    Attributes:
        defense: kind of the defense in the config.
        promise: the guarantee with its conditions, or why there is none.
        unit: what the guarantee protects: user, example, user-entity or none.
        epsilon: epsilon of the guarantee; null without one.
        delta: the plan's delta, also if the plan has no guarantee; null without noise.
        noise_multiplier: standard deviation of the noise, divided by the clip norm.
        cautions: warnings about the guarantee.
        ceiling: bound on attackers' ROC curves; null unless a user is the privacy unit.
        ceiling_of_entities: the same in an audit of entities; null without a guarantee for them.
        records: number of records trained on.
        users: number of users trained on.
        uncounted: number of these records of which no token counted, so that they added nothing; null: not known.
        steps: number of steps.
        chosen_step: step whose checkpoint was kept.
        selection: how this checkpoint was chosen.
        curve: what was measured during training.
        gap_auroc_spearman: rank correlation of generalisation gap and AUROC over the curve; null with too few points.
        removals: what each data-side defense removed or changed.
        seconds: duration of training.
        by_exposure: the guarantee by exposure; null for mechanisms without entities.
        exposed: how exposed users and entities were under text sampling, measured on private people.
        gradients: number of gradients of records, a record once for each step that uses it; null for many trainings.
        fit: the plan held against the data; null without noise.
        earlier: earlier releases about the same people; null if the config does not say whether there are any.
        declared_by: the package that declares what the steps do; null where heldin does them.
        preference: the objective of preference pairs; null for other rows.
    """

    defense: str
    promise: Statement
    unit: str
    epsilon: float | None
    delta: float | None
    noise_multiplier: float
    cautions: list[Statement]
    ceiling: Ceiling | None
    ceiling_of_entities: Ceiling | None = None
    records: int
    users: int
    uncounted: int | None = None
    steps: int
    chosen_step: int
    selection: str
    curve: list[CurvePoint]
    gap_auroc_spearman: float | None
    removals: list[RemovalFacts] = Field(default_factory=list)
    seconds: float
    by_exposure: ByExposure | None = None
    exposed: list[ExposedShare] = Field(default_factory=list)
    gradients: int | None
    fit: PlanFit | None = None
    earlier: EarlierReleases | None = None
    declared_by: DeclaredFacts | None = None
    preference: PreferenceFacts | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no defense of training ran."""
        return self.defense == PLAIN

    @property
    def protects_named(self) -> bool:
        """Whether people named in others' records are protected too."""
        return self.unit == "user-entity"

    @property
    def earlier_stated(self) -> Statement:
        """Return what is known about earlier releases about the same people."""
        if self.earlier is None:
            return EarlierText.NOT_STATED()
        if not self.earlier.plans:
            return EarlierText.NONE()
        if self.earlier.together is None:
            return EarlierText.NO_EPSILON(releases=self.earlier.releases)
        promise = self.earlier.together.values["promise"]
        return EarlierText.TOGETHER(releases=self.earlier.releases, promise=promise)

    @property
    def guarantee(self) -> str:
        """Return the promise in words."""
        return str(self.promise)

    @property
    def guarantee_alone(self) -> str:
        """Return the guarantee in words, without the conditions."""
        return str(without_conditions(self.promise))

    @property
    def warnings(self) -> list[str]:
        """Return what to read with the guarantee, in words."""
        cautions = list(self.cautions)
        if self.fit is not None:
            cautions += warnings_of(self.fit, self.delta if self.epsilon is not None and not cautions else None)
        return [str(caution) for caution in cautions]

    @property
    def protected(self) -> str:
        """Of whom epsilon is, in a word or two."""
        exposure = self.by_exposure
        if exposure is None:
            return self.unit
        return (
            "user and entity"
            if exposure.entity_cap or exposure.counted == "holders"
            else f"person of {counted(exposure.exposed, 'record')}"
        )


class GradientNorms(Facts):
    """Norms of single records' gradients at the base model.

    Attributes:
        edges: bin edges, in equal ratios.
        canaries: number of records of canary users in each bin.
        real: number of records of real users in each bin.
    """

    edges: list[float]
    canaries: list[int]
    real: list[int]


class Environment(Facts):
    """The environment of the run.

    Attributes:
        heldin: version of heldin.
        python: version of Python.
        packages: versions of packages by name.
        git_revision: revision of heldin; null outside a checkout.
        device: device of the models.
        threads: number of torch's threads.
        seconds: duration of each stage; for a run, the sum over all calls.
        peak_memory: largest number of bytes that the process used, on its GPU if it used one.
    """

    heldin: str
    python: str
    packages: dict[str, str]
    git_revision: str | None
    device: str
    threads: int
    seconds: dict[str, float]
    peak_memory: int


class CellFacts(Facts):
    """A run's place in a sweep.

    Attributes:
        sweep: hash of the sweep's plan, which was fixed before the coins of its blocks were drawn.
        block: number of the block, from 1. The runs of a group in a block share their coins.
        group: name of the group of variants with the same users and texts of the attacker.
        variant: name of the variant.
    """

    sweep: str
    block: int
    group: str
    variant: str


class ScoredTexts(Facts):
    """Whether the scored texts were used for training.

    Attributes:
        kind: fresh, trained on, both, or not known.
        known_by: how heldin knows it.
    """

    kind: Literal["fresh", "training", "mixed", "not known"]
    known_by: KnownBy


class MeasuredTable(Facts):
    """What a report shows of the facts of a measure of another package, if its facts have it under ``table``.

    Attributes:
        head: names of the columns.
        rows: cells of each row, as many as columns.
        note: small print below the table.
    """

    head: list[str]
    rows: list[list[str]]
    note: str = ""

    @model_validator(mode="after")
    def _as_many_cells(self) -> "MeasuredTable":
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"each row of a table needs {len(self.head)} cells, as many as its head")
        return self
