"""The mechanism as data: what the trainer runs, the accountant reads, the audit tests and the report prints.

Everything in a ``Mechanism`` is public and comes from the config: sampling rate, population, cohort, divisor, delta and
steps are constants, never computed from the data or from the coins (docs/theory.md#public-constants). Any departure
from the accounted mechanism is labelled "no DP guarantee", with the reason; it cannot be built without that label.
"""

import math
from typing import Annotated, Literal, assert_never

from dp_accounting import dp_event
from pydantic import Field, model_validator

from heldin.base.errors import InputError
from heldin.base.section import LARGEST, Count, Many, NotNegative, Positive
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.closed_forms import check_delta
from heldin.defenses.accounting.composition import check_rounding
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    Event,
    FilteredGaussian,
    PoissonGaussian,
    TwoLevelGaussian,
    UnamplifiedGaussian,
    participations,
)
from heldin.defenses.accounting.guarantees import EXPOSED, HOLDERS, moments_epsilon, two_level_epsilon
from heldin.defenses.accounting.step_pld import to_dp_event
from heldin.defenses.choices import (
    Adjacency,
    CappedPoissonSampler,
    Choice,
    Clip,
    ClipQuantile,
    ConcentrationFilter,
    DataStep,
    Divisor,
    FullBatchSampler,
    LocalUpdates,
    PoissonSampler,
    RecordSelection,
    Sampler,
    ShuffledSampler,
    TwoLevel,
    Unit,
)
from heldin.defenses.guarantee import EpsilonAtExposure, Exposure, Guarantee, NoGuarantee, conditions_of, reasons_of
from heldin.words.guarantee import NoGuaranteeReason
from heldin.words.statement import Statement


