"""The comparison of a sweep as plain text."""

from heldin.audit.blocks import Summary
from heldin.audit.shipping import Shipping
from heldin.record.sweep import SweepResult


def table(result: SweepResult) -> str:
    """The comparison as plain text."""
    less = "less the first"
    head = ["variant", "defense", "epsilon", "AUROC (95 %)", less, "loss", less, "gain over base", "cells"]
    rows = [head]
    for its in result.variants:
        rows.append(
            [
                its.name,
                its.defense,
                "-" if its.epsilon is None else f"{its.epsilon:.3g} per {its.unit}",
                _shown(its.auroc),
                _shown(its.auroc_difference, signed=True),
                _shown(its.loss),
                _shown(its.loss_difference, signed=True),
                _shown(its.gain, signed=True),
                f"{its.cells}/{result.blocks}",
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for cell in result.cells:
        if cell.state != "done":
            lines.append(f"cell {cell.block}/{cell.variant}: {cell.state}{f': {cell.said}' if cell.said else ''}")
        for verdict in cell.verdicts:
            if verdict.outcome == "violated":
                jointly = "also jointly" if verdict.jointly_violated else "not jointly"
                lines.append(
                    f"cell {cell.block}/{cell.variant}: {verdict.subjects}: {verdict.claim} is violated"
                    f" ({verdict.standing}), {jointly}"
                )
    for tried in result.tried:
        if tried.chosen:
            values = ", ".join(f"{key} {value}" for key, value in tried.values.items())
            loss = "no model" if tried.public_loss is None else f"public users' loss {tried.public_loss:.4f}"
            lines.append(f"tuned: {tried.variant}: {values} ({loss})")
    lines += [f"note: {note}" for note in result.notes]
    return "\n".join([*lines, *(_of_rule(result.shipping) if result.shipping else [])])


def _of_rule(shipping: Shipping) -> list[str]:
    """How each candidate did, and last the answer."""
    lines = []
    for candidate in shipping.candidates:
        how = "passes" if candidate.passes else "does not pass"
        why = f": {candidate.disqualified}" if candidate.disqualified else ""
        lines.append(f"candidate {candidate.name}: {how} (adjusted p {candidate.adjusted:.3g}){why}")
        for its in candidate.tests:
            none = "none is promised" if its.requirement.startswith("epsilon_per_user") else "not measured"
            value = none if its.value is None else f"{its.value:.4g}"
            limit = "" if its.limit is None or its.limit == its.value else f", limit {its.limit:.4g}"
            lines.append(f"  {its.requirement}: {value}{limit}")
    return [*lines, f"answer: {shipping.said}"]


def _shown(summary: Summary | None, *, signed: bool = False) -> str:
    if summary is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{summary.value:{sign}.3f}"
    if summary.lower is None or summary.upper is None:
        return value
    return f"{value} ({summary.lower:{sign}.3f} to {summary.upper:{sign}.3f})"
