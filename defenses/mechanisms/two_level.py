"""Two-level sampling (UeDP-Alg of Lai et al., 2021), which draws users and entities and clips a drawn user's update.

The mechanism protects a user and an entity (docs/theory.md#two-level-sampling).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heldin.base.errors import InputError
from heldin.base.section import Many
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.defenses.accounting.events import Event, PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.guarantees import HOLDERS, moments_epsilon, two_level_epsilon
from heldin.defenses.choices import LocalUpdates, TwoLevel, Unit, WeightCaps
from heldin.defenses.exposure import EpsilonAtExposure, Exposure
from heldin.defenses.mechanisms.contract import Given, Level, compares_texts
from heldin.defenses.mechanisms.settings import NamedPeopleDefense
from heldin.words.guarantee import GuaranteeCondition, NoGuaranteeReason
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism


class UedpDefense(NamedPeopleDefense):
    """UeDP-Alg of Lai et al. (2021): heldin samples users and entities, and clips the model difference of each drawn
    user.
    """

    kind: Literal["uedp"]
    entities: EntitySourceConfig
    """Source of entities: how heldin finds the people who are named in a record."""
    entity_rate: float = Field(0.5, gt=0, le=1)
    """Probability q_e that a step samples a recognised entity."""
    extended_rate: float = Field(1.0, ge=0, le=1)
    """Probability q_s that a step samples a record without recognised entities. 0: training ignores such records
    (estimator f_E)."""
    rule: Literal["any", "all"] = "any"
    """Which of a sampled user's records with recognised entities a step uses. any: records with at least one sampled
    entity (as in the paper). all: records in which every recognised entity is sampled."""
    noise_scale: Literal["cohort", "clip_norm"] = "cohort"
    """Unit of the noise multiplier: (cohort + 1) clip norms (Algorithm 1, line 14), or one clip norm."""
    weight_caps: WeightCaps | None = None
    """Caps for the weights in lines 3 and 4 of Algorithm 1. These weights depend on private counts of records. null:
    every weight is 1.
    """
    local: LocalUpdates | None = None
    """Local steps on the records of a sampled user (Algorithm 1, lines 20 to 28). null: one gradient instead."""
    group_size: Many | None = None
    """Maximum number of records per sampled user in a step. If a user has more usable records, heldin chooses at
    random. null: no maximum.
    """
    account: Literal["paper", "strict"] = "paper"
    """Epsilon that the run claims. paper: the paper's epsilon, which does not hold. strict: the epsilon that holds for
    this algorithm.
    """
    sensitive_share: float | None = Field(None, gt=0, le=1)
    """Share of records with a recognised entity. Give a constant that does not depend on private data. The paper's
    epsilon needs this share, unless extended_rate is 0.
    """
    holders: Many | None = None
    """Maximum number of other users who name the same entity. The stated epsilon holds up to this number. null: all
    other users."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.noise_multiplier is None:
            raise ValueError("kind 'uedp' needs noise_multiplier: give one (heldin account uedp prints its guarantee)")
        if self._claims_the_papers and self.extended_rate > 0 and self.sensitive_share is None:
            raise ValueError(
                "the paper's claim needs sensitive_share: give the share of records with a recognised entity (heldin"
                " corpus entities counts them), or set account: strict"
            )
        if self.weight_caps is not None and self.local is None:
            raise ValueError(
                "weight_caps needs local updates, since a single gradient is a mean over records: set local, or"
                " leave weight_caps out"
            )
        if self.population < 2:
            raise ValueError(
                "population is below 2, but epsilon depends on the number of other users who may name an entity:"
                " give at least 2"
            )
        return self

    @property
    def _claims_the_papers(self) -> bool:
        return self.account == "paper"

    @property
    def local_updates(self) -> LocalUpdates | None:
        """The local updates in the config."""
        return self.local

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The key of the local updates, if there are local updates."""
        return ("defense.local",) if self.local is not None else ()

    @property
    def records_of_a_unit(self) -> int | None:
        """The number of a drawn user's records, ``group_size``; None for all usable records."""
        return self.group_size

    @property
    def pool_settings(self) -> dict[str, Any]:
        """The entities, and the number of a user's records in use."""
        return self.model_dump(mode="json", include={"entities", "categories", "group_size"})

    def retraining_problem(self, documents: int | None) -> str | None:
        """Return a problem unless every step uses the records that name no entity."""
        if self.extended_rate < 1:
            return (
                "the worst-case user's documents name nobody, and would not always be used: set"
                " defense.extended_rate to 1"
            )
        return None

    def assumptions(self, made_of_texts: frozenset[str]) -> tuple[Statement, ...]:
        """Return the assumptions about entities, because entities decide which records a step may use."""
        return self.entity_assumptions(made_of_texts)

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: users and entities are sampled."""
        assert self.noise_multiplier is not None
        # Algorithm 1, line 14, with weights of at most 1: z (q_u |U| + 1) beta on the sum.
        on_sum = self.noise_multiplier * (self.cohort + 1 if self.noise_scale == "cohort" else 1)
        return {
            **super().plan(given),
            "noise_multiplier": on_sum,
            "unit": "user-entity",
            "sampled": "user",
            "group_size": self.group_size or 1,
            "record_selection": "random" if self.group_size else "all",
            "two_level": TwoLevel(
                entity_rate=self.entity_rate,
                extended_rate=self.extended_rate,
                rule=self.rule,
                holders=self.holders or self.population - 1,
                weight_caps=self.weight_caps,
                claimed_noise=self.noise_multiplier if self._claims_the_papers else None,
                sensitive_share=self.sensitive_share if self._claims_the_papers else None,
            ),
            "local": self.local,
        }


class PairLevel(Level):
    """The level of a user and an entity.

    Epsilon depends on the number of other users who name the entity (its holders).
    """

    unit: ClassVar[Unit | Literal["none"]] = "user-entity"
    method: ClassVar[str] = "uedp"
    protects_named: ClassVar[bool] = True
    cannot_calibrate: ClassVar[str | None] = (
        "two-level sampling needs a noise multiplier: heldin account uedp prints the epsilon for it"
    )

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether users and entities are protected, with coins for entities."""
        return super().covers(mechanism) and mechanism.two_level is not None

    @property
    def _settings(self) -> TwoLevel:
        assert self.mechanism.two_level is not None
        return self.mechanism.two_level

    def check(self) -> None:
        """Raise InputError for two-level sampling that heldin cannot train or account for."""
        plan = self.mechanism
        if not plan.samples_users or not plan.sampler.by_coins or plan.adjacency != "add_remove":
            raise InputError(
                "two-level sampling needs users drawn by Poisson coins under add_remove adjacency: set both"
            )
        if (plan.entity_cap, plan.exposed) != (None, None) or plan.record_selection not in ("all", "random"):
            raise InputError(
                "two-level sampling allows no caps, and chooses among usable records only by chance: set record"
                " selection to all or random"
            )
        if self._settings.weight_caps is not None and plan.local is None:
            raise InputError(
                "weights of records need local updates, because a single gradient is a mean: set local, or leave"
                " the weights out"
            )

    @property
    def event(self) -> TwoLevelGaussian:
        """The event for an entity with the plan's number of holders."""
        return self._event_of(self._settings.holders)

    def _event_of(self, holders: int) -> TwoLevelGaussian:
        plan = self.mechanism
        return TwoLevelGaussian(plan.noise_multiplier, plan.sampler.rate, self._settings.entity_rate, holders)

    @property
    def user_event(self) -> Event:
        """The event of a user alone."""
        return PoissonGaussian(self.mechanism.noise_multiplier, self.mechanism.sampler.rate)

    @property
    def fallback_event(self) -> Event | None:
        """The event of the actual guarantee, if the plan states the paper's claim."""
        return None if self._settings.claimed_noise is None else self.event

    def assumed_epsilon(self) -> float:
        """Return the paper's claim, at the rate of a random record (docs/theory.md#claims-of-user-entity-dp)."""
        plan, settings = self.mechanism, self._settings
        if settings.claimed_noise is None:
            return super().assumed_epsilon()
        assert plan.delta is not None
        share = 1.0 if settings.extended_rate == 0.0 else settings.sensitive_share or 1.0
        rate = plan.sampler.rate * settings.entity_rate * share
        return moments_epsilon(settings.claimed_noise, rate, plan.steps, plan.delta)

    def reasons(self) -> Sequence[Statement]:
        """Return reasons for no guarantee: steps that compare texts, the paper's claim, weights that count records."""
        claimed = [NoGuaranteeReason.RANDOM_RECORD_RATE()] if self._settings.claimed_noise is not None else []
        weighted = [NoGuaranteeReason.WEIGHTS_COUNT_RECORDS()] if self._settings.weight_caps is not None else []
        return [*compares_texts(self.mechanism), *claimed, *weighted]

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return conditions: neighbours are defined after preprocessing; under rule "all", missed names have no
        coin."""
        after = [GuaranteeCondition.AFTER_PREPROCESSING(steps=list(refilling))] if refilling else []
        return [*after, *([GuaranteeCondition.NAMES_MISSED()] if self._settings.rule == "all" else [])]

    def fewest_units(self, population: int) -> int:
        """Return the population, because the sampled units are users."""
        return population

    def exposure(self) -> Exposure:
        """Return epsilon as a function of the number of holders."""
        curve = tuple(EpsilonAtExposure(m, self.epsilon_at(m)) for m in self.exposure_marks())
        return Exposure("holders", self._settings.holders, curve)

    def exposure_marks(self) -> list[int]:
        """Return 0, some numbers of holders, and the plan's number."""
        return [0, *(k for k in HOLDERS if k < self._settings.holders), self._settings.holders]

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon of a user and an entity with ``exposed`` holders."""
        assert self.mechanism.delta is not None
        event = self._event_of(exposed)
        return two_level_epsilon(event, self.mechanism.steps, self.mechanism.delta, self._settings.rule)
