"""How much of a model an attacker sees, and at which level an audit decides."""

from enum import StrEnum


class Access(StrEnum):
    """What the attacker gets from the model, the most first; anyone who has more can do all that less allows."""

    LOG_PROBABILITIES = "log-probabilities"
    TOP_K = "top-k"
    TEXT = "text"

    @property
    def covers(self) -> "tuple[Access, ...]":
        """Return the levels whose attacks this attacker can run: its own and the weaker ones."""
        levels = tuple(Access)
        return levels[levels.index(self) :]


# What those who get a released model have; the weights give every log-probability.
OF_RELEASE = {"weights": Access.LOG_PROBABILITIES, **{level.value: level for level in Access}}


def deciding_level(levels: tuple[Access, ...], released: str | None) -> Access:
    """Return the level whose answer is the audit's: the weakest that covers the release, else the strongest.

    Args:
        levels: those that the audit runs, at least one.
        released: what those who get the model have; None: not stated.
    """
    strongest_first = [level for level in Access if level in levels]
    if released is None:
        return strongest_first[0]
    enough = [level for level in strongest_first if OF_RELEASE[released] in level.covers]
    return enough[-1] if enough else strongest_first[0]


def falls_short(levels: tuple[Access, ...], released: str | None) -> bool:
    """Return whether no level of the audit is as strong as the attackers that the release allows."""
    return released is not None and not any(OF_RELEASE[released] in level.covers for level in levels)
