"""The interface of a mechanism: a config section, which gives a plan, and a level, which states the protection.

``defense`` in a config becomes the section, and all of its numbers are public constants. From a plan's fields, the
level derives whether an accountant covers the plan, the event, and the reasons and conditions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from heldin.base.errors import InputError
from heldin.base.section import Section
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.spans import Category
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import Event
from heldin.defenses.choices import DataStep, LocalUpdates, NoiseGenerator, Unit
from heldin.defenses.exposure import Exposure
from heldin.words.guarantee import NoGuaranteeReason
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

Checkpoint: TypeAlias = Literal["last_step", "public_validation", "protected_validation"]


@dataclass(frozen=True)
class Given:
    """The inputs of a plan from the rest of a config.

    Attributes:
        plain_steps: number of optimizer steps of plain training, which follows from the data.
        batch_size: batch size of plain training.
        clip_norm: norm that a plain run measured, for a defense that sets no norm.
        checkpoint: rule that chooses the released checkpoint.
        data_steps: data-side steps before training.
        assumptions: assumptions of the guarantee that hold for every mechanism.
    """

    plain_steps: int
    batch_size: int
    clip_norm: float | None
    checkpoint: Checkpoint
    data_steps: tuple[DataStep, ...]
    assumptions: tuple[Statement, ...]


class DefenseConfig(Section, ABC):
    """A kind of ``defense``. A class that sets nothing here trains like plain training."""

    kind: str
    """Name of the kind, or "package.module:Class"."""

    is_private: ClassVar[bool] = False
    """Whether this kind adds noise, and so has a plan with a guarantee."""
    is_plain: ClassVar[bool] = False
    """Whether this kind is plain training without a defense."""
    protects_named: ClassVar[bool] = False
    """Whether this kind also protects people who are named in other people's records."""
    may_halt: ClassVar[bool] = False
    """Whether training may end without a model."""
    repeats_records: ClassVar[bool] = False
    """Whether training repeats records of a user who has fewer records than the plan states."""

    @abstractmethod
    def plan(self, given: Given) -> dict[str, Any]:
        """Return the fields of the ``Mechanism``, with a placeholder for noise that heldin will calibrate."""

    @property
    def promises_users(self) -> bool:
        """Whether every user has an epsilon, if the plan's guarantee holds."""
        return False

    @property
    def calibrated_to(self) -> float | None:
        """Target epsilon for calibrating the noise; None if the plan sets the noise."""
        return None

    def noise_generator(self) -> NoiseGenerator | None:
        """Return the noise generator; None without noise."""
        return None

    @property
    def pass_records(self) -> int:
        """Maximum number of records in one backward pass of a private step."""
        return 1

    @property
    def records_of_a_unit(self) -> int | None:
        """Number of records that a sampled unit adds to a step; None: all records of a user."""
        return 1

    @property
    def cohort_size(self) -> int | None:
        """Expected number of units in a step; None for all units or plain batches."""
        return None

    @property
    def local_updates(self) -> LocalUpdates | None:
        """The local steps on a drawn user's records; None if the defense clips gradients."""
        return None

    @property
    def carries_noise(self) -> bool:
        """Whether the noise of a step depends on the noise of earlier steps."""
        return False

    @property
    def clips_plainly(self) -> Literal["example", "batch"] | None:
        """The unit that heldin clips without noise; None: no unit, or a private step's units."""
        return None

    @property
    def measured_clip(self) -> Literal["example", "batch"] | None:
        """The unit whose gradient norms a plain run measures for the clip norm; None: no plain run comes first."""
        return None

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """Keys of the config that rule out a model that is spread over processes."""
        return ()

    @property
    def relies_on_base(self) -> bool:
        """Whether the guarantee assumes that the base model has not seen the protected people."""
        return False

    @property
    def searched_by(self) -> EntitySourceConfig | None:
        """The source that finds the people and things named in a record; None if the mechanism needs no source."""
        return None

    @property
    def entity_categories(self) -> tuple[Category, ...]:
        """Categories of the names that ``searched_by`` finds."""
        return ()

    @property
    def caps(self) -> tuple[int, int] | None:
        """The caps (G, k): most records of a user, and most records that name an entity; None without caps."""
        return None

    @property
    def capped_as(self) -> Statement | None:
        """The data step that applies the caps; None without caps."""
        return None

    @property
    def pool_settings(self) -> dict[str, Any] | None:
        """The settings that decide about the audit of entities; None if the mechanism has no entities."""
        return None

    def assumptions(self, made_of_texts: frozenset[str]) -> tuple[Statement, ...]:
        """Return the assumptions of the guarantee that come from this mechanism.

        Args:
            made_of_texts: kinds of entity sources that may come from the protected people's texts.
        """
        return ()

    def require_model(self, model: Any) -> None:
        """Raise InputError for a model on which the steps would be wrong."""

    def retraining_problem(self, documents: int | None) -> str | None:
        """Return the reason why the mechanism rules out independent trainings, with a remedy; None if it allows
        independent trainings.

        Args:
            documents: number of documents of the worst-case user, if given.
        """
        return None

    @property
    def worst_case_documents(self) -> int | None:
        """Maximum number of a worst-case user's documents that training uses completely; None: any number."""
        return None


