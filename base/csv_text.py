"""Tables as CSV: one header line, then one line per row; an unknown value is an empty cell."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a column for every key of any row; nested keys are dotted: ``{"a": {"b": 1}}`` gives column ``a.b``."""
    flat = [dict(_dotted(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _dotted(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Cells by dotted name; a list of plain values is one cell, separated by semicolons."""
    for name, value in row.items():
        match value:
            case dict():
                yield from _dotted(value, f"{before}{name}.")
            case list() | tuple():
                yield f"{before}{name}", "; ".join(map(str, value))
            case float() if math.isnan(value):
                yield f"{before}{name}", None
            case bool():  # as in JSON, not Python's True
                yield f"{before}{name}", str(value).lower()
            case _:
                yield f"{before}{name}", value
