"""The mechanism as data. The trainer runs it, the accountant reads it, the audit tests it and the report prints it.

Everything in a ``Mechanism`` is public and comes from the config. Sampling rate, population, cohort, divisor, delta and
steps are constants, never computed from the data or the coins (docs/theory.md#public-constants). A mechanism that
departs from the accounted mechanism has the label "no DP guarantee", with the reason. Nobody can build such a mechanism
without this label.
"""

import math
from typing import Annotated, Any, Literal

from dp_accounting import dp_event
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from heldin.base.errors import InputError
from heldin.base.section import LARGEST, Count, Many, NotNegative, Positive
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.closed_forms import check_delta
from heldin.defenses.accounting.events import Event
from heldin.defenses.accounting.step_pld import to_dp_event
from heldin.defenses.choices import (
    Adjacency,
    Choice,
    Clip,
    ClipQuantile,
    DataStep,
    Divisor,
    LocalUpdates,
    RecordSelection,
    TwoLevel,
    Unit,
)
from heldin.defenses.guarantee import DeclaredGuarantee, Guarantee, NoGuarantee, conditions_of, reasons_of
from heldin.defenses.mechanisms.contract import Checkpoint, Level
from heldin.defenses.mechanisms.declaration import Declared
from heldin.defenses.mechanisms.levels import level_of
from heldin.defenses.samplers import Sampler
from heldin.words.guarantee import AUDITS, NoGuaranteeReason
from heldin.words.statement import Statement


