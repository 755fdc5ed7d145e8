"""The guarantee of a mechanism, or the reason for having none."""

from dataclasses import dataclass
from typing import Literal

from heldin.defenses.choices import Adjacency, Unit
from heldin.words import Statement
from heldin.words.guarantee import GuaranteeText, NoGuaranteeReason, Relation

_RELATIONS: dict[Adjacency, Relation] = {
    "add_remove": Relation.ADD_REMOVE,
    "zero_out": Relation.ZERO_OUT,
    "replace": Relation.REPLACE,
}
_UNPROTECTED = (NoGuaranteeReason.NO_UNIT, NoGuaranteeReason.NO_NOISE, NoGuaranteeReason.NO_CLIPPING)


@dataclass(frozen=True)
class EpsilonAtExposure:
    """The epsilon of people with this exposure.

    Attributes:
        exposed: number of records, or of holders (``Exposure.counted``).
        epsilon: of such a person.
    """

    exposed: int
    epsilon: float


@dataclass(frozen=True)
class Exposure:
    """The guarantee by exposure of a person.

    Under text sampling by the number of records that a person wrote or is named in (docs/theory.md#text-sampling);
    under two-level sampling, for a user and an entity, by the number of other users who name the entity, its holders
    (docs/theory.md#two-level-sampling).

    Attributes:
        counted: what ``exposed`` counts.
        exposed: for which the guarantee's epsilon holds; G + k under caps.
        curve: by ascending exposure; of records it also holds for people who were named and not recognised.
        group_size: G, most records of a user; None without caps.
        entity_cap: k, most records that name an entity; None without caps.
    """

    counted: Literal["records", "holders"]
    exposed: int
    curve: tuple[EpsilonAtExposure, ...]
    group_size: int | None = None
    entity_cap: int | None = None

    def epsilon_at(self, exposed: int) -> float:
        """epsilon(m) of a point of the curve."""
        return next(point.epsilon for point in self.curve if point.exposed == exposed)

    @property
    def user_epsilon(self) -> float | None:
        """epsilon of a user alone; None where nothing bounds how many records a user has."""
        if self.counted == "holders":
            return self.epsilon_at(0)
        return None if self.group_size is None else self.epsilon_at(self.group_size)

    def promise(self, delta: float) -> Statement:
        """Return the guarantee, and to whom it is given."""
        if self.counted == "holders":
            alone, *others = self.curve
            *others, last = others
            promise = GuaranteeText.ONE_HOLDER if last.exposed == 1 else GuaranteeText.HOLDERS
            further = [GuaranteeText.BY_HOLDERS(epsilon=point.epsilon, exposed=point.exposed) for point in others]
            return promise(
                epsilon=last.epsilon,
                delta=delta,
                holders=last.exposed,
                further=further,
                alone=alone.epsilon,
                relation=Relation.ADD_REMOVE(),
            )
        if self.group_size is None or self.entity_cap is None:
            first, *others = self.curve
            promise = GuaranteeText.ONE_RECORD if first.exposed == 1 else GuaranteeText.RECORDS
            further = [GuaranteeText.OF_RECORDS(epsilon=point.epsilon, exposed=point.exposed) for point in others]
            return promise(
                epsilon=first.epsilon,
                delta=delta,
                records=first.exposed,
                further=further,
                relation=Relation.ADD_REMOVE(),
            )
        pair, user, entity = (self.epsilon_at(m) for m in (self.exposed, self.group_size, self.entity_cap))
        return GuaranteeText.CAPPED(
            pair=pair,
            delta=delta,
            user=user,
            records=self.group_size,
            entity=entity,
            entities=self.entity_cap,
            relation=Relation.FIXED_INCIDENCE(),
        )


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-DP of the model after the last step.

    Attributes:
        unit: what is protected.
        adjacency: which data sets count as neighbours.
        conditions: what the guarantee depends on, printed with it.
        cautions: printed with it.
        exposure: of text sampling and two-level sampling, whose epsilon depends on how exposed somebody is.
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    conditions: tuple[Statement, ...] = ()
    cautions: tuple[Statement, ...] = ()
    exposure: Exposure | None = None

    @property
    def statement(self) -> Statement:
        """Return the guarantee with the conditions under which it holds."""
        relation = _RELATIONS[self.adjacency]()
        promise = GuaranteeText.EPSILON(epsilon=self.epsilon, delta=self.delta, unit=self.unit, relation=relation)
        if self.exposure:
            promise = self.exposure.promise(self.delta)
        return GuaranteeText.HOLDS(promise=promise, conditions=list(self.conditions)) if self.conditions else promise

    @property
    def label(self) -> str:
        """The statement in one line."""
        return str(self.statement)


@dataclass(frozen=True)
class NoGuarantee:
    """Why the mechanism has no guarantee.

    Attributes:
        reasons: why, at least one.
        assumed_epsilon: what accounting would give if the reasons did not hold; None for a plain run.
        fallback: what still holds if shuffling (docs/theory.md#shuffled-cohorts), or the claim of Lai et al.
            (docs/theory.md#claims-of-user-entity-dp), is the only reason.
    """

    reasons: tuple[Statement, ...]
    assumed_epsilon: float | None = None
    fallback: Guarantee | None = None

    @property
    def statement(self) -> Statement:
        """The reasons, or that nothing was meant to protect: then unit, noise and clipping are all missing."""
        if all(any(reason.states(code) for reason in self.reasons) for code in _UNPROTECTED):
            return GuaranteeText.NO_PROTECTION()
        reasons = list(self.reasons)
        if self.fallback is None:
            return GuaranteeText.NO_GUARANTEE(reasons=reasons)
        fallback = self.fallback.statement
        if self.assumed_epsilon is None:
            return GuaranteeText.NOTHING_ASSUMED(reasons=reasons, fallback=fallback)
        return GuaranteeText.ASSUMED(reasons=reasons, assumed=self.assumed_epsilon, fallback=fallback)

    @property
    def label(self) -> str:
        """The statement in one line."""
        return str(self.statement)
