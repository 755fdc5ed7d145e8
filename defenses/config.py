"""The defense section of a config: public constants, checked for contradictions."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    group_size: int = Field(1, ge=1)
    """Records of one user: at most this many in a step ("uls", "filter"), at most this many in training ("els"), or
    exactly this many ("group"). Not with "example"."""
    record_selection: RecordSelection = "random"
    """Which records are used of a user who has more than ``group_size``; "random_chunk" goes with "uls" only."""
    secure_noise: bool = False
    """Draw the noise from a cryptographic generator (SHAKE-256), which is slower than Philox."""
    base_model_saw_protected: bool = False
    """Whether the base model or the tokenizer was trained on protected users' texts, which voids the guarantee."""

    def noise(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX


class PrivateDefense(_Noised):
    """Differentially private training; every number is a public constant of the config."""

    kind: Literal["uls", "els", "group", "example"]
    """"uls": user-level sampling; "els": example-level sampling with at most ``group_size`` records per user; "group":
    the same with exactly that many (repeated for users who have fewer); "example": per record."""
    cohort: int = Field(ge=1)
    """Expected number of users ("uls") or records (the others) in a step; also the divisor. At most ``population``."""
    target_epsilon: float | None = Field(None, gt=0)
    """Calibrate the noise to this epsilon per user ("example": per record). Give this or ``noise_multiplier``."""
    # 0 is allowed: such a plan is built and labelled "not a DP guarantee", not refused.
    noise_multiplier: float | None = Field(None, ge=0)
    """Standard deviation of the noise divided by ``clip_norm``."""
    clip_norm: float = Field(1.0, gt=0)
    """L2 norm to which a unit's gradient is clipped."""
    clip_kind: Literal["flat", "normalised"] = "flat"
    """"flat" scales down gradients above ``clip_norm``; "normalised" then divides by it, so that the learning rate need
    not be tuned to it."""
    sampler: Literal["poisson", "shuffled"] = "poisson"
    """"poisson": each unit enters each step by its own coin; "shuffled": cohorts cut from a shuffled list, as most
    trainers do, which is not a DP guarantee here."""
    cap: int | None = Field(None, ge=1)
    """Hard cap on the users in a step, only with "uls" and Poisson sampling; null: no cap."""
    protected_users: int | None = Field(None, ge=1)
    """Public number of users, for the warning about delta when records are sampled."""
    micro_records: int = Field(64, ge=1)
    """Most records in one backward pass; it affects memory only."""

    @model_validator(mode="after")
    def _possible(self) -> "PrivateDefense":
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of 'target_epsilon' and 'noise_multiplier'")
        if self.kind == "example" and self.group_size != 1:
            raise ValueError("group_size belongs to users: kind 'example' has none")
        if self.record_selection == "random_chunk" and self.kind != "uls":
            raise ValueError("record_selection 'random_chunk' goes with kind 'uls' only: it cuts a sampled user's text")
        if self.cap is not None and (self.sampler == "shuffled" or self.kind != "uls"):
            raise ValueError("a cap goes with kind 'uls' and Poisson sampling only: no other accountant exists")
        return self


class FilterDefense(_Noised):
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3): full batches; it may halt and release no model."""

    kind: Literal["filter"]
    target_epsilon: float = Field(gt=0)
    """Calibrate the noise to this epsilon per user."""
    tau: float = Field(gt=0)
    """Most users' gradients must lie within this distance of each other at every step."""


Defense = Annotated[NoDefense | ClippingDefense | PrivateDefense | FilterDefense, Field(discriminator="kind")]
