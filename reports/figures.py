"""Figures of a record, as SVG: vector, told apart by colour-blind-safe colours and by line style in grey."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from audit.record import AttackResult, Record

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"  # Okabe and Ito (2008), of clearly different lightness
STYLE: Any = {  # matplotlib types its several hundred keys as literals
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "heldin",
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
}


def figures(record: Record) -> dict[str, str]:
    """SVG by name: "roc", "histogram", and "curves" where the record holds a training run."""
    drawn = {"roc": _roc(record), "histogram": _histogram(record.primary())}
    if record.training and len(record.training.curve) > 1:
        drawn["curves"] = _curves(record)
    return drawn


def _roc(record: Record) -> str:
    with _figure(6.3, 2.9) as (figure, saved):
        linear, log = figure.subplots(1, 2)
        shown = [r for r in record.attacks if r.aggregation == record.primary().aggregation][:4]
        lines = [("-", BLUE), ("--", ORANGE), ("-.", GREY), (":", "black")]
        for axes in (linear, log):
            for result, (style, colour) in zip(shown, lines, strict=False):
                fpr, tpr = np.array(result.roc_fpr), np.array(result.roc_tpr)
                axes.step(
                    fpr, tpr, style, where="post", color=colour, label=f"{result.attack} ({result.auroc.value:.2f})"
                )
            _label(axes, "false-positive rate", "true-positive rate")
        ceiling = record.training.ceiling if record.training else None
        if ceiling:
            for axes in (linear, log):
                axes.plot(
                    ceiling.fpr, ceiling.tpr, color="black", linewidth=0.8, label=f"ceiling ({ceiling.auroc:.2f})"
                )
                axes.fill_between(ceiling.fpr, ceiling.tpr, 1, color=GREY, alpha=0.15, linewidth=0)
        diagonal = np.geomspace(1e-5, 1, 50)
        linear.plot([0, 1], [0, 1], color=GREY, linewidth=0.6)
        log.plot(diagonal, diagonal, color=GREY, linewidth=0.6)
        linear.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        lowest = 0.5 / max(record.split.held_out, record.split.held_in)
        log.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1.1), aspect="equal")
        linear.legend(loc="lower right", fontsize=6.5, title="attack (AUROC)", title_fontsize=6.5)
    return saved[0]


def _histogram(result: AttackResult) -> str:
    with _figure(6.3, 2.1) as (figure, saved):
        axes = figure.subplots()
        edges = result.histogram.edges
        axes.stairs(result.histogram.held_out, edges, fill=True, facecolor=ORANGE, alpha=0.55, label="held-out users")
        axes.stairs(
            result.histogram.held_in,
            edges,
            color=BLUE,
            hatch="////",
            fill=True,
            facecolor="none",
            label="held-in users",
        )
        axes.stairs(result.histogram.held_in, edges, color=BLUE, linewidth=1.2)
        _label(
            axes,
            f"user's score ({result.attack}, {result.aggregation} over texts; higher: more likely held in)",
            "users",
        )
        axes.legend()
    return saved[0]


def _curves(record: Record) -> str:
    assert record.training is not None
    points = record.training.curve
    steps = [p.step for p in points]
    with _figure(6.3, 2.3) as (figure, saved):
        losses, areas = figure.subplots(1, 2)
        losses.plot(steps, [p.held_in_loss for p in points], "o-", color=BLUE, markersize=3, label="held-in users")
        losses.plot(steps, [p.held_out_loss for p in points], "s--", color=ORANGE, markersize=3, label="held-out users")
        _label(losses, "optimizer steps", "validation loss, nats per token")
        losses.legend()
        areas.plot(steps, [p.auroc for p in points], "o-", color="black", markersize=3)
        areas.axhline(0.5, color=GREY, linewidth=0.6)
        _label(areas, "optimizer steps", "attack AUROC")
        for axes in (losses, areas):
            axes.axvline(record.training.chosen_step, color=GREY, linewidth=0.8, linestyle=":")
    return saved[0]


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(width=0.6, length=2.5)


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure of ``width`` x ``height`` inches; its SVG is put into the list when the context ends."""
    saved: list[str] = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, saved
        buffer = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None})
        saved.append(buffer.getvalue())
