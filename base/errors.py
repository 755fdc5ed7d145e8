"""Errors that a user can cause. Each message is one line: what is wrong, where, and what to do."""


class InputError(ValueError):
    """Bad input or configuration (exit code 2). The message is the whole report: no traceback is shown.

    A ValueError, so that pydantic collects those raised in validators and reports them with its own.
    """


class TooFewUsers(InputError):
    """Too few users or trainings on one side for any statement: a finding, not a fault, if nothing else is wrong."""


class ConstantScores(InputError):
    """All scores are equal and say nothing about membership: a finding, not a fault, if nothing else is wrong."""


class Terminated(KeyboardInterrupt):
    """SIGTERM during work that can be resumed: unlike Ctrl-C in a terminal it reaches this process alone."""


class ResumableError(Exception):
    """A run that failed but can be resumed with the same command (exit code 5)."""
