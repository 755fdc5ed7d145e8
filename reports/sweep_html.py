"""The report of a sweep as one web page that needs no network: answer, table, and charts that say more on hover.

Altair draws; vl-convert puts the scripts into the page (the extra ``html``).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heldin.audit.blocks import Summary
from heldin.base.errors import InputError
from heldin.base.files import write_text
from heldin.record.sweep import RocPoints, SweepResult
from heldin.reports import html
from heldin.reports import sweep_words as words
from heldin.reports.sweep_annex import EXTRACTION_HEAD, extraction_note, extraction_rows, sweep_annex

FILE = "report.html"
ROC_POINTS = 200
_HEAD = ("defense", "promise", "AUROC", "named of 1,000", "epsilon ≥", "loss gained", "gradients", "s", "result")
_DESCRIBED = (
    "Charts of what each defense costs and leaves, of ROC curves, of canary users and of who is exposed, where there"
    " are any. The table above has the numbers of the first; the others show on hover what comparison.json holds."
)
Rows = list[dict[str, Any]]


def write_sweep_html(result: SweepResult, path: Path) -> Path:
    """Write the page to ``path``, whole or not at all, and return the path.

    Raises:
        InputError: Altair or vl-convert is not installed.
    """
    write_text(path, page(result))
    return path


def page(result: SweepResult) -> str:
    """The page. Raises InputError if Altair or vl-convert is not installed."""
    alt = altair()
    drawn = charts(result)
    # Each with data of its own scale: the panels share nothing but the marks of the variants.
    joined = alt.vconcat(*drawn.values()).resolve_scale(color="independent", shape="independent")
    # Vega gives the drawing to screen readers as an image with these words.
    joined = joined.properties(description=_DESCRIBED)
    page: str = joined.to_html(inline=True, embed_options={"actions": False}, fullhtml=True)
    head = f'<meta charset="UTF-8"><title>{html.text(result.name)}</title><style>{html.STYLE}</style>'
    whole = page.replace("<html>", '<html lang="en">', 1).replace('<meta charset="UTF-8">', head, 1)
    whole = whole.replace("<body>", f"<body>{_words(result)}", 1)
    # The last one: scripts may have such words as text.
    before, after = whole.rsplit("</body>", 1)
    return f"{before}{html.annex(sweep_annex(result), f'sweep {result.sweep[:16]}')}</body>{after}"


def charts(result: SweepResult) -> dict[str, Any]:
    """Altair's charts by name: "frontier"; "roc"; "canaries" and "exposure" where there is something to show."""
    alt = altair()
    marks = words.letters(result.variants)
    drawn = {"frontier": _frontier(alt, result, marks), "roc": _rocs(alt, result)}
    canaries = [
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
    if canaries:
        base = alt.Chart(_data(alt, canaries)).encode(
            x=alt.X("tokens:O", title="tokens in the shared substring"),
            y=alt.Y("AUROC:Q", title="AUROC of canary users", scale=alt.Scale(zero=False)),
            color=_variants(alt),
            detail=["kind:N", "documents:N"],
            tooltip=_hover(alt, canaries),
        )
        drawn["canaries"] = (base.mark_line() + base.mark_point(filled=True)).properties(
            title="Canary users", width=420, height=220
        )
    bands = [
        {"variant": variant.name, "by": band.of, "third": band.third, "typical": band.typical, "above": band.above}
        for variant in result.variants
        for band in variant.bands
    ]
    if bands:
        drawn["exposure"] = (
            alt.Chart(_data(alt, bands))
            .mark_point(filled=True, size=60)
            .encode(
                x=alt.X("above:Q", title="held-out users with a lower score", scale=alt.Scale(zero=False)),
                y=alt.Y("variant:N", sort=None, title=None),
                shape=alt.Shape("third:O", title="third"),
                color=alt.Color("third:O", title="third"),
                column=alt.Column("by:N", title="Thirds of the held-in users, by"),
                tooltip=_hover(alt, bands),
            )
            .properties(width=260)
        )
    return drawn


def _frontier(alt: Any, result: SweepResult, marks: Mapping[str, str]) -> Any:
    infinite = 4.0 * max(
        (variant.epsilon_per_user for variant in result.variants if variant.epsilon_per_user), default=4.0
    )
    rows = [
        {
            "mark": marks[variant.name],
            "variant": variant.name,
            "promise": words.promise(variant),
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
    return alt.hconcat(*panels).properties(title="What each defense costs and leaves")


def _rocs(alt: Any, result: SweepResult) -> Any:
    rows: Rows = []
    for cell in result.cells:
        if cell.roc is not None:
            rows += [
                {"variant": cell.variant, "block": cell.block, "FPR": fpr, "TPR": tpr, "AUROC": cell.auroc}
                for fpr, tpr in _thinned(cell.roc)
            ]
    return (
        alt.Chart(_data(alt, rows))
        .mark_line(strokeWidth=1)
        .encode(
            x=alt.X("FPR:Q", title="false-positive rate", scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("TPR:Q", title="true-positive rate", scale=alt.Scale(domain=[0, 1])),
            color=_variants(alt),
            detail="block:N",
            tooltip=_hover(alt, rows),
        )
        .properties(title="ROC curves of the leading attack, one for each block", width=420, height=420)
    )


def _thinned(roc: RocPoints) -> list[tuple[float, float]]:
    """At most 200 of a curve's points, the ends among them."""
    kept = np.unique(np.linspace(0, len(roc.fpr) - 1, min(ROC_POINTS, len(roc.fpr))).round().astype(int))
    return [(round(roc.fpr[i], 4), round(roc.tpr[i], 4)) for i in kept]


def _hover(alt: Any, rows: Rows) -> list[Any]:
    """Every field of a row, shown where the pointer rests."""
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
    """Rows as JSON: a number that is not finite has no place there."""
    clean = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
    return alt.Data(values=clean)


def _words(result: SweepResult) -> str:
    asked = extraction_rows(result)
    return "\n".join(
        [
            html.note(f"heldin · {result.created} · {result.notice}"),
            html.heading(words.title(result), 1),
            html.paragraph(result.name),
            html.paragraph(words.answer(result), "answer"),
            *(html.paragraph(f"Note. {note}", "note") for note in words.notes(result)),
            html.heading("The rule"),
            html.paragraph(words.rule(result)),
            html.table(_HEAD, words.main_rows(result)),
            html.note(words.main_note(result)),
            html.heading("Who attacks"),
            html.paragraph(words.attacker(result)),
            html.heading("What to do next"),
            html.paragraph(words.next_step(result)),
            *((html.heading("Extraction"), html.table(EXTRACTION_HEAD, asked)) if asked else ()),
            html.note(extraction_note(result)),
            html.heading("Charts"),
        ]
    )


def altair() -> Any:
    """Altair. Raises InputError if it or vl-convert is not installed."""
    try:
        import altair as alt
        import vl_convert  # noqa: F401  # Altair asks for it only when the page is written
    except ImportError as error:
        raise InputError("a web page needs Altair and vl-convert: pip install 'heldin[html]'") from error
    return alt
