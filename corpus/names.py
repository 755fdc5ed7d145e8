"""Placeholders that tables write where a user's name is missing."""

from collections.abc import Iterable

from heldin.base.wording import counted


def missing_names(users: Iterable[str]) -> list[str]:
    """Users whose name is a placeholder for a missing one, such as "nan"."""
    return [user for user in users if user.strip().lower() in _NO_NAMES]


# A warning and not an error: a user may really have such a name, which only the corpus's owner can tell.
_NO_NAMES = {"nan", "none", "null", "na", "n/a", "<na>", "undefined", "unknown"}


def missing_names_line(users: Iterable[str], remedy: str = "leave it out by corpus.users.exclude, or") -> str | None:
    """A warning, with ``remedy`` as the alternative to mending the rows, or None if no user has such a name."""
    names = missing_names(users)
    if not names:
        return None
    return (
        f"warning: {counted(len(names), 'user')} named {', '.join(map(repr, names))}: rows without a user may stand"
        f" under that name as one person; {remedy} mend the rows"
    )
