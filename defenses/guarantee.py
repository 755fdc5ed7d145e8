"""The guarantee of a mechanism with its conditions, or the reasons why there is no guarantee."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heldin.defenses.choices import Adjacency, Unit
from heldin.defenses.exposure import Exposure
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import AUDITS, GuaranteeCondition, GuaranteeText, NoGuaranteeReason, Relation
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

_RELATIONS: dict[Adjacency, Relation] = {
    "add_remove": Relation.ADD_REMOVE,
    "zero_out": Relation.ZERO_OUT,
    "replace": Relation.REPLACE,
}
_UNPROTECTED = (NoGuaranteeReason.NO_UNIT, NoGuaranteeReason.NO_NOISE, NoGuaranteeReason.NO_CLIPPING)


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-DP of the model after the last step.

    Attributes:
        unit: the protected unit.
        adjacency: the data sets that count as neighbours.
        conditions: conditions of the guarantee, for printing with the guarantee.
        cautions: cautions, for printing with the guarantee.
        exposure: curve of epsilon by a person's exposure, for text sampling and two-level sampling; None for other
            mechanisms.
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    conditions: tuple[Statement, ...] = ()
    cautions: tuple[Statement, ...] = ()
    exposure: Exposure | None = None

    @property
    def promise(self) -> Statement:
        """Return the guarantee without its conditions."""
        if self.exposure:
            return self.exposure.promise(self.delta)
        return GuaranteeText.EPSILON(
            epsilon=self.epsilon, delta=self.delta, unit=self.unit, relation=relation(self.adjacency)
        )

    @property
    def statement(self) -> Statement:
        """The guarantee, with the conditions under which it holds."""
        promise = self.promise
        return GuaranteeText.HOLDS(promise=promise, conditions=list(self.conditions)) if self.conditions else promise

    @property
    def label(self) -> str:
        """The statement in one line."""
        return str(self.statement)


@dataclass(frozen=True, kw_only=True)
class DeclaredGuarantee(Guarantee):
    """A guarantee for an event that another package declares.

    Attributes:
        package: the package, with its version.
        audit: result of a white-box audit of the package's step, if there was one.
    """

    package: str
    audit: Statement

    @property
    def promise(self) -> Statement:
        """Return the guarantee without its conditions, with the package that declares it."""
        return GuaranteeText.DECLARED(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            relation=relation(self.adjacency),
            package=self.package,
        )


@dataclass(frozen=True)
class NoGuarantee:
    """The reasons why a mechanism has no guarantee.

    Attributes:
        reasons: the reasons, at least one.
        assumed_epsilon: epsilon of the accounting if the reasons did not hold; None for a plain run.
        fallback: the guarantee that still holds if the only reason is shuffling (docs/theory.md#shuffled-cohorts), or
            the claim of Lai et al. (docs/theory.md#claims-of-user-entity-dp).
    """

    reasons: tuple[Statement, ...]
    assumed_epsilon: float | None = None
    fallback: Guarantee | None = None

    @property
    def statement(self) -> Statement:
        """The reasons.

        If unit, noise and clipping are all missing, the statement is that the run does not try to protect anyone.
        """
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
    """Return every reason why there is no DP guarantee (docs/theory.md#rules-of-a-private-step).

    The result is empty if there is a guarantee.
    """
    declared = mechanism.declared
    package = declared.of_package if declared else ""
    checks: list[tuple[bool, Statement | None]] = [
        (not mechanism.protects, NoGuaranteeReason.NO_UNIT()),
        (True, mechanism.sampler.unprotected()),
        (mechanism.noise_multiplier == 0.0, NoGuaranteeReason.NO_NOISE()),
        (True, mechanism.clip.unprotected()),
        (
            # Neighbours would scale the same noise differently; under zero-out the absent unit is counted by both
            # (docs/theory.md#public-constants).
            mechanism.divisor.constant is None and mechanism.adjacency == "add_remove",
            NoGuaranteeReason.REALISED_COHORT(),
        ),
        (
            mechanism.protects and mechanism.checkpoint == "protected_validation",
            NoGuaranteeReason.PROTECTED_VALIDATION(),
        ),
        *((True, reason) for reason in mechanism.level.reasons()),
        (
            # Such a model's ranking of one user's records depends on other users' texts.
            mechanism.ranks_by_losses and mechanism.base_model_saw_protected,
            NoGuaranteeReason.SELECTED_BY_PROTECTED(),
        ),
        (declared is not None and declared.failed, NoGuaranteeReason.WHITE_BOX_FAILED(package=package)),
        (mechanism.base_model_saw_protected, NoGuaranteeReason.BASE_SAW_PROTECTED()),
        (mechanism.tokenizer_saw_protected, NoGuaranteeReason.TOKENIZER_SAW_PROTECTED()),
    ]
    return tuple(reason for holds, reason in checks if holds and reason is not None)


def conditions_of(mechanism: "Mechanism") -> tuple[Statement, ...]:
    """Return the conditions under which the guarantee holds."""
    refilling = [step.name for step in mechanism.data_steps if not step.record_local]
    # A ranking refills: without one record another of the user takes its place, so it is not record-local.
    if mechanism.ranks_by_losses or mechanism.record_selection in ("longest", "shortest"):
        refilling.append(DataStepText.SELECTION(selection=mechanism.record_selection))
    follows = mechanism.clip_quantile
    checks = [
        (mechanism.divisor.constant is None, GuaranteeCondition.NULL_CONTRIBUTIONS()),
        (
            mechanism.checkpoint == "public_validation",
            GuaranteeCondition.PUBLIC_VALIDATION(),
        ),
        (mechanism.ranks_by_losses, GuaranteeCondition.RANKING_MODEL_UNSEEN()),
        (
            mechanism.clip.filters,
            GuaranteeCondition.FILTER_THEOREM(),
        ),
        (follows is not None, GuaranteeCondition.CLIP_QUANTILE(quantile=follows.quantile if follows else 0.0)),
        (True, GuaranteeCondition.NOISE(generator=mechanism.noise_generator)),
    ]
    if mechanism.declared is not None:
        step = GuaranteeCondition.DECLARED_STEP(
            package=mechanism.declared.of_package, audit=AUDITS[mechanism.declared.audit]()
        )
        checks.insert(0, (True, step))
    others = [step.name for step in mechanism.data_steps if step.name.states(DataStepText.OF_PACKAGE)]
    if others:
        checks.insert(0, (True, GuaranteeCondition.DECLARED_LOCAL(steps=others)))
    return (
        *mechanism.assumptions,
        *mechanism.level.conditions(refilling),
        *(condition for holds, condition in checks if holds),
    )
