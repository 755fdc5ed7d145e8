"""How exposed the people of a run were under text sampling: for its record, which stays internal."""

import math

import numpy as np
import numpy.typing as npt

from heldin.audit.coarse import brief
from heldin.base.files import finite
from heldin.defenses.mechanism import Mechanism
from heldin.record.facts import ExposedShare
from heldin.stages.sides.slots import Slots

OF_NO_USE = 1000.0  # epsilon beyond which it is not computed any more


def exposed_shares(mechanism: Mechanism, slots: Slots, rows: npt.NDArray[np.integer]) -> list[ExposedShare]:
    """Shares of users and entities by the number of training records, at the points of the plan's curve and beyond.

    Args:
        mechanism: the plan, by text sampling.
        slots: those of the run.
    """
    assert mechanism.delta is not None
    users, entities = slots.exposed(rows)
    most = max(int(counts.max(initial=1)) for counts in (users, entities) if counts is not None)
    marks = mechanism.exposure_marks()
    # Powers of two, until everybody is below: somebody named in every record is told that person's epsilon too.
    while marks[-1] < most:
        marks.append(2 ** marks[-1].bit_length())
    spent: dict[int, float | None] = {}
    last = 0.0
    for mark in marks:
        # It grows with the number of records, and so does the time that it takes.
        last = mechanism.epsilon_at(mark) if last <= OF_NO_USE else math.inf
        spent[mark] = finite(last)
    return [
        ExposedShare(
            exposed=mark,
            epsilon=spent[mark],
            users=brief(float(np.mean(users <= mark))) if users.size else 1.0,
            entities=None if entities is None else brief(float(np.mean(entities <= mark))) if entities.size else 1.0,
        )
        for mark in marks
    ]
