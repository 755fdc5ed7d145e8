"""Results as tables: a data frame for further work, HTML for a notebook, and CSV.

pandas is loaded when a data frame is asked for. CSV has one header line, then one line for each row; an unknown value
is an empty cell.
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
    """A result with a heading, notes and rows, which ``to_dataframe`` and notebooks show."""

    def heading(self) -> str:
        """State the result in a sentence."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Return the notes that a reader must know besides the heading."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict for each row, all with the same keys."""
        raise NotImplementedError

    def to_dataframe(self) -> "pd.DataFrame":
        """The rows as a data frame, one column for each key."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """For notebooks: heading, notes and rows, escaped."""
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
