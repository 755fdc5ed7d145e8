"""Figures of several studies as SVG, in the report's style."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from heldin.audit.blocks import Summary
from heldin.audit.users_ladder import HALF, TOLERABLE, Trained, kept
from heldin.base.errors import InputError
from heldin.reports.figures import BLUE, GREY, ORANGE, figure
from replication.effective_noise import PAPERS_LIMIT, PAPERS_MEASURED, NoiseRow
from replication.mean_estimation import Point, TunedArm
from replication.mean_estimation_sweeps import Study, Swept, mean_error
from replication.published_claims import ESTIMATORS, ClaimCurve

_AXES: dict[Swept, str] = {
    "epsilon": "epsilon",
    "budget": "compute budget B, gradients a round",
    "within": "within-user deviation",
}
_APART = 1.06  # factor between lines that share their values
_CLOSE = 1.25  # errors within this factor share a mark
_LINES = {"ULS": ("-", "o", BLUE), "ELS": ("--", "s", ORANGE)}
_THIN = (("--", ORANGE), ("-", ORANGE), ("--", BLUE), ("-", BLUE))  # two values each side of the thick line
_PAPER = ((PAPERS_LIMIT, "needed, says the paper"), (PAPERS_MEASURED, "measured in the paper"))
_POINTS = "offset points"


def mean_estimation_figure(study: Study) -> str:
    """Return the SVG with the three sweeps: mean squared error of ELS and of ULS with tuned group size, 95 % intervals.

    Thin grey lines show ULS with each single group size, which is written at the last point. The dotted line is the
    mean without privacy.
    """
    with figure(7.0, 2.6) as (drawn, saved):
        panels = drawn.subplots(1, len(study.sweeps), sharey=True)
        for axes, (swept, points) in zip(np.atleast_1d(panels), study.sweeps.items(), strict=True):
            # ``swept`` is the name of the setting's field that varies; the others stay.
            values = [float(getattr(point.setting, swept)) for point in points]
            _single_groups(axes, values, points)
            _with_intervals(axes, values, [p.els for p in points], "ELS, G = K")
            _with_intervals(axes, values, [p.uls for p in points], "ULS, best G")
            floor = [study.task.floor(point.setting.within) for point in points]
            axes.plot(values, floor, ":", color="black", linewidth=0.8, label="all examples, no privacy")
            axes.set(xscale="log", yscale="log")
            axes.margins(x=0.12)  # room for the marks
            _ticks(axes, values)
            axes.set_xlabel(_AXES[swept])
        # With one sweep ``subplots`` returns an Axes and not an array of them.
        first = np.atleast_1d(panels)[0]
        first.set_ylabel("squared error of the estimated mean")
        handles, labels = first.get_legend_handles_labels()
        order = [
            labels.index(name) for name in ("ELS, G = K", "ULS, best G", "ULS, G as marked", "all examples, no privacy")
        ]
        drawn.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside upper center", ncols=4)
    return saved[0]


def users_figure(ladder: Sequence[Trained]) -> str:
    """Return the SVG: the share of plain training's gain that private training keeps, over numbers of users, 95 %
    intervals.

    A panel for each epsilon, the largest first. The lines of a rung are set a little apart, so their intervals do not
    overlap.
    """
    rows = kept(ladder)
    epsilons = sorted({row.trained.epsilon or 0.0 for row in rows}, reverse=True)
    kinds = list(dict.fromkeys((row.trained.training, row.trained.optimizer) for row in rows))
    with figure(7.0, 2.8) as (drawn, saved):
        panels = np.atleast_1d(drawn.subplots(1, len(epsilons), sharey=True))
        for axes, epsilon in zip(panels, epsilons, strict=True):
            for place, (training, optimizer) in enumerate(kinds):
                own = [
                    row
                    for row in rows
                    if (row.trained.training, row.trained.optimizer, row.trained.epsilon)
                    == (training, optimizer, epsilon)
                ]
                shares = 100 * np.array([_limits(row.share) for row in own])
                axes.errorbar(
                    [row.trained.users * _APART ** (place - (len(kinds) - 1) / 2) for row in own],
                    shares[:, 0],
                    np.abs(shares[:, 1:] - shares[:, :1]).T,
                    fmt=("--" if optimizer == "Adam" else "-") + ("o" if training == "uls" else "s"),
                    color=BLUE if training == "uls" else ORANGE,
                    markersize=3,
                    capsize=2,
                    elinewidth=0.8,
                    label=f"{'ULS' if training == 'uls' else 'banded noise'}, {optimizer}",
                )
            for share in (HALF, TOLERABLE):
                axes.axhline(100 * share, color=GREY, linestyle=":", linewidth=0.8)
            axes.set(xscale="log", xlabel=f"users, at epsilon {epsilon:g}")
            axes.set_ylim(-25.0, 100.0)
            _ticks(axes, sorted({row.trained.users for row in rows}))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panels[0].set_ylabel("share of the plain gain kept, %")
        panels[0].legend(loc="upper left", fontsize=6, frameon=True, framealpha=1.0, edgecolor="none")
    return saved[0]


def _limits(share: Summary) -> tuple[float, float, float]:
    """Return mean and limits; without an interval, the mean three times."""
    if share.lower is None or share.upper is None:
        return share.value, share.value, share.value
    return share.value, share.lower, share.upper


def effective_noise_figure(rows: Sequence[NoiseRow], *, epsilon: float = 3.0, steps: int = 1000) -> str:
    """Return the SVG. Left: both noises over tau / C for one population. Right: their crossing over the sampling rate.

    The left panel and the thick line on the right use the given epsilon and steps. The thin lines on the right vary one
    of the two. Raises InputError if no row has the given values.
    """
    shown = [row for row in rows if row.epsilon == epsilon and row.steps == steps]
    if not shown:
        raise InputError(f"no row has epsilon {epsilon:g} and {steps} steps: give values that a row has")
    with figure(7.0, 2.8) as (drawn, saved):
        left, right = drawn.subplots(1, 2)
        _noises(left, shown)
        _crossings(right, rows, epsilon, steps)
    return saved[0]


def claim_figure(curves: Sequence[ClaimCurve]) -> str:
    """Return a panel for each data set: the claimed epsilon over steps, and the epsilon that holds (Lai et al., Figures
    4, 9)."""
    datasets = list(dict.fromkeys(curve.dataset for curve in curves))
    styles = dict(zip(ESTIMATORS, (("o", BLUE), ("^", ORANGE), ("s", "black")), strict=True))
    # Data sets name the same category alike, so a category has one mark.
    categories = dict.fromkeys(curve.entities for curve in curves if curve.estimator == "f_E+")
    marks = dict(zip(categories, "oDvPX<>*h", strict=False))
    with figure(7.0, 2.8 if len(categories) == 1 else 3.2) as (drawn, saved):
        panels = np.atleast_1d(drawn.subplots(1, len(datasets), sharey=True))
        for axes, dataset in zip(panels, datasets, strict=True):
            for curve in (curve for curve in curves if curve.dataset == dataset):
                mark, colour = styles[curve.estimator]
                style = {"color": colour, "linewidth": 1.0, "markersize": 3}
                name = curve.estimator
                if name == "f_E+" and len(categories) > 1:
                    name, mark = f"{name} ({curve.entities})", marks[curve.entities]
                axes.plot(curve.steps, curve.claimed, "--", marker=mark, label=f"{name}, claimed", **style)
                # What holds of both estimators is the same line.
                if curve.estimator != "f_E+":
                    whose = "users" if curve.estimator == "user-level" else "users and entities"
                    axes.plot(curve.steps, curve.holds, "-", marker=mark, label=f"{whose}, what holds", **style)
            axes.set(yscale="log", xlabel="steps T", title=dataset)
        panels[0].set_ylabel("epsilon at delta 1e-5")
        named = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        drawn.legend(list(named.values()), list(named), loc="outside upper center", ncols=3)
    return saved[0]


def _single_groups(axes: Axes, values: Sequence[float], points: Sequence[Point]) -> None:
    sizes = sorted({outcome.arm.group_size for point in points for outcome in point.every_uls})
    # Errors by index of the first and of the last point: labels go to the side where lines lie further apart.
    ends: dict[int, list[tuple[int, float]]] = {0: [], len(points) - 1: []}
    for size in sizes:
        at = [
            (i, float(outcome.errors.mean()))
            for i, point in enumerate(points)
            for outcome in point.every_uls
            if outcome.arm.group_size == size
        ]
        # One entry in the legend for all grey lines.
        label = "ULS, G as marked" if size == sizes[0] else ""
        axes.plot([values[i] for i, _ in at], [e for _, e in at], color=GREY, linewidth=0.6, alpha=0.7, label=label)
        for i, error in (at[0], at[-1]):
            if i in ends:
                ends[i].append((size, error))
    best = max(ends, key=lambda end: _spread(ends[end]))
    _mark(axes, values[best], ends[best], left=best == 0)


def _spread(marks: Sequence[tuple[int, float]]) -> float:
    return max(e for _, e in marks) / min(e for _, e in marks) if marks else 0.0


def _mark(axes: Axes, x: float, marks: Sequence[tuple[int, float]], *, left: bool) -> None:
    """Write group sizes next to the ends of their lines. Ends that are close together share one label."""
    groups: list[list[tuple[int, float]]] = []
    for size, error in sorted(marks, key=lambda mark: mark[1]):
        # A factor, not a difference: the axis is logarithmic.
        if groups and error < _CLOSE * groups[-1][-1][1]:
            groups[-1].append((size, error))
        else:
            groups.append([(size, error)])
    for group in groups:
        sizes = sorted(size for size, _ in group)
        axes.annotate(
            f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}",
            # The geometric mean is the middle on a logarithmic axis.
            (x, float(np.exp(np.mean([np.log(error) for _, error in group])))),
            xytext=(-4 if left else 4, 0),
            textcoords=_POINTS,
            ha="right" if left else "left",
            va="center",
            fontsize=6,
            color=GREY,
        )


def _with_intervals(axes: Axes, values: Sequence[float], outcomes: Sequence[TunedArm], label: str) -> None:
    style, marker, colour = _LINES[outcomes[0].arm.method]
    found = [mean_error(outcome) for outcome in outcomes]
    centre = np.array([its.value for its in found])
    limits = np.array([[its.value - its.low, its.high - its.value] for its in found]).T
    axes.errorbar(
        values, centre, limits, fmt=style + marker, color=colour, markersize=3, capsize=2, elinewidth=0.8, label=label
    )


def _noises(axes: Axes, rows: Sequence[NoiseRow]) -> None:
    populations = sorted({row.users for row in rows})
    # One population of the middle size: noises of several would overlap.
    users = populations[len(populations) // 2]
    chosen = [row for row in rows if row.users == users]
    ratios = np.geomspace(1e-2, 3.0, 50)
    # In units of tau, so that times tau / C it is in units of C like the other (docs/theory.md#filtered-descent).
    axes.plot(ratios, chosen[0].filter_noise * ratios, color=BLUE)
    axes.annotate(
        "Asi & Liu, Algorithm 3\nall users a step",
        (2.8, chosen[0].filter_noise * 2.8),
        ha="right",
        va="bottom",
        color=BLUE,
        fontsize=6.5,
        xytext=(-22, -6),
        textcoords=_POINTS,
    )
    for row in chosen:
        axes.axhline(row.uls_noise, linestyle="--", color=ORANGE)
        axes.plot(row.break_even, row.uls_noise, "o", color="black", markersize=3.5, zorder=3)
        axes.annotate(f"{row.cohort:,} users a step", (2.8, row.uls_noise), ha="right", va="top", fontsize=6.5)
    axes.annotate(
        "user-wise DP-SGD", (0.011, chosen[0].uls_noise), va="bottom", fontsize=6.5, xytext=(0, 2), textcoords=_POINTS
    )
    for limit, _ in _PAPER:
        axes.axvline(limit, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(ratios[0], ratios[-1]))
    axes.set_xlabel("tau / C, concentration threshold over clip norm")
    axes.set_ylabel("noise per coordinate, over C")
    axes.set_title(f"{users:,} users, epsilon {chosen[0].epsilon:g}, {chosen[0].steps:,} steps", fontsize=8)
    _plain(axes)


def _crossings(axes: Axes, rows: Sequence[NoiseRow], epsilon: float, steps: int) -> None:
    # Exclusive or: settings in which one of the two differs, not both.
    others = {(row.epsilon, row.steps) for row in rows if (row.epsilon == epsilon) != (row.steps == steps)}
    styles = iter(_THIN)
    for pair in [(epsilon, steps), *sorted(others, key=lambda its: (its[0] == epsilon, its))]:
        its = sorted({(row.cohort / row.users, row.break_even) for row in rows if (row.epsilon, row.steps) == pair})
        main = pair == (epsilon, steps)
        style, colour = ("-", "black") if main else next(styles, ("-", GREY))
        axes.plot(
            [rate for rate, _ in its],
            [at for _, at in its],
            style,
            marker="o" if main else None,
            color=colour,
            markersize=3.5,
            linewidth=1.4 if main else 1.0,
            label=f"epsilon {pair[0]:g}, {pair[1]:,} steps",
        )
    for limit, words in _PAPER:
        axes.axhline(limit, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.annotate(
            words, (1.0, limit), ha="right", va="bottom", color=GREY, fontsize=6.5, xytext=(0, 1), textcoords=_POINTS
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("sampling rate of user-wise DP-SGD")
    axes.set_ylabel("break-even tau / C")
    axes.legend(fontsize=6)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # 0.01, not 10^-2
    axes.tick_params(which="both", width=0.6, length=2.5)


def _ticks(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xticks(values, [f"{value:g}" for value in values])
    # Ticks at the swept values alone: minor ones of a logarithmic axis would look like further settings.
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(width=0.6, length=2.5)
