"""The figures of a sweep: frontiers, ROC curves with ceilings, canary users, exposure, and curves of training."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from heldin.audit.blocks import Summary
from heldin.base.wording import counted
from heldin.record.sweep import CanaryPoint, RocPoints, SweepResult, VariantResult
from heldin.reports.blocks import Figure
from heldin.reports.figures import BLUE, GREY, ORANGE, figure, label
from heldin.reports.sweep_findings import describe_intervals
from heldin.reports.wording import assign_letters, format_promise

PANELS = 12  # ROC curves in one figure
_LOG_FROM = 0.01  # smallest rate of the ROC curves' axes
_STYLES = ("-", "--", ":", "-.")
_COLOURS = (BLUE, ORANGE, "black", GREY)
_OFFSET = "offset points"
_NAME_SIZE = 7  # points
# Where a name may be next to its point: distance in points, and direction across and up; the first that fits is taken.
_PLACES = np.array([(d, *to) for d in range(5, 95, 9) for to in ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))])
_THIRDS = (("v", ORANGE, "lowest third"), ("o", "black", "middle"), ("^", BLUE, "highest"))
_SORTED_BY = {"records": "by records in training", "word divergence": "by unlikeness of words"}
Measure = Callable[[VariantResult], "Summary | float | None"]


def plot_frontier(result: SweepResult) -> Figure | None:
    """Return the figure of each defense's cost and remaining leakage; None if no variant has a result."""
    done = _done(result)
    if not done:
        return None
    caption = (
        f"Each mark is a variant, with 95 % intervals where they are known; {describe_intervals(result)}. First:"
        " AUROC of the primary attack against the guarantee for every user; a dash is the ceiling of the guarantee."
        " Second: AUROC against what the model learned. Third: what the model learned against its cost."
    )
    if any(variant.canaries for variant in result.variants):
        caption += " Fourth: highest AUROC of a group of canary users against what the model learned."
    points = "; ".join(_describe_point(variant) for variant in done if variant.auroc is not None)
    return Figure(
        "frontier",
        partial(_draw_frontier, done, assign_letters(result.variants)),
        f"Scatter plots of guarantee, AUROC, utility and compute. {points}.",
        f"{caption} Another variant dominates pale ones.",
    )


def _describe_point(variant: VariantResult) -> str:
    gain = "not measured" if variant.gain is None else f"{variant.gain.value:+.3f}"
    area = "-" if variant.auroc is None else f"{variant.auroc.value:.2f}"
    return f"{variant.label}: {format_promise(variant)}, AUROC {area}, gain {gain}"


def plot_defenses(result: SweepResult) -> Figure | None:
    """Return the picture on page one, which shows leakage against utility as one labelled point for each defense.

    None if no variant has both numbers. A variant whose comparison is invalid has no point.
    """
    done = [v for v in _done(result) if None not in (v.auroc, v.gain) and v.name not in result.not_valid]
    if not done:
        return None
    accepted = {} if result.rule is None else _accepted(result.rule.require)
    alt = f"Scatter plot of leakage against utility. {'; '.join(map(_describe_point, done))}."
    caption = "Lower is less leakage, further right is more learned; bars are 95 % intervals."
    if accepted:
        caption += " Shaded: what the limits of the decision rule accept."
    return Figure("defenses", partial(_draw_defenses, done, accepted), alt, caption)


def _accepted(requirements: Sequence[str]) -> dict[str, float]:
    """Return the decision rule's limits on the two axes, by measure."""
    asked = (words.split(" ") for words in requirements)
    return {words[0]: float(words[-1]) for words in asked if words[0] in ("auroc", "loss_gain_over_base")}


