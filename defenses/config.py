"""The defense section of a config: public constants, checked for contradictions."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.spans import CATEGORIES, Category
from heldin.defenses.choices import NoiseGenerator, RecordSelection


class NoDefense(BaseModel):
    """Plain training."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    kind: Literal["none"] = "none"


class ClippingDefense(BaseModel):
    """Clipping without noise (Kandpal et al., D.3): a heuristic, and no guarantee."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    kind: Literal["clip"]
    unit: Literal["example", "batch"]
    """Clip each example's gradient, or the batch's."""
    clip_norm: float | None = Field(None, gt=0)
    """Clip norm; null: the smallest gradient norm of a plain run, which is done first."""


class _Noised(BaseModel):
    """The settings that all defenses with noise share."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    population: int = Field(ge=1)
    """Public number of users ("uls", "filter") or of records (the others), to which sampling rate and delta refer. With
    "filter", users missing from this number count as users whose gradient is zero."""
    steps: int = Field(ge=1)
    """Optimizer steps; they take the place of finetune.epochs."""
    delta: float = Field(gt=0, lt=1)
    """delta of the guarantee; a delta above one over the number of users promises next to nothing."""
    secure_noise: bool = False
    """Draw the noise from a cryptographic generator (SHAKE-256), which is slower than Philox."""
    base_model_saw_protected: bool = False
    """Whether the base model or the tokenizer was trained on protected users' texts, which voids the guarantee."""

    def noise(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX


class _PerUser(_Noised):
    """The settings of defenses that use a limited number of each user's records."""

    group_size: int = Field(1, ge=1)
    """Records of one user: at most this many in a step ("uls", "filter"), at most this many in training ("els"), or
    exactly this many ("group"). Not with "example"."""
    record_selection: RecordSelection = "random"
    """Which records are used of a user who has more than ``group_size``; "random_chunk" goes with "uls" only."""


class SampledDefense(_Noised):
    """The settings of defenses that sample, clip and add noise in every step."""

    cohort: int = Field(ge=1)
    """Expected number of users ("uls") or records (the others) in a step; also the divisor. At most ``population``."""
    target_epsilon: float | None = Field(None, gt=0)
    """Calibrate the noise to this epsilon per user ("example": per record; "user_entity": of a user and an entity
    together, or of ``exposed`` records). Give this or ``noise_multiplier``."""
    # 0 is allowed: such a plan is built and labelled "not a DP guarantee", not refused.
    noise_multiplier: float | None = Field(None, ge=0)
    """Standard deviation of the noise divided by ``clip_norm``."""
    clip_norm: float = Field(1.0, gt=0)
    """L2 norm to which a unit's gradient is clipped."""
    clip_kind: Literal["flat", "normalised"] = "flat"
    """"flat" scales down gradients above ``clip_norm``; "normalised" then divides by it, so that the learning rate need
    not be tuned to it."""
    protected_users: int | None = Field(None, ge=1)
    """Public number of users, for the warning about delta when records are sampled."""
    micro_records: int = Field(64, ge=1)
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
    trainers do, which is not a DP guarantee here."""
    cap: int | None = Field(None, ge=1)
    """Hard cap on the users in a step, only with "uls" and Poisson sampling; null: no cap."""

    @model_validator(mode="after")
    def _possible(self) -> "PrivateDefense":
        if self.kind == "example" and self.group_size != 1:
            raise ValueError("group_size belongs to users: kind 'example' has none")
        if self.record_selection == "random_chunk" and self.kind != "uls":
            raise ValueError("record_selection 'random_chunk' goes with kind 'uls' only: it cuts a sampled user's text")
        if self.cap is not None and (self.sampler == "shuffled" or self.kind != "uls"):
            raise ValueError("a cap goes with kind 'uls' and Poisson sampling only: no other accountant exists")
        return self


class UserEntityDefense(SampledDefense):
    """Text sampling: each record has a coin of its own and is clipped alone, whoever wrote it and is named in it."""

    kind: Literal["user_entity"]
    group_size: int | None = Field(None, ge=1)
    """Most records of a user; with ``entity_cap``, which gives one epsilon for every user and recognised entity. null:
    no caps, and an epsilon for each number of records."""
    entity_cap: int | None = Field(None, ge=1)
    """Most records that name an entity; with ``group_size`` and ``entities``."""
    entities: EntitySourceConfig | None = None
    """What finds whom a record names; the record of a run then says how many are exposed how far."""
    categories: tuple[Category, ...] = Field(CATEGORIES, min_length=1)
    """Categories of Lai et al. (2021), Table I, that count as entities."""
    exposed: int | None = Field(None, ge=1)
    """Without caps, the number of records for which ``target_epsilon`` holds, written by a person or naming the person;
    null: 1."""

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


class FilterDefense(_PerUser):
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3): full batches; it may halt and release no model."""

    kind: Literal["filter"]
    target_epsilon: float = Field(gt=0)
    """Calibrate the noise to this epsilon per user."""
    tau: float = Field(gt=0)
    """Most users' gradients must lie within this distance of each other at every step."""


Defense = Annotated[
    NoDefense | ClippingDefense | PrivateDefense | UserEntityDefense | FilterDefense, Field(discriminator="kind")
]
