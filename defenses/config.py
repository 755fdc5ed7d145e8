"""The defense section of a config: public constants, checked for contradictions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heldin.base.section import Count, Few, Many, NotNegative, Positive, Section
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.spans import CATEGORIES, Category
from heldin.defenses.accounting.heuristics import settled_delta
from heldin.defenses.choices import (
    ClipNorm,
    ClipQuantile,
    DeltaRule,
    LocalUpdates,
    NoiseGenerator,
    RecordSelection,
    WeightCaps,
)
from heldin.defenses.data_side.deidentify import entities_named
from heldin.words.statement import Statement


class NoDefense(Section):
    """Plain training."""

    kind: Literal["none"] = "none"


class ClippingDefense(Section):
    """Clipping without noise (Kandpal et al., D.3): a heuristic, and no guarantee."""

    kind: Literal["clip"]
    unit: Literal["example", "batch"]
    """Clip each example's gradient, or the batch's."""
    clip_norm: ClipNorm | None = None
    """Clip norm; null: the smallest gradient norm of a plain run, which is done first."""


class _Noised(Section):
    """The settings that all defenses with noise share."""

    population: Count
    """Public number of users ("uls", "filter") or of records (the others), to which sampling rate and delta refer. With
    "filter", users missing from this number count as users whose gradient is zero."""
    steps: Count
    """Optimizer steps; they take the place of finetune.epochs."""
    delta: Annotated[float, Field(gt=0, lt=1)] | DeltaRule = "units^-1.1"
    """delta of the guarantee: a number, or a power of a public number. "units^-1.1": of protected users, which are
    ``population`` or, if records are sampled, ``protected_users`` ("example": of records, ``population``).
    "examples^-1.1": of ``examples``, as in Charles et al. (2024), section 5. A delta above one over the number of
    protected units guarantees almost nothing."""
    examples: Count | None = None
    """Public number of records before any cap, only for ``delta: examples^-1.1``."""
    secure_noise: bool = False
    """Draw the noise from a cryptographic generator (AES-256 in counter mode), which is slower than Philox."""
    base_model_saw_protected: bool = False
    """Whether the base model or the tokenizer was trained on protected users' texts, or on texts selected by comparison
    with them, which voids the guarantee."""

    @property
    def units(self) -> int | None:
        """Return the public number of protected units; None if the config has none."""
        return self.population

    def settled_delta(self) -> tuple[float, Statement | None]:
        """Return delta, and the statement of its rule; None for a number."""
        return settled_delta(self.delta, self.units, self.examples)

    @model_validator(mode="after")
    def _delta_follows(self) -> Self:
        if self.examples is not None and self.delta != "examples^-1.1":
            raise ValueError("examples goes with delta: examples^-1.1 only")
        if self.delta == "examples^-1.1" and self.examples is None:
            raise ValueError("delta: examples^-1.1 needs examples, the public number of records before any cap")
        if self.delta == "units^-1.1" and self.units is None:
            raise ValueError("delta: units^-1.1, the default, needs protected_users: give it, or a number for delta")
        return self

    def noise(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX


class _PerUser(_Noised):
    """The settings of defenses that use a limited number of each user's records."""

    group_size: Many = 1
    """Records of one user: at most this many in a step ("uls", "filter"), at most this many in training ("els"), or
    exactly this many ("group"). Not with "example"."""
    record_selection: RecordSelection = "random"
    """Which records are used of a user who has more than ``group_size``; "random_chunk" is for "uls" only."""


