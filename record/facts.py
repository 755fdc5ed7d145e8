"""The parts of a record that say what was audited: corpus, split, models, training, environment. No results."""

from typing import Literal

import numpy as np
from pydantic import Field

from heldin.base.facts import Facts
from heldin.defenses.accounting.ceiling import RocCeiling

CEILING_FPRS = np.concatenate([[0.0], np.geomspace(1e-4, 1, 120)])
LARGEST_DRIFT = 1e-3  # nats a token by which a probe text's score may move before a model is said to have changed


class CorpusFacts(Facts):
    """What the texts are.

    Attributes:
        fingerprint: hash of users, ids and texts.
        users: that have a record.
        records: of all users.
        skipped_rows: that could not be used.
        records_per_audited_user: coarse percentiles (``audit.coarse``).
        dropped_by_pattern: users whose name is not admitted.
        dropped_by_minimum: users with too few records.
        dropped_by_maximum: users with too many.
        dropped_by_sampling: users left out to audit no more than so many.
        public_users: whose records pre-trained the base model.
        public_records: of theirs.
    """

    fingerprint: str
    users: int
    records: int
    skipped_rows: int
    records_per_audited_user: list[int]
    dropped_by_pattern: int
    dropped_by_minimum: int
    dropped_by_maximum: int
    dropped_by_sampling: int
    public_users: int
    public_records: int


KnownBy = Literal["measured", "declared", "not known"]


class Count(Facts):
    """A number of texts or users.

    Attributes:
        count: null where nobody knows it.
        known_by: who does.
    """

    count: int | None
    known_by: KnownBy


class Overlaps(Facts):
    """Texts that stand on two sides (exact matches), counted and not removed.

    Attributes:
        scored_texts_in_same_users_training: scored texts that the same user's training records hold too.
        scored_texts_in_other_users_training: scored texts that another user's training records hold.
        held_out_texts_in_training: texts of held-out users that training saw.
        held_out_users_in_training: held-out users who stand in training by name.
        held_out_texts_in_held_in: scored texts of held-out users that are held-in users' too.
        audited_texts_in_public: texts of audited users that pre-trained the base model.
    """

    scored_texts_in_same_users_training: Count
    scored_texts_in_other_users_training: Count
    held_out_texts_in_training: Count
    held_out_users_in_training: Count
    held_out_texts_in_held_in: Count
    audited_texts_in_public: Count


class SplitFacts(Facts):
    """Who is on which side, how that was decided and who knows it.

    Attributes:
        assignment: by which rule.
        known_by: who knows it.
        certifiable: whether it supports a certified bound.
        standing_reason: why, or why not.
        held_in: users, or trainings with the worst-case user.
        held_out: users, or trainings without.
        always_in: users who are trained on and not audited.
        records_by_part: number of records by what they are for.
        key_commitment: hash of the secret key behind coins and noise; null where heldin drew none.
        ledger_commitment: hash of the ledger; null likewise.
        overlaps: texts that stand on two sides.
    """

    assignment: str
    known_by: KnownBy
    certifiable: bool
    standing_reason: str
    held_in: int
    held_out: int
    always_in: int
    records_by_part: dict[str, int]
    key_commitment: str | None
    ledger_commitment: str | None
    overlaps: Overlaps


class EndpointFacts(Facts):
    """How a model behind an endpoint was reached.

    Attributes:
        url: of the server.
        style: of the interface that answered.
        tokenizer: null where texts were sent as they are.
        window: of the model in tokens; null likewise.
        drift: how far a probe text's score moved from the first score to the last, nats a token.
        note: what of the scores is known by the server's word only.
    """

    url: str
    style: str
    tokenizer: str | None
    window: int | None
    drift: float
    note: str


