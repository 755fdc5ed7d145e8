"""Text sampling: heldin draws each record by a separate coin, and clips each record separately
(docs/theory.md#text-sampling).

The mechanism protects anyone who wrote a record or is named in a record. With caps, the guarantee covers every user and
every recognised entity. Without caps, it covers people in at most a stated number of records.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from heldin.base.errors import InputError
from heldin.base.section import Few
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import Event, PoissonGaussian
from heldin.defenses.accounting.guarantees import EXPOSED
from heldin.defenses.choices import Unit
from heldin.defenses.exposure import EpsilonAtExposure, Exposure
from heldin.defenses.mechanisms.contract import Given, Level, compares_texts
from heldin.defenses.mechanisms.settings import NamedPeopleDefense
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import GuaranteeCondition
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism


class UserEntityDefense(NamedPeopleDefense):
    """Text sampling: heldin draws and clips each record separately, regardless of its author and the people named in
    it.
    """

    kind: Literal["user-entity"]
    group_size: Few | None = None
    """Maximum number of records per user. Needs ``entity_cap``. With both caps, one epsilon holds for every user and
    every recognised entity. null: no caps, so epsilon depends on a person's number of records.
    """
    entity_cap: Few | None = None
    """Maximum number of records that name an entity. Needs ``group_size`` and ``entities``."""
    exposed: Few | None = None
    """Number of records by or about a person for which ``target_epsilon`` holds, if there are no caps. null: 1."""

    @property
    def units(self) -> int | None:
        """The public number of users."""
        return self.protected_users

    @property
    def caps(self) -> tuple[int, int] | None:
        """The caps (G, k); None without caps."""
        return None if self.group_size is None or self.entity_cap is None else (self.group_size, self.entity_cap)

    @property
    def capped_as(self) -> Statement | None:
        """The statement of the data step that applies the caps; None without caps."""
        if self.caps is None:
            return None
        records, per_entity = self.caps
        return DataStepText.CAPS(records=records, per_entity=per_entity, entities=self.counts_as_entity)

    @property
    def pool_settings(self) -> dict[str, Any]:
        """The entities, and the caps that limit their records."""
        return self.model_dump(mode="json", include={"entities", "categories", "group_size", "entity_cap"})

    @property
    def worst_case_documents(self) -> int:
        """The number of documents that the stated epsilon covers."""
        return self.group_size or self.exposed or 1

    def retraining_problem(self, documents: int | None) -> str | None:
        """Return a problem if the worst-case user has more documents than the caps allow."""
        if self.caps and (documents or 0) > self.caps[0]:
            return (
                f"--documents {documents} is above defense.group_size = {self.caps[0]}, the maximum number of records"
                " per user: lower --documents"
            )
        return None

    @model_validator(mode="after")
    def _caps_go_together(self) -> Self:
        if (self.group_size is None) != (self.entity_cap is None):
            raise ValueError("group_size and entity_cap work only together: give both, or neither of the two")
        if self.entity_cap is not None and self.entities is None:
            raise ValueError("entity_cap needs the people that each record names: give entities")
        if self.caps and self.exposed is not None:
            raise ValueError(
                "exposed cannot be given with caps, because epsilon is then for group_size + entity_cap records: leave"
                " exposed out"
            )
        return self

    def assumptions(self, made_of_texts: frozenset[str]) -> tuple[Statement, ...]:
        """Return the assumptions about entities, because entities decide which records the caps keep."""
        return self.entity_assumptions(made_of_texts) if self.caps else ()

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: records are sampled, and the people in them are protected."""
        return {
            **super().plan(given),
            "unit": "user-entity",
            # Caps look at everybody's slots: only neighbours with the same slots keep the same records
            # (docs/theory.md#caps-and-fixed-incidence).
            "adjacency": "zero_out" if self.caps else "add_remove",
            "sampled": "example",
            "group_size": self.group_size or 1,
            "entity_cap": self.entity_cap,
            "exposed": None if self.caps else self.exposed or 1,
            "record_selection": "all",
        }


class TextLevel(Level):
    """The level of a person. Epsilon depends on the number of records that the person wrote or is named in."""

    unit: ClassVar[Unit | Literal["none"]] = "user-entity"
    method: ClassVar[str] = "user-entity"
    protects_named: ClassVar[bool] = True

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether users and entities are protected, without coins for entities."""
        return super().covers(mechanism) and mechanism.two_level is None

    def check(self) -> None:
        """Raise InputError for user-entity sampling that no theorem covers."""
        plan = self.mechanism
        if plan.samples_users or not plan.sampler.by_coins:
            raise InputError("unit user-entity samples texts: sample examples, by Poisson coins")
        if plan.record_selection != "all":
            raise InputError(
                "unit user-entity trains on all records that the caps keep, because a choice by text could add"
                " other records: set record selection to all"
            )
        if self._capped == (plan.exposed is not None) or (not self._capped and plan.group_size != 1):
            raise InputError(
                "unit user-entity has neither caps nor a number of exposed records: give both caps, or give this number"
            )
        # A cap that looks at other people's slots is no function of one's own: only with the same slots on both sides.
        if plan.adjacency != ("zero_out" if self._capped else "add_remove"):
            raise InputError(
                "caps on entities need zero_out adjacency, and text sampling without caps needs add_remove: change"
                " the adjacency"
            )

    @property
    def _capped(self) -> bool:
        return self.mechanism.entity_cap is not None

    @property
    def members(self) -> int:
        """The number of sampled records of a person: group_size + entity_cap, or ``exposed``."""
        return self.mechanism.exposed or self.mechanism.group_size + (self.mechanism.entity_cap or 0)

    @property
    def user_event(self) -> Event | None:
        """The event of a user's own records; None without caps."""
        return self.exposed_event(self.mechanism.group_size) if self._capped else None

    def exposed_event(self, exposed: int) -> PoissonGaussian:
        """Return the event of ``exposed`` sampled records."""
        return PoissonGaussian(self.mechanism.noise_multiplier, self.mechanism.sampler.rate, exposed)

    def reasons(self) -> Sequence[Statement]:
        """Return the reason for no guarantee if data steps compare texts."""
        return compares_texts(self.mechanism)

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return conditions.

        With caps, a choice by slots is the same for both neighbours, because neighbours have equal slots.
        """
        if self._capped:
            return [GuaranteeCondition.SAME_SLOTS(), GuaranteeCondition.NAMES_NOT_RECOGNISED()]
        return [GuaranteeCondition.AFTER_PREPROCESSING(steps=list(refilling))] if refilling else []

    def fewest_units(self, population: int) -> int:
        """Return the smallest number of users who can have the records: at most G each with caps, and without caps at
        most as many as the stated epsilon covers."""
        most = self.mechanism.group_size if self._capped else self.members
        return -(-population // most)

    def exposure(self) -> Exposure:
        """Return epsilon as a function of the number of records."""
        plan = self.mechanism
        curve = tuple(EpsilonAtExposure(m, self.epsilon_at(m)) for m in self.exposure_marks())
        group_size = plan.group_size if self._capped else None
        return Exposure("records", self.members, curve, group_size, plan.entity_cap)

    def exposure_marks(self) -> list[int]:
        """Return some numbers of records, the number for which epsilon is stated, and the caps."""
        caps = (self.mechanism.group_size, self.mechanism.entity_cap) if self.mechanism.entity_cap else ()
        return sorted({*EXPOSED, self.members, *caps})

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon of a person in ``exposed`` records."""
        assert self.mechanism.delta is not None
        return accounting.epsilon(self.exposed_event(exposed), self.mechanism.steps, self.mechanism.delta)
