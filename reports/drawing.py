"""How figures look and become SVG: colour-blind-safe colours, distinguishable in grey by line style."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from heldin.audit.attack_results import Histogram

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"  # Okabe and Ito (2008), of clearly different lightness
STYLE: Any = {  # matplotlib types its several hundred keys as literals
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    # Letters as outlines: whoever shows the file needs none of the fonts.
    "svg.fonttype": "path",
    "svg.hashsalt": "heldin",  # equal figures are equal files
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
}


def label(axes: Axes, x: str, y: str) -> None:
    """Label the axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(width=0.6, length=2.5)


def above(axes: Axes) -> None:
    """Put the legend above the axes, where nothing is drawn."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure of ``width`` x ``height`` inches; its SVG is appended to the list when the context ends."""
    saved: list[str] = []
    with mpl.rc_context(STYLE):
        # Not by pyplot, which would pick a backend for the whole process and keep every figure until it is closed.
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn, saved
        buffer = io.StringIO()
        canvas: Any = FigureCanvasSVG(drawn)
        # Without a date the same record gives the same bytes.
        canvas.print_svg(buffer, metadata={"Date": None})
        saved.append(buffer.getvalue())


def two_sides(axes: Axes, histogram: Histogram, held_in: str, held_out: str) -> None:
    """Draw the scores of both sides: one filled, one hatched, so that they differ in grey too.

    Args:
        axes: where to draw.
        histogram: counts by score.
        held_in: label of the held-in side.
        held_out: label of the held-out side.
    """
    edges = np.array(histogram.edges)
    # shares of a side per unit of score: counts would mislead with wide bins and unequal sides
    outside, inside = (
        np.array(side) / max(1, sum(side)) / np.diff(edges) for side in (histogram.held_out, histogram.held_in)
    )
    axes.stairs(outside, edges, fill=True, facecolor=ORANGE, alpha=0.55, label=held_out)
    axes.stairs(inside, edges, color=BLUE, hatch="////", fill=True, facecolor="none", label=held_in)
    axes.stairs(inside, edges, color=BLUE, linewidth=1.2)
