"""The parts of a record that describe the inputs of an audit: corpus, split, models, training, environment."""

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
    """Rows that heldin skipped when it read the texts of a group.

    Attributes:
        group: source of the rows: the file of members, the file of non-members, or the corpus of both.
        rows: total number of rows.
        without_text: number of rows without text.
        unusable: number of other unusable rows.
        users: number of users, including those in ``users_lost``.
        users_with: number of users with a skipped row. A row without a known user counts for no user.
        users_lost: number of users whose rows were all skipped.
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
        """Return the facts about a corpus in which this many users and records remain."""
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
    """Rows with turns, and the turns that count.

    Attributes:
        format: format of the rows: "messages", "conversations" or "prompt-completion".
        column: column of the messages, or of the prompt.
        counting: turns that deduplication, caps and canary users used: "all", a role, or "completion".
        loss: turns that the loss counts.
        attack: turns that the attack scores.
        mask_from: how heldin finds the assistant's parts: by the template's own marks, by TRL's variant of the
            template, or by the positions of turns in the template's text; null if no template wrote the rows.
        template: hash of the template, its variant, its options and its special tokens.
    """

    format: str
    column: str
    counting: str
    loss: str
    attack: str
    mask_from: str | None
    template: str | None


class CorpusFacts(Facts):
    """Facts about the texts of an audit.

    Attributes:
        fingerprint: hash of users, ids and texts.
        users: number of users with a record.
        records: number of records of all users.
        skipped: skipped rows of each file, or of the corpus.
        skipped_alike: p-value of the hypothesis that rows are skipped, and users lose all rows, equally often in both
            groups (two Fisher exact tests, corrected); null if both groups are in one corpus.
        records_per_audited_user: coarse percentiles of the number of records per audited user (``audit.coarse``).
        dropped_by_pattern: number of users dropped by the name patterns.
        dropped_by_minimum: number of users dropped because they have too few records.
        dropped_by_maximum: number of users dropped because they have too many records.
        dropped_by_sampling: number of users left out because of the maximum number of users.
        public_users: number of users whose records pre-trained the base model or picked the trained layers.
        public_records: number of records of the public users.
        text_unit: what one record is: a record of the source, or a sentence.
        turns: facts about rows with turns; null for plain texts.
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
        """Return whether one group lost rows or people more often than chance explains."""
        return self.skipped_alike is not None and self.skipped_alike < UNLIKELY


KnownBy = Literal["measured", "declared", "not known"]


class Count(Facts):
    """A number of texts or users.

    Attributes:
        count: the number; null if unknown.
        known_by: source of heldin's knowledge.
    """

    count: int | None
    known_by: KnownBy


class Overlaps(Facts):
    """Texts that are in both groups (exact matches). heldin counts them, and does not remove them.

    Attributes:
        scored_texts_in_same_users_training: scored texts that are also in the same user's training records. In a run on
            rows of turns, this field and the next fields count texts with a counted turn that equals a turn of these
            records, in any role.
        scored_texts_in_other_users_training: scored texts that are in another user's training records.
        held_out_texts_in_training: texts of non-members that are in the training data.
        held_out_users_in_training: non-members whose names are in the training data.
        held_out_texts_in_held_in: scored texts of non-members that are also texts of members.
        audited_texts_in_public: texts of audited users that pre-trained the base model or picked the trained layers.
    """

    scored_texts_in_same_users_training: Count
    scored_texts_in_other_users_training: Count
    held_out_texts_in_training: Count
    held_out_users_in_training: Count
    held_out_texts_in_held_in: Count
    audited_texts_in_public: Count


class TrainingFile(Facts):
    """The file that the user gave as training data. heldin searches this file for the audited users.

    Attributes:
        texts: number of scored texts of members.
        texts_there: number of scored texts of members that are in the file, word for word.
        members_there: number of members whose names are in the file.
    """

    texts: int
    texts_there: int
    members_there: int


