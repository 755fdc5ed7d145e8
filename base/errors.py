"""Errors that a user can cause. Each message is one line that states the problem, its place and the remedy."""

from enum import IntEnum
from typing import Any


class InputError(ValueError):
    """Bad input or configuration (exit code 2). The user sees only the message, without a traceback.

    The class is a ValueError, so pydantic collects errors raised in validators and reports them with its own errors.
    """


class NothingToSay(InputError):
    """The error for scores that support no statement. If nothing else is wrong, this error is a finding and not a
    fault.

    Attributes:
        statement: the reason, for a record; ``str`` renders its sentence.
    """

    def __init__(self, statement: Any) -> None:
        super().__init__(statement)
        self.statement = statement


class TooFewUsers(NothingToSay):
    """Too few users or trainings in one group for any statement."""


class ConstantScores(NothingToSay):
    """All scores are equal, so they carry no evidence about membership."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived during resumable work. Unlike Ctrl-C in a terminal, the signal reaches only this process."""


class ResumableError(Exception):
    """A run that failed but can be resumed with the same command (exit code 5)."""


class ExitCode(IntEnum):
    """The outcome of a command, for a script that reads only the exit code."""

    DONE = 0
    BUG = 1
    BAD_INPUT = 2
    CERTIFIED = 3
    INDICATIVE = 4
    RESUMABLE = 5
    UNSAFE = 6
    OTHER_MECHANISM = 7
    GATED = 8
    INTERRUPTED = 130

    def __repr__(self) -> str:
        """Return the number, which Python shows to users of ``heldin.audit_model``."""
        return str(int(self))

    @property
    def meaning(self) -> str:
        """Return the outcome in words."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.BUG: "a bug in heldin",
    ExitCode.BAD_INPUT: "wrong input or config, or a file that differs from its record",
    ExitCode.CERTIFIED: "a claim is contradicted (certified)",
    ExitCode.INDICATIVE: "a claim is contradicted (indicative)",
    ExitCode.RESUMABLE: "stopped, and the same command resumes",
    ExitCode.UNSAFE: "white-box: the trainer does not handle infinite or NaN input safely",
    ExitCode.OTHER_MECHANISM: "white-box: the trainer does not run the stated mechanism",
    ExitCode.GATED: "the answer matches --fail-on",
    ExitCode.INTERRUPTED: "interrupted",
}
