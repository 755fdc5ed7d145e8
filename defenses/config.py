"""The defense section of a config: public constants, checked for what cannot be together."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heldin.defenses.choices import NoiseGenerator, RecordSelection


class NoDefense(BaseModel):
    """Plain training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["none"] = "none"


class ClippingDefense(BaseModel):
    """Clipping without noise (Kandpal et al., D.3): a heuristic, and no guarantee.

    Attributes:
        unit: clip each example's gradient, or the batch's.
        clip_norm: to this norm; None: the smallest norm seen in a plain run, which is done first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["clip"]
    unit: Literal["example", "batch"]
    clip_norm: float | None = Field(None, gt=0)


class _Noised(BaseModel):
    """What every defense with noise states."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    population: int = Field(ge=1)
    steps: int = Field(ge=1)
    delta: float = Field(gt=0, lt=1)
    group_size: int = Field(1, ge=1)
    record_selection: RecordSelection = "random"
    secure_noise: bool = False
    base_model_saw_protected: bool = False

    def noise(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX


class PrivateDefense(_Noised):
    """Differentially private training; every number is a public constant of the config.

    Attributes:
        kind: "uls" user-level sampling; "els" example-level sampling with at most ``group_size`` records a user;
            "group" with exactly so many (repeated where a user has fewer); "example" per record.
        population: public number of users ("uls") or records (the others) that the sampling rate and delta refer to.
        cohort: expected number of them in a step; also the divisor.
        protected_users: public number of users, for the warning about delta, where records are sampled.
    """

    kind: Literal["uls", "els", "group", "example"]
    cohort: int = Field(ge=1)
    target_epsilon: float | None = Field(None, gt=0)
    noise_multiplier: float | None = Field(None, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    clip_kind: Literal["flat", "normalised"] = "flat"
    sampler: Literal["poisson", "shuffled"] = "poisson"
    cap: int | None = Field(None, ge=1)
    protected_users: int | None = Field(None, ge=1)
    micro_records: int = Field(64, ge=1)

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
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3): full batches; it may halt and release no model.

    Attributes:
        population: public number of users; those who are missing to it count as users of gradient zero.
        tau: most of the users' gradients must lie within this distance of each other, at every step.
        group_size: records of each user in a step.
    """

    kind: Literal["filter"]
    target_epsilon: float = Field(gt=0)
    tau: float = Field(gt=0)


Defense = Annotated[NoDefense | ClippingDefense | PrivateDefense | FilterDefense, Field(discriminator="kind")]
