"""The settings that mechanisms with noise share."""

from abc import ABC
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heldin.base.section import Count, Many, NotNegative, Positive
from heldin.corpus.entities.config import EntitySourceConfig, entities_named
from heldin.corpus.entities.spans import CATEGORIES, Category
from heldin.defenses.accounting.heuristics import settled_delta
from heldin.defenses.choices import (
    ClipNorm,
    ClipQuantile,
    ConstantDivisor,
    DeltaRule,
    FlatClip,
    NoiseGenerator,
    NormalisedClip,
    RecordSelection,
)
from heldin.defenses.mechanisms.contract import DefenseConfig, Given
from heldin.defenses.samplers import PoissonSampler, Sampler, ShuffledSampler
from heldin.words.guarantee import Assumption
from heldin.words.statement import Statement


class NoisedDefense(DefenseConfig, ABC):
    """The settings that all defenses with noise share."""

    is_private: ClassVar[bool] = True

    population: Count
    """Public number of users ("uls", "banded", "filter", "uedp") or of records (other kinds). heldin computes the
    sampling rate and delta from this number. If the corpus has fewer users, "filter" adds a zero gradient for each
    missing user."""
    steps: Count
    """Number of optimizer steps. This number replaces finetune.epochs."""
    delta: Annotated[float, Field(gt=0, lt=1)] | DeltaRule = "units^-1.1"
    """delta of the guarantee: a number, or a power of a public number. "units^-1.1" uses the number of protected users.
    This number is ``protected_users`` if the kind samples records, and ``population`` otherwise. For the kind
    "example", "units^-1.1" uses the number of records in ``population``. "examples^-1.1" uses ``examples``, as in
    Charles et al. (2024), section 5. If delta is larger than 1 / (number of protected units), the guarantee means
    almost nothing.
    """
    examples: Count | None = None
    """Number of records before any cap, for ``delta: examples^-1.1``. State a number that may be public."""
    secure_noise: bool = False
    """Whether to draw the noise with a cryptographic generator (AES-256 in counter mode), which is slower than the
    default, Philox."""
    base_model_saw_protected: bool = False
    """Whether the base model or the tokenizer was trained on texts by protected users, or on texts chosen for their
    similarity to such texts. If true, the guarantee is void."""

    @property
    def units(self) -> int | None:
        """The public number of protected units; None if the config does not state this number."""
        return self.population

    @property
    def relies_on_base(self) -> bool:
        """True unless the config states that the base model has seen the protected people."""
        return not self.base_model_saw_protected

    def settled_delta(self) -> tuple[float, Statement | None]:
        """Return delta, and the statement of its rule; the statement is None if the config gives a number."""
        return settled_delta(self.delta, self.units, self.examples)

    @model_validator(mode="after")
    def _delta_follows(self) -> Self:
        if self.examples is not None and self.delta != "examples^-1.1":
            raise ValueError("examples is only for 'delta: examples^-1.1': leave examples out, or set this delta")
        if self.delta == "examples^-1.1" and self.examples is None:
            raise ValueError("'delta: examples^-1.1' needs examples: give the public number of records before any cap")
        if self.delta == "units^-1.1" and self.units is None:
            raise ValueError(
                "'delta: units^-1.1', the default, needs protected_users: give protected_users, or a number as delta"
            )
        return self

    def noise_generator(self) -> NoiseGenerator:
        """The noise generator."""
        return NoiseGenerator.SECURE if self.secure_noise else NoiseGenerator.PHILOX

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields that every mechanism with noise has."""
        delta, rule = self.settled_delta()
        return {
            "steps": self.steps,
            "delta": delta,
            "noise_generator": self.noise_generator().value,
            "checkpoint": given.checkpoint,
            "data_steps": given.data_steps,
            "base_model_saw_protected": self.base_model_saw_protected,
            # One key of the config for both: a tokenizer that is trained here is trained on the base model's texts.
            "tokenizer_saw_protected": self.base_model_saw_protected,
            "assumptions": (*given.assumptions, *([rule] if rule else [])),
        }


class SampledDefense(NoisedDefense, ABC):
    """The settings that all defenses with sampling, clipping and noise in every step share."""

    cohort: Count
    """Expected number of units per step, if training has ``population`` units; at most ``population``. The sampling
    rate is ``cohort`` / ``population``. A unit is a user ("uls", "banded", "uedp") or a record (other kinds). heldin
    divides the sum of gradients in each step by this number."""
    target_epsilon: Positive | None = None
    """Epsilon, from which heldin computes the noise. Epsilon is per user for most kinds, and per record for "example".
    For "user-entity", epsilon is per user and entity together or, without caps, for ``exposed`` records. Give either
    ``target_epsilon`` or ``noise_multiplier``.
    """
    # 0 is allowed: such a plan is built and labelled "no DP guarantee", not refused.
    noise_multiplier: NotNegative | None = None
    """Standard deviation of the noise divided by ``clip_norm``. For "uedp", see ``noise_scale``."""
    clip_norm: ClipNorm = 1.0
    """Clip norm: the largest L2 norm that a unit's gradient has after clipping."""
    clip_kind: Literal["flat", "normalised"] = "flat"
    """Kind of clipping. flat: scale down each gradient whose norm exceeds ``clip_norm``. normalised: also divide by
    ``clip_norm``, so the best learning rate does not depend on ``clip_norm``."""
    protected_users: Count | None = None
    """Public number of users, for kinds that sample records. heldin computes delta from this number, and warns if delta
    is too large for this number of users."""
    micro_records: Many = 64
    """Maximum number of records in one backward pass. This number affects only memory use."""

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of target_epsilon and noise_multiplier")
        return self

    @property
    def calibrated_to(self) -> float | None:
        """The target epsilon; None if the config gives the noise multiplier."""
        return self.target_epsilon

    @property
    def pass_records(self) -> int:
        """The maximum number of records in one backward pass, from the config."""
        return self.micro_records

    @property
    def cohort_size(self) -> int:
        """The expected number of units in a step, from the config."""
        return self.cohort

    @property
    def followed_quantile(self) -> ClipQuantile | None:
        """The quantile that the clip norm follows; None: the clip norm is constant."""
        return None

    def sampled_by(self) -> Sampler:
        """Return the sampler."""
        return PoissonSampler.of(self.population, self.cohort)

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields that every mechanism with sampling, clipping and noise in each step has."""
        clip = FlatClip if self.clip_kind == "flat" else NormalisedClip
        return {
            **super().plan(given),
            "sampler": self.sampled_by(),
            "clip": clip(norm=self.clip_norm, follows=self.followed_quantile),
            # A stand-in until the noise is calibrated.
            "noise_multiplier": 1.0 if self.noise_multiplier is None else self.noise_multiplier,
            # Public, and never the cohort that was drawn: neighbours would scale their noise differently
            # (docs/theory.md#public-constants).
            "divisor": ConstantDivisor(value=self.cohort),
            "protected_units": self.protected_users,
        }


class ShuffledDefense(SampledDefense, ABC):
    """The settings of defenses that can shuffle cohorts, and let the clip norm follow a quantile."""

    sampler: Literal["poisson", "shuffled"] = "poisson"
    """How to draw the units of a step. poisson: for each unit and step, a separate coin decides whether the step uses
    the unit. shuffled: heldin takes the units in turn from a shuffled list, as most trainers do, and states no DP
    guarantee."""
    clip_quantile: ClipQuantile | None = None
    """Settings of adaptive clipping, which moves the clip norm towards a quantile of the gradient norms. Epsilon stays
    the same. ``clip_norm`` is then the clip norm of the first step. null: a constant clip norm."""

    @property
    def followed_quantile(self) -> ClipQuantile | None:
        """The quantile in the config, which the clip norm follows; None: the clip norm is constant."""
        return self.clip_quantile

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The key of the clip quantile, if the clip norm follows a quantile."""
        return ("defense.clip_quantile",) if self.clip_quantile is not None else ()

    @property
    def cuts_a_list(self) -> bool:
        """Whether cohorts are consecutive parts of a shuffled list."""
        return self.sampler == "shuffled"

    def sampled_by(self) -> Sampler:
        """Return Poisson sampling, or shuffled cohorts."""
        if self.cuts_a_list:
            return ShuffledSampler(population=self.population, cohort=self.cohort)
        return super().sampled_by()

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields, with the adjacency of the sampler."""
        # A fixed cohort out of a fixed population: an absent unit keeps its place (docs/theory.md#conventions).
        return {**super().plan(given), "adjacency": "zero_out" if self.cuts_a_list else "add_remove"}


class UserRecords(NoisedDefense, ABC):
    """The settings of defenses with a limited number of records per user."""

    group_size: Many = 1
    """Number of records per user: a maximum for each step ("uls", "banded", "filter"), a maximum for the whole
    training ("els"), or the exact number ("group")."""
    record_selection: RecordSelection = "random"
    """Rule that chooses the records of a user who has more than ``group_size`` records. "els" and "group" do not
    support "random_chunk"."""

    @property
    def promises_users(self) -> bool:
        """True, because every user has a guarantee."""
        return True

    @property
    def worst_case_documents(self) -> int:
        """The number of records that training uses of each user."""
        return self.group_size

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields, with the selection of a user's records."""
        return {
            **super().plan(given),
            "unit": "user",
            "group_size": self.group_size,
            "record_selection": self.record_selection,
        }


