"""Interactive charts of a sweep for its web page, as Vega-Lite specifications."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heldin.audit.blocks import Summary
from heldin.record.sweep import RocPoints, SweepResult
from heldin.reports.html import load_altair
from heldin.reports.wording import assign_letters, format_promise

ROC_POINTS = 200
Rows = list[dict[str, Any]]


def chart_frontier(result: SweepResult) -> dict[str, Any]:
    """Return what each defense costs and leaves."""
    alt, marks = load_altair(), assign_letters(result.variants)
    infinite = 4.0 * max(
        (variant.epsilon_per_user for variant in result.variants if variant.epsilon_per_user), default=4.0
    )
    rows = [
        {
            "mark": marks[variant.name],
            "variant": variant.name,
            "promise": format_promise(variant),
            "epsilon": infinite if variant.epsilon_per_user is None else variant.epsilon_per_user,
            "gradients": variant.gradients,
            "seconds": variant.seconds,
            "beaten by": ", ".join(variant.dominated_by) or "none of them",
            **_limits("AUROC", variant.auroc),
            **_limits("gain", variant.gain),
        }
        for variant in result.variants
        if variant.auroc is not None
    ]
    panels = []
    for x, y, title, scale in (
        ("epsilon", "AUROC", f"epsilon per user ({infinite:g}: no promise)", "symlog"),
        ("gain", "AUROC", "loss gained over the base, nats a token", "linear"),
        ("gradients", "gain", "gradients computed", "log"),
    ):
        known = [row for row in rows if row[x] is not None and row[y] is not None]
        base = alt.Chart(_data(alt, known)).encode(
            x=alt.X(f"{x}:Q", title=title, scale=alt.Scale(type=scale, zero=False)),
            y=alt.Y(
                f"{y}:Q",
                title="AUROC of the leading attack" if y == "AUROC" else "loss gained",
                scale=alt.Scale(zero=False),
            ),
            tooltip=_hover(alt, rows),
        )
        limits = base.mark_rule().encode(y=alt.Y(f"{y} from:Q"), y2=alt.Y2(f"{y} to:Q"))
        letters = base.mark_text(dx=8, dy=-6).encode(text="mark:N")
        panels.append((limits + base.mark_circle(size=50, color="#0072B2") + letters).properties(width=260, height=220))
    return _specify(alt.hconcat(*panels))


def chart_rocs(result: SweepResult, variants: Sequence[str]) -> dict[str, Any]:
    """Return the ROC curves of some variants, one for each block."""
    alt, rows = load_altair(), Rows()
    for cell in result.cells:
        if cell.roc is not None and cell.variant in variants:
            rows += [
                {"variant": cell.variant, "block": cell.block, "FPR": fpr, "TPR": tpr, "AUROC": cell.auroc}
                for fpr, tpr in _thinned(cell.roc)
            ]
    chart = (
        alt.Chart(_data(alt, rows))
        .mark_line(strokeWidth=1)
        .encode(
            x=alt.X("FPR:Q", title="false-positive rate", scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("TPR:Q", title="true-positive rate", scale=alt.Scale(domain=[0, 1])),
            color=_variants(alt),
            detail="block:N",
            tooltip=_hover(alt, rows),
        )
        .properties(width=420, height=420)
    )
    return _specify(chart)


def chart_canaries(result: SweepResult) -> dict[str, Any]:
    """Return the AUROC of canary users by the length of their substring."""
    alt = load_altair()
    rows = [
        {
            "variant": variant.name,
            "kind": point.kind.replace("_", " "),
            "tokens": point.length or 0,
            "documents": "all" if point.documents is None else str(point.documents),
            **_limits("AUROC", point.auroc),
        }
        for variant in result.variants
        for point in variant.canaries
    ]
    base = alt.Chart(_data(alt, rows)).encode(
        x=alt.X("tokens:O", title="tokens in the shared substring"),
        y=alt.Y("AUROC:Q", title="AUROC of canary users", scale=alt.Scale(zero=False)),
        color=_variants(alt),
        detail=["kind:N", "documents:N"],
        tooltip=_hover(alt, rows),
    )
    return _specify((base.mark_line() + base.mark_point(filled=True)).properties(width=420, height=220))


def chart_exposure(result: SweepResult) -> dict[str, Any]:
    """Return how far thirds of the held-in users stand above held-out ones."""
    alt = load_altair()
    rows = [
        {"variant": variant.name, "by": band.of, "third": band.third, "typical": band.typical, "above": band.above}
        for variant in result.variants
        for band in variant.bands
    ]
    chart = (
        alt.Chart(_data(alt, rows))
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("above:Q", title="held-out users with a lower score", scale=alt.Scale(zero=False)),
            y=alt.Y("variant:N", sort=None, title=None),
            shape=alt.Shape("third:O", title="third"),
            color=alt.Color("third:O", title="third"),
            column=alt.Column("by:N", title="Thirds of the held-in users, by"),
            tooltip=_hover(alt, rows),
        )
        .properties(width=260)
    )
    return _specify(chart)


def _specify(chart: Any) -> dict[str, Any]:
    specification: dict[str, Any] = chart.to_dict()
    return specification


def _thinned(roc: RocPoints) -> list[tuple[float, float]]:
    """Return at most 200 of a curve's points, the ends among them."""
    kept = np.unique(np.linspace(0, len(roc.fpr) - 1, min(ROC_POINTS, len(roc.fpr))).round().astype(int))
    return [(round(roc.fpr[i], 4), round(roc.tpr[i], 4)) for i in kept]


def _hover(alt: Any, rows: Rows) -> list[Any]:
    """Return every field of a row, shown where the pointer rests."""
    first = rows[0] if rows else {}
    return [
        alt.Tooltip(field=name, type="nominal" if isinstance(value, str) else "quantitative", title=name)
        for name, value in first.items()
    ]


def _variants(alt: Any) -> Any:
    return alt.Color("variant:N", sort=None, title=None)


def _limits(name: str, summary: Summary | None) -> dict[str, float | None]:
    if summary is None:
        return {name: None, f"{name} from": None, f"{name} to": None}
    return {name: summary.value, f"{name} from": summary.lower, f"{name} to": summary.upper}


def _data(alt: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as JSON, which has no number that is not finite."""
    clean = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
    return alt.Data(values=clean)
