"""A comparison of one model's record with an organisation's limits, by the record's own 95 % intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heldin.audit.bootstrap import Estimate
from heldin.audit.requirement import Requirement
from heldin.record.document import Record
from heldin.record.facts import TrainingFacts

Outcome = Literal["kept", "broken", "not shown", "not measured"]


@dataclass(frozen=True)
class Held:
    """A limit, and what the record says about it.

    Attributes:
        outcome: kept, or broken, by the interval as a whole; not shown, if the limit lies within it; or not measured.
        value: the measure, of several attacks that of the one that decides: of a broken limit the one that is farthest
            beyond it as a whole, else the one whose interval reaches farthest; None if not measured.
        reach: end of its interval that decides: the near one of a broken limit, else the far one; the value itself if
            it is exact; None likewise.
        exact: whether the measure follows from the plan alone.
    """

    requirement: Requirement
    outcome: Outcome
    value: float | None
    reach: float | None
    exact: bool


def held_against(record: Record, requirements: Sequence[Requirement]) -> list[Held]:
    """Return each limit with the outcome, in the order of the limits."""
    return [_held(record, requirement) for requirement in requirements]


def epsilon_per_user(training: TrainingFacts | None) -> float | None:
    """Return epsilon of every user: under user-entity DP of a user alone, only if caps or coins of users give one."""
    if training is None:
        return None
    if training.unit != "user-entity":
        return training.epsilon if training.unit == "user" else None
    by = training.by_exposure
    if by is None:
        return None
    return _epsilon_at(training, 0 if by.counted == "holders" else by.group_size)


def epsilon_per_entity(training: TrainingFacts | None) -> float | None:
    """Return epsilon of every recognised entity; None if no cap gives one."""
    by = None if training is None else training.by_exposure
    return None if training is None or by is None else _epsilon_at(training, by.entity_cap)


def _epsilon_at(training: TrainingFacts, exposed: int | None) -> float | None:
    """Return epsilon of somebody so exposed; None without a guarantee, the plan's if the curve lacks that exposure."""
    if exposed is None or training.epsilon is None or training.by_exposure is None:
        return None
    at = {point.exposed: point.epsilon for point in training.by_exposure.curve}
    return at.get(exposed, training.epsilon)


def aurocs(record: Record) -> dict[tuple[str, str], Estimate]:
    """Return the AUROC of every attack by aggregation, and of every setting of the attacker's dials.

    Whatever an attacker could have chosen counts against a limit. Empty where the AUROC is nobody's whom a limit is
    meant for: trainings and canary users are made to be told apart.
    """
    if record.trainings is not None or record.split.audited == "canaries":
        return {}
    attacks = {(attack.attack, attack.aggregation): attack.auroc for attack in record.attacks}
    return attacks | {(dial.dial, dial.setting): dial.auroc for dial in record.dials}


def _held(record: Record, requirement: Requirement) -> Held:
    upper = requirement.at_most is not None
    if requirement.measure == "epsilon_per_user":
        epsilon = epsilon_per_user(record.training)
        # Without a promise epsilon is infinite: no upper limit is kept.
        kept = epsilon is not None and bool(requirement.room([epsilon])[0] >= 0.0)
        outcome: Outcome = "not measured" if record.training is None else "kept" if kept else "broken"
        return Held(requirement, outcome, epsilon, epsilon, exact=True)
    ranges = _ranges(record, requirement.measure)
    if not ranges:
        return Held(requirement, "not measured", None, None, exact=False)
    far = [high if upper else low for _, low, high in ranges]
    near = [low if upper else high for _, low, high in ranges]
    # One attack that breaks it is enough, by the whole of its interval.
    broken = bool((requirement.room(near) < 0.0).any())
    outcome = "broken" if broken else "kept" if (requirement.room(far) >= 0.0).all() else "not shown"
    ends = near if broken else far
    # By the ends themselves: of an infinite limit every room is infinite.
    decides = int(np.argmax(ends) if upper else np.argmin(ends))
    return Held(requirement, outcome, ranges[decides][0], ends[decides], exact=False)


def _ranges(record: Record, measure: str) -> list[tuple[float, float, float]]:
    """(value, lower, upper) of every attack, every setting of a dial, or of the one loss; empty if not measured."""
    if measure == "auroc":
        return [(area.value, area.lower, area.upper) for area in aurocs(record).values()]
    if record.utility is None or record.utility.gain is None:
        return []
    gain, base = record.utility.gain, record.utility.base_loss
    if measure == "loss_gain_over_base":
        return [(gain.value, gain.lower, gain.upper)]
    # Of the loss the gain's spread over users, from the same base loss.
    return [(record.utility.loss, base - gain.upper, base - gain.lower)]
