"""A finished sweep over two keys of its configs, as a heat map of numbers or a line for each word; also over compute.

Charles et al. (2024), Figures 4 to 8, 13, 16, 17; Chua et al. (2024), Figures 4 and 6.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from heldin.base.errors import InputError
from heldin.record.document import read_record
from heldin.record.sweep import CellResult, read_sweep
from heldin.reports.figures import BLUE, GREY, ORANGE, figure, label

Measure = Literal["loss", "perplexity", "gain", "auroc", "seconds"]
GRADIENTS = "gradients"  # a step, as planned: the paper's compute budget
Value = float | int | str
Places = Mapping[tuple[Value, Value], float]  # by values of over and by


@dataclass(frozen=True)
class Panel:
    """The cells with one value of ``each``.

    Attributes:
        value: the value of ``each``; None without ``each``.
        measured: means over blocks, by the values of ``over`` and ``by``.
        best: positions with the least value among all with equal compute, if there are several.
    """

    value: Value | None
    measured: Places
    best: frozenset[tuple[Value, Value]]


@dataclass(frozen=True)
class Grid:
    """The results of a sweep over two keys.

    Attributes:
        over: key of the columns.
        by: key of the rows.
        each: key of the panels; None: one panel.
    """

    sweep: str
    of: Measure
    over: str
    by: str
    each: str | None
    panels: tuple[Panel, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return every number as a JSON value."""
        keys = {"sweep": self.sweep, "of": self.of, "over": self.over, "by": self.by, "each": self.each}
        rows = [
            {"each": panel.value, "over": a, "by": b, self.of: value, "best": (a, b) in panel.best}
            for panel in self.panels
            for (a, b), value in panel.measured.items()
        ]
        return {**keys, "cells": rows}


def grid_of(folder: Path, of: Measure, over: str, by: str, each: str | None = None) -> Grid:
    """Arrange the finished cells of a sweep by two keys.

    Args:
        folder: folder of the sweep.
        of: measure to show.
        over: dotted key of the cells' configs for the columns; "gradients" is the planned number per step.
        by: key for the rows.
        each: third key, with a panel for each of its values; None: one panel.

    Raises:
        InputError: no finished cell has the keys, or two variants have equal values of all keys.
    """
    if of not in get_args(Measure):
        raise InputError(f"--of {of}: choose from {', '.join(get_args(Measure))}")
    found = read_sweep(folder)
    values: dict[Value | None, dict[tuple[Value, Value], dict[str, list[float]]]] = {}
    compute: dict[tuple[Value | None, Value, Value], float | None] = {}
    for cell in found.cells:
        if cell.state != "done" or getattr(cell, of) is None:
            continue
        config = read_record(folder / "cells" / str(cell.block) / cell.variant / "record.json").config
        at = [_value(cell, config, key) for key in (over, by, *([each] if each else []))]
        if None in at:
            continue  # a variant without the key, such as one without a defense
        a, b, panel = (*at, None)[:3]
        values.setdefault(panel, {}).setdefault((a, b), {}).setdefault(cell.variant, []).append(getattr(cell, of))
        compute[panel, a, b] = cell.fit.planned if cell.fit else None
    if not values:
        raise InputError(
            f"no finished cell of '{folder}' has {over}, {by} and {of}: choose keys and a measure that the cells have"
        )
    panels = []
    for panel, places in _in_order(values):
        several = {place: sorted(of_one) for place, of_one in places.items() if len(of_one) > 1}
        if several:
            place, names = next(iter(several.items()))
            raise InputError(
                f"{over} {place[0]} and {by} {place[1]} are the same for {', '.join(map(repr, names))}: give with"
                " --each a key that differs between these cells"
            )
        measured = {place: float(np.mean([*of_one.values()])) for place, of_one in _in_order(places)}
        panels.append(Panel(panel, measured, _best(measured, {place: compute[panel, *place] for place in measured})))
    return Grid(found.name, of, over, by, each, tuple(panels))


def _in_order(found: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(found.items(), key=lambda its: _rank(its[0]))


def _rank(value: Any) -> tuple[Any, ...]:
    parts = value if isinstance(value, tuple) else (value,)
    return tuple((isinstance(its, str), its if its is not None else 0) for its in parts)


def _value(cell: CellResult, config: Mapping[str, Any], key: str) -> Any:
    if key == GRADIENTS:
        return None if cell.fit is None or cell.fit.planned is None else round(cell.fit.planned)
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float | str) else None


