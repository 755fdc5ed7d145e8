"""Results as tables: a data frame for further work, HTML for a notebook. pandas is loaded when it is asked for."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Tabular:
    """A result with a heading, notes and rows, which ``to_dataframe`` and notebooks show."""

    def heading(self) -> str:
        """What was found, in a sentence."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """What a reader must know beside the heading."""
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