def _draw_defenses(variants: Sequence[VariantResult], accepted: Mapping[str, float]) -> str:
    with figure(6.6, 2.3) as (drawn, saved):
        axes = drawn.subplots()
        points = []
        for variant in variants:
            assert variant.auroc is not None
            assert variant.gain is not None
            across, up = variant.gain, variant.auroc
            points.append((*_draw_point(axes, across, up, variant, BLUE), _short(variant.label, 24)))
        axes.margins(0.18)
        axes.axhline(0.5, color=GREY, linewidth=0.6)
        axes.set_ylim(min(0.45, axes.get_ylim()[0]), max(0.65, axes.get_ylim()[1]))
        if accepted:
            (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
            start = max(left, min(right, accepted.get("loss_gain_over_base", left)))
            height = max(bottom, min(top, accepted.get("auroc", top)))
            # A patch and no collection: names may be written on it.
            region = Rectangle((start, bottom), right - start, height - bottom, color=GREY, alpha=0.18, linewidth=0)
            axes.add_patch(region)
            axes.set(xlim=(left, right), ylim=(bottom, top))
        label(axes, "utility: loss gained over the base model, nats", "leakage: AUROC (0.5: guessing)")
        place_labels(axes, points)
    return saved[0]


def place_labels(axes: Axes, points: Sequence[tuple[float, float, str]]) -> list[Annotation]:
    """Write a name near each point. The names avoid each other, points, intervals and the edges of the axes.

    Args:
        points: (x, y, name) of each point; x and y in the units of the axes.
    """
    # Only a drawing with its layout made knows where things are.
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    drawing.draw_without_rendering()
    drawing.set_layout_engine(None)
    taken = np.array([mark.extents for mark in marks_in(axes)]).reshape(-1, 4)
    frame, placed = axes.get_window_extent(), list[Annotation]()
    distance, across, up = _PLACES.T
    offsets = np.column_stack([across, up]) * distance[:, np.newaxis]
    for x, y, name in points:
        words = axes.text(x, y, name, fontsize=_NAME_SIZE)
        size = words.get_window_extent()
        words.remove()
        left, low = (axes.transData.transform((x, y)) + offsets * drawing.dpi / 72).T
        left, low = left - size.width * (1 - across) / 2, low - size.height * (up < 0)
        boxes = np.column_stack([left, low, left + size.width, low + size.height])
        inside = (boxes[:, :2] >= frame.min).all(axis=1) & (boxes[:, 2:] <= frame.max).all(axis=1)
        apart = (boxes[:, np.newaxis, :2] > taken[:, 2:]) | (taken[:, :2] > boxes[:, np.newaxis, 2:])
        best = int(np.argmin((~apart.any(axis=2)).sum(axis=1) + ~inside))
        placed.append(
            axes.annotate(
                name,
                (x, y),
                tuple(offsets[best]),
                textcoords=_OFFSET,
                fontsize=_NAME_SIZE,
                ha={1: "left", -1: "right", 0: "center"}[across[best]],
                va="bottom" if up[best] > 0 else "top",
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.4} if distance[best] > 11 else None,
            )
        )
        taken = np.vstack([taken, boxes[best]])
    return placed


def marks_in(axes: Axes) -> list[Bbox]:
    """Return the areas, in pixels, of points, lines and intervals."""
    # The bars of intervals are collections, which know their place only in the units of the axes.
    bars = [bar.get_datalim(axes.transData).transformed(axes.transData) for bar in axes.collections]
    return [*bars, *(line.get_window_extent() for line in axes.lines)]


def extent_of(note: Annotation) -> Bbox:
    """Return the area, in pixels, of a note's text, without the line to its point."""
    note.get_window_extent()  # places the words
    return Text.get_window_extent(note)


def plot_rocs(result: SweepResult) -> list[Figure]:
    """Return figures with the ROC curves of all variants, a few variants per figure."""
    done = _done(result)
    parts = [done[first : first + PANELS] for first in range(0, len(done), PANELS)]
    return [
        Figure(
            f"roc-{number}",
            partial(_draw_rocs, result, part, assign_letters(result.variants)),
            "A panel of ROC curves for each variant; the table of differences has their AUROCs.",
            "ROC curves of the primary attack, one for each repetition, between groups of ten users or more, on"
            " logarithmic axes. The thin grey line is guessing; the shaded part lies above what a guarantee allows"
            " any attack in expectation.",
        )
        for number, part in enumerate(parts, start=1)
    ]


