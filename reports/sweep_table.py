"""The comparison of a sweep as plain text."""

from collections.abc import Iterator

from heldin.bounds.verdict import describe_outcome
from heldin.record.sweep import SweepResult
from heldin.reports.wording import format_fit, format_summary

_LESS = "less the first"
_HEAD = (
    "variant",
    "defense",
    "epsilon",
    "AUROC (95 %)",
    _LESS,
    "loss",
    _LESS,
    "perplexity",
    "gain over base",
    "of plan",
    "runs",
)


def table(result: SweepResult) -> str:
    """Return the comparison as plain text, without its notes."""
    rows = [list(_HEAD)]
    for variant in result.variants:
        rows.append(
            [
                variant.label,
                variant.defense,
                "-" if variant.epsilon is None else f"{variant.epsilon:.3g} per {variant.unit}",
                format_summary(variant.auroc),
                format_summary(variant.auroc_difference, signed=True),
                format_summary(variant.loss),
                format_summary(variant.loss_difference, signed=True),
                format_summary(variant.perplexity, digits=2),
                format_summary(variant.gain, signed=True),
                format_fit(variant),
                f"{variant.cells}/{result.blocks}",
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *_list_failed(result), *_list_tuned(result)])


def _list_failed(result: SweepResult) -> Iterator[str]:
    """Yield the training runs without a result, and those that contradict a claim."""
    for cell in result.cells:
        name = f"run {cell.block}/{cell.variant}"
        if cell.state != "done":
            yield f"{name}: {cell.state}{f': {cell.said}' if cell.said else ''}"
        for verdict in cell.verdicts:
            if verdict.outcome == "contradicted":
                jointly = "also jointly" if verdict.jointly_contradicted else "not jointly"
                outcome = describe_outcome(verdict.outcome, verdict.standing)
                yield f"{name}: {verdict.subjects}: {verdict.claim} is {outcome}, {jointly}"


def _list_tuned(result: SweepResult) -> Iterator[str]:
    for tried in result.tried:
        if tried.chosen:
            values = ", ".join(f"{key} {value}" for key, value in tried.values.items())
            loss = "no model" if tried.public_loss is None else f"public users' loss {tried.public_loss:.4f}"
            yield f"tuned: {tried.variant}: {values} ({loss})"
