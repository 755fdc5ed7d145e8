"""The record of a run: one typed, versioned document that holds every number a report prints.

An internal document: it holds un-noised facts about private users, and says so. It holds no user name, no text and no
secret, only commitments to the secrets.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from heldin.audit.results import (
    AttackResult,
    Blind,
    CanaryFacts,
    Curve,
    DecisionFacts,
    DialSetting,
    ExposureFacts,
    Facts,
    GradientNorms,
    Judgement,
    Knowledge,
    TrialsFacts,
)
from heldin.base.errors import InputError
from heldin.base.files import write_text

SCHEMA_VERSION = 3
INTERNAL_NOTICE = (
    "Internal document: it holds un-noised facts about private users. Do not publish it with the model; what may leave"
    " is what the command heldin export writes."
)

LARGEST_DRIFT = 1e-3  # nats a token by which a probe text's score may move before a model is said to have changed


class CorpusFacts(Facts):
    """What the texts are."""

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
    """A number of texts or users, and who knows it; null where nobody does."""

    count: int | None
    known_by: KnownBy


class Overlaps(Facts):
    """Texts that stand on two sides (exact matches), counted and not removed.

    ``held_out_users_in_training``: by name.
    """

    scored_texts_in_same_users_training: Count
    scored_texts_in_other_users_training: Count
    held_out_texts_in_training: Count
    held_out_users_in_training: Count
    held_out_texts_in_held_in: Count
    audited_texts_in_public: Count


class SplitFacts(Facts):
    """Who is on which side, how that was decided and who knows it, and commitments to the secrets behind it."""

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

    ``tokenizer`` and ``window`` are null where texts were sent as they are; ``drift``: how far a probe text's score
    moved from the first score to the last, nats a token.
    """

    url: str
    style: str
    tokenizer: str | None
    window: int | None
    drift: float
    note: str


class ModelFacts(Facts):
    """A model: name or origin, size, and hash of its weights.

    Behind an endpoint the size is not known, and the hash is of address, name, style and tokenizer.
    """

    name: str
    parameters: int | None
    fingerprint: str
    architecture: str
    endpoint: EndpointFacts | None = None


class CurvePoint(Facts):
    """What was measured after ``step`` optimizer steps; losses in nats per token."""

    step: int
    epoch: float
    train_loss: float
    held_in_loss: float
    held_out_loss: float
    auroc: float
    public_loss: float | None = None


class Ceiling(Facts):
    """What no attacker's ROC curve exceeds in expectation if the guarantee holds: points, and the area under them."""

    auroc: float
    fpr: list[float]
    tpr: list[float]


class RemovalFacts(Facts):
    """What a data-side defense left out of training."""

    name: str
    before: int
    removed: int
    users: int


class TrainingFacts(Facts):
    """How the target was trained here, and what that promises; ``ceiling`` only where a user is the privacy unit."""

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


class Environment(Facts):
    """What the run ran on."""

    heldin: str
    python: str
    packages: dict[str, str]
    git_revision: str | None
    device: str
    threads: int
    seconds: dict[str, float]


class DocumentsFacts(Facts):
    """What the scored texts are to training: fresh, trained on, both, or not known; and who knows it."""

    kind: Literal["fresh", "training", "mixed", "not known"]
    known_by: KnownBy


class Record(Facts):
    """Everything a report prints of one run or one audit.

    ``per_text``: target and reference are not known to have the same tokenizer, so that only scores of whole texts were
    compared.
    """

    schema_version: int = SCHEMA_VERSION
    notice: str = INTERNAL_NOTICE
    kind: Literal["run", "audit", "trials"]
    name: str
    created: str
    command: str
    config: dict[str, Any]
    corpus: CorpusFacts
    split: SplitFacts
    target: ModelFacts
    reference: ModelFacts
    training: TrainingFacts | None
    primary_attack: str
    attacker_texts: int
    documents: DocumentsFacts
    scoring_rule: str
    per_text: bool
    resamples: int
    decision: DecisionFacts
    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    canaries: CanaryFacts | None = None
    gradient_norms: GradientNorms | None = None
    knowledge: list[Knowledge] = Field(default_factory=list)
    dials: list[DialSetting] = Field(default_factory=list)
    exposure: ExposureFacts | None = None
    trials: TrialsFacts | None = None
    environment: Environment

    def named(self) -> AttackResult:
        """The attack that the headline names, where it is one under its own dials; else the leading one."""
        strongest = self.decision.decision.strongest
        if strongest is None or strongest >= len(self.attacks) or self.attacks[strongest].curve is None:
            return self.primary()
        return self.attacks[strongest]

    def curve(self) -> Curve:
        """Of the leading attack, which has one in every record."""
        curve = self.primary().curve
        assert curve is not None
        return curve

    def primary(self) -> AttackResult:
        """The attack that the report leads with, under the mean or whatever aggregation was configured first."""
        return next(result for result in self.attacks if result.attack == self.primary_attack)


def write_record(record: Record, path: Path) -> None:
    """Write ``record`` whole or not at all."""
    write_text(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        InputError: no record there, another schema version, or a document that is not a record.
    """
    if not path.is_file():
        raise InputError(f"no record at '{path}': name the folder of a finished run or audit")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is not JSON ({error})") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(f"'{path}' has record schema {version}; this heldin reads schema {SCHEMA_VERSION}")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"'{path}' is not a whole record: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