class SplitFacts(Facts):
    """Members and non-members, the rule that chose them, and the evidence for this rule.

    Attributes:
        assignment: the rule that decided who is a member.
        known_by: source of heldin's knowledge.
        certifiable: whether the assignment supports a certified bound.
        reason: reason why the assignment supports a certified bound, or why it does not.
        held_in: number of members (users and entities), or of trainings with the worst-case user.
        held_out: number of non-members (users and entities), or of trainings without the worst-case user.
        always_in: number of users in training who are not audited.
        records_by_part: number of records by use.
        key_commitment: hash of the secret key behind coins and noise; null if heldin drew no key.
        ledger_commitment: hash of the ledger; null if heldin drew no coins.
        overlaps: texts that both groups have.
        audited: kind of people in the membership test.
        training_file: the file given as the training data; null if none was given or needed.
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
        """Return the reason as text."""
        return str(self.reason)


class AnswerFacts(Facts):
    """The behaviour of a text-generating endpoint during its audit.

    Attributes:
        top_k: number of next tokens whose log-probabilities the endpoint lists; 0: none.
        seed: whether the same seed gives the same text.
        temperature: whether different seeds gave different texts in a test.
        samples: number of continuations.
        refused: number of continuations that the endpoint refused, or a filter withheld.
        repeated: number of continuations that began with the text to continue; heldin removed that part.
        other_length: number of continuations that have more tokens than requested, or that were cut off with fewer.
        same: number of cuts whose continuations were all equal.
        cuts: number of cuts with at least two continuations.
        changed: whether the server reported several models, or answered public words differently at the end; null if
            the server's answers always differ.
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
        tokenizer: tokenizer of the model; null if texts were sent as plain text.
        window: context window in tokens; null if texts were sent as plain text.
        drift: change of a probe text's score from the first to the last measurement, in nats per token.
        answers: behaviour of the answers; null if only log-probabilities were requested.
    """

    url: str
    style: str
    tokenizer: str | None
    window: int | None
    drift: float
    answers: AnswerFacts | None = None


class AdapterFacts(Facts):
    """An adapter and its base model.

    Attributes:
        base: the loaded base model, by folder or hub name.
        named: base model in the adapter's config, if the user replaced this model with ``base``; null otherwise.
        beside: number of other adapters and models in the adapter's folder; heldin did not load them.
    """

    base: str
    named: str | None
    beside: int


class ModelFacts(Facts):
    """Facts about a model.

    Attributes:
        name: name or origin of the loaded model.
        parameters: number of parameters; null behind an endpoint.
        fingerprint: hash of the weights; behind an endpoint, hash of address, name, style and tokenizer.
        architecture: class of the model in transformers.
        endpoint: connection to the model; null for a locally loaded model.
        stored: format of the weights in the files, such as bf16 or a quantised format; null if unknown.
        adapter: the adapter and its base model; null without an adapter.
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
        """Return clauses about the format of the weights and the adapter's base; "" if heldin knows neither of the
        two."""
        parts = [f"weights stored as {self.stored}"] if self.stored else []
        if self.adapter is not None:
            named = f" (its config names '{self.adapter.named}')" if self.adapter.named else ""
            parts.append(f"an adapter on '{self.adapter.base}'{named}")
            if self.adapter.beside:
                parts.append(f"not loaded: {counted(self.adapter.beside, 'other model')} in its folder")
        return ", ".join(parts)


class CurvePoint(Facts):
    """Measurements after some optimizer steps. Losses are in nats per token.

    Attributes:
        step: number of optimizer steps so far.
        epoch: number of epochs so far.
        train_loss: loss on the latest batches.
        held_in_loss: loss on members' validation texts; null if there are no such texts, which can happen for entities.
        held_out_loss: loss on non-members' validation texts; null if there are no such texts, which can happen for
            entities.
        auroc: AUROC of the attack on samples of members and non-members.
        public_loss: loss on public users' validation texts; null if no such texts are set aside.
    """

    step: int
    epoch: float
    train_loss: float
    held_in_loss: float | None = None
    held_out_loss: float | None = None
    auroc: float
    public_loss: float | None = None


