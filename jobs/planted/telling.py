"""Columns of a training set that name people, from which whoever trains could tell whose rows canary rows copy."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heldin.canaries.config import SubstringCanaries
from heldin.jobs.planted.config import PlantConfig

USERS = 200  # the first so many are looked at
ROWS = 50  # of each, at most
_PARTS = 8  # of a value, such as an id of several numbers
_LEAST = 20  # values below which nothing is said of a column
_MOST = 0.95  # share of rows whose value stands with one user alone
_SHARED = -1
_APART = re.compile(r"[^0-9A-Za-z]+")


@dataclass
class Telling:
    """What some users' rows show of the columns that canary rows copy.

    Attributes:
        own: columns that are not copied.
    """

    own: frozenset[str | None]
    _rows: dict[str, list[int]] = field(default_factory=dict)  # by user: number of the user, and of rows
    # By column and part (-1: the whole value), by value: whose it is, and the number of its rows.
    _values: dict[tuple[str, int], dict[str, list[int]]] = field(default_factory=dict)

    def look(self, user: str, row: Mapping[str, Any]) -> None:
        """Take in a row, if it is one of the first rows of the first users."""
        if user not in self._rows:
            if len(self._rows) == USERS:
                return
            self._rows[user] = [len(self._rows), 0]
        seen = self._rows[user]
        if seen[1] == ROWS:
            return
        seen[1] += 1
        for name, value in row.items():
            if name in self.own or value is None:
                continue
            text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
            for part, value_part in enumerate((text, *_APART.split(text)[:_PARTS]), start=-1):
                whose = self._values.setdefault((name, part), {}).setdefault(value_part, [seen[0], 0])
                whose[1] += 1
                if whose[0] != seen[0]:
                    whose[0] = _SHARED

    def columns(self) -> list[str]:
        """Return the columns of which the values, or a part of them, are in several rows of one user each."""
        telling: dict[str, None] = {}
        for (name, _), values in self._values.items():
            total = sum(count for _, count in values.values())
            alone = sum(count for whose, count in values.values() if whose != _SHARED)
            if len(self._rows) > 1 and total >= max(_LEAST, 2 * len(values)) and alone >= _MOST * total:
                telling[name] = None
        return list(telling)

    def problem(self) -> str | None:
        """Return what is wrong with these columns, and what to do; None if none of them tells."""
        if not (names := self.columns()):
            return None
        # The name of a person who is in a canary row, and nowhere else, would say who is held out.
        return (
            f"column {', '.join(map(repr, names))} names people, or numbers them, and canary rows take it from others'"
            f" rows, which would show whose: name it under 'columns' if it is an id, or leave it out with"
            f" columns: {{drop: [{', '.join(names)}]}}"
        )


def telling_of(config: PlantConfig, own: frozenset[str | None]) -> Telling | None:
    """What to look at the rows with; None where no canary row copies a column, or nobody knows whose a row is."""
    if config.columns.user is None or all(isinstance(spec, SubstringCanaries) for spec in config.canaries):
        return None
    return Telling(own)
