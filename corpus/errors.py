"""Errors that a user can cause. Each is one line: what, where, and what to do."""


class InputError(Exception):
    """Bad input or configuration (exit code 2). The message is the whole report: no traceback is shown."""


class ResumableError(Exception):
    """A run that failed but can be resumed with the same command (exit code 5)."""