class Ceiling(Facts):
    """The curve that no attacker's expected ROC curve exceeds if the guarantee holds.

    Attributes:
        auroc: area under the curve.
        fpr: false-positive rates of points on the curve.
        tpr: true-positive rates at the rates in ``fpr``.
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
    """The records that a data-side defense removed from training or changed.

    Attributes:
        name: name of the defense.
        before: number of records before the defense.
        removed: number of records that the defense removed.
        users: number of users with a removed record or a changed text.
        changed: number of records whose text the defense changed; null for a defense that removes records.
    """

    name: Statement
    before: int
    removed: int
    users: int
    changed: int | None = None

    @property
    def did(self) -> str:
        """Return the effect and the number of records as part of a sentence."""
        return f"left out {self.removed:,}" if self.changed is None else f"changed {self.changed:,}"


class EpsilonAt(Facts):
    """The guarantee for people with one exposure.

    Attributes:
        exposed: number of records, or number of holders (``ByExposure.counted``).
        epsilon: epsilon for a person with this exposure; null if it is infinite.
    """

    exposed: int
    epsilon: float | None


class ByExposure(Facts):
    """The guarantee by exposure, which follows only from the plan.

    Attributes:
        counted: the unit of ``exposed``: records that a person wrote or is named in, or users who name an entity.
        exposed: exposure of the people for whom the run's epsilon holds.
        curve: the guarantee, by ascending exposure.
        group_size: maximum number of records per user; null without caps.
        entity_cap: maximum number of records that name an entity; null without caps.
        claimed: epsilon that the paper on the method claims without a valid proof; null for other methods.
    """

    counted: Literal["records", "holders"]
    exposed: int
    curve: list[EpsilonAt]
    group_size: int | None
    entity_cap: int | None
    claimed: float | None = None


class ExposedShare(Facts):
    """The share of people who are in at most a given number of training records, and their guarantee.

    Attributes:
        exposed: the number of records.
        epsilon: epsilon for a person with this many records; null above 1,000, because heldin computes no larger
            epsilon.
        users: share of users with at most this many records, among users with any record.
        entities: share of recognised entities with at most this many records; null without a source of entities.
    """

    exposed: int
    epsilon: float | None
    users: float
    entities: float | None


class EarlierPlan(Facts):
    """A plan of earlier releases about the same people.

    Attributes:
        digest: SHA-256 of the plan's file.
        times: number of releases by the plan.
        unit: the unit that the plan protects.
        epsilon: epsilon of one release; null without a guarantee.
        delta: delta of the guarantee; null without a guarantee.
    """

    digest: str
    times: int
    unit: str
    epsilon: float | None
    delta: float | None


class EarlierReleases(Facts):
    """The earlier releases in the config, and their guarantee together with this release.

    Attributes:
        plans: plans of earlier releases; empty if the config says that there are none.
        epsilon: epsilon of all releases together, at this plan's delta; null if no epsilon covers all of them.
        together: the guarantee of all releases with its conditions; null without such a guarantee.
    """

    plans: list[EarlierPlan]
    epsilon: float | None
    together: Statement | None

    @property
    def releases(self) -> int:
        """Return the number of earlier releases."""
        return sum(plan.times for plan in self.plans)


class DeclaredFacts(Facts):
    """The package that declares the mechanism of a training's steps.

    Attributes:
        package: name of the distribution, or of the top-level module.
        version: version of the distribution; null for modules that were not installed.
        sha256: SHA-256 of the package's Python files.
        audit: result of a white-box audit of the step: "passed", "failed", "inconclusive" or "not run".
    """

    package: str
    version: str | None
    sha256: str
    audit: Watched

    @property
    def stated(self) -> Statement:
        """Return a statement about who declares epsilon, and whether it was checked."""
        package = with_version(self.package, self.version)
        return Guaranteed.DECLARED(package=package, audit=AUDITS[self.audit]())


class PreferenceFacts(Facts):
    """The objective of a training on preference pairs.

    Attributes:
        objective: dpo or orpo.
        beta: beta of dpo, or the weight of the odds ratio.
        label_smoothing: assumed share of pairs with a wrong preference.
        reference: whether the model before training is the reference.
    """

    objective: str
    beta: float
    label_smoothing: float
    reference: bool


class PickedLayers(Facts):
    """The layers with adapters that the gradients of public users picked.

    Attributes:
        layers: full names of the layers.
        candidates: number of linear layers of the model, among which the gradients picked.
        users: number of public users.
    """

    layers: list[str]
    candidates: int
    users: int


class TrainingFacts(Facts):
    """The training of the target, and its guarantee.

    Attributes:
        defense: kind of the defense in the config.
        promise: the guarantee with its conditions, or the reason why there is no guarantee.
        unit: the protected unit: user, example, user-entity or none.
        epsilon: epsilon of the guarantee; null without a guarantee.
        delta: the plan's delta, also if the plan has no guarantee; null without noise.
        noise_multiplier: standard deviation of the noise, divided by the clip norm.
        cautions: warnings about the guarantee.
        ceiling: bound on attackers' ROC curves; null unless the privacy unit is a user.
        ceiling_of_entities: bound on attackers' ROC curves in an audit of entities; null without a guarantee for
            entities.
        records: number of records in training.
        users: number of users with records in training.
        uncounted: number of training records without a counted token, which add nothing; null if unknown.
        steps: number of steps.
        chosen_step: step whose checkpoint was kept.
        selection: rule that chose this checkpoint.
        curve: measurements during training.
        gap_auroc_spearman: rank correlation of generalisation gap and AUROC over the curve; null with too few points.
        removals: effect of each data-side defense.
        seconds: duration of the training.
        by_exposure: the guarantee by exposure; null for mechanisms without entities.
        exposed: how many training records users and entities are in, under text sampling; measured on private data.
        gradients: number of computed gradients of records, with one count per record and step; null for independent
            trainings.
        fit: the plan compared with the data; null without noise.
        earlier: earlier releases about the same people; null if the config does not state whether there are any.
        declared_by: the package that declares the mechanism of the steps; null if heldin computes the steps.
        preference: the objective of preference pairs; null for other rows.
        picked: layers picked by public users; null if the config names the layers, or all weights are trained.
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
    picked: PickedLayers | None = None

    @property
    def is_plain(self) -> bool:
        """Whether training had no defense."""
        return self.defense == PLAIN

    @property
    def protects_named(self) -> bool:
        """Whether the guarantee also protects people who are named in others' records."""
        return self.unit == "user-entity"

    @property
    def earlier_stated(self) -> Statement:
        """Return the statement about earlier releases that concern the same people."""
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
        """Return the guarantee as text, with its conditions."""
        return str(self.promise)

    @property
    def guarantee_alone(self) -> str:
        """Return the guarantee as text, without its conditions."""
        return str(without_conditions(self.promise))

    @property
    def warnings(self) -> list[str]:
        """Return the cautions about the guarantee, as texts."""
        cautions = list(self.cautions)
        if self.fit is not None:
            cautions += warnings_of(self.fit, self.delta if self.epsilon is not None and not cautions else None)
        return [str(caution) for caution in cautions]

    @property
    def protected(self) -> str:
        """Return a word or two for the unit that epsilon protects."""
        exposure = self.by_exposure
        if exposure is None:
            return self.unit
        return (
            "user and entity"
            if exposure.entity_cap or exposure.counted == "holders"
            else f"person of {counted(exposure.exposed, 'record')}"
        )


