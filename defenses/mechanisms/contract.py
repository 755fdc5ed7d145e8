"""What a mechanism is: a section of a config that gives a plan, and a level that says what the plan protects.

The section is what ``defense`` in a config is read into; all its numbers are public constants. The level holds what
follows from a plan's fields: which combinations have an accountant, the event, the reasons and conditions.
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
    """What a plan takes from the rest of a config.

    Attributes:
        plain_steps: optimizer steps of plain training, which follow from the data.
        batch_size: of plain training.
        clip_norm: measured in a plain run, for a defense that names none.
        checkpoint: how the released checkpoint is chosen.
        data_steps: steps on the data before training.
        assumptions: what the guarantee assumes, whatever the mechanism.
    """

    plain_steps: int
    batch_size: int
    clip_norm: float | None
    checkpoint: Checkpoint
    data_steps: tuple[DataStep, ...]
    assumptions: tuple[Statement, ...]


class DefenseConfig(Section, ABC):
    """A kind of ``defense``. What it does not say is as for plain training."""

    kind: str
    """Name of the kind, or "package.module:Class"."""

    is_private: ClassVar[bool] = False
    """Whether it adds noise, so that there is a plan to account for."""
    is_plain: ClassVar[bool] = False
    """Whether training is that without a defense."""
    protects_named: ClassVar[bool] = False
    """Whether people named in others' records are protected too."""
    may_halt: ClassVar[bool] = False
    """Whether training may end without a model."""
    repeats_records: ClassVar[bool] = False
    """Whether the records of users with fewer than the plan's number are repeated."""

    @abstractmethod
    def plan(self, given: Given) -> dict[str, Any]:
        """Return the fields of the ``Mechanism``, with a stand-in for noise that is to be calibrated."""

    @property
    def promises_users(self) -> bool:
        """Whether every user has an epsilon, if the plan's guarantee holds."""
        return False

    @property
    def calibrated_to(self) -> float | None:
        """Epsilon that the noise is to meet; None if the plan has the noise."""
        return None

    def noise_generator(self) -> NoiseGenerator | None:
        """Return the noise generator; None without noise."""
        return None

    @property
    def pass_records(self) -> int:
        """Most records in one backward pass of a private step."""
        return 1

    @property
    def records_of_a_unit(self) -> int | None:
        """Records that a sampled unit adds to a step; None: all that a user has."""
        return 1

    @property
    def cohort_size(self) -> int | None:
        """Expected number of units in a step; None: all of them, or plain batches."""
        return None

    @property
    def local_updates(self) -> LocalUpdates | None:
        """A drawn user's own steps; None if gradients are clipped."""
        return None

    @property
    def carries_noise(self) -> bool:
        """Whether the noise of a step depends on that of earlier ones."""
        return False

    @property
    def clips_plainly(self) -> Literal["example", "batch"] | None:
        """What is clipped without noise; None: nothing, or a private step's units."""
        return None

    @property
    def measured_clip(self) -> Literal["example", "batch"] | None:
        """Whose gradient norms a plain run measures first, for the clip norm; None: no plain run comes first."""
        return None

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """Keys of the config that cannot go with a model spread over processes."""
        return ()

    @property
    def relies_on_base(self) -> bool:
        """Whether the guarantee assumes that the base model has not seen the protected people."""
        return False

    @property
    def searched_by(self) -> EntitySourceConfig | None:
        """What finds whom a record names, for the mechanism; None if nothing is searched."""
        return None

    @property
    def entity_categories(self) -> tuple[Category, ...]:
        """Categories of names that ``searched_by`` finds."""
        return ()

    @property
    def caps(self) -> tuple[int, int] | None:
        """(G, k): most records of a user, and most that name an entity; None without caps."""
        return None

    @property
    def capped_as(self) -> Statement | None:
        """The step on the data that the caps are; None without caps."""
        return None

    @property
    def pool_settings(self) -> dict[str, Any] | None:
        """The settings that decide which entities can be audited; None if it knows of no entities."""
        return None

    def assumptions(self, made_of_texts: frozenset[str]) -> tuple[Statement, ...]:
        """Return what the guarantee assumes because of this mechanism.

        Args:
            made_of_texts: kinds of entity sources that may come from the protected people's texts.
        """
        return ()

    def require_model(self, model: Any) -> None:
        """Raise InputError for a model for which the steps are not right."""

    def retraining_problem(self, documents: int | None) -> str | None:
        """Return why independent trainings cannot be run with it, and what to do; None if they can.

        Args:
            documents: of the worst-case user, if given.
        """
        return None

    @property
    def worst_case_documents(self) -> int | None:
        """Documents of a worst-case user, of whom training uses all; None: any number."""
        return None


