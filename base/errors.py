"""Errors that a user can cause. Each message is one line: what is wrong, where, and what to do."""

from typing import Any


class InputError(ValueError):
    """Bad input or configuration (exit code 2). The message is the whole report: no traceback is shown.

    A ValueError, so that pydantic collects those raised in validators and reports them with its own.
    """


class NothingToSay(InputError):
    """Scores that support no statement at all: a finding, not a fault, if nothing else is wrong.

    Attributes:
        statement: why, as a record keeps it; ``str`` renders its sentence.
    """

    def __init__(self, statement: Any) -> None:
        super().__init__(statement)
        self.statement = statement


class TooFewUsers(NothingToSay):
    """Too few users or trainings on one side for any statement."""


class ConstantScores(NothingToSay):
    """All scores are equal and say nothing about membership."""


class Terminated(KeyboardInterrupt):
    """SIGTERM during work that can be resumed: unlike Ctrl-C in a terminal it reaches this process alone."""


class ResumableError(Exception):
    """A run that failed but can be resumed with the same command (exit code 5)."""
