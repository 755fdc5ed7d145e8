"""One check: an observation compared with the stated mechanism, the smallest detectable deviation, and the level."""

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
    """A comparison of an observed value with a stated value.

    Attributes:
        subject: class of mistakes that the check can detect.
        p_value: p-value of "the trainer runs the stated mechanism"; 0 or 1 if nothing is random.
        measured, expected: the observed value and the stated value.
        smallest: deviation that the check detects with probability 0.99, in the unit that ``detects`` gives; NaN if it
            detects no deviation.
        detects: text about the deviation in ``smallest``.
        level: maximum probability of an alarm if the trainer is correct; 0 if nothing is random.
        untested: reason why the check has no result; empty if there is a result.
        kind: what an alarm means about the trainer.
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
        """Return whether the check rejects the stated value."""
        # An exact check has level 0 and p-value 0 or 1, so that it alarms without using up any of TOTAL_LEVEL.
        return self.p_value <= self.level


def tested(name: str, subject: Subject, finding: LawResult, expected: float, detects: str) -> Check:
    """Return a check at ``LEVEL``, made from a result of ``white_box.laws``.

    Args:
        finding: the result of the test.
        detects: text about the deviation that the check detects.
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
    """Return a check in which nothing is random, so any deviation beyond rounding is an alarm.

    Args:
        measured: observed value.
        detects: text about the deviation that the check always detects.
        tolerance: largest deviation without an alarm.
        kind: what an alarm means about the trainer.
    """
    # NaN and infinity are alarms: a trainer that stopped or overflowed is not the stated one.
    right = math.isfinite(measured) and abs(measured - expected) <= tolerance
    return Check(name, subject, float(right), measured, expected, tolerance, detects, 0.0, kind=kind)


def silent(name: str, subject: Subject, why: str) -> Check:
    """Return a check that is impossible in this audit, with the reason."""
    return Check(name, subject, 1.0, math.nan, math.nan, math.nan, "", 0.0, why)


def alarms(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the checks that raise an alarm."""
    # by the union bound, the levels together bound the risk of a correct trainer
    assert math.fsum(check.level for check in checks) <= TOTAL_LEVEL
    return tuple(check for check in checks if check.alarm)
