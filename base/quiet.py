"""The switch that turns all progress off (``heldin --quiet``).

A choice of the whole process, and a module of its own because importing ``base.progress`` imports rich.
"""

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Show no progress from now on, or show it again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether heldin shows only answers and errors."""
    return _quiet
