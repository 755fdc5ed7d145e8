"""The defense section of a config: public constants, checked for what cannot be together."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from defenses.choices import NoiseGenerator, RecordSelection


class NoDefense(BaseModel):
    """Plain training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["none"] = "none"


class PrivateDefense(BaseModel):
    """Differentially private training; every number is a public constant of the config.

    Attributes:
        kind: "uls" user-level sampling; "els" example-level sampling with at most ``group_size`` records a user;
            "group" with exactly so many (repeated where a user has fewer); "example" per record.
        population: public number of users ("uls") or records (the others) that the sampling rate and delta refer to.
        cohort: expected number of them in a step; also the divisor.
        protected_users: public number of users, for the warning about delta, where records are sampled.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["uls", "els", "group", "example"]
    population: int = Field(ge=1)
    cohort: int = Field(ge=1)
    steps: int = Field(ge=1)
    delta: float = Field(gt=0, lt=1)
    target_epsilon: float | None = Field(None, gt=0)
    noise_multiplier: float | None = Field(None, ge=0)
    group_size: int = Field(1, ge=1)
    clip_norm: float = Field(1.0, gt=0)
    clip_kind: Literal["flat", "normalised"] = "flat"
    sampler: Literal["poisson", "shuffled"] = "poisson"
    cap: int | None = Field(None, ge=1)
    record_selection: RecordSelection = "random"
    secure_noise: bool = False
    base_model_saw_protected: bool = False
    protected_users: int | None = Field(None, ge=1)
    micro_records: int = Field(64, ge=1)

    @model_validator(mode="after")
    def _possible(self) -> "PrivateDefense":
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of 'target_epsilon' and 'noise_multiplier'")
        if self.kind == "example" and self.group_size != 1:
            raise ValueError("group_size belongs to users: kind 'example' has none")
        if self.record_selection == "random_chunk":
            raise ValueError("record_selection 'random_chunk' is not supported by the trainer")
        if self.cap is not None and (self.sampler == "shuffled" or self.kind != "uls"):
            raise ValueError("a cap goes with kind 'uls' and Poisson sampling only: no other accountant exists")
        return self

    def noise(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX


Defense = Annotated[NoDefense | PrivateDefense, Field(discriminator="kind")]
