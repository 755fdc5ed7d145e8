"""The guarantee of a mechanism and the conditions that it depends on, or the reasons for having none."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from heldin.defenses.choices import (
    Adjacency,
    ShuffledSampler,
    Unit,
)
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, NoGuaranteeReason, Relation
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

_RELATIONS: dict[Adjacency, Relation] = {
    "add_remove": Relation.ADD_REMOVE,
    "zero_out": Relation.ZERO_OUT,
    "replace": Relation.REPLACE,
}
_UNPROTECTED = (NoGuaranteeReason.NO_UNIT, NoGuaranteeReason.NO_NOISE, NoGuaranteeReason.NO_CLIPPING)
_PERPLEXITY = ("highest_perplexity", "lowest_perplexity")


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
        promise = GuaranteeText.EPSILON(
            epsilon=self.epsilon, delta=self.delta, unit=self.unit, relation=relation(self.adjacency)
        )
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


def relation(adjacency: Adjacency) -> Statement:
    """Return the name of a neighbouring relation."""
    return _RELATIONS[adjacency]()


def reasons_of(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step); empty if there is one."""
    user_level = mechanism.unit == "user"
    leaky = [step.name for step in mechanism.data_steps if not step.user_local]
    comparing = [step.name for step in mechanism.data_steps if not (step.record_local or step.slots_only)]
    clip = mechanism.clip.unprotected()
    checks: list[tuple[bool, Statement | None]] = [
        (mechanism.unit == "none", NoGuaranteeReason.NO_UNIT()),
        (
            isinstance(mechanism.sampler, ShuffledSampler),
            NoGuaranteeReason.SHUFFLED(),
        ),
        (mechanism.noise_multiplier == 0.0, NoGuaranteeReason.NO_NOISE()),
        (clip is not None, clip),
        (
            # Neighbours would scale the same noise differently; under zero-out the absent unit is counted by both
            # (docs/theory.md#public-constants).
            mechanism.divisor.constant is None and mechanism.adjacency == "add_remove",
            NoGuaranteeReason.REALISED_COHORT(),
        ),
        (
            mechanism.unit != "none" and mechanism.checkpoint == "protected_validation",
            NoGuaranteeReason.PROTECTED_VALIDATION(),
        ),
        (
            # At the example level it is no reason: epsilon is then about the data after the step (``conditions_of``).
            user_level and bool(leaky),
            NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=leaky),
        ),
        (
            # Without one text, others' texts are kept or changed differently, whose number nothing bounds.
            mechanism.unit == "user-entity" and bool(comparing),
            NoGuaranteeReason.COMPARES_TEXTS(steps=comparing),
        ),
        (
            # Such a model's ranking of one user's records depends on other users' texts.
            mechanism.record_selection in _PERPLEXITY and mechanism.base_model_saw_protected,
            NoGuaranteeReason.SELECTED_BY_PROTECTED(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.claimed_noise is not None,
            NoGuaranteeReason.RANDOM_RECORD_RATE(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.weight_caps is not None,
            NoGuaranteeReason.WEIGHTS_COUNT_RECORDS(),
        ),
        (mechanism.base_model_saw_protected, NoGuaranteeReason.BASE_SAW_PROTECTED()),
        (mechanism.tokenizer_saw_protected, NoGuaranteeReason.TOKENIZER_SAW_PROTECTED()),
    ]
    return tuple(reason for holds, reason in checks if holds and reason is not None)


def conditions_of(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """List the conditions that the guarantee assumes or depends on."""
    refilling = [step.name for step in mechanism.data_steps if not step.record_local]
    # A ranking refills: without one record another of the user takes its place, so it is not record-local.
    if mechanism.record_selection in ("longest", "shortest", *_PERPLEXITY):
        refilling.append(DataStepText.SELECTION(selection=mechanism.record_selection))
    follows = mechanism.clip_quantile
    example = mechanism.unit == "example"
    # Under caps a choice that looks at slots is the same for both neighbours, who have the same slots.
    texts = example or (mechanism.unit == "user-entity" and mechanism.entity_cap is None)
    checks = [
        (texts and bool(refilling), GuaranteeCondition.AFTER_PREPROCESSING(steps=refilling)),
        (example, GuaranteeCondition.NOT_OF_USERS()),
        (
            mechanism.unit == "user-entity" and mechanism.entity_cap is not None,
            GuaranteeCondition.SAME_SLOTS(),
        ),
        (
            mechanism.unit == "user-entity" and mechanism.entity_cap is not None,
            GuaranteeCondition.NAMES_NOT_RECOGNISED(),
        ),
        (
            mechanism.two_level is not None and mechanism.two_level.rule == "all",
            GuaranteeCondition.NAMES_MISSED(),
        ),
        (mechanism.divisor.constant is None, GuaranteeCondition.NULL_CONTRIBUTIONS()),
        (
            mechanism.checkpoint == "public_validation",
            GuaranteeCondition.PUBLIC_VALIDATION(),
        ),
        (mechanism.record_selection in _PERPLEXITY, GuaranteeCondition.RANKING_MODEL_UNSEEN()),
        (
            mechanism.clip.filters,
            GuaranteeCondition.FILTER_THEOREM(),
        ),
        (follows is not None, GuaranteeCondition.CLIP_QUANTILE(quantile=follows.quantile if follows else 0.0)),
        (True, GuaranteeCondition.NOISE(generator=mechanism.noise_generator)),
    ]
    return (*mechanism.assumptions, *(condition for holds, condition in checks if holds))
