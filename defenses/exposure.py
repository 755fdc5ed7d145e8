"""The guarantee by how exposed a person is: by the records, or by the users, that name the person."""

from dataclasses import dataclass
from typing import Literal

from heldin.words.guarantee import GuaranteeText, Relation
from heldin.words.statement import Statement


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
