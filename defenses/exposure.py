"""The guarantee as a function of a person's exposure: the number of records, or of users, that name the person."""

from dataclasses import dataclass
from typing import Literal

from heldin.words.guarantee import GuaranteeText, Relation
from heldin.words.statement import Statement


@dataclass(frozen=True)
class EpsilonAtExposure:
    """The epsilon of people with this exposure.

    Attributes:
        exposed: number of records, or of holders (``Exposure.counted``).
        epsilon: the epsilon that holds for a person with this exposure.
    """

    exposed: int
    epsilon: float


@dataclass(frozen=True)
class Exposure:
    """The guarantee as a function of a person's exposure.

    Under text sampling, exposure is the number of records that a person wrote or is named in
    (docs/theory.md#text-sampling). Under two-level sampling, for a user and an entity, exposure is the number of other
    users who name the entity, its holders (docs/theory.md#two-level-sampling).

    Attributes:
        counted: unit of ``exposed``.
        exposed: exposure for which the guarantee's epsilon holds; G + k with caps.
        curve: points by ascending exposure. If the curve counts records, the points also hold for named people whom the
            recogniser missed.
        group_size: G, maximum number of a user's records; None without caps.
        entity_cap: k, maximum number of records that name an entity; None without caps.
    """

    counted: Literal["records", "holders"]
    exposed: int
    curve: tuple[EpsilonAtExposure, ...]
    group_size: int | None = None
    entity_cap: int | None = None

    def epsilon_at(self, exposed: int) -> float:
        """Return epsilon(m) at a point of the curve."""
        return next(point.epsilon for point in self.curve if point.exposed == exposed)

    @property
    def user_epsilon(self) -> float | None:
        """Epsilon of a user alone; None if nothing bounds the number of a user's records."""
        if self.counted == "holders":
            return self.epsilon_at(0)
        return None if self.group_size is None else self.epsilon_at(self.group_size)

    def promise(self, delta: float) -> Statement:
        """Return the guarantee, with the people whom the guarantee covers."""
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