class Mechanism(Choice):
    """A training run's privacy mechanism. Immutable; equal mechanisms have equal epsilon.

    Attributes:
        unit: what is protected; "none" for a plain run. "user-entity" with sampled "example" is text sampling (whoever
            wrote a record or is named in one), and with "user" two-level sampling (a user and an entity).
        adjacency: which data sets count as neighbours.
        sampled: what the sampler draws. "user" with unit "user" is ULS; "example" with unit "user" is ELS or group
            privacy; "example" with unit "example" is example-level DP, and with "user-entity" text sampling.
        sampler: which units take part in a step.
        group_size: for ULS the records that a user contributes per step (no effect on epsilon); for ELS, and for text
            sampling under caps, the cap on a user's records.
        entity_cap: for text sampling under caps, the cap on records that name an entity.
        exposed: for text sampling without caps, the number of records that a stated epsilon is of.
        two_level: how entities are sampled beside users; the noise multiplier is then that on the sum.
        local: how a drawn user's records are trained on, if what is clipped is a model difference and no gradient.
        clip: how gradients are clipped.
        noise_multiplier: noise standard deviation over sensitivity.
        delta: of the guarantee; None only for a plain run.
        divisor: what the noised sum is divided by.
        record_selection: which of a user's records are used.
        noise_generator: name of the generator, for reports.
        checkpoint: how the released checkpoint is chosen.
        data_steps: data-side steps before training.
        base_model_saw_protected: whether the base model was trained on protected users, or on what they decided.
        tokenizer_saw_protected: whether the tokenizer was.
        assumptions: what the guarantee assumes and the rule of its delta, printed with it.
        target_epsilon: epsilon that the noise was calibrated to; None if the noise multiplier was given.
        protected_units: public number of protected units, for the warning about delta; None: the least number there can
            be, which is the sampler's population, or that over ``group_size`` where records are drawn.

    Raises:
        InputError: no accountant here covers the combination; one line with every problem.
    """

    unit: Unit | Literal["none"]
    adjacency: Adjacency = "add_remove"
    sampled: Literal["example", "user"]
    sampler: Sampler
    group_size: Many = 1
    entity_cap: Many | None = None
    exposed: Many | None = None
    two_level: TwoLevel | None = None
    local: LocalUpdates | None = None
    clip: Clip
    noise_multiplier: NotNegative
    steps: Count
    delta: Annotated[float, Field(le=LARGEST)] | None = None
    divisor: Divisor
    record_selection: RecordSelection = "random"
    noise_generator: str = "torch default (not cryptographic)"
    checkpoint: Literal["last_step", "public_validation", "protected_validation"] = "last_step"
    data_steps: tuple[DataStep, ...] = ()
    base_model_saw_protected: bool = False
    tokenizer_saw_protected: bool = False
    assumptions: tuple[Statement, ...] = ()
    target_epsilon: Positive | None = None
    protected_units: Count | None = None

    @model_validator(mode="after")
    def _accountable(self) -> "Mechanism":
        self._check()
        return self

    def _check(self) -> None:
        """Raises InputError for a combination that no accountant here covers."""
        # A plain run needs no accountant, whatever its sampler and clip; ``reasons`` says that it protects nobody.
        if self.unit == "none":
            return
        if self.delta is None:
            raise InputError("delta is missing: give a public constant below 1 / population, for example n^-1.1")
        check_delta(self.delta, self.steps)
        if self.unit == "example" and self.sampled == "user":
            raise InputError("user sampling has no example-level accountant: set unit to user or sample examples")
        self._check_entities()
        if self.unit == "example" and self.group_size != 1:
            raise InputError(
                f"group size {self.group_size} with unit example: a group is a user's records, use unit user"
            )
        shuffled = isinstance(self.sampler, ShuffledSampler)
        filtered = self.clip.filters
        if filtered != isinstance(self.sampler, FullBatchSampler):
            raise InputError("the concentration filter goes with full batches, and full batches with nothing else")
        if filtered and (self.unit, self.sampled, self.adjacency) != ("user", "user", "replace"):
            raise InputError(
                "the concentration filter protects users that are sampled as such, under replace adjacency"
            )
        if self.adjacency == "replace" and not (shuffled or filtered):
            raise InputError("replace adjacency has no accountant under Poisson sampling: use add_remove")
        # Cohorts of one size need a population of one size: an absent unit leaves its place empty (zero-out) or to
        # another (replace).
        if self.adjacency == "add_remove" and shuffled:
            raise InputError("shuffled cohorts fix the population: use zero_out or replace adjacency")
        # The loss distribution of a capped cohort is dp-accounting's and has no tilted form for a small delta.
        if isinstance(self.sampler, CappedPoissonSampler):
            check_rounding(self.delta, self.steps)
        if isinstance(self.sampler, CappedPoissonSampler) and self.members > 1:
            raise InputError(
                f"a hard cohort cap with group size {self.members} has no accountant: drop the cap or sample users"
            )
        _ = self.assumed_event  # the event's own checks: cap below the expected cohort, cohort above the population

    def _check_entities(self) -> None:
        """Raises InputError for user-entity sampling that no theorem covers, and for its fields elsewhere."""
        if self.local is not None and (self.sampled != "user" or not isinstance(self.sampler, PoissonSampler)):
            raise InputError("local updates are a sampled user's: sample users, by Poisson coins")
        if self.unit != "user-entity":
            if (self.entity_cap, self.exposed, self.two_level) != (None, None, None):
                raise InputError(f"entity cap and exposed records belong to unit user-entity, not to {self.unit}")
            return
        if self.two_level is not None:
            self._check_two_level()
            return
        if self.sampled != "example" or not isinstance(self.sampler, PoissonSampler):
            raise InputError("unit user-entity is text sampling: sample examples, by Poisson coins")
        if self.record_selection != "all":
            raise InputError(
                "unit user-entity trains on all records that the caps leave: a choice by text would let others in"
            )
        capped = self.entity_cap is not None
        if capped == (self.exposed is not None) or (not capped and self.group_size != 1):
            raise InputError("unit user-entity has either both caps, or a number of exposed records")
        # A cap that looks at other people's slots is no function of one's own: only with the same slots on both sides.
        if self.adjacency != ("zero_out" if capped else "add_remove"):
            raise InputError("caps on entities go with zero_out adjacency, text sampling without caps with add_remove")

    def _check_two_level(self) -> None:
        """Raises InputError for two-level sampling that nothing here trains or accounts for."""
        assert self.two_level is not None
        if self.sampled != "user" or not isinstance(self.sampler, PoissonSampler) or self.adjacency != "add_remove":
            raise InputError("two-level sampling draws users by Poisson coins, under add_remove adjacency")
        if (self.entity_cap, self.exposed) != (None, None) or self.record_selection not in ("all", "random"):
            raise InputError("two-level sampling has no caps and chooses among usable records by chance alone")
        if self.two_level.weight_caps is not None and self.local is None:
            raise InputError("weights of records are for local updates: a single gradient is a mean")

    @property
    def members(self) -> int:
        """Return the number of sampled members of the protected unit.

        group_size for ELS; group_size + entity_cap, or ``exposed``, for text sampling; 1 otherwise.
        """
        if self.unit == "user-entity" and self.two_level is None:
            return self.exposed or self.group_size + (self.entity_cap or 0)
        # Under ULS a user is one member, however many records: their mean gradient is clipped as one.
        return self.group_size if self.unit == "user" and self.sampled == "example" else 1

    @property
    def user_event(self) -> Event | None:
        """One step's event for all of a user's records; None where nothing bounds how many there are."""
        if self.unit == "user":
            return self.assumed_event
        if self.two_level is not None:
            return PoissonGaussian(self.noise_multiplier, self.sampler.rate)
        return self.exposed_event(self.group_size) if self.entity_cap is not None else None

    @property
    def assumed_event(self) -> Event:
        """One step's event as accounting assumes it: for shuffled cohorts that is Poisson sampling."""
        if self.two_level is not None:
            return self._two_level_event(self.two_level.holders)
        match self.sampler:
            case PoissonSampler() | ShuffledSampler():
                return PoissonGaussian(self.noise_multiplier, self.sampler.rate, self.members)
            case CappedPoissonSampler(rate=rate, population=population, cap=cap):
                return CappedPoissonGaussian(self.noise_multiplier, rate, population, cap)
            case FullBatchSampler(population=population):
                assert isinstance(self.clip, ConcentrationFilter)
                return FilteredGaussian(self.noise_multiplier, population, self.clip.above_epsilon)
            case _:
                assert_never(self.sampler)

    def exposed_event(self, exposed: int) -> PoissonGaussian | None:
        """One step of text sampling for a person in so many records; None for any other mechanism."""
        if self.unit != "user-entity" or self.two_level is not None:
            return None
        return PoissonGaussian(self.noise_multiplier, self.sampler.rate, exposed)

    def _two_level_event(self, holders: int) -> TwoLevelGaussian:
        """One step for a user and an entity that so many other users name."""
        assert self.two_level is not None
        return TwoLevelGaussian(self.noise_multiplier, self.sampler.rate, self.two_level.entity_rate, holders)

    @property
    def fallback_event(self) -> UnamplifiedGaussian:
        """The whole run without credit for sampling. Raises InputError unless cohorts are shuffled."""
        if not isinstance(self.sampler, ShuffledSampler):
            raise InputError("only shuffled cohorts have a fallback: Poisson sampling has its own event")
        n, m = self.sampler.population, self.sampler.cohort
        times = participations(n, m, self.steps, drop_incomplete=self.sampler.drop_incomplete)
        adjacency: Literal["zero_out", "replace"] = "replace" if self.adjacency == "replace" else "zero_out"
        return UnamplifiedGaussian(self.noise_multiplier, times, adjacency, self.members)

    @property
    def dp_event(self) -> dp_event.DpEvent:
        """The run as a dp-accounting event; NonPrivateDpEvent if there is no guarantee."""
        return dp_event.NonPrivateDpEvent() if self.reasons() else to_dp_event(self.assumed_event, self.steps)

    @property
    def clip_quantile(self) -> ClipQuantile | None:
        """What the clip norm follows; None: it stays."""
        return self.clip.quantile

    @property
    def sensitivity(self) -> float:
        """Largest norm that one sampled member adds to the sum; the noise has deviation noise_multiplier * this."""
        return self.clip.largest(self._above_threshold)

    def _above_threshold(self) -> float:
        assert self.delta is not None
        # What the event spends, since ``target_epsilon`` is None if the noise multiplier was given.
        spent = accounting.epsilon(self.assumed_event, self.steps, self.delta)
        return spent + math.log(self.steps / self.delta)

    def reasons(self) -> tuple[Statement, ...]:
        """Every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step); empty if there is one."""
        return reasons_of(self)

    def guarantee(self) -> Guarantee | NoGuarantee:
        """Return the guarantee of this mechanism; record, report and terminal print this label and no other."""
        self._check()  # again: pydantic's model_copy and model_construct skip validation
        reasons = self.reasons()
        if not reasons:
            promise = self._promise(self.assumed_event)
            # An infinite epsilon must not be printed under the label of a guarantee.
            return promise if math.isfinite(promise.epsilon) else NoGuarantee((NoGuaranteeReason.NO_FINITE_EPSILON(),))
        if self.unit == "none" or self.delta is None:
            return NoGuarantee(reasons)
        assumed = accounting.epsilon(self.assumed_event, self.steps, self.delta)
        fallback = None
        if self.two_level is not None and self.two_level.claimed_noise is not None:
            assumed = self._claimed(self.two_level, self.two_level.claimed_noise)
            # What holds makes good for the claim alone, as below for shuffling: any second reason voids it too.
            if len(reasons) == 1:
                fallback = self._promise(self.assumed_event)
        if isinstance(self.sampler, ShuffledSampler) and len(reasons) == 1:
            fallback = self._promise(self.fallback_event)
        return NoGuarantee(reasons, assumed, fallback)

    def epsilon(self) -> float:
        """The guarantee's epsilon; inf without a guarantee, whatever accounting would have assumed."""
        promise = self.guarantee()
        return promise.epsilon if isinstance(promise, Guarantee) else math.inf

    def calibrated(self, target_epsilon: float) -> "Mechanism":
        """This mechanism with the least noise whose (assumed) epsilon at delta is at most target_epsilon."""
        if self.delta is None:
            raise InputError("delta is missing, so that there is nothing to calibrate to")
        if self.two_level is not None:
            raise InputError("two-level sampling takes a noise multiplier: heldin account uedp says what it gives")
        noise = accounting.calibrate(self.assumed_event, self.steps, self.delta, target_epsilon)
        # Built anew, since pydantic's ``model_copy`` skips validation.
        return Mechanism(**{**dict(self), "noise_multiplier": noise, "target_epsilon": target_epsilon})

    def _promise(self, event: Event) -> Guarantee:
        assert self.delta is not None
        assert self.unit != "none"
        units, population = self.protected_units, self.sampler.population
        if units is None and population is not None:
            # The fewest users who can hold the population's records: at most G each, or all of them.
            held = self.group_size if self.unit == "user-entity" else self.members
            units = -(-population // held) if self.two_level is None else population
        caution = accounting.delta_caution(self.delta, units) if units is not None else None
        exposure = self._exposure() if self.unit == "user-entity" else None
        return Guarantee(
            # Of exposure, so that a name that was missed counts too.
            epsilon=exposure.epsilon_at(exposure.exposed)
            if exposure
            else accounting.epsilon(event, self.steps, self.delta),
            delta=self.delta,
            unit=self.unit,
            adjacency=self.adjacency,
            conditions=conditions_of(self),
            cautions=() if caution is None else (caution,),
            exposure=exposure,
        )

    def _claimed(self, two_level: TwoLevel, noise: float) -> float:
        """The paper's claim: that of a random record's rate (docs/theory.md#claims-of-user-entity-dp)."""
        assert self.delta is not None
        share = 1.0 if two_level.extended_rate == 0.0 else two_level.sensitive_share or 1.0
        return moments_epsilon(noise, self.sampler.rate * two_level.entity_rate * share, self.steps, self.delta)

    def exposure_marks(self) -> list[int]:
        """Numbers of records, or of holders, at which the curve is stated, ascending."""
        if self.two_level is not None:
            return [0, *(k for k in HOLDERS if k < self.two_level.holders), self.two_level.holders]
        return sorted({*EXPOSED, self.members, *((self.group_size, self.entity_cap) if self.entity_cap else ())})

    def epsilon_at(self, exposed: int) -> float:
        """epsilon of a person in so many records, or with so many holders; ``reasons`` void it."""
        assert self.delta is not None
        if self.two_level is not None:
            return two_level_epsilon(self._two_level_event(exposed), self.steps, self.delta, self.two_level.rule)
        event = self.exposed_event(exposed)
        assert event is not None
        return accounting.epsilon(event, self.steps, self.delta)

    def _exposure(self) -> Exposure:
        curve = tuple(EpsilonAtExposure(m, self.epsilon_at(m)) for m in self.exposure_marks())
        if self.two_level is not None:
            return Exposure("holders", self.two_level.holders, curve)
        return Exposure("records", self.members, curve, self.group_size if self.entity_cap else None, self.entity_cap)