class GradientNorms(Facts):
    """Gradient norms of single records at the base model.

    Attributes:
        edges: edges of the bins; the ratio of neighbouring edges is constant.
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
        threads: number of threads that torch uses.
        seconds: duration of each stage; a run sums the durations over all calls.
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
    """A run's position in a sweep.

    Attributes:
        sweep: hash of the sweep's plan, which was fixed before the coins of its blocks were drawn.
        block: number of the block, starting at 1. Within a block, the runs of a group share their coins.
        group: name of the group of variants that have the same users and attacker's texts.
        variant: name of the variant.
    """

    sweep: str
    block: int
    group: str
    variant: str


class ScoredTexts(Facts):
    """Whether the scored texts are training texts.

    Attributes:
        kind: kind of the texts: fresh texts, training texts, both, or unknown.
        known_by: source of heldin's knowledge.
    """

    kind: Literal["fresh", "training", "mixed", "not known"]
    known_by: KnownBy


class MeasuredTable(Facts):
    """A table in a report for a measure of another package. The measure's facts contain it under ``table``.

    Attributes:
        head: names of the columns.
        rows: cells of each row, one per column.
        note: note below the table, in small print.
    """

    head: list[str]
    rows: list[list[str]]
    note: str = ""

    @model_validator(mode="after")
    def _as_many_cells(self) -> "MeasuredTable":
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"each row of a table needs {len(self.head)} cells, as many as its head")
        return self
