"""One comparison of what was seen with what was stated, the deviation it would have detected, and its level."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from heldin.white_box.laws import LawResult
from heldin.white_box.outcome import AlarmKind

Subject = Literal["canaries", "keys", "rates", "texts", "coordinates", "state", "weights", "unlike units", "processes"]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)

TOTAL_LEVEL = 0.01  # chance that a correct trainer raises any alarm, at most
LEVEL = 1e-4  # of a check in which something is random, at most; the others have level 0
ROUNDING = 1e-3  # tolerance for a float32 sum of units, relative to the sensitivity


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        subject: the class of mistakes it is for.
        p_value: p-value of "the trainer does what the mechanism states"; 0 or 1 where nothing is random.
        measured, expected: what was seen, and what is stated.
        smallest: the deviation that would have been seen with probability 0.99, in the unit given by ``detects``; NaN
            if none would.
        detects: that deviation in words.
        level: maximum probability of an alarm under a correct trainer; 0 where nothing is random.
        untested: why the check says nothing; empty if it does.
        kind: what an alarm says about the trainer.
    """

    name: str
    subject: Subject
    p_value: float
    measured: float
    expected: float
    smallest: float
    detects: str
    level: float = LEVEL
    untested: str = ""
    kind: AlarmKind = AlarmKind.MECHANISM

    @property
    def alarm(self) -> bool:
        """Return whether the check rejects."""
        # An exact check has level 0 and p-value 0 or 1, so that it alarms without using up any of TOTAL_LEVEL.
        return self.p_value <= self.level


def tested(name: str, subject: Subject, finding: LawResult, expected: float, detects: str) -> Check:
    """A check at ``LEVEL``, from what ``white_box.laws`` found.

    Args:
        finding: the result of the test.
        detects: the deviation that would have been seen, in words.
    """
    return Check(name, subject, finding.p_value, finding.measured, expected, finding.smallest, detects)


def exact(
    name: str,
    subject: Subject,
    measured: float,
    expected: float,
    detects: str,
    *,
    tolerance: float = ROUNDING,
    kind: AlarmKind = AlarmKind.MECHANISM,
) -> Check:
    """A check in which nothing is random: correct up to rounding, or an alarm.

    Args:
        measured: what was seen.
        detects: the deviation that is always seen, in words.
        tolerance: any larger deviation is always seen.
        kind: what an alarm says about the trainer.
    """
    # NaN and infinity are alarms: a trainer that stopped or overflowed is not the stated one.
    right = math.isfinite(measured) and abs(measured - expected) <= tolerance
    return Check(name, subject, float(right), measured, expected, tolerance, detects, 0.0, kind=kind)


def silent(name: str, subject: Subject, why: str) -> Check:
    """A check that cannot be made here."""
    return Check(name, subject, 1.0, math.nan, math.nan, math.nan, "", 0.0, why)


def alarms(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that reject."""
    # by the union bound, the levels together bound the risk of a correct trainer
    assert math.fsum(check.level for check in checks) <= TOTAL_LEVEL
    return tuple(check for check in checks if check.alarm)
