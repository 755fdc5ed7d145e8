"""The comparison of a sweep as plain text."""

from heldin.audit.blocks import Summary
from heldin.audit.shipping import Shipping
from heldin.record.sweep import SweepResult


def table(result: SweepResult) -> str:
    """Return the comparison as plain text."""
    less = "less the first"
    head = ["variant", "defense", "epsilon", "AUROC (95 %)", less, "loss", less, "gain over base", "cells"]
    rows = [head]
    for variant in result.variants:
        rows.append(
            [
                variant.name,
                variant.defense,
                "-" if variant.epsilon is None else f"{variant.epsilon:.3g} per {variant.unit}",
                _shown(variant.auroc),
                _shown(variant.auroc_difference, signed=True),
                _shown(variant.loss),
                _shown(variant.loss_difference, signed=True),
                _shown(variant.gain, signed=True),
                f"{variant.cells}/{result.blocks}",
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
    """Return the result of each candidate, and last the answer."""
    lines = []
    for candidate in shipping.candidates:
        how = "passes" if candidate.passes else "does not pass"
        why = f": {candidate.disqualified}" if candidate.disqualified else ""
        lines.append(f"candidate {candidate.name}: {how} (adjusted p {candidate.adjusted:.3g}){why}")
        for test in candidate.tests:
            none = "none is promised" if test.requirement.startswith("epsilon_per_user") else "not measured"
            value = none if test.value is None else f"{test.value:.4g}"
            limit = "" if test.limit is None or test.limit == test.value else f", limit {test.limit:.4g}"
            lines.append(f"  {test.requirement}: {value}{limit}")
    return [*lines, f"answer: {shipping.reason}"]


def _shown(summary: Summary | None, *, signed: bool = False) -> str:
    if summary is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{summary.value:{sign}.3f}"
    if summary.lower is None or summary.upper is None:
        return value
    return f"{value} ({summary.lower:{sign}.3f} to {summary.upper:{sign}.3f})"