class SampledDefense(_Noised):
    """The settings of defenses that sample, clip and add noise in every step."""

    cohort: Count
    """Expected number of users ("uls") or records (the others) in a step, if ``population`` of them are in training;
    also the divisor. At most ``population``."""
    target_epsilon: Positive | None = None
    """Calibrate the noise to this epsilon per user ("example": per record; "user-entity": of a user and an entity
    together, or of ``exposed`` records). Give this or ``noise_multiplier``."""
    # 0 is allowed: such a plan is built and labelled "no DP guarantee", not refused.
    noise_multiplier: NotNegative | None = None
    """Standard deviation of the noise divided by ``clip_norm``."""
    clip_norm: ClipNorm = 1.0
    """L2 norm to which a unit's gradient is clipped."""
    clip_kind: Literal["flat", "normalised"] = "flat"
    """"flat" scales down gradients above ``clip_norm``; "normalised" then divides by it, and the
    learning rate no longer depends on it."""
    protected_users: Count | None = None
    """Public number of users, for delta and the warning about it when records are sampled."""
    micro_records: Many = 64
    """Most records in one backward pass; it affects memory only."""

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of 'target_epsilon' and 'noise_multiplier'")
        return self


class PrivateDefense(SampledDefense, _PerUser):
    """Differentially private training; every number is a public constant of the config."""

    kind: Literal["uls", "els", "group", "example"]
    """"uls": user-level sampling; "els": example-level sampling with at most ``group_size`` records per user; "group":
    the same with exactly that many (repeated for users who have fewer); "example": per record."""
    sampler: Literal["poisson", "shuffled"] = "poisson"
    """"poisson": each unit enters each step by its own coin; "shuffled": cohorts cut from a shuffled list, as most
    trainers do, for which there is no DP guarantee here."""
    cap: Count | None = None
    """Hard cap on the users in a step, only with "uls" and Poisson sampling; null: no cap."""
    local: LocalUpdates | None = None
    """A drawn user's own steps, whose model difference is clipped in place of a gradient (DP-FedAvg); only with "uls"
    and Poisson sampling without a cap."""
    clip_quantile: ClipQuantile | None = None
    """The clip norm follows a quantile of the units' norms, within the same epsilon; ``clip_norm`` is that of the first
    step. null: it stays."""

    @property
    def units(self) -> int | None:
        """Return the public number of users, or of records under "example"."""
        return self.population if self.kind in ("uls", "example") else self.protected_users

    @model_validator(mode="after")
    def _possible(self) -> "PrivateDefense":
        if self.kind == "example" and self.group_size != 1:
            raise ValueError("group_size belongs to users: kind 'example' has none")
        if self.record_selection == "random_chunk" and self.kind != "uls":
            raise ValueError("record_selection 'random_chunk' goes with kind 'uls' only: it cuts a sampled user's text")
        if self.cap is not None and (self.sampler == "shuffled" or self.kind != "uls"):
            raise ValueError("a cap goes with kind 'uls' and Poisson sampling only: no other accountant exists")
        if self.local is not None and (self.kind != "uls" or self.sampler == "shuffled" or self.cap is not None):
            raise ValueError("local goes with kind 'uls' and Poisson sampling without a cap only")
        if self.local is not None and self.record_selection == "random_chunk":
            raise ValueError("local trains on records: choose another record_selection than 'random_chunk'")
        return self


class EntityDefense(SampledDefense):
    """The settings of defenses that know whom a record names."""

    entities: EntitySourceConfig | None = None
    """What finds whom a record names."""
    categories: tuple[Category, ...] = Field(CATEGORIES, min_length=1)
    """Categories of Lai et al. (2021), Table I, that count as entities."""

    @property
    def caps(self) -> tuple[int, int] | None:
        """(G, k) of text sampling; None without caps."""
        return None

    @property
    def counts_as_entity(self) -> str:
        """Describe the entities in words; "" without a source."""
        return entities_named(self.entities.kind, self.categories) if self.entities else ""


