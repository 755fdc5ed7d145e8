"""The possible findings of an audit of a trainer, and the findings that a user may accept in advance.

This module imports neither torch nor numpy, because the command line's help needs it.
"""

from collections.abc import Sequence
from enum import StrEnum

from heldin.base.errors import InputError


class AlarmKind(StrEnum):
    """What an alarm means about the trainer."""

    MECHANISM = "mechanism"  # on finite input it does not run the stated mechanism
    NON_FINITE = "non-finite"  # a unit whose gradient is not finite breaks the step for others


class Acceptable(StrEnum):
    """The kinds of alarms that a user may accept."""

    NON_FINITE = AlarmKind.NON_FINITE.value


class TrainerOutcome(StrEnum):
    """The outcome of an audit of a trainer, the most serious first."""

    CURVE_CONTRADICTED = "curve contradicted"  # the coins of canaries reject the accountant's curve
    MECHANISM_CONTRADICTED = "mechanism contradicted"  # a check rejects the stated mechanism on finite input
    UNSAFE = "unsafe on non-finite input"  # all alarms are of the kind NON_FINITE
    # no alarm, and perfect guessing would not have rejected the curve either, or no weights could be compared
    INCONCLUSIVE = "inconclusive"
    CONSISTENT = "consistent"  # no alarm, and perfect guessing would have rejected the curve


def accepted_kinds(accept: Sequence[str]) -> tuple[AlarmKind, ...]:
    """Return the kinds of alarms that the user accepts. Raises InputError for a kind that nobody may accept."""
    choices = [kind.value for kind in Acceptable]
    # A string is a sequence too, of letters.
    if isinstance(accept, str) or not set(accept) <= set(choices):
        raise InputError(f"accept is {accept!r:.80}: give a list of names from {choices}")
    return tuple(dict.fromkeys(AlarmKind(name) for name in accept))