def plot_canaries(result: SweepResult) -> Figure | None:
    """Return the figure of canary users' AUROC for each variant; None without canary users."""
    done = _done(result)
    panels = {(point.kind, point.documents) for variant in done for point in variant.canaries}
    if not panels:
        return None
    return Figure(
        "canaries",
        partial(_draw_canaries, done, assign_letters(result.variants)),
        "AUROC of canary users by substring length for each variant; the table below has the same numbers.",
        "AUROC of the primary attack on canary users, means over repetitions.",
        width=100 if len(panels) > 1 else 55,
    )


def plot_exposure(result: SweepResult) -> Figure | None:
    """Return the figure of people's exposure under each variant; None if it was not measured."""
    done = _done(result)
    if not any(variant.bands for variant in done):
        return None
    thirds = "; ".join(
        f"{variant.label} {', '.join(f'{band.above:.2f}' for band in variant.bands)}"
        for variant in done
        if variant.auroc is not None
    )
    return Figure(
        "exposure",
        partial(_draw_exposure, done, assign_letters(result.variants)),
        f"Mean share of non-members with a lower score, thirds by records and then by words: {thirds}.",
        "Thirds of the members, the same people in every row. Left: sorted by how many of their records the first"
        " variant trains on. Right: sorted by how far their words are from the words of others. The axis is the mean"
        " share of non-members with a lower score; 0.5 is guessing. Members are sorted by their texts and not by"
        " score, so nothing was selected. Differences may still be chance.",
    )


def plot_curves(result: SweepResult) -> Figure | None:
    """Return the figure of loss and AUROC during training; None unless a training run measured them more than once."""
    if all(len(cell.curve) < 2 for cell in result.cells):
        return None
    return Figure(
        "curves",
        partial(_draw_curves, result, _done(result), assign_letters(result.variants)),
        "Validation loss of non-members and AUROC during training, by variant.",
        "Validation loss of non-members and AUROC on samples of users, in the first repetition that measured them.",
    )


def _done(result: SweepResult) -> list[VariantResult]:
    return [variant for variant in result.variants if variant.cells]


def _draw_frontier(variants: Sequence[VariantResult], marks: Mapping[str, str]) -> str:
    """Draw leakage over guarantee, leakage over utility, and utility over compute; also canary users, if there are
    any."""
    planted = any(variant.canaries for variant in variants)
    with figure(7.0, 5.0 if planted else 2.7) as (drawn, saved):
        promises, two, three, *more = drawn.subplots(2, 2).flat if planted else drawn.subplots(1, 3)
        marked = {}
        marked[promises] = _scatter(promises, variants, marks, x=_promise_of, y=lambda variant: variant.auroc)
        for variant in variants:
            if variant.ceiling is not None and variant.epsilon_per_user is not None:
                promises.plot([_promise_of(variant)], [variant.ceiling.auroc], "_", color="black", markersize=12)
        promises.set_xscale("symlog", linthresh=1)
        promises.axhline(0.5, color=GREY, linewidth=0.6)
        label(promises, "epsilon per user (right: none)", "AUROC of the primary attack")
        infinite = _without_promise(variants)
        ticks = [tick for tick in (0.5, 1, 2, 4, 8, 16, 32, 64) if tick < infinite / 1.5]
        promises.set_xticks([*ticks, infinite], [*(f"{tick:g}" for tick in ticks), "none"])
        promises.minorticks_off()
        marked[two] = _scatter(two, variants, marks, x=lambda variant: variant.gain, y=lambda variant: variant.auroc)
        two.axhline(0.5, color=GREY, linewidth=0.6)
        label(two, "loss gained over the base, nats", "AUROC of the primary attack")
        marked[three] = _scatter(
            three, variants, marks, x=lambda variant: variant.gradients, y=lambda variant: variant.gain
        )
        counts = [variant.gradients for variant in variants if variant.gradients]
        if counts and max(counts) > 10 * min(counts):
            three.set_xscale("log")
        else:
            three.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
        label(three, "gradients computed", "loss gained over the base, nats")
        for axes in more:
            marked[axes] = _scatter(axes, variants, marks, x=lambda variant: variant.gain, y=_best_canaries)
            axes.axhline(0.5, color=GREY, linewidth=0.6)
            label(axes, "loss gained over the base, nats", "AUROC of the canary users found best")
        # Last, when every axis has its limits.
        for axes, points in marked.items():
            place_labels(axes, points)
    return saved[0]


