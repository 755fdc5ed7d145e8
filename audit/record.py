"""The record of a run: one typed, versioned document that holds every number a report prints.

An internal document: it holds un-noised facts about private users, and says so. It holds no user name, no text and no
secret, only commitments to the secrets.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from corpus.errors import InputError
from corpus.files import write_text

SCHEMA_VERSION = 1
INTERNAL_NOTICE = (
    "Internal document: it holds un-noised facts about private users. Do not publish it with the model; what may leave"
    " is what the command heldin export writes."
)

Label = Literal["certified", "indicative", "estimate"]
REAL_USERS = "real users"
LARGEST_DRIFT = 1e-3  # nats a token by which a probe text's score may move before a model is said to have changed


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(_Model):
    """A number with its 95 % interval and what kind of statement it is."""

    value: float
    mean: float
    deviation: float
    lower: float
    upper: float
    method: str
    label: Label = "estimate"


class TprAt(_Model):
    """True-positive rate at a false-positive rate; ``estimate`` is null where too few held-out users can resolve it."""

    fpr: float
    estimate: Estimate | None


class Histogram(_Model):
    """Users by score: k + 1 edges, k counts per side."""

    edges: list[float]
    held_in: list[int]
    held_out: list[int]


class AttackResult(_Model):
    """One attack under one aggregation."""

    attack: str
    aggregation: str
    auroc: Estimate
    tpr_at: list[TprAt]
    roc_fpr: list[float]
    roc_tpr: list[float]
    histogram: Histogram


class Blind(_Model):
    """A blind baseline; ``separates`` says whether its p-value is below ``level``."""

    name: str
    auroc: float
    p_value: float
    level: float
    separates: bool


class Bound(_Model):
    """A lower bound on epsilon per user, with its nominal level and the lowest coverage that was measured for it."""

    name: str
    epsilon_lower: float
    level: float
    standing: Label
    coverage: float | None
    population: str = REAL_USERS


class RefusedBound(_Model):
    """A bound that this design does not support, and why."""

    name: str
    reason: str
    population: str = REAL_USERS


class VerdictFacts(_Model):
    """What the audit says of one claim, and the largest epsilon that it could have certified."""

    claim: str
    outcome: Literal["violated", "consistent", "inconclusive"]
    standing: Label
    reason: str
    max_certifiable_epsilon: float
    warnings: list[str]
    exit_code: int
    population: str = REAL_USERS


class Judgement(_Model):
    """Bounds and verdicts from the primary attack's scores, each of one population."""

    delta: float
    bounds: list[Bound]
    refused: list[RefusedBound]
    verdicts: list[VerdictFacts]

    @property
    def exit_code(self) -> int:
        """3 if a claim is violated with certainty at its level, 4 if only by indication, else 0."""
        codes = [v.exit_code for v in self.verdicts]
        return 3 if 3 in codes else max(codes, default=0)


class KnowledgePoint(_Model):
    """AUROC of attackers with at most ``texts`` random texts of every user; spread over draws of the texts."""

    texts: int
    mean: float
    deviation: float
    low: float
    high: float


class Difference(_Model):
    """Of two AUROCs on the same users, with a 95 % interval (DeLong)."""

    value: float
    lower: float
    upper: float
    label: Label = "estimate"


class DialSetting(_Model):
    """The primary attack with one of the attacker's dials at a setting.

    ``difference`` is null where this one leads, and where too few users leave no error to estimate.
    """

    dial: str
    setting: str
    leads: bool
    auroc: Estimate
    difference: Difference | None


class ExposedUser(_Model):
    """A held-in user by pseudonym, with what might explain the score (``audit.exposure.Exposed``)."""

    pseudonym: str
    score: float
    rank: float
    share: float
    reference_loss: float
    divergence: float
    near_duplicates: int


class ExposureCorrelation(_Model):
    """Spearman's correlation of a property with the score over held-in users; null where it does not vary."""

    name: str
    rho: float | None
    p_value: float | None


