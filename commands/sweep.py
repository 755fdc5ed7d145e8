"""``heldin sweep``: several defenses in one batch, on the same people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.finish import command_line, interruptible
from heldin.commands.options import AsCsv, AsJson, Out, Quiet, answer

if TYPE_CHECKING:
    from heldin.record.sweep import SweepResult


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep: base, variants, axes and blocks.")],
    out: Out = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override, in YAML: blocks=3, resources.workers=2. Repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check: print every problem (exit code 2), or all variants.")
    ] = False,
    quiet: Quiet = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Run variants of a config on the same held-in and held-out users, and compare them.

    A cell is an ordinary run in OUT/cells/BLOCK/VARIANT. If the sweep is killed, the same command goes on with it.
    Exit codes: 3 a claim is violated, certified for all cells together; 5 cells failed, and the others are compared.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.sweep.check import check_sweep, lines
    from heldin.jobs.sweep.config import load_sweep
    from heldin.jobs.sweep.driver import run_sweep

    found = load_sweep(file, set_ or [])
    folder = out or Path("runs") / found.config.name
    if check:
        checked = check_sweep(found, folder)
        if checked.problems:
            raise InputError(f"{file}: {len(checked.problems)} problem(s)\n  " + "\n  ".join(checked.problems))
        fields = {"ok": True, "cells": len(checked.variants) * found.config.blocks, "variants": checked.variants}
        answer("\n".join(lines(checked, found)), fields, checked.variants, json=json, csv=csv)
        return
    with interruptible():
        result = run_sweep(found, folder, reporter_for_this_terminal(), command=command_line())
    print_sweep(result, json=json, csv=csv)
    raise typer.Exit(result.exit_code)


def print_sweep(result: "SweepResult", *, json: bool, csv: bool) -> None:
    """Print a sweep as a table, as JSON, or as CSV with a row for each variant."""
    from heldin.record.sweep import table

    rows = [its.model_dump(mode="json") for its in result.variants]
    flat = [{key: value for name, its in row.items() for key, value in _cells(name, its).items()} for row in rows]
    answer(table(result), result.model_dump(mode="json"), flat, json=json, csv=csv)


def _cells(name: str, value: object) -> dict[str, object]:
    """A column for each number of a summary."""
    if isinstance(value, dict):
        return {f"{name}_{part}" if part != "value" else name: its for part, its in value.items() if part != "label"}
    return {name: value}