class UserEntityDefense(EntityDefense):
    """Text sampling: each record has a coin of its own and is clipped alone, whatever its authors and named people."""

    kind: Literal["user-entity"]
    group_size: Few | None = None
    """Most records of a user; with ``entity_cap``, which gives one epsilon for every user and recognised entity. null:
    no caps, and an epsilon for each number of records."""
    entity_cap: Few | None = None
    """Most records that name an entity; with ``group_size`` and ``entities``."""
    exposed: Few | None = None
    """Without caps, the number of records for which ``target_epsilon`` holds, written by a person or naming the person;
    null: 1."""

    @property
    def units(self) -> int | None:
        """Return the public number of users."""
        return self.protected_users

    @property
    def caps(self) -> tuple[int, int] | None:
        """(G, k); None without caps."""
        return None if self.group_size is None or self.entity_cap is None else (self.group_size, self.entity_cap)

    @model_validator(mode="after")
    def _caps_go_together(self) -> "UserEntityDefense":
        if (self.group_size is None) != (self.entity_cap is None):
            raise ValueError(
                "group_size and entity_cap go together: one number for everybody caps the records of users and entities"
            )
        if self.entity_cap is not None and self.entities is None:
            raise ValueError("entity_cap needs 'entities': without a source nobody knows whom a record names")
        if self.caps and self.exposed is not None:
            raise ValueError("exposed goes without caps: with them epsilon is for group_size + entity_cap records")
        return self


class UedpDefense(EntityDefense):
    """UeDP-Alg of Lai et al. (2021): users and entities are sampled, a drawn user's model difference is clipped."""

    kind: Literal["uedp"]
    entities: EntitySourceConfig
    """What finds whom a record names."""
    entity_rate: float = Field(0.5, gt=0, le=1)
    """Probability of each recognised entity in a step, q_e."""
    extended_rate: float = Field(1.0, ge=0, le=1)
    """Probability of each record that names no recognised entity, q_s; 0: such records are not used (estimator f_E)."""
    rule: Literal["any", "all"] = "any"
    """Which of a drawn user's records are used: those of which any entity is drawn (the paper), or all."""
    noise_scale: Literal["cohort", "clip_norm"] = "cohort"
    """Of what the noise is a multiple: of (cohort + 1) clip norms (Algorithm 1, line 14), or of one."""
    weight_caps: WeightCaps | None = None
    """Weights of Algorithm 1, lines 3 and 4, which count private records; null: 1, as for records without an entity."""
    local: LocalUpdates | None = None
    """A drawn user's own steps (Algorithm 1, lines 20 to 28, each step going on from the last); null: one gradient."""
    group_size: Many | None = None
    """Most usable records of a drawn user in a step, by chance; null: all of them."""
    account: Literal["paper", "strict"] = "paper"
    """Whose epsilon the run claims: the paper's, which is no guarantee, or what holds of the same algorithm."""
    sensitive_share: float | None = Field(None, gt=0, le=1)
    """Share of records with a recognised entity: a public constant, which the paper's claim needs unless extended_rate
    is 0."""
    holders: Many | None = None
    """Other users who may name an entity, for whom epsilon is stated; null: all others."""

    @model_validator(mode="after")
    def _possible(self) -> "UedpDefense":
        if self.noise_multiplier is None:
            raise ValueError("kind 'uedp' takes noise_multiplier: heldin account uedp says what it gives")
        if self.account == "paper" and self.extended_rate > 0 and self.sensitive_share is None:
            raise ValueError(
                "the paper's claim needs sensitive_share, the share of records with a recognised entity (heldin corpus"
                " entities counts them); or set account: strict"
            )
        if self.weight_caps is not None and self.local is None:
            raise ValueError("weight_caps needs local: a single gradient is a mean over records")
        if self.population < 2:
            raise ValueError("population must be at least 2: an entity is named by others")
        return self


class FilterDefense(_PerUser):
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3): full batches; it may halt and release no model."""

    kind: Literal["filter"]
    target_epsilon: Positive
    """Calibrate the noise to this epsilon per user."""
    tau: Positive
    """Most users' gradients must lie within this distance of each other at every step."""


Defense = Annotated[
    NoDefense | ClippingDefense | PrivateDefense | UserEntityDefense | UedpDefense | FilterDefense,
    Field(discriminator="kind"),
]
