"""Results as tables: a data frame, HTML for a notebook, and CSV.

heldin imports pandas only if you request a data frame. A CSV file has one header line, then one line per row. An
unknown value is an empty cell.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
import csv
import io
import math
from collections.abc import Iterator, Mapping


class Tabular:
    """A result with a heading, notes and rows, for ``to_dataframe`` and notebooks."""

    def heading(self) -> str:
        """State the result in a sentence."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Return the notes to read with the heading."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per row, all with the same keys."""
        raise NotImplementedError

    def to_dataframe(self) -> "pd.DataFrame":
        """Return the rows as a data frame, one column per key."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: heading, notes and rows, escaped."""
        rows = self.rows()
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes())
        head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_cell(value))}</td>' for value in row.values())}</tr>" for row in rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
        return f"<p><b>{escape(self.heading())}</b></p>" + (f"<ul>{notes}</ul>" if notes else "") + table


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN: nothing to say
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return CSV with a column for every key of any row. Nested keys are dotted: ``{"a": {"b": 1}}`` gives ``a.b``."""
    flat = [dict(_dotted(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _dotted(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield cells by dotted name. A list of plain values is one cell, separated by semicolons."""
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