def _best_canaries(variant: VariantResult) -> Summary | None:
    """Return the highest AUROC of a group of canary users with this variant."""
    return max((area.auroc for area in variant.canaries), key=lambda area: area.value, default=None)


def _without_promise(variants: Sequence[VariantResult]) -> float:
    """Return the position on the axis of epsilon for variants without a guarantee for users."""
    return 4.0 * max(
        (variant.epsilon_per_user for variant in variants if variant.epsilon_per_user is not None), default=4.0
    )


def _scatter(
    axes: Axes, variants: Sequence[VariantResult], marks: Mapping[str, str], *, x: Measure, y: Measure
) -> list[tuple[float, float, str]]:
    """Draw a point with intervals for each variant. Return the points with the marks of their variants."""
    infinite = _without_promise(variants)
    points = []
    for variant in variants:
        across, up = _placed(x(variant), infinite), _placed(y(variant), infinite)
        if across is None or up is None:
            continue
        colour, fill = (GREY, "white") if variant.dominated_by else (BLUE, BLUE)
        points.append((*_draw_point(axes, across, up, variant, colour, fill), marks[variant.name]))
    axes.margins(0.12)
    return points


def _draw_point(
    axes: Axes, across: Summary, up: Summary, variant: VariantResult, colour: str, fill: str | None = None
) -> tuple[float, float]:
    """Draw a variant's point with its intervals, under the variant's name in the figure's data. Return its position."""
    point, _, bars = axes.errorbar(
        [across.value],
        [up.value],
        xerr=_reach(across),
        yerr=_reach(up),
        fmt="o",
        color=colour,
        markerfacecolor=fill or colour,
        markersize=3.5,
        linewidth=0.7,
    )
    point.set_label(variant.label)
    for bar in bars:
        bar.set_label(f"{variant.label}, interval")
    return across.value, up.value


def _placed(value: "Summary | float | None", infinite: float) -> Summary | None:
    """Return a number as a summary with an interval; infinity becomes the position at the edge."""
    if value is None or isinstance(value, Summary):
        return value
    finite = value if math.isfinite(value) else infinite
    return Summary(value=finite, lower=None, upper=None, over="users")


def _promise_of(variant: VariantResult) -> float:
    return math.inf if variant.epsilon_per_user is None else variant.epsilon_per_user


def _reach(summary: Summary) -> np.ndarray | None:
    if summary.lower is None or summary.upper is None:
        return None
    return np.array([[max(0.0, summary.value - summary.lower)], [max(0.0, summary.upper - summary.value)]])


