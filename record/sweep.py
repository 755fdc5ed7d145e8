"""The document of a sweep: what its cells say one by one and together. Every number of a comparison comes from it."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from heldin.audit.blocks import Summary
from heldin.audit.shipping import Shipping
from heldin.base.errors import InputError
from heldin.base.facts import Facts
from heldin.base.files import write_text
from heldin.bounds.verdict import Outcome, Standing

SCHEMA_VERSION = 1
JOINT_ALPHA = 0.05  # of all statements of a sweep together
FILE = "comparison.json"


class JointVerdict(Facts):
    """A verdict of a cell among those of all cells.

    Attributes:
        subjects: whom it is about.
        claim: label of the claim.
        outcome: outcome in the cell's own record.
        standing: standing in the cell's own record.
        p_value: smallest level that rejects the claim; null where no test was made.
        adjusted: the same after Holm's correction over all cells and groups of people; null likewise.
    """

    subjects: str
    claim: str
    outcome: str
    standing: str
    p_value: float | None
    adjusted: float | None

    @property
    def jointly_violated(self) -> bool:
        """Certified at 95 % for all cells at once. A verdict that its own record withholds is withheld here too."""
        certified = self.standing == Standing.CERTIFIED.value and self.outcome == Outcome.VIOLATED.value
        return certified and self.adjusted is not None and self.adjusted <= JOINT_ALPHA


class CellResult(Facts):
    """One cell.

    Attributes:
        block: number of its block.
        variant: its variant.
        state: done; halted (by a filter, without a model); failed; or to do.
        said: the line it failed with; "" otherwise.
        seconds: duration of all its processes so far.
        auroc: AUROC of the leading attack; null unless done.
        loss: mean loss on held-out users' test texts, nats per token; null unless measured.
        gain: base model's loss minus that; null likewise.
        gradients: number of records' gradients; null unless done.
        peak_memory: bytes; null unless done.
        answer: the audit's answer; null unless done.
        verdicts: of the cell.
        epsilon_at_least: lower bound on the epsilon of those audited that holds for all cells at once with 95 %; null
            unless it is certified.
    """

    block: int
    variant: str
    state: Literal["done", "halted", "failed", "to do"]
    said: str
    seconds: float
    auroc: float | None = None
    loss: float | None = None
    gain: float | None = None
    gradients: int | None = None
    peak_memory: int | None = None
    answer: str | None = None
    verdicts: list[JointVerdict] = Field(default_factory=list)
    epsilon_at_least: float | None = None


class VariantResult(Facts):
    """One variant over its blocks.

    Attributes:
        name: its name.
        group: its group: only variants of one group are held against each other.
        defense: kind of its defense, data defenses before it.
        promise: the guarantee in words; null before a cell is done.
        unit: whom epsilon protects.
        epsilon: epsilon of the guarantee; null without one.
        delta: delta of the guarantee.
        cells: number of cells that are done.
        auroc: AUROC of the leading attack.
        auroc_difference: that minus the first variant's of the group, in the same blocks; null for the first.
        loss: loss on held-out users' test texts, nats per token.
        loss_difference: that minus the first variant's, on the same users.
        gain: base model's loss minus the loss.
        seconds: mean duration of a cell.
        gradients: mean number of records' gradients.
        jointly_violated: whether a claim is violated at 95 % for all cells at once, certified.
    """

    name: str
    group: str
    defense: str
    promise: str | None
    unit: str | None
    epsilon: float | None
    delta: float | None
    cells: int
    auroc: Summary | None
    auroc_difference: Summary | None
    loss: Summary | None
    loss_difference: Summary | None
    gain: Summary | None
    seconds: float | None
    gradients: float | None
    jointly_violated: bool


class SweepResult(Facts):
    """A sweep.

    Attributes:
        schema_version: version of this document.
        notice: who may see it.
        name: that the file gives.
        sweep: hash of the plan, which every cell's record names.
        blocks: number of blocks.
        variants: in the file's order.
        cells: by block, then in the file's order.
        notes: what a reader must know.
        shipping: the answer of the file's rule; null without one.
    """

    schema_version: int = SCHEMA_VERSION
    notice: str
    name: str
    sweep: str
    blocks: int
    variants: list[VariantResult]
    cells: list[CellResult]
    notes: list[str]
    shipping: Shipping | None = None

    @property
    def exit_code(self) -> int:
        """3 for a claim that is violated jointly, certified; 5 if cells failed; else 0."""
        if any(its.jointly_violated for its in self.variants):
            return 3
        return 5 if any(its.state == "failed" for its in self.cells) else 0


def write_sweep(result: SweepResult, folder: Path) -> None:
    """Write the document to ``folder``, whole or not at all."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, ensure_ascii=False)
    write_text(folder / FILE, text + "\n")


def read_sweep(folder: Path) -> SweepResult:
    """Read the document. Raises InputError if there is none, it is damaged, or of another version."""
    path = folder / FILE
    again = "run heldin sweep again, which goes on where it was"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is missing or damaged: {again}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(f"'{path}' has schema {version}; this heldin reads {SCHEMA_VERSION}")
    try:
        return SweepResult.model_validate(content)
    except ValidationError as error:
        raise InputError(f"'{path}' is damaged: {again}") from error


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
            value = "-" if its.value is None else f"{its.value:.4g}"
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