class NamedPeopleDefense(SampledDefense, ABC):
    """The settings of defenses that use the names of people in records."""

    protects_named: ClassVar[bool] = True

    entities: EntitySourceConfig | None = None
    """Source of entities: how heldin finds the people who are named in a record."""
    categories: tuple[Category, ...] = Field(CATEGORIES, min_length=1)
    """Categories that count as entities, from Lai et al. (2021), Table I."""

    @property
    def promises_users(self) -> bool:
        """True, because every user has a guarantee."""
        return True

    @property
    def searched_by(self) -> EntitySourceConfig | None:
        """The source that finds the entities; None if the config has no source."""
        return self.entities

    @property
    def entity_categories(self) -> tuple[Category, ...]:
        """The categories of entities in the config."""
        return self.categories

    @property
    def counts_as_entity(self) -> str:
        """The entities in words; "" without a source."""
        return entities_named(self.entities.kind, self.categories) if self.entities else ""

    def entity_assumptions(self, made_of_texts: frozenset[str]) -> tuple[Statement, ...]:
        """Return the assumptions for mechanisms in which entities decide about the use of records."""
        if self.entities is None:
            return ()
        finder = [Assumption.FINDER_UNSEEN()] if self.entities.kind in made_of_texts else []
        return (Assumption.ENTITY_IS(counts=self.counts_as_entity), *finder)