def _best(measured: Places, compute: Mapping[tuple[Value, Value], float | None]) -> frozenset[tuple[Value, Value]]:
    """Return the positions of the least value among all with equal compute."""
    counts = Counter(compute.values())
    least: dict[float, tuple[Value, Value]] = {}
    for place, value in measured.items():
        budget = compute[place]
        if budget is not None and counts[budget] > 1 and value < measured[least.setdefault(budget, place)]:
            least[budget] = place
    return frozenset(least.values())


def table(grid: Grid) -> str:
    """Return the grid as plain text, with a row for each value of ``by`` and a column for each value of ``over``."""
    digits = {"perplexity": 2, "seconds": 1}.get(grid.of, 4)
    lines = [f"{grid.of} of {grid.sweep}: {grid.over} in columns, {grid.by} in rows"]
    for panel in grid.panels:
        columns, rows = _sides(panel)
        head = [grid.by if grid.each is None else f"{grid.each} {panel.value}", *map(str, columns)]
        cells = [head]
        for row in rows:
            texts = []
            for column in columns:
                value = panel.measured.get((column, row))
                mark = "*" if (column, row) in panel.best else ""
                texts.append("-" if value is None else f"{value:.{digits}f}{mark}")
            cells.append([str(row), *texts])
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        lines += ["", *("  ".join(map(str.rjust, line, widths)) for line in cells)]
    if any(panel.best for panel in grid.panels):
        lines += ["", "* the least of those with equally many gradients a step"]
    return "\n".join(lines)


def _sides(panel: Panel) -> tuple[list[Value], list[Value]]:
    return tuple(sorted({place[i] for place in panel.measured}, key=_rank) for i in (0, 1))  # type: ignore[return-value]


def grid_figure(grid: Grid) -> str:
    """Return the SVG: a heat map if ``by`` has numbers, otherwise a line for each of its words."""
    words = any(isinstance(b, str) for panel in grid.panels for _, b in panel.measured)
    values = [value for panel in grid.panels for value in panel.measured.values()]
    with figure(0.6 + 2.2 * len(grid.panels), 2.4) as (drawn, saved):
        panels = np.atleast_1d(drawn.subplots(1, len(grid.panels), sharey=True))
        for axes, panel in zip(panels, grid.panels, strict=True):
            columns, rows = _sides(panel)
            axes.set_xticks(range(len(columns)), [f"{its}" for its in columns])
            if words:
                _lines(axes, panel, columns, rows)
            else:
                shown = np.full((len(rows), len(columns)), np.nan)
                for (a, b), value in panel.measured.items():
                    shown[rows.index(b), columns.index(a)] = value
                axes.imshow(shown, origin="lower", aspect="auto", cmap="cividis", vmin=min(values), vmax=max(values))
                axes.set_yticks(range(len(rows)), [f"{its}" for its in rows])
                for (a, b), value in panel.measured.items():
                    dark = value < (min(values) + max(values)) / 2
                    place = (columns.index(a), rows.index(b))
                    weight = "bold" if (a, b) in panel.best else "normal"
                    own = {"ha": "center", "va": "center", "fontsize": 6, "fontweight": weight}
                    axes.text(*place, f"{value:.3g}", color="white" if dark else "black", **own)
            label(axes, grid.over, "")
            if grid.each is not None:
                axes.set_title(f"{grid.each.rsplit('.', 1)[-1]} {panel.value}", fontsize=8)
        panels[0].set_ylabel(grid.of if words else grid.by)
        if words:
            panels[0].legend()
    return saved[0]


def _lines(axes: Any, panel: Panel, columns: Sequence[Value], rows: Sequence[Value]) -> None:
    styles = zip("os^D" * 9, ("-", "--", ":", "-.") * 9, (BLUE, ORANGE, "black", GREY) * 9, strict=True)
    for row, (mark, dash, colour) in zip(rows, styles, strict=False):
        points = [(i, panel.measured[its, row]) for i, its in enumerate(columns) if (its, row) in panel.measured]
        axes.plot(*zip(*points, strict=True), mark + dash, color=colour, markersize=3, label=str(row))
