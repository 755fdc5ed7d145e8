"""The figure of Propositions 1 and 2 as SVG, in the report's style, with one row per size."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from heldin.reports.figures import BLUE, GREY, ORANGE, figure, label
from replication.mean_estimation_sweeps import Interval
from replication.proposition import Measured, Point
from replication.proposition_sweeps import PropositionStudy, SizeResult, bounds_of, diagonal, most_after

_STATISTIC, _PAPER, _JENSEN = "T", "bounds of Proposition 1", "between Jensen's bounds"
_REFUSED = "alpha chi² is above this"


def proposition_figure(study: PropositionStudy) -> str:
    """Return the SVG: T and its bounds over alpha_u and distinctiveness, and KL(P' || Q') of mixed users; 95 %
    intervals.

    Negative lower bounds of the paper are not drawn. Triangles show alpha_u times the proved floor of a refused chi2.
    """
    with figure(7.0, 2.5 * len(study.results) + 0.3) as (drawn, saved):
        rows = drawn.subfigures(len(study.results), 1, squeeze=False)[:, 0]
        for part, result in zip(rows, study.results, strict=True):
            part.suptitle(result.name, fontsize=8)
            over_alpha, over_distinctiveness, mixing = part.subplots(1, 3)
            shown = [(point.alpha, result.over_alpha, point) for point in result.over_alpha.points]
            _between_bounds(over_alpha, shown)
            over_alpha.set_xscale("log")
            label(over_alpha, "alpha_u, the user's share", "statistic T, nats")
            _between_bounds(
                over_distinctiveness, [(value, its, its.points[0]) for value, its in result.over_distinctiveness]
            )
            label(over_distinctiveness, f"distinctiveness, at alpha_u {result.size.alpha:g}", "")
            _mixing(mixing, result)
        every = [axes for part in rows for axes in part.axes[:2]]
        named = {name: line for axes in every for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        order = [name for name in (_STATISTIC, _PAPER, _JENSEN, _REFUSED) if name in named]
        drawn.legend([named[name] for name in order], order, loc="outside upper center", ncols=4)
    return saved[0]


def _between_bounds(axes: Axes, shown: Sequence[tuple[float, Measured, Point]]) -> None:
    at = [(x, its, point, bounds_of(its, point)) for x, its, point in shown]
    # A chi² whose estimate is refused has no upper bound of Jensen's, only a floor: no band there,
    # and a triangle in place of the paper's line.
    known = [(x, bounds) for x, its, _, bounds in at if its.chi_squared.estimate]
    # log alpha + KL is below 0 for small shares, where a logarithmic axis has no place for it.
    above = [(x, bounds[0]) for x, _, _, bounds in at if bounds[0] > 0]
    axes.fill_between(
        [x for x, _ in known], [b[1] for _, b in known], [b[2] for _, b in known], color=GREY, alpha=0.25, label=_JENSEN
    )
    axes.plot([x for x, _ in known], [bounds[3] for _, bounds in known], "--", color=ORANGE, label=_PAPER)
    # Without a label: it is the lower of the two lines that share one.
    axes.plot([x for x, _ in above], [value for _, value in above], "--", color=ORANGE)
    refused = [(x, bounds[3]) for x, its, _, bounds in at if not its.chi_squared.estimate]
    if refused:
        axes.plot(*zip(*refused, strict=True), "^", color=ORANGE, markerfacecolor="none", markersize=4, label=_REFUSED)
    _with_intervals(axes, [x for x, *_ in at], [point.statistic for _, _, point, _ in at])
    axes.set_yscale("log")


def _mixing(axes: Axes, result: SizeResult) -> None:
    mixes = diagonal(result)
    kept = [mix.kept_p for mix in mixes]
    axes.axhline(result.forwards.value, linestyle="--", color=ORANGE)
    axes.plot(kept, [most_after(result, mix).value for mix in mixes], color=GREY, linewidth=0.8)
    _with_intervals(axes, kept, [mix.kl for mix in mixes])
    # Room above both directions of KL, for the words at the printed bound.
    axes.set_ylim(0.0, 1.25 * max(result.forwards.high, result.backwards.high))
    for words, place, colour in (
        ("at most this, as printed", (0.5, result.forwards.value), ORANGE),
        ("as corrected", (0.5, 0.45 * result.forwards.value), GREY),
    ):
        axes.annotate(words, place, ha="center", va="bottom", color=colour, fontsize=6.5)
    label(axes, "lambda = mu, texts rightly labelled", "KL(P' || Q'), nats")


def _with_intervals(axes: Axes, values: Sequence[float], found: Sequence[Interval]) -> None:
    centre = [its.value for its in found]
    limits = [[its.value - its.low for its in found], [its.high - its.value for its in found]]
    axes.errorbar(
        values, centre, limits, fmt="-o", color=BLUE, markersize=2.5, capsize=2, elinewidth=0.8, label=_STATISTIC
    )