@dataclass(frozen=True)
class Level(ABC):
    """The protection that the plan of a mechanism gives, with its event, reasons and conditions."""

    mechanism: "Mechanism"

    unit: ClassVar[Unit | Literal["none"]]
    """Protected unit of the plan."""
    method: ClassVar[str]
    """Name of the accounting in ``heldin account``."""
    protects: ClassVar[bool] = True
    """Whether the plan protects any unit."""
    protects_named: ClassVar[bool] = False
    """Whether the plan also protects people who are named in records."""
    counts_users: ClassVar[bool] = False
    """Whether the plan bounds attackers per user, and not only per record."""
    protects_records: ClassVar[bool] = False
    """Whether the protected unit is a record."""
    caps_users: ClassVar[bool] = False
    """Whether heldin chooses each user's records once, before training."""
    cannot_calibrate: ClassVar[str | None] = None
    """Reason why heldin cannot calibrate the noise to an epsilon; None if calibration is possible."""

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether this is the level of the plan."""
        return mechanism.unit == cls.unit

    def check(self) -> None:
        """Raise InputError for a combination of fields that no accountant in heldin covers."""
        plan = self.mechanism
        if (plan.entity_cap, plan.exposed, plan.two_level) != (None, None, None):
            raise InputError(f"entity cap and exposed records need unit user-entity, not {plan.unit}: leave both out")

    @property
    def members(self) -> int:
        """Number of sampled members of the protected unit."""
        return 1

    @property
    def event(self) -> Event:
        """The event of one round that accounting assumes; for shuffled cohorts, Poisson sampling."""
        plan = self.mechanism
        return plan.sampler.event(plan.noise_multiplier, self.members, plan.clip)

    @property
    def user_event(self) -> Event | None:
        """The event of one round for all of a user's records; None if nothing bounds the number of records."""
        return None

    @property
    def fallback_event(self) -> Event | None:
        """An event that holds even if the plan's only reason voids the assumed event; None if no such event exists."""
        plan = self.mechanism
        return plan.sampler.fallback_event(plan.noise_multiplier, self.members, plan.adjacency, plan.steps)

    def assumed_epsilon(self) -> float:
        """Return the epsilon of the accounting if no reason held."""
        assert self.mechanism.delta is not None
        return accounting.epsilon(self.event, self.mechanism.rounds, self.mechanism.delta)

    def reasons(self) -> Sequence[Statement]:
        """Return this level's own reasons for no guarantee."""
        return ()

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return this level's own conditions.

        Args:
            refilling: data steps in which another record of the user takes a missing record's place.
        """
        return ()

    def fewest_units(self, population: int) -> int:
        """Return the smallest number of protected units in a population of sampled units."""
        return -(-population // self.members)

    def exposure(self) -> Exposure | None:
        """Return epsilon as a function of a person's exposure; None if one epsilon holds for everybody."""
        return None

    def exposed_event(self, exposed: int) -> Event | None:
        """Return the event of one step for a person in ``exposed`` records; None if exposure does not count records."""
        return None

    def exposure_marks(self) -> list[int]:
        """Return the exposures at the points of the curve, ascending."""
        raise InputError(
            f"the guarantee of unit {self.mechanism.unit} does not depend on exposure: leave the number of exposed"
            " records out"
        )

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon of a person with this exposure. Any of ``reasons`` voids the epsilon."""
        raise InputError(
            f"the guarantee of unit {self.mechanism.unit} does not depend on exposure: leave the number of exposed"
            " records out"
        )


def looks_across(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Return the reason for plans with data steps that use several users' records, which void a user-level epsilon."""
    leaky = [step.name for step in mechanism.data_steps if not step.user_local]
    return (NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=leaky),) if leaky else ()


def compares_texts(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Return the reason for plans with data steps that compare texts.

    If one text is missing, such a step may keep or change other texts differently, and nothing bounds their number.
    """
    comparing = [step.name for step in mechanism.data_steps if not (step.record_local or step.slots_only)]
    return (NoGuaranteeReason.COMPARES_TEXTS(steps=comparing),) if comparing else ()