class Mechanism(Choice):
    """A training run's privacy mechanism. It is immutable, and equal mechanisms have equal epsilon.

    Attributes:
        unit: the protected unit; "none" for a plain run. "user-entity" with sampled "example" is text sampling (anyone
            who wrote a record or is named in one), and with "user" two-level sampling (a user and an entity).
        adjacency: the data sets that count as neighbours.
        sampled: the units that the sampler draws. "user" with unit "user" is ULS. "example" with unit "user" is ELS or
            group privacy. "example" with unit "example" is example-level DP. "example" with unit "user-entity" is text
            sampling.
        sampler: the sampler of the units in a step.
        group_size: for ULS, the number of a user's records per step (no effect on epsilon). For ELS, and for text
            sampling under caps, the cap on a user's records.
        entity_cap: for text sampling under caps, the cap on records that name an entity.
        exposed: for text sampling without caps, the number of records of a person for whom epsilon is stated.
        two_level: sampling of entities in addition to users; the noise multiplier is then the multiplier on the sum.
        local: training on a drawn user's records, if the mechanism clips a model difference instead of a gradient.
        clip: clipping of gradients.
        noise_multiplier: noise standard deviation over sensitivity.
        delta: delta of the guarantee; None only for a plain run.
        divisor: divisor of the noised sum.
        record_selection: rule that selects the used records of a user.
        noise_generator: name of the generator, for reports.
        checkpoint: rule that chooses the released checkpoint.
        data_steps: data-side steps before training.
        base_model_saw_protected: whether the base model was trained on protected users, or on data that they
            influenced.
        tokenizer_saw_protected: whether the tokenizer was trained on protected users' data, or on data that they
            influenced.
        assumptions: assumptions of the guarantee and the rule of its delta, printed with it.
        target_epsilon: epsilon to which the noise was calibrated; None if the noise multiplier was given.
        protected_units: public number of protected units, for the warning about delta; None: the smallest possible
            number, which is the sampler's population, divided by ``group_size`` if records are drawn.
        declared: declaration of the package that computes the steps; None: heldin computes the steps.

    Raises:
        InputError: no accountant in heldin covers the combination. The message is one line with every problem.
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
    checkpoint: Checkpoint = "last_step"
    data_steps: tuple[DataStep, ...] = ()
    base_model_saw_protected: bool = False
    tokenizer_saw_protected: bool = False
    assumptions: tuple[Statement, ...] = ()
    target_epsilon: Positive | None = None
    protected_units: Count | None = None
    declared: Declared | None = None

    @model_serializer(mode="wrap")
    def _without_empty_declaration(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Plans of heldin's own mechanisms are hashed: a key that none of them uses is in none of them.
        fields: dict[str, Any] = handler(self)
        if fields.get("declared", ...) is None:
            del fields["declared"]
        return fields

    @model_validator(mode="after")
    def _accountable(self) -> "Mechanism":
        self._check()
        return self

    def _check(self) -> None:
        """Raise InputError for a combination of fields that no accountant in heldin covers."""
        # A plain run needs no accountant, whatever its sampler and clip; ``reasons`` says that it protects nobody.
        if not self.protects:
            return
        if self.delta is None:
            raise InputError("delta is missing: give a public constant below 1 / population, for example n^-1.1")
        check_delta(self.delta, self.steps)
        if self.local is not None and not (self.samples_users and self.sampler.by_coins):
            raise InputError(
                "local updates are computed for each sampled user: sample users, by Poisson coins in every step"
            )
        self.level.check()
        self.sampler.check(self.adjacency, self.members, self.delta, self.steps)
        _ = self.assumed_event  # the event's own checks: cap below the expected cohort, cohort above the population

    @property
    def level(self) -> Level:
        """The level of protection, which gives the event, the reasons and the conditions."""
        return level_of(self)

    @property
    def protects(self) -> bool:
        """Whether there is a unit to protect; a plain run has none."""
        return self.level.protects

    @property
    def samples_users(self) -> bool:
        """Whether the sampler draws users instead of single records."""
        return self.sampled == "user"

    @property
    def ranks_by_losses(self) -> bool:
        """Whether the loss under the base model decides which of a user's records are used."""
        return self.record_selection in ("highest_perplexity", "lowest_perplexity")

    @property
    def members(self) -> int:
        """Number of sampled members of the protected unit.

        The number is group_size for ELS; group_size + entity_cap, or ``exposed``, for text sampling; 1 otherwise.
        """
        return self.level.members

    @property
    def rounds(self) -> int:
        """Number of times that accounting composes the event: once for each step that may include a unit."""
        return self.sampler.rounds(self.steps)

    @property
    def user_event(self) -> Event | None:
        """The event of one round for all of a user's records; None if nothing bounds the number of records."""
        return self.level.user_event

    @property
    def assumed_event(self) -> Event:
        """The event of one round that accounting assumes; for shuffled cohorts, Poisson sampling."""
        return self.level.event

    def exposed_event(self, exposed: int) -> Event | None:
        """Return one step's event for a person in ``exposed`` records; None unless the mechanism is text sampling."""
        return self.level.exposed_event(exposed)

    def exposure_marks(self) -> list[int]:
        """Return the numbers of records, or of holders, at the points of the curve, ascending."""
        return self.level.exposure_marks()

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon of a person in ``exposed`` records, or with ``exposed`` holders.

        Any of ``reasons`` voids this epsilon.
        """
        return self.level.epsilon_at(exposed)

    @property
    def fallback_event(self) -> Event:
        """Return the event of the whole run without credit for sampling.

        Raises InputError unless cohorts are shuffled.
        """
        event = self.sampler.fallback_event(self.noise_multiplier, self.members, self.adjacency, self.steps)
        if event is None:
            raise InputError("only shuffled cohorts have a fallback: use the event of Poisson sampling itself")
        return event

    @property
    def dp_event(self) -> dp_event.DpEvent:
        """Return the run as a dp-accounting event; NonPrivateDpEvent if there is no guarantee."""
        return dp_event.NonPrivateDpEvent() if self.reasons() else to_dp_event(self.assumed_event, self.rounds)

    @property
    def clip_quantile(self) -> ClipQuantile | None:
        """The quantile that the clip norm follows; None: the clip norm is constant."""
        return self.clip.quantile

    @property
    def sensitivity(self) -> float:
        """Largest norm that one sampled member adds to the sum.

        This norm equals the noise deviation over ``noise_multiplier``.
        """
        return self.clip.largest(self._above_threshold)

    def _above_threshold(self) -> float:
        assert self.delta is not None
        # What the event spends, since ``target_epsilon`` is None if the noise multiplier was given.
        spent = accounting.epsilon(self.assumed_event, self.rounds, self.delta)
        return spent + math.log(self.steps / self.delta)

    def reasons(self) -> tuple[Statement, ...]:
        """Return every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step).

        The result is empty if there is a guarantee.
        """
        return reasons_of(self)

    def guarantee(self) -> Guarantee | NoGuarantee:
        """Return the guarantee of this mechanism. Record, report and terminal print only this label."""
        self._check()  # again: pydantic's model_copy and model_construct skip validation
        reasons = self.reasons()
        if not reasons:
            promise = self._promise(self.assumed_event, self.rounds)
            # An infinite epsilon must not be printed under the label of a guarantee.
            return promise if math.isfinite(promise.epsilon) else NoGuarantee((NoGuaranteeReason.NO_FINITE_EPSILON(),))
        if not self.protects or self.delta is None:
            return NoGuarantee(reasons)
        held = self.level.fallback_event
        # It makes good for the one reason that it belongs to: any second reason voids it too.
        fallback = self._promise(held, self.steps) if held is not None and len(reasons) == 1 else None
        return NoGuarantee(reasons, self.level.assumed_epsilon(), fallback)

    def epsilon(self) -> float:
        """Return the guarantee's epsilon; inf without a guarantee, even if accounting assumes a finite epsilon."""
        promise = self.guarantee()
        return promise.epsilon if isinstance(promise, Guarantee) else math.inf

    def calibrated(self, target_epsilon: float) -> "Mechanism":
        """Return this mechanism with the least noise at which the (assumed) epsilon is at most ``target_epsilon``."""
        if self.delta is None:
            raise InputError("delta is missing, so the noise cannot be calibrated: give a delta")
        if self.level.cannot_calibrate is not None:
            raise InputError(self.level.cannot_calibrate)
        noise = accounting.calibrate(self.assumed_event, self.rounds, self.delta, target_epsilon)
        # Built anew, since pydantic's ``model_copy`` skips validation.
        return Mechanism(**{**dict(self), "noise_multiplier": noise, "target_epsilon": target_epsilon})

    def _promise(self, event: Event, rounds: int) -> Guarantee:
        assert self.delta is not None
        assert self.unit != "none"
        units, population = self.protected_units, self.sampler.population
        if units is None and population is not None:
            units = self.level.fewest_units(population)
        caution = accounting.delta_caution(self.delta, units) if units is not None else None
        exposure = self.level.exposure()
        promise = Guarantee(
            # Of exposure, so that a name that was missed counts too.
            epsilon=exposure.epsilon_at(exposure.exposed)
            if exposure
            else accounting.epsilon(event, rounds, self.delta),
            delta=self.delta,
            unit=self.unit,
            adjacency=self.adjacency,
            conditions=conditions_of(self),
            cautions=() if caution is None else (caution,),
            exposure=exposure,
        )
        if self.declared is None:
            return promise
        return DeclaredGuarantee(**vars(promise), package=self.declared.of_package, audit=AUDITS[self.declared.audit]())
