"""Errors that a user can cause. Each is one line: what, where, and what to do."""


class InputError(ValueError):
    """Bad input or configuration (exit code 2). The message is the whole report: no traceback is shown.

    A ValueError, so that pydantic gathers those of a config with its own and all are said at once.
    """


class TooFewUsers(InputError):
    """There are too few users, or trainings, of a side for any statement: a finding where nothing else is wrong."""


class ConstantScores(InputError):
    """All scores are the same and say nothing about membership: a finding where nothing else is wrong."""


class ResumableError(Exception):
    """A run that failed but can be resumed with the same command (exit code 5)."""
