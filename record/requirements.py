"""Compare a record with limits: the limits behind its answer, and the organisation's limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from heldin.audit.bootstrap import Estimate
from heldin.audit.decision import Answer
from heldin.audit.requirement import Requirement
from heldin.record.document import Record
from heldin.record.facts import TrainingFacts


class LimitStatus(StrEnum):
    """Whether a record shows that a limit is met."""

    MET = "met"
    NOT_SHOWN = "not_shown"
    BROKEN = "broken"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class Held:
    """A limit, and the record's result for it.

    Attributes:
        status: met or broken if the confidence limit shows it; not shown if neither is certain; or not measured.
        value: the measured value (the largest, if there are several attacks); None if not measured.
        reach: the 95 % confidence limit that decides: the nearer limit for a broken requirement, otherwise the farther
            limit. For an exact measure, this is the value; None if not measured.
        exact: whether the plan alone determines the measure.
    """

    requirement: Requirement
    status: LimitStatus
    value: float | None
    reach: float | None
    exact: bool = False


def held_against(record: Record, requirements: Sequence[Requirement]) -> list[Held]:
    """Return the record's result for each limit, in order."""
    return [_held(record, requirement) for requirement in requirements]


def held_for_no_leak(record: Record) -> list[Held]:
    """Return the results for the limits of "no leak found": AUROC, and true-positive rate at ``decision.fpr``."""
    by, decided = record.decision.by, record.decision.decision
    limits = (
        (Requirement("auroc", at_most=by.auroc), decided.largest_auroc, decided.shown_auroc, decided.excluded_auroc),
        (Requirement("tpr", at_most=by.tpr), decided.largest_tpr, None, decided.excluded_tpr),
    )
    held = []
    for requirement, value, lower, upper in limits:
        assert requirement.at_most is not None
        if decided.answer is Answer.NOT_VALID or upper is None:
            held.append(Held(requirement, LimitStatus.NOT_MEASURED, None, None))
        # The answer was decided before numbers were rounded for the record.
        elif decided.answer is Answer.NO_LEAK or upper < requirement.at_most:
            held.append(Held(requirement, LimitStatus.MET, value, upper))
        elif decided.answer is Answer.LEAKS and lower is not None and lower > requirement.at_most:
            held.append(Held(requirement, LimitStatus.BROKEN, value, lower))
        else:
            held.append(Held(requirement, LimitStatus.NOT_SHOWN, value, upper))
    return held


def epsilon_per_user(training: TrainingFacts | None) -> float | None:
    """Return epsilon for every user. Under user-entity DP, it exists only if caps or users' coins determine it."""
    if training is None:
        return None
    if not training.protects_named:
        return training.epsilon if training.unit == "user" else None
    by = training.by_exposure
    if by is None:
        return None
    return _epsilon_at(training, 0 if by.counted == "holders" else by.group_size)


def epsilon_per_entity(training: TrainingFacts | None) -> float | None:
    """Return epsilon for every recognised entity; None if no cap determines it."""
    by = None if training is None else training.by_exposure
    return None if training is None or by is None else _epsilon_at(training, by.entity_cap)


def _epsilon_at(training: TrainingFacts, exposed: int | None) -> float | None:
    """Return epsilon at this exposure; None without a guarantee. If the curve lacks the exposure, use the plan's
    epsilon."""
    if exposed is None or training.epsilon is None or training.by_exposure is None:
        return None
    at = {point.exposed: point.epsilon for point in training.by_exposure.curve}
    return at.get(exposed, training.epsilon)


def aurocs(record: Record) -> dict[tuple[str, str], Estimate]:
    """Return the AUROC of every attack with every aggregation, and of every changed setting of the attacker.

    All these AUROCs count against a limit, because an attacker could have chosen any of them. The result is empty for
    independent trainings and for canary users. Both are designed to be distinguishable, so limits do not apply to them.
    """
    if record.trainings is not None or record.split.audited == "canaries":
        return {}
    attacks = {(attack.attack, attack.aggregation): attack.auroc for attack in record.attacks}
    return attacks | {(dial.dial, dial.setting): dial.auroc for dial in record.dials}


def _held(record: Record, requirement: Requirement) -> Held:
    if requirement.measure == "epsilon_per_user":
        epsilon = epsilon_per_user(record.training)
        # Without a guarantee epsilon is infinite: no upper limit is met.
        met = epsilon is not None and bool(requirement.room([epsilon])[0] >= 0.0)
        status = LimitStatus.MET if met else LimitStatus.BROKEN
        if record.training is None:
            status = LimitStatus.NOT_MEASURED
        return Held(requirement, status, epsilon, epsilon, exact=True)
    if requirement.measure == "auroc":
        # The AUROC of trainings and of canary users is nobody's for whom a limit is meant: both are made to be found.
        answer = record.decision.decision.answer
        if record.trainings is not None or record.split.audited == "canaries" or answer is Answer.NOT_VALID:
            return Held(requirement, LimitStatus.NOT_MEASURED, None, None)
        decided = record.decision.decision
        # Whatever an attacker could have chosen counts: one attack that breaks the limit is enough.
        return _by_limits(requirement, decided.largest_auroc, decided.shown_auroc, decided.excluded_auroc)
    if record.utility is None or record.utility.gain is None:
        return Held(requirement, LimitStatus.NOT_MEASURED, None, None)
    gain, base = record.utility.gain, record.utility.base_loss
    if requirement.measure == "loss_gain_over_base":
        return _by_limits(requirement, gain.value, gain.lower, gain.upper)
    # Of the loss the gain's spread over users, from the same base loss.
    return _by_limits(requirement, record.utility.loss, base - gain.upper, base - gain.lower)


def _by_limits(requirement: Requirement, value: float, lower: float, upper: float) -> Held:
    near, far = (lower, upper) if requirement.at_most is not None else (upper, lower)
    if requirement.room([near])[0] < 0.0:
        return Held(requirement, LimitStatus.BROKEN, value, near)
    status = LimitStatus.MET if requirement.room([far])[0] >= 0.0 else LimitStatus.NOT_SHOWN
    return Held(requirement, status, value, far)
