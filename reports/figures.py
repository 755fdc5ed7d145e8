"""The figures of a record, the style of all figures, and the conversion of figures to SVG.

Colour-blind readers can distinguish the colours. In grey print, line styles distinguish the series.
"""

import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from heldin.audit.attack_results import AttackResult, Curve, Histogram, Knowledge
from heldin.audit.bootstrap import Estimate
from heldin.audit.decision import Answer
from heldin.audit.results import CanaryFacts, CanaryGroup
from heldin.base.wording import counted, kind_words
from heldin.defenses.accounting.roc_ceiling import epsilon_delta_ceiling
from heldin.record.document import Record
from heldin.record.facts import Ceiling, GradientNorms
from heldin.reports.blocks import Beside, Figure
from heldin.reports.wording import audited_by, name_primary
from heldin.words.evidence import SUBJECTS, ClaimLabel
from heldin.words.people import TRAININGS, Wording

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#767676"  # Okabe and Ito (2008), of clearly different lightness
STYLE: Any = {  # matplotlib types its several hundred keys as literals
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
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
    """Put the legend above the axes, outside the drawing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


_kept: ContextVar[list[Drawing] | None] = ContextVar("_kept", default=None)


@contextmanager
def keep_drawings() -> Iterator[list[Drawing]]:
    """Yield a list, and add every drawing made in this block to the list."""
    drawings: list[Drawing] = []
    token = _kept.set(drawings)
    try:
        yield drawings
    finally:
        _kept.reset(token)


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple[Drawing, list[str]]]:
    """Begin a figure of ``width`` x ``height`` inches. When the context ends, its SVG is appended to the yielded
    list."""
    saved: list[str] = []
    with mpl.rc_context(STYLE):
        # Not by pyplot, which would pick a backend for the whole process and keep every figure until it is closed.
        drawn = Drawing(figsize=(width, height), layout="constrained")
        yield drawn, saved
        if (kept := _kept.get()) is not None:
            kept.append(drawn)
        buffer = io.StringIO()
        canvas: Any = FigureCanvasSVG(drawn)
        # Without a date the same record gives the same bytes.
        canvas.print_svg(buffer, metadata={"Date": None})
        drawn.set_layout_engine(None)  # other formats have the same places, and need no second layout
        saved.append(buffer.getvalue())


def two_sides(axes: Axes, histogram: Histogram, held_in: str, held_out: str) -> None:
    """Draw the scores of both groups. One is filled and one is hatched, so they also differ in grey print."""
    edges = np.array(histogram.edges)
    # shares of a side per unit of score: counts would mislead with wide bins and unequal sides
    outside, inside = (
        np.array(side) / max(1, sum(side)) / np.diff(edges) for side in (histogram.held_out, histogram.held_in)
    )
    axes.stairs(outside, edges, fill=True, facecolor=ORANGE, alpha=0.55, label=held_out)
    axes.stairs(inside, edges, color=BLUE, hatch="////", fill=True, facecolor="none", label=held_in)
    axes.stairs(inside, edges, color=BLUE, linewidth=1.2)


# A record has the curves of two scores at most: those of many would tell together who was held in.
_CURVES = (("-", BLUE), ("--", ORANGE))
_CLAIMS = ("-.", "--", ":")


def plot_people(record: Record) -> Beside | None:
    """Return the picture on page one: people as dots, flagged people filled, next to the scores of both groups.

    The picture has no dots if heldin can count nobody. The result is None if the comparison is not valid.
    """
    if record.decision.decision.answer is Answer.NOT_VALID:
        return None
    flagged, counted_attack = record.flagged(), record.counted_attack()
    words = TRAININGS if record.trainings is not None else audited_by(record)
    curve = counted_attack.curve or record.curve()
    inside, outside = curve.histogram.held_in, curve.histogram.held_out
    alt = (
        f"Two histograms of scores, of members and of non-members. Of the {words.unit} with the highest scores"
        f" {inside[-1]} of {inside[-1] + outside[-1]} are members, of those with the lowest {inside[0]} of"
        f" {inside[0] + outside[0]}."
    )
    scores = Figure("scores", partial(_draw_scores, record), alt, width=52)
    if flagged is None:
        return Beside([scores])
    blocks = [_dots_of(flagged.members, flagged.of_members), _dots_of(flagged.others, flagged.of_others)]
    (members, of_members), (others, of_others) = blocks
    alt = f"Two blocks of dots: {members} of {of_members} members are flagged, and {others} of {of_others} non-members."
    return Beside([Figure("people", partial(_draw_people, blocks), alt, width=48), scores])


_ROW = 10  # dots
_MOST_DOTS = 100
_ENOUGH = 50  # people in a group, from which 100 dots show the share


def _dots_of(flagged: int, total: int) -> tuple[int, int]:
    """Return the numbers of filled dots and of all dots: one dot per person, or 100 dots for 50 people or more."""
    return (flagged, total) if total < _ENOUGH else (round(_MOST_DOTS * flagged / total), _MOST_DOTS)


def draw_scores(axes: Axes, record: Record) -> None:
    """Draw members' and non-members' scores by the attack whose flagged people page one counts. Each bin has ten people
    or more."""
    counted_attack = record.counted_attack()
    two_sides(axes, (counted_attack.curve or record.curve()).histogram, "members", "non-members")
    if record.trainings is not None and record.trainings.threshold is not None:
        axes.axvline(record.trainings.threshold, color="black", linewidth=0.8, linestyle="--", label="threshold")
    label(axes, f"score of {counted_attack.attack}\n(higher: more like a member)", "share of the group")
    axes.set_yticks([])
    above(axes)


def _draw_scores(record: Record) -> str:
    with figure(3.4, 1.75) as (drawn, saved):
        draw_scores(drawn.subplots(), record)
    return saved[0]


def _draw_people(blocks: Sequence[tuple[int, int]]) -> str:
    with figure(3.4, 1.75) as (drawn, saved):
        members, others = drawn.subplots(1, 2)
        _draw_dots(members, *blocks[0], BLUE, "members\nflagged")
        _draw_dots(others, *blocks[1], ORANGE, "non-members\nwrongly flagged")
    return saved[0]


def _draw_dots(axes: Axes, flagged: int, total: int, colour: str, title: str) -> None:
    x, y = np.arange(total) % _ROW, -(np.arange(total) // _ROW)
    filled = np.arange(total) < flagged
    axes.scatter(x[filled], y[filled], s=14, color=colour, linewidths=0.6)
    axes.scatter(x[~filled], y[~filled], s=14, facecolors="none", edgecolors=GREY, linewidths=0.5)
    axes.set_title(f"{flagged} of {total} {title}", fontsize=8)
    # Few people have dots of the same size as a hundred.
    axes.set(xlim=(-0.7, _ROW - 0.3), ylim=(0.3 - _ROW, 0.7))
    axes.set_aspect("equal")
    axes.set_axis_off()


def plot_roc(record: Record) -> Figure:
    """Return the ROC curves on linear and logarithmic axes."""
    words, area = audited_by(record), record.primary().auroc
    caption = "ROC curves, linear and logarithmic. The thin grey line is guessing"
    if record.ceiling() is not None:
        caption += f", the shaded part lies above what the guarantee allows any attack on {words.unit} in expectation"
    if len(record.attacks) > 1:
        which = " and the best one are" if len(_chosen(record)) > 1 else " is"
        caption += (
            f". Of {len(record.attacks)} scores the primary attack{which} shown, in groups of ten {words.unit} or"
            " more: curves of many scores together would reveal who is a member"
        )
    alt = f"ROC curves of the attacks; the primary attack has an AUROC of {area.value:.2f}."
    return Figure("roc", partial(_draw_roc, record), alt, f"{caption}.")


def plot_curves(record: Record) -> Figure | None:
    """Return losses and AUROC by step; None unless heldin evaluated the model more than once during training."""
    points = record.training.curve if record.training else []
    # A single evaluation is a point, which draws nothing as a line.
    if len(points) < 2:
        return None
    ends = f"{points[0].auroc:.2f} to {points[-1].auroc:.2f}"
    return Figure(
        "curves",
        partial(_draw_curves, record),
        f"Validation losses and AUROC by step; the AUROC goes from {ends}.",
        "Validation loss and attack AUROC by optimizer step; the dotted line marks the audited checkpoint.",
    )


def plot_knowledge(record: Record) -> Figure | None:
    """Return AUROC by the number of texts that the attacker has; None if only one number was measured."""
    if len(record.knowledge) < 2:
        return None
    unit, first, last = audited_by(record).singular, record.knowledge[0], record.knowledge[-1]
    return Figure(
        "knowledge",
        partial(_draw_knowledge, record.knowledge, unit),
        f"AUROC by number of texts: {first.mean:.2f} with {first.texts}, {last.mean:.2f} with {last.texts}.",
        f"AUROC of {name_primary(record)}, by how many texts of each {unit} the attacker has. The band contains 95 % of"
        " random choices of the texts; it is not a confidence interval of the AUROC.",
    )


def plot_canaries(record: Record) -> Figure | None:
    """Return the AUROC of groups of canary users; None if no group has one."""
    groups = [group for group in (record.canaries.groups if record.canaries else []) if group.auroc]
    over = [
        *(["the length of their shared substring"] if any(group.length is not None for group in groups) else []),
        *(["their training documents"] if any(group.documents is not None for group in groups) else []),
    ]
    if record.canaries is None or not over:
        return None
    words = audited_by(record)
    return Figure(
        "canaries",
        partial(_draw_canaries, record.canaries, record.primary().auroc, words),
        "AUROC of groups of canary users with intervals; the table below has the same numbers.",
        f"AUROC of {name_primary(record)}, on canary users by {' and by '.join(over)}, with 95 % intervals. The band is"
        f" that of the {SUBJECTS[words.audited]}.",
    )


def plot_gradient_norms(record: Record) -> Figure | None:
    """Return gradient norms of canary users' and real users' records; None if they were not measured."""
    if record.gradient_norms is None:
        return None
    return Figure(
        "norms",
        partial(_draw_gradient_norms, record.gradient_norms),
        "Two histograms of gradient norms, of canary users' records and of real users'.",
        "Gradient norms of single records of canary users and of real users before the first step. A user-level step"
        " clips the mean over a user's records, which has another norm.",
    )


def _chosen(record: Record) -> list[tuple[AttackResult, Curve]]:
    """Return the scores that have curves in the record, the primary attack first."""
    return [(result, result.curve) for result in record.attacks if result.curve]


def draw_roc(axes: Axes, record: Record, *, log: bool = False) -> None:
    """Draw the ROC curves in the record, and the guarantee's ceiling if there is a guarantee.

    Args:
        log: whether both axes are logarithmic; they then begin at one person.
    """
    # One user: nothing smaller was seen, and the curve's vertices at 0 have no place on logarithmic axes.
    lowest, least_named = 1.0 / record.split.held_out, 1.0 / record.split.held_in
    for (result, curve), (style, colour) in zip(_chosen(record), _CURVES, strict=False):
        axes.plot(curve.fpr, curve.tpr, style, color=colour, label=_name_curve(result))
    label(axes, "false-positive rate", "true-positive rate")
    if ceiling := record.ceiling():
        # The ceiling's first point has an FPR of 0.
        shown = np.array(ceiling.fpr) >= (lowest if log else 0.0)
        fpr, tpr = np.array(ceiling.fpr)[shown], np.array(ceiling.tpr)[shown]
        axes.plot(fpr, tpr, ":", color="black", linewidth=1.0, label=_name_ceiling(ceiling))
        # Grey is what no attacker reaches in expectation if the promise holds
        # (docs/theory.md#attacker-ceilings).
        axes.fill_between(fpr, tpr, 1, color=GREY, alpha=0.15, linewidth=0)
    # Many points: on logarithmic axes the line between (0, 0) and (1, 1) would have an end that cannot be drawn.
    diagonal = np.geomspace(lowest, 1, 50) if log else [0, 1]
    axes.plot(diagonal, diagonal, color=GREY, linewidth=0.6)
    if log:
        axes.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(min(lowest, least_named), 1.1), aspect="equal")
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def draw_tradeoff(axes: Axes, record: Record) -> None:
    """Draw each attack's false-negative rate over its false-positive rate; a lower curve leaks more.

    The figure includes the lowest possible curve, in expectation, for the guarantee and for each numerical claim.
    """
    for (result, curve), (style, colour) in zip(_chosen(record), _CURVES, strict=False):
        axes.plot(curve.fpr, 1 - np.array(curve.tpr), style, color=colour, label=_name_curve(result))
    if ceiling := record.ceiling():
        missed = 1 - np.array(ceiling.tpr)
        axes.plot(ceiling.fpr, missed, ":", color="black", linewidth=1.0, label=_name_ceiling(ceiling))
        axes.fill_between(ceiling.fpr, 0, missed, color=GREY, alpha=0.15, linewidth=0)
    claims = [verdict.claim for verdict in record.judgement.verdicts if verdict.claim.states(ClaimLabel.STATED)]
    for claim, dashes in zip(dict.fromkeys(claims), itertools.cycle(_CLAIMS), strict=False):
        allowed = epsilon_delta_ceiling(*(float(str(claim.values[name])) for name in ("epsilon", "delta")))
        axes.plot(allowed.fpr, 1 - allowed.tpr, dashes, color=GREY, linewidth=1.0, label=f"claim: {claim}")
    axes.plot([0, 1], [1, 0], color=GREY, linewidth=0.6)
    label(axes, "false-positive rate", "false-negative rate")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def _name_curve(result: AttackResult) -> str:
    return f"{result.attack}, {result.aggregation} ({result.auroc.value:.2f})"


def _name_ceiling(ceiling: Ceiling) -> str:
    return f"ceiling ({ceiling.auroc:.2f})"


def _draw_roc(record: Record) -> str:
    with figure(6.3, 3.2) as (drawn, saved):
        linear, log = drawn.subplots(1, 2)
        draw_roc(linear, record)
        draw_roc(log, record, log=True)
        # beneath the axes: near an AUROC of 0.5 there is no room among the curves
        handles, names = linear.get_legend_handles_labels()
        drawn.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=2,
            fontsize=6.5,
            title="attack (AUROC)",
            title_fontsize=6.5,
        )
    return saved[0]


def _draw_curves(record: Record) -> str:
    assert record.training is not None
    points, words = record.training.curve, audited_by(record)
    steps = [p.step for p in points]
    with figure(6.3, 2.3) as (drawn, saved):
        losses, areas = drawn.subplots(1, 2)
        shown = (("held_in_loss", "o-", BLUE, words.member), ("held_out_loss", "s--", ORANGE, words.other))
        for name, mark, colour, side in shown:
            # None where those of a side have no validation texts.
            if (values := [getattr(p, name) for p in points])[0] is not None:
                losses.plot(steps, values, mark, color=colour, markersize=3, label=side)
        label(losses, "optimizer steps", "validation loss, nats")
        if losses.lines:
            above(losses)
        areas.plot(steps, [p.auroc for p in points], "o-", color="black", markersize=3)
        areas.axhline(0.5, color=GREY, linewidth=0.6)
        label(areas, "optimizer steps", "attack AUROC")
        for axes in (losses, areas):
            # The attacked model is that of this step, not always of the last.
            axes.axvline(record.training.chosen_step, color=GREY, linewidth=0.8, linestyle=":")
    return saved[0]


def _draw_knowledge(points: list[Knowledge], unit: str) -> str:
    """Draw AUROC over the attacker's number of texts per user (Kandpal et al. 2024, Figure 10)."""
    with figure(6.3, 2.0) as (drawn, saved):
        axes = drawn.subplots()
        counts = [p.texts for p in points]
        axes.fill_between(counts, [p.low for p in points], [p.high for p in points], color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(counts, [p.mean for p in points], "o-", color=BLUE, markersize=3)
        axes.axhline(0.5, color=GREY, linewidth=0.6)
        # The numbers of texts double (``audit.attack_results``), and stand at even distances.
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [*map(str, counts[:-1]), f"{counts[-1]}\n(all)"])
        axes.minorticks_off()
        label(axes, f"texts of each {unit} that the attacker has, at most", "attack AUROC")
    return saved[0]


def _draw_canaries(canaries: CanaryFacts, real: Estimate, words: Wording) -> str:
    """Draw AUROC over substring length and over training documents (Kandpal et al. 2024, Figure 5). A band shows real
    users."""
    shown = [group for group in canaries.groups if group.auroc]
    by_length = [group for group in shown if group.length is not None]
    by_documents = [group for group in shown if group.documents is not None]
    # Made-up canary users have no substring, and those of a substring may have no set number of documents.
    panels = [p for p in ((by_length, "tokens in the shared substring"), (by_documents, "training documents")) if p[0]]
    with figure(6.3, 3.1) as (drawn, saved):
        for axes, (groups, title) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            # Real users under the same attack: how much easier canary users are to find.
            axes.axhspan(real.lower, real.upper, color=GREY, alpha=0.15, linewidth=0)
            axes.axhline(real.value, color=GREY, linewidth=0.8, linestyle="--", label=str(SUBJECTS[words.audited]))
            axes.axhline(0.5, color=GREY, linewidth=0.6)
            _canary_lines(axes, groups, of_length=groups is by_length)
            label(axes, title, "attack AUROC")
            axes.set_ylim(0, 1.03)
            axes.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return saved[0]


def _draw_gradient_norms(norms: GradientNorms) -> str:
    """Draw shares of records over the norm of their gradient (Kandpal et al. 2024, Figure 12, right)."""
    with figure(6.3, 1.9) as (drawn, saved):
        axes = drawn.subplots()
        # Drawn as shares, since there may be fewer records of canary users than of real ones.
        real, planted = np.array(norms.real), np.array(norms.canaries)
        axes.stairs(
            real / real.sum(), norms.edges, fill=True, facecolor=ORANGE, alpha=0.55, label="records of real users"
        )
        axes.stairs(planted / planted.sum(), norms.edges, color=BLUE, linewidth=1.2, label="records of canary users")
        axes.set_xscale("log")
        label(axes, "gradient norm of one record at the base model", "share of records")
        above(axes)
    return saved[0]


def _canary_lines(axes: Axes, groups: list[CanaryGroup], *, of_length: bool) -> None:
    """Draw lines over lengths, one per number of documents; or lines over numbers of documents, one per kind and
    length."""
    lines: dict[str, list[tuple[int, Estimate]]] = {}
    for group in groups:
        documents = "all documents" if group.documents is None else counted(group.documents, "document")
        length = "" if group.length is None else f", {counted(group.length, 'token')}"
        name = documents if of_length else f"{kind_words(group.kind)}{length}"
        at = group.length if of_length else group.documents
        # The panel's groups are those that have this number: see ``by_length`` and ``by_documents``.
        assert at is not None
        assert group.auroc is not None
        lines.setdefault(name, []).append((at, group.auroc))
    # Dashes and colours repeat with periods of three and four, so that no pair of them repeats within nine lines.
    styles = list(zip("os^DvPX<>", ["-", "--", ":"] * 3, [BLUE, ORANGE, "black", GREY] * 3, strict=False))
    values = sorted({at for points in lines.values() for at, _ in points})
    for i, ((name, points), (marker, style, colour)) in enumerate(
        zip(lines.items(), styles * len(lines), strict=False)
    ):
        points.sort(key=lambda point: point[0])
        # side by side, so that intervals at one value can be told apart
        x = [values.index(at) + 0.08 * (i - (len(lines) - 1) / 2) for at, _ in points]
        y = [area.value for _, area in points]
        reach = [[area.value - area.lower for _, area in points], [area.upper - area.value for _, area in points]]
        axes.errorbar(x, y, np.maximum(reach, 0), fmt=marker + style, color=colour, markersize=3, capsize=2, label=name)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.6, len(values) - 0.4)