class ExposureFacts(_Model):
    """The most exposed users, and what goes with exposure over all held-in users."""

    users: int
    most_exposed: list[ExposedUser]
    correlations: list[ExposureCorrelation]


class CanaryGroup(_Model):
    """Canary users of one kind, substring length and number of training documents (null: all that they have).

    ``auroc`` is null where the coins left fewer than two users on a side.
    """

    kind: Literal["unseen_token", "high_temperature", "rare_phrase", "substring"]
    length: int | None
    documents: int | None
    held_in: int
    held_out: int
    auroc: Estimate | None


class CanaryFacts(_Model):
    """Canary users: how many, how many real users they replaced, and how well the primary attack did on each group."""

    users: int
    held_in: int
    held_out: int
    replaced: int
    trained_on: int
    attacker_texts: int
    groups: list[CanaryGroup]
    blind: list[Blind]


class GradientNorms(_Model):
    """Norms of single records' gradients at the base model: bins of equal ratio, and how many records fall in each."""

    edges: list[float]
    canaries: list[int]
    real: list[int]


class TrialsFacts(_Model):
    """Independent trainings with and without one worst-case user, and the test at one threshold of their scores.

    The first ``pilot`` of them picked the threshold and are not tested at it (0: it was fixed beforehand). Counts and
    threshold are null where ROC bands were used. ``epsilon_lower`` is the bound of this test, which was chosen before
    looking; ``reach``: what the tested trainings could have certified at best.
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


class CorpusFacts(_Model):
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


class Overlaps(_Model):
    """Texts that stand on two sides (exact matches), counted and not removed."""

    attacker_texts_in_same_users_training: int
    attacker_texts_in_other_users_training: int
    held_out_texts_in_training: int
    audited_texts_in_public: int


class SplitFacts(_Model):
    """Who is on which side, how that was decided, and commitments to the secrets behind it."""

    assignment: str
    certifiable: bool
    standing_reason: str
    held_in: int
    held_out: int
    always_in: int
    records_by_part: dict[str, int]
    key_commitment: str | None
    ledger_commitment: str | None
    overlaps: Overlaps


class EndpointFacts(_Model):
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


class ModelFacts(_Model):
    """A model: name or origin, size, and hash of its weights.

    Behind an endpoint the size is not known, and the hash is of address, name, style and tokenizer.
    """

    name: str
    parameters: int | None
    fingerprint: str
    architecture: str
    endpoint: EndpointFacts | None = None


class CurvePoint(_Model):
    """What was measured after ``step`` optimizer steps; losses in nats per token."""

    step: int
    epoch: float
    train_loss: float
    held_in_loss: float
    held_out_loss: float
    auroc: float
    public_loss: float | None = None


class Ceiling(_Model):
    """What no attacker's ROC curve exceeds in expectation if the guarantee holds: points, and the area under them."""

    auroc: float
    fpr: list[float]
    tpr: list[float]


class RemovalFacts(_Model):
    """What a data-side defense left out of training."""

    name: str
    before: int
    removed: int
    users: int


class TrainingFacts(_Model):
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
    removals: list[RemovalFacts] = []
    seconds: float


class Environment(_Model):
    """What the run ran on."""

    heldin: str
    python: str
    packages: dict[str, str]
    git_revision: str | None
    device: str
    threads: int
    seconds: dict[str, float]


class Record(_Model):
    """Everything a report prints of one run or one audit."""

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
    documents: Literal["fresh", "training"] = "fresh"
    scoring_rule: str
    resamples: int
    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    canaries: CanaryFacts | None = None
    gradient_norms: GradientNorms | None = None
    knowledge: list[KnowledgePoint] = []
    dials: list[DialSetting] = []
    exposure: ExposureFacts | None = None
    trials: TrialsFacts | None = None
    environment: Environment

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
