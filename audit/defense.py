"""The defense section of a config, and the mechanism that follows from it. Nothing here looks at the data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator

from defenses.choices import (
    CappedPoissonSampler,
    Clip,
    ConstantDivisor,
    DataStep,
    FlatClip,
    NoClip,
    NoiseGenerator,
    NormalisedClip,
    PoissonSampler,
    RecordSelection,
    Sampler,
    ShuffledSampler,
)
from defenses.mechanism import Mechanism
from finetune.recipe import Select

if TYPE_CHECKING:
    from audit.config import RunConfig


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


def mechanism_of(config: "RunConfig", *, plain_steps: int, cache_dir: Path | None = None) -> Mechanism:
    """The run's mechanism, its noise calibrated where the config names a target.

    Args:
        config: of the run.
        plain_steps: steps of plain training, which follow from the data; a private run's come from the config.
        cache_dir: of the accountant.
    """
    defense = config.defense
    match defense:
        case NoDefense():
            return Mechanism(
                unit="none",
                sampled="example",
                sampler=PoissonSampler(rate=1.0),
                clip=NoClip(),
                noise_multiplier=0.0,
                steps=plain_steps,
                divisor=ConstantDivisor(value=config.finetune.batch_size),
                record_selection="all",
                noise_generator="none",
            )
        case PrivateDefense():
            mechanism = Mechanism(
                unit="example" if defense.kind == "example" else "user",
                adjacency="zero_out" if defense.sampler == "shuffled" else "add_remove",
                sampled="user" if defense.kind == "uls" else "example",
                sampler=_sampler(defense),
                group_size=defense.group_size,
                clip=_clip(defense),
                noise_multiplier=1.0 if defense.noise_multiplier is None else defense.noise_multiplier,
                steps=defense.steps,
                delta=defense.delta,
                divisor=ConstantDivisor(value=defense.cohort),
                record_selection=defense.record_selection,
                noise_generator=defense.noise().value,
                checkpoint="last_step" if config.finetune.select is Select.LAST else "protected_validation",
                data_steps=_data_steps(config),
                base_model_saw_protected=defense.base_model_saw_protected,
                tokenizer_saw_protected=defense.base_model_saw_protected,
                protected_units=defense.protected_users,
            )
            if defense.target_epsilon is None:
                return mechanism
            return mechanism.calibrated(defense.target_epsilon, cache_dir=cache_dir)
        case _:
            assert_never(defense)


def _sampler(defense: PrivateDefense) -> Sampler:
    if defense.sampler == "shuffled":
        return ShuffledSampler(population=defense.population, cohort=defense.cohort)
    if defense.cap is not None:
        return CappedPoissonSampler.of(defense.population, defense.cohort, defense.cap)
    return PoissonSampler.of(defense.population, defense.cohort)


def _clip(defense: PrivateDefense) -> Clip:
    return FlatClip(norm=defense.clip_norm) if defense.clip_kind == "flat" else NormalisedClip(norm=defense.clip_norm)


def _data_steps(config: "RunConfig") -> tuple[DataStep, ...]:
    """What happens to the records before training, and what each step looks at (accounting.md section 7)."""
    users = config.corpus.users
    steps = [
        DataStep(name="minimum number of records", user_local=True, record_local=False),
        DataStep(name="set-asides", user_local=True, record_local=False),
    ]
    if users.max_records is not None:
        steps.append(DataStep(name="maximum number of records", user_local=True, record_local=False))
    if users.max_users is not None:
        steps.append(DataStep(name="sample of max_users users", user_local=False, record_local=False))
    return tuple(steps)
