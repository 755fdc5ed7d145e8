"""The figure that compares runs by AUROC, loss, ROC curves, and canary users by substring length.

For the runs of Kandpal et al. (2024) the figure shows their Figures 4, 7, 11, 12 (left), 13 and 14.
"""

import numpy as np
from matplotlib.axes import Axes

from heldin.audit.bootstrap import Estimate
from heldin.record.compare import Comparison
from heldin.record.document import Record
from heldin.reports.figures import BLUE, GREY, ORANGE, figure, label

DASHES = ["-", "--", ":", "-."]
COLOURS = [BLUE, ORANGE, "black", GREY]
STYLES = list(zip("os^DvPX<", DASHES + DASHES[1:] + DASHES[:1], COLOURS * 2, strict=True))  # no pair twice


def comparison_figure(compared: Comparison) -> str:
    """Return the SVG. AUROC and loss are above; ROC curves are below, with canary users if a run has them."""
    planted = any(_lengths(record) for record in compared.records)
    with figure(6.6, 5.0) as (drawn, saved):
        (areas, losses), (rocs, last) = drawn.subplots(2, 2)
        places, names = _places(compared)
        _areas(areas, compared, places)
        _losses(losses, compared, places)
        for axes in (areas, losses):
            # About what fits beneath one panel, in characters; tilted names are anchored at their
            # end, or they would point at the next run.
            crowded = sum(map(len, names)) > 36
            axes.set_xticks(places, names, rotation=25 if crowded else 0, ha="right" if crowded else "center")
            axes.margins(x=0.12)
            axes.set_xlabel(compared.over or "")
        _rocs(rocs, compared)
        if planted:
            _canaries(last, compared)
        else:
            # The empty panel keeps its place, so that the other three have the same size in every comparison.
            last.axis("off")
        # One legend for both lower panels: a run has one colour and one dash in both.
        drawn.legend(*rocs.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
    return saved[0]


def _places(compared: Comparison) -> tuple[list[float], list[str]]:
    """Return the positions and the names of the runs on the x axis."""
    # evenly spaced, in their order: values that differ by powers would crowd
    names = [row.name if compared.over is None else _short(row.value) for row in compared.rows]
    return [float(i) for i in range(len(names))], names


def _short(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 16 else text[:15] + "…"


def _areas(axes: Axes, compared: Comparison, places: list[float]) -> None:
    rows = compared.rows
    reach = [[r.auroc - r.auroc_low for r in rows], [r.auroc_high - r.auroc for r in rows]]
    # A percentile interval need not hold its estimate, and errorbar refuses a negative length.
    axes.errorbar(places, [r.auroc for r in rows], np.maximum(reach, 0), fmt="o", color=BLUE, markersize=4, capsize=3)
    ceilings = [(place, r.ceiling) for place, r in zip(places, rows, strict=True) if r.ceiling is not None]
    # A ceiling is on users' AUROC: only runs whose privacy unit is a user have one.
    if ceilings:
        axes.plot(*zip(*ceilings, strict=True), "_", color="black", markersize=14, label="ceiling")
        axes.legend()
    axes.axhline(0.5, color=GREY, linewidth=0.6)
    label(axes, "", "attack AUROC")


def _losses(axes: Axes, compared: Comparison, places: list[float]) -> None:
    for side, (mark, colour) in {"held_in_loss": ("o", BLUE), "held_out_loss": ("s", ORANGE)}.items():
        # None for a model that was not trained here, and for independent trainings, which measure no curves.
        points = [(p, loss) for p, r in zip(places, compared.rows, strict=True) if (loss := getattr(r, side))]
        if points:
            name = side.removesuffix("_loss").replace("_", "-")
            axes.plot(*zip(*points, strict=True), mark, color=colour, markersize=4, label=f"{name} users")
    axes.legend(fontsize=6.5)
    label(axes, "", "validation loss, nats")


def _rocs(axes: Axes, compared: Comparison) -> None:
    for record, row, (_, style, colour) in zip(compared.records, compared.rows, STYLES * 9, strict=False):
        curve = record.curve()
        axes.plot(curve.fpr, curve.tpr, style, color=colour, linewidth=1.1, label=row.name)
    # Half a user of the largest run: below it no curve has a vertex, and a logarithmic axis cannot show 0.
    lowest = 0.5 / max(max(r.split.held_in, r.split.held_out) for r in compared.records)
    diagonal = np.geomspace(lowest, 1, 50)
    axes.plot(diagonal, diagonal, color=GREY, linewidth=0.6)
    axes.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1.1))
    label(axes, "false-positive rate", "true-positive rate")


def _canaries(axes: Axes, compared: Comparison) -> None:
    """Draw one line per run over substring lengths. Uses only the largest number of documents."""
    lengths = sorted({length for record in compared.records for length in _lengths(record)})
    runs = len(compared.rows)
    for i, (record, row, (mark, style, colour)) in enumerate(
        zip(compared.records, compared.rows, STYLES * 9, strict=False)
    ):
        points = sorted(_lengths(record).items())
        if not points:
            continue
        # Shifted by run, so that intervals at one length do not hide each other.
        x = [lengths.index(length) + 0.1 * (i - (runs - 1) / 2) for length, _ in points]
        y = [area.value for _, area in points]
        reach = [[area.value - area.lower for _, area in points], [area.upper - area.value for _, area in points]]
        axes.errorbar(
            x, y, np.maximum(reach, 0), fmt=mark + style, color=colour, markersize=3, capsize=2, label=row.name
        )
    axes.axhline(0.5, color=GREY, linewidth=0.6)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_ylim(0, 1.03)
    label(axes, "tokens in the canary users' shared substring", "attack AUROC")


def _lengths(record: Record) -> dict[int, Estimate]:
    """Return the AUROC for each substring length. For each length, use the group with the most documents."""
    groups = [g for g in (record.canaries.groups if record.canaries else []) if g.length is not None and g.auroc]
    # Ascending, "all documents" (None) last: the dictionary keeps the last group of each length.
    groups.sort(key=lambda g: float("inf") if g.documents is None else g.documents)
    return {g.length: g.auroc for g in groups if g.length is not None and g.auroc is not None}
