"""Tables as CSV: one header, a line for each row; a cell that nobody knows is empty."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows under the union of their names; nested sections are dotted, so that ``{"a": {"b": 1}}`` is ``a.b``."""
    flat = [dict(_dotted(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _dotted(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Cells by dotted name; what is a list of single values is one cell, parted by semicolons."""
    for name, value in row.items():
        match value:
            case dict():
                yield from _dotted(value, f"{before}{name}.")
            case list() | tuple():
                yield f"{before}{name}", "; ".join(map(str, value))
            case bool():
                yield f"{before}{name}", str(value).lower()
            case _:
                yield f"{before}{name}", value