class ModelFacts(Facts):
    """A model.

    Attributes:
        name: by which it was loaded, or where it came from.
        parameters: number of them; null behind an endpoint.
        fingerprint: hash of the weights; behind an endpoint of address, name, style and tokenizer.
        architecture: class of the model.
        endpoint: null for a model that was loaded here.
    """

    name: str
    parameters: int | None
    fingerprint: str
    architecture: str
    endpoint: EndpointFacts | None = None


class CurvePoint(Facts):
    """What was measured after some optimizer steps; losses in nats per token.

    Attributes:
        step: optimizer steps taken.
        epoch: of training.
        train_loss: of the last batches.
        held_in_loss: of held-in users' validation texts.
        held_out_loss: of held-out users' validation texts.
        auroc: of the attack on samples of both.
        public_loss: of public users' validation texts; null where none are set aside.
    """

    step: int
    epoch: float
    train_loss: float
    held_in_loss: float
    held_out_loss: float
    auroc: float
    public_loss: float | None = None


class Ceiling(Facts):
    """What no attacker's ROC curve exceeds in expectation if the guarantee holds.

    Attributes:
        auroc: area under the curve.
        fpr: of points on it.
        tpr: of the same points.
    """

    auroc: float
    fpr: list[float]
    tpr: list[float]

    @staticmethod
    def of(curve: RocCeiling) -> "Ceiling":
        """At 121 false-positive rates from 0, and 1e-4, to 1."""
        return Ceiling(
            auroc=curve.auroc, fpr=CEILING_FPRS.tolist(), tpr=[float(curve.tpr_at(fpr)) for fpr in CEILING_FPRS]
        )


class RemovalFacts(Facts):
    """What a data-side defense left out of training.

    Attributes:
        name: of the defense.
        before: records that there were.
        removed: of them.
        users: who lost some.
    """

    name: str
    before: int
    removed: int
    users: int


class TrainingFacts(Facts):
    """How the target was trained here, and what that promises.

    Attributes:
        defense: its kind in the config.
        guarantee: in words.
        unit: whom it protects: user, example or none.
        epsilon: null without a guarantee.
        delta: of the guarantee; null likewise.
        noise_multiplier: standard deviation of the noise over the clip norm.
        warnings: to be read with the guarantee.
        ceiling: on attackers' ROC curves; null unless a user is the privacy unit.
        records: trained on.
        users: trained on.
        steps: optimizer steps.
        chosen_step: whose checkpoint was kept.
        selection: by what it was chosen.
        curve: what was measured on the way.
        gap_auroc_spearman: rank correlation of generalisation gap and AUROC over the curve; null with too few points.
        removals: of defenses on the data side.
        seconds: of training.
    """

    defense: str
    guarantee: str
    unit: str
    epsilon: float | None
    delta: float | None
    noise_multiplier: float
    warnings: list[str]
    ceiling: Ceiling | None
    records: int
    users: int
    steps: int
    chosen_step: int
    selection: str
    curve: list[CurvePoint]
    gap_auroc_spearman: float | None
    removals: list[RemovalFacts] = Field(default_factory=list)
    seconds: float


class GradientNorms(Facts):
    """Norms of single records' gradients at the base model.

    Attributes:
        edges: of bins of equal ratio.
        canaries: records of canary users in each bin.
        real: records of real users in each bin.
    """

    edges: list[float]
    canaries: list[int]
    real: list[int]


class Environment(Facts):
    """What the run ran on.

    Attributes:
        heldin: version.
        python: version.
        packages: versions by name.
        git_revision: of heldin; null outside a checkout.
        device: of the models.
        threads: of torch.
        seconds: by stage.
    """

    heldin: str
    python: str
    packages: dict[str, str]
    git_revision: str | None
    device: str
    threads: int
    seconds: dict[str, float]


class DocumentsFacts(Facts):
    """What the scored texts are to training.

    Attributes:
        kind: fresh, trained on, both, or not known.
        known_by: who knows it.
    """

    kind: Literal["fresh", "training", "mixed", "not known"]
    known_by: KnownBy
