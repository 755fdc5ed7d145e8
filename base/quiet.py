"""Whether work shows its progress at all (`heldin --quiet`): a choice of the whole process, light to import."""

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Show no progress from now on, or show it again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether only answers and errors are wanted."""
    return _quiet
