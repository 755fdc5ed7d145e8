"""How much of a model an attacker sees, and the access level that decides an audit's answer."""

from enum import StrEnum


class Access(StrEnum):
    """How much of the model an attacker sees, most access first.

    Each level can run the attacks of all weaker levels.
    """

    LOG_PROBABILITIES = "log-probabilities"
    TOP_K = "top-k"
    TEXT = "text"

    @property
    def covers(self) -> "tuple[Access, ...]":
        """Return the levels whose attacks this attacker can run: the attacker's own level and all weaker levels."""
        levels = tuple(Access)
        return levels[levels.index(self) :]


# What those who get a released model have; the weights give every log-probability.
OF_RELEASE = {"weights": Access.LOG_PROBABILITIES, **{level.value: level for level in Access}}


def deciding_level(levels: tuple[Access, ...], released: str | None) -> Access:
    """Return the level that decides the audit: the weakest level that covers the release, else the strongest level.

    Args:
        levels: one or more levels of the audit.
        released: what recipients of the model get; None: not stated.
    """
    strongest_first = [level for level in Access if level in levels]
    if released is None:
        return strongest_first[0]
    enough = [level for level in strongest_first if OF_RELEASE[released] in level.covers]
    return enough[-1] if enough else strongest_first[0]


def falls_short(levels: tuple[Access, ...], released: str | None) -> bool:
    """Return whether every level of the audit is weaker than the attackers that the release allows."""
    return released is not None and not any(OF_RELEASE[released] in level.covers for level in levels)
