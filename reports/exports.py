"""Write figures and tables of a report as files, for people who write papers.

A figure becomes PDF, SVG, PNG and a CSV of its data; a table becomes CSV, Markdown and LaTeX (booktabs).
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import StepPatch

from heldin.base.files import whole_file, write_text
from heldin.reports.blocks import Figure, Report, Rows, Table
from heldin.reports.figures import keep_drawings

_DPI = 300


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every figure of a report to ``folder`` as NAME.pdf, .svg, .png and .csv, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in report.figures.items():
        drawings, svg = draw(figure)
        (drawn,) = drawings
        for kind in ("pdf", "png"):
            with whole_file(folder / f"{name}.{kind}") as temporary:
                drawn.savefig(temporary, format=kind, dpi=_DPI)
        write_text(folder / f"{name}.svg", svg)
        write_text(folder / f"{name}.csv", data_of(drawings))
        written += [folder / f"{name}.{kind}" for kind in ("pdf", "svg", "png", "csv")]
    return written


def draw(figure: Figure) -> tuple[list[Drawing], str]:
    """Draw a figure. Return the matplotlib drawing in a list, and its SVG."""
    with keep_drawings() as drawings:
        svg = figure.draw()
    return drawings, svg


def data_of(drawings: Iterable[Drawing]) -> str:
    """Return the data of drawings as CSV with the columns panel, series, x, y."""
    return _as_csv(("panel", "series", "x", "y"), [row for drawn in drawings for row in _drawn(drawn)])


def _drawn(drawn: Drawing) -> Iterator[tuple[str, str, str, str]]:
    """Yield (panel, series, x, y) of every point, interval end and corner of a histogram."""
    for number, axes in enumerate(drawn.axes, start=1):
        panel = " by ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel()))) or axes.get_title() or str(number)
        for series, points in _series(axes):
            yield from ((panel.replace("\n", " "), series, f"{x:.6g}", f"{y:.6g}") for x, y in points)


def _series(axes: Axes) -> Iterator[tuple[str, np.ndarray]]:
    for line in axes.lines:
        yield _named(line.get_label(), "line"), np.asarray(line.get_xydata(), dtype=np.float64)
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            yield _named(patch.get_label(), "histogram"), np.column_stack([edges[:-1], values])
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            segments = collection.get_segments()
            if segments:
                ends = np.concatenate([np.asarray(segment, dtype=np.float64) for segment in segments])
                yield _named(collection.get_label(), "intervals"), ends
        elif isinstance(collection, PathCollection):
            yield _named(collection.get_label(), "points"), np.asarray(collection.get_offsets(), dtype=np.float64)


def _named(label: object, otherwise: str) -> str:
    # matplotlib's own names of artists without a label begin so.
    return otherwise if str(label).startswith("_") else str(label)


def write_tables(report: Report, folder: Path) -> list[Path]:
    """Write every table of a report to ``folder`` as SECTION.csv, .md and .tex, and return the paths.

    The file name of a second or later table in a section has a number after the section's key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for section in report.sections:
        tables = [block for block in section.blocks if isinstance(block, Table)]
        for number, table in enumerate(tables, start=1):
            path = folder / (section.key if number == 1 else f"{section.key}-{number}")
            head, rows = table.head, table.rows
            write_text(path.with_suffix(".csv"), _as_csv(head, rows))
            write_text(path.with_suffix(".md"), _as_markdown(head, rows))
            write_text(path.with_suffix(".tex"), _as_latex(head, rows))
            written += [path.with_suffix(suffix) for suffix in (".csv", ".md", ".tex")]
    return written


def _as_csv(head: Sequence[str], rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _as_markdown(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _as_latex(head: Sequence[str], rows: Rows) -> str:
    style = pd.DataFrame(rows, columns=pd.Index(head)).style.hide(axis="index")
    styled = style.format(escape="latex").format_index(escape="latex", axis="columns")
    text: str = styled.to_latex(hrules=True, column_format="l" * len(head))
    return text