@dataclass(frozen=True)
class Level(ABC):
    """What the plan of a mechanism protects, and what follows from that."""

    mechanism: "Mechanism"

    unit: ClassVar[Unit | Literal["none"]]
    """The plan's unit."""
    method: ClassVar[str]
    """Name of the accounting in ``heldin account``."""
    protects: ClassVar[bool] = True
    """Whether there is a unit to protect."""
    protects_named: ClassVar[bool] = False
    """Whether people named in records are protected too."""
    counts_users: ClassVar[bool] = False
    """Whether bounds on attackers are bounds on users."""
    protects_records: ClassVar[bool] = False
    """Whether a unit is a record."""
    caps_users: ClassVar[bool] = False
    """Whether each user's records are chosen once, before training."""
    cannot_calibrate: ClassVar[str | None] = None
    """Why the noise cannot be found for an epsilon; None if it can."""

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether this is the level of a plan."""
        return mechanism.unit == cls.unit

    def check(self) -> None:
        """Raise InputError for a combination that no accountant here covers."""
        plan = self.mechanism
        if (plan.entity_cap, plan.exposed, plan.two_level) != (None, None, None):
            raise InputError(f"entity cap and exposed records need unit user-entity, not {plan.unit}: leave both out")

    @property
    def members(self) -> int:
        """Sampled members of the protected unit."""
        return 1

    @property
    def event(self) -> Event:
        """One round's event as accounting assumes it: for shuffled cohorts that is Poisson sampling."""
        plan = self.mechanism
        return plan.sampler.event(plan.noise_multiplier, self.members, plan.clip)

    @property
    def user_event(self) -> Event | None:
        """One round's event for all of a user's records; None where nothing bounds how many there are."""
        return None

    @property
    def fallback_event(self) -> Event | None:
        """An event that holds where the plan's only reason voids the assumed one; None if none does."""
        plan = self.mechanism
        return plan.sampler.fallback_event(plan.noise_multiplier, self.members, plan.adjacency, plan.steps)

    def assumed_epsilon(self) -> float:
        """Return what accounting would give if no reason held."""
        assert self.mechanism.delta is not None
        return accounting.epsilon(self.event, self.mechanism.rounds, self.mechanism.delta)

    def reasons(self) -> Sequence[Statement]:
        """Return the reasons for no guarantee that are the level's own."""
        return ()

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return the conditions that are the level's own.

        Args:
            refilling: steps on the data in which another record of the user takes a missing record's place.
        """
        return ()

    def fewest_units(self, population: int) -> int:
        """Return the fewest protected units that a population of sampled ones can have."""
        return -(-population // self.members)

    def exposure(self) -> Exposure | None:
        """Return epsilon by how exposed a person is; None where it is one for everybody."""
        return None

    def exposed_event(self, exposed: int) -> Event | None:
        """Return one step's event for a person in so many records; None where records are not what is counted."""
        return None

    def exposure_marks(self) -> list[int]:
        """Return the exposures at which the curve is stated, ascending."""
        raise InputError(f"the guarantee of unit {self.mechanism.unit} does not depend on exposure")

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon of a person so exposed; ``reasons`` void it."""
        raise InputError(f"the guarantee of unit {self.mechanism.unit} does not depend on exposure")


def looks_across(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Return the reason that data steps look at several users' records, which voids a user-level epsilon."""
    leaky = [step.name for step in mechanism.data_steps if not step.user_local]
    return (NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=leaky),) if leaky else ()


def compares_texts(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Return the reason that data steps compare texts.

    Without one text, others' texts are kept or changed differently, whose number nothing bounds.
    """
    comparing = [step.name for step in mechanism.data_steps if not (step.record_local or step.slots_only)]
    return (NoGuaranteeReason.COMPARES_TEXTS(steps=comparing),) if comparing else ()