def _draw_rocs(result: SweepResult, variants: Sequence[VariantResult], marks: Mapping[str, str]) -> str:
    """Draw a panel for each variant, with the curve of every repetition, and the highest curve that its guarantee
    allows."""
    down = math.ceil(len(variants) / 4)
    across = math.ceil(len(variants) / down)  # five make three and two, not four and one
    with figure(1.75 * across, 1.9 * down) as (drawn, saved):
        panels = np.atleast_1d(drawn.subplots(down, across, sharex=True, sharey=True, squeeze=False)).ravel()
        # All panels share both axes: each call would make the ticks of every panel again.
        panels[0].set(xscale="log", yscale="log", xlim=(_LOG_FROM, 1), ylim=(_LOG_FROM, 1.1))
        for axes, variant in zip(panels, variants, strict=False):
            axes.minorticks_off()
            if variant.ceiling is not None:
                # From the edge of the axes on: what is drawn beyond it is cut off, and still makes the figure wider.
                fpr = np.geomspace(_LOG_FROM, 1, 100)
                tpr = np.interp(fpr, variant.ceiling.fpr, variant.ceiling.tpr)
                axes.plot(fpr, tpr, color="black", linewidth=0.7)
                axes.fill_between(fpr, tpr, 1, color=GREY, alpha=0.15, linewidth=0)
            for cell in result.cells:
                if cell.variant == variant.name and cell.roc is not None:
                    axes.plot(*_from_the_edge(cell.roc), color=BLUE, linewidth=0.8)
            diagonal = np.geomspace(_LOG_FROM, 1, 30)
            axes.plot(diagonal, diagonal, color=GREY, linewidth=0.6)
            axes.set_title(f"{marks[variant.name]}  {_short(variant.label, 20)}", fontsize=6.5)
            label(axes, "", "")
        for axes in panels[len(variants) :]:
            axes.axis("off")
        drawn.supxlabel("false-positive rate", fontsize=8)
        drawn.supylabel("true-positive rate", fontsize=8)
    return saved[0]


