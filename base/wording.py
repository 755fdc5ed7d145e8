"""Counts and names as English text."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 user" or "2,000 users"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


NO_VERSION = "without a version"  # of a module that was not installed


def with_version(package: str, version: str | None) -> str:
    """Return a package and its version."""
    return f"{package} {version or NO_VERSION}"


MANY = 1_000_000  # above this a planned number says only that it is out of reach


def at_most_counted(number: int, limit: int = MANY, before: str = "") -> str:
    """Return text such as "2,000" ("about 2,000" with ``before="about "``); above ``limit``, "more than 1,000,000"."""
    return f"more than {limit:,}" if number > limit else f"{before}{number:,}"


def in_bytes(size: int) -> str:
    """Format a number of bytes as text, such as "17 MiB" or "43.1 GiB"."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def kind_words(kind: str, between: str = " ") -> str:
    """Return the name of a kind as words, such as "rare phrase"; "package.module:Class" is unchanged."""
    return kind if ":" in kind else kind.replace("_", between)
