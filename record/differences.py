"""Find the values that differ between a record and its files, leaf by leaf."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

TOLERANCE = 1e-9  # relative: sums in another order, on another CPU, differ by less


@dataclass(frozen=True)
class Difference:
    """A value in the record that differs from the value in its files.

    Attributes:
        where: dotted path of the value.
        recomputed: the value that the files give.
    """

    where: str
    stated: Any
    recomputed: Any

    def line(self) -> str:
        """Return one line for the terminal."""
        return f"{self.where}: the record states {_short(self.stated)}, its files give {_short(self.recomputed)}"


def compared(where: str, stated: Any, again: Any) -> tuple[int, list[Difference]]:
    """Return how many leaves were compared, and the leaves that differ by more than a relative 1e-9."""
    # Both sides take the way through JSON: the record was read from a file,
    # where tuples are lists and infinity is null.
    pairs = list(_pairs(where, _plain(stated), _plain(again)))
    return len(pairs), [Difference(*pair) for pair in pairs if not _same(pair[1], pair[2])]


def _plain(value: Any) -> Any:
    """Return the value in JSON types, as it would be in a file."""
    if isinstance(value, BaseModel):
        return json.loads(value.model_dump_json())
    if is_dataclass(value) and not isinstance(value, type):
        return json.loads(TypeAdapter(type(value)).dump_json(value))
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value


def _pairs(where: str, stated: Any, again: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield every leaf of either value, with its path."""
    if isinstance(stated, dict) and isinstance(again, dict):
        # The keys of both: a leaf that only one of them has is compared with None, and found.
        for key in dict.fromkeys([*stated, *again]):
            yield from _pairs(f"{where}.{key}", stated.get(key), again.get(key))
    # Lists of different lengths have no leaves that belong together, and differ as one value.
    elif isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        for i, (a, b) in enumerate(zip(stated, again, strict=True)):
            yield from _pairs(f"{where}[{i}]", a, b)
    else:
        yield where, stated, again


def _same(stated: Any, again: Any) -> bool:
    numbers = isinstance(stated, int | float) and isinstance(again, int | float)
    if numbers and not isinstance(stated, bool) and not isinstance(again, bool):  # True == 1 in Python
        # A relative tolerance alone would find a difference between 0 and a rounding error.
        return math.isclose(stated, again, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(stated == again)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