def _from_the_edge(roc: RocPoints) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices of a curve inside the logarithmic axes, and the point at which the curve enters them."""
    fpr, tpr = np.array(roc.fpr), np.array(roc.tpr)
    inside = (fpr > _LOG_FROM) & (tpr >= _LOG_FROM)
    first = np.interp(_LOG_FROM, fpr, tpr)
    start = ([_LOG_FROM], [first]) if first >= _LOG_FROM else ([], [])
    return np.concatenate([start[0], fpr[inside]]), np.concatenate([start[1], tpr[inside]])


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _draw_canaries(variants: Sequence[VariantResult], marks: Mapping[str, str]) -> str:
    """Draw the AUROC of canary users, with a panel for each kind and number of documents, and a line for each
    variant."""
    kinds = sorted({_kind(point) for variant in variants for point in variant.canaries})
    across = min(2, len(kinds))
    down = math.ceil(len(kinds) / across)
    with figure(3.5 * across, 2.9 * down) as (drawn, saved):
        panels = np.ravel(drawn.subplots(down, across, squeeze=False))
        for axes, kind in zip(panels, kinds, strict=False):
            _draw_kind(axes, kind, variants, marks)
        for axes in panels[len(kinds) :]:
            axes.axis("off")
    return saved[0]


def _draw_kind(axes: Axes, kind: tuple[str, int], variants: Sequence[VariantResult], marks: Mapping[str, str]) -> None:
    """Draw a panel with the AUROC of one kind of canary users over the length of their shared text."""
    of_kind = {
        variant.name: {point.length or 0: point.auroc for point in variant.canaries if _kind(point) == kind}
        for variant in variants
    }
    lengths = sorted({length for values in of_kind.values() for length in values})
    ends = []
    for i, (name, values) in enumerate(of_kind.items()):
        if not values:
            continue
        # Side by side, so that those at one length do not hide each other.
        shift = 0.06 * (i - (len(variants) - 1) / 2)
        places = [k + shift for k, length in enumerate(lengths) if length in values]
        areas = [values[length] for length in lengths if length in values]
        style, colour = _line(i)
        heights = [area.value for area in areas]
        axes.plot(places, heights, "o" + style, color=colour, markersize=2.5, linewidth=0.8)
        for place, area in zip(places, areas, strict=True):
            axes.errorbar([place], [area.value], yerr=_reach(area), color=colour, linewidth=0.5)
        ends.append((marks[name], (places[-1], heights[-1]), colour))
    _at_the_ends(axes, ends)
    axes.axhline(0.5, color=GREY, linewidth=0.6)
    axes.set_xticks(range(len(lengths)), [str(length) if length else "" for length in lengths])
    documents = "all documents" if kind[1] < 0 else counted(kind[1], "document")
    axes.set_title(f"{kind[0].replace('_', ' ')}, {documents}", fontsize=8)
    axes.margins(x=0.15)
    label(axes, "tokens in the shared substring" if any(lengths) else "", "AUROC of canary users")


def _line(i: int) -> tuple[str, str]:
    """Return dash style and colour of line ``i``. Sixteen lines have sixteen different pairs."""
    return _STYLES[i % 4], _COLOURS[(i // 4 + i) % 4]


def _at_the_ends(axes: Axes, ends: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    """Draw marks (mark, end, colour) next to the ends of lines, and move marks up if they would overlap."""
    step, at = 0.06 * float(np.ptp(axes.get_ylim())), -math.inf
    for mark, (x, y), colour in sorted(ends, key=lambda end: end[1][1]):
        at = max(y, at + step)
        axes.annotate(mark, (x, at), (3, 0), textcoords=_OFFSET, fontsize=7, color=colour)


def _kind(point: CanaryPoint) -> tuple[str, int]:
    return point.kind, -1 if point.documents is None else point.documents


def _draw_exposure(variants: Sequence[VariantResult], marks: Mapping[str, str]) -> str:
    """Draw, for each variant, the share of non-members with lower scores than each third of its members."""
    shown = [variant for variant in variants if variant.bands]
    with figure(7.0, 1.0 + 0.19 * len(shown)) as (drawn, saved):
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, (property_, title) in zip(panels, _SORTED_BY.items(), strict=True):
            for row, variant in enumerate(shown):
                bands = [band for band in variant.bands if band.of == property_]
                axes.plot([band.above for band in bands], [row] * len(bands), color=GREY, linewidth=0.6)
                for band, (mark, colour, _) in zip(bands, _THIRDS, strict=False):
                    axes.plot([band.above], [row], mark, color=colour, markersize=4)
            axes.axvline(0.5, color=GREY, linewidth=0.6)
            axes.set_title(title, fontsize=8)
            axes.set_yticks(
                range(len(shown)), [f"{marks[variant.name]}  {_short(variant.label, 20)}" for variant in shown]
            )
            label(axes, "non-members with a lower score", "")
        panels[0].set_ylim(len(shown) - 0.4, -0.6)  # the first on top, and no row on an axis
        handles = [
            panels[0].plot([], [], mark, color=colour, markersize=4, label=text)[0] for mark, colour, text in _THIRDS
        ]
        drawn.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7)
    return saved[0]


def _draw_curves(result: SweepResult, variants: Sequence[VariantResult], marks: Mapping[str, str]) -> str:
    """Draw non-members' loss and AUROC during training, for the first repetition that measured them."""
    with figure(7.0, 2.7) as (drawn, saved):
        losses, areas = drawn.subplots(1, 2)
        ends: dict[Axes, list[tuple[str, tuple[float, float], str]]] = {losses: [], areas: []}
        for i, variant in enumerate(variants):
            curve = next((cell.curve for cell in result.cells if cell.variant == variant.name and cell.curve), [])
            # As a share: variants take different numbers of steps.
            last = max((point.step for point in curve), default=0) or 1
            for axes, values in ((losses, [p.held_out_loss for p in curve]), (areas, [p.auroc for p in curve])):
                known = [(p.step / last, value) for p, value in zip(curve, values, strict=True) if value is not None]
                if known:
                    style, colour = _line(i)
                    point = "." if len(known) == 1 else ""
                    axes.plot(*zip(*known, strict=True), style, color=colour, linewidth=0.9, marker=point)
                    ends[axes].append((marks[variant.name], known[-1], colour))
        for axes, its_ends in ends.items():
            axes.set_xlim(left=0.0)  # of a single evaluation there would be an axis around 1
            _at_the_ends(axes, its_ends)
        label(losses, "share of training", "loss of non-members, nats")
        areas.axhline(0.5, color=GREY, linewidth=0.6)
        label(areas, "share of training", "AUROC on samples of users")
    return saved[0]
