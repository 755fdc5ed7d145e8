"""``heldin sweep`` and ``heldin demo``: train several defenses on the same users, and compare them."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.commands.finish import command_line, interruptible, labelled, terminal_width
from heldin.commands.made_up import made_up_rows
from heldin.commands.options import (
    AsCsv,
    AsHtml,
    AsJson,
    DeviceOption,
    Out,
    Quiet,
    Set,
    SkipBad,
    Strict,
    answer,
    rows_set,
)

if TYPE_CHECKING:
    from heldin.record.sweep import SweepResult
    from heldin.sweeps.sweep_config import Sweep

LISTS = {"differs", "ceiling", "canaries", "bands"}


def sweep(
    file: Annotated[
        Path, typer.Argument(dir_okay=False, help="YAML file of the sweep. To list its keys, run: heldin config sweep.")
    ],
    out: Out = None,
    set_: Set = None,
    scale: Annotated[
        str | None, typer.Option(help="Size of the sweep to run: a name under 'scales' in the file.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Train nothing. Print every problem (exit code 2), or all variants.")
    ] = False,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy records and reports to this folder or address, such as s3://..., at the end.",
            hidden=True,
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="HOST:PORT of a Ray cluster that includes this machine, or auto to find one. Needs heldin[cluster].",
            hidden=True,
        ),
    ] = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    html: AsHtml = False,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Train several variants on the same users, and compare them.

    Each variant is an ordinary run in OUT/cells/REPETITION/VARIANT. comparison.json and report.pdf of the whole sweep
    are in OUT. If heldin is killed, run the same command again to resume. --mirror never copies ledgers, keys or
    scores. For a Ray cluster, choose an --out on a file system that all machines share.

    Exit code 3: the runs together contradict a claim. Exit code 5: some runs failed, and heldin compared the others.
    """
    from heldin.sweeps.load import load_sweep

    loaded = load_sweep(file, set_ or [], scale, rows_set(skip_bad_rows, strict, "corpus.bad_rows"))
    folder = out or Path("runs") / loaded.config.name
    if check:
        # Here, since it loads torch, which a sweep's own process does without.
        from heldin.sweeps.check_sweep import check_sweep, lines

        checked = check_sweep(loaded, folder)
        if checked.problems:
            raise InputError(f"{file}: {counted(len(checked.problems), 'problem')}\n  " + "\n  ".join(checked.problems))
        fields = {"ok": True, "cells": len(checked.variants) * loaded.config.blocks, "variants": checked.variants}
        answer("\n".join(lines(checked, loaded)), fields, checked.variants, json=json, csv=csv)
        return
    _run(loaded, folder, mirror=mirror, ray_address=ray_address, html=html, json=json, csv=csv)


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            file_okay=False,
            help="Folder for the results (default: runs/demo, followed by -chat, -pairs or -all for these options).",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Compare plain training and four defenses, which takes about twice as long.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Train on chats instead of mails.")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Train on preference pairs, by DPO.")] = False,
    html: AsHtml = False,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Train three small models, attack them, and write a report.

    heldin compares plain training and two defenses on a made-up corpus, in about three minutes on two cores. It trains
    and attacks each of the three models five times. A decision rule selects one model, and heldin prints the path of
    the PDF.
    """
    from heldin.sweeps.load import demo_sweep

    loaded = demo_sweep(every=every, rows=made_up_rows(chat, pairs))
    folder = out or Path("runs") / loaded.config.name
    _run(loaded, folder, mirror=None, ray_address=None, html=html, json=json, csv=False)


def _run(
    sweep: "Sweep", folder: Path, *, mirror: str | None, ray_address: str | None, html: bool, json: bool, csv: bool
) -> None:
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.sweeps import driver
    from heldin.sweeps.processes import Machine
    from heldin.sweeps.ray_cluster import Cluster

    # Now, and not after hours: whether the mirror can be written.
    if mirror is not None:
        driver.open_mirror(mirror)
    reporter = reporter_for_this_terminal()
    with interruptible():
        # Other machines have other folders to begin from.
        folder = folder.resolve() if ray_address else folder
        connect = partial(Cluster, address=ray_address, out=folder) if ray_address else Machine
        result = driver.run_sweep(sweep, folder, reporter, command=command_line(), connect=connect)
        written = write_reports(result, folder, html=html)
        if mirror is not None:
            driver.mirror(folder, mirror, models=sweep.config.resources.mirror_models, reporter=reporter)
    print_sweep(result, json=json, csv=csv)
    if not (json or csv):
        for path in written:
            typer.echo(f"report: {path}")
    raise typer.Exit(result.exit_code)


def write_reports(result: "SweepResult", folder: Path, *, html: bool) -> list[Path]:
    """Write the PDF of a sweep and, if ``html`` is true, its web page. Return the paths."""
    from heldin.reports.html import write_page
    from heldin.reports.sweep_report import report_sweep
    from heldin.reports.typesetting import write_pdf

    report = report_sweep(result)
    return [write_pdf(report, folder / "report.pdf"), *([write_page(report, folder / "report.html")] if html else [])]


def print_sweep(result: "SweepResult", *, json: bool, csv: bool) -> None:
    """Print a sweep as a table with the lines of page one, as JSON, or as CSV with one row for each variant."""
    from heldin.reports.sweep_findings import comparison_text, summary_facts, summary_lines

    # What has a row of its own for each variant: the rest are lists, which comparison.json has.
    rows = [{**v.model_dump(mode="json", exclude=LISTS), "promise": str(v.promise or "")} for v in result.variants]
    flat = [{key: value for name, cell in row.items() for key, value in _cells(name, cell).items()} for row in rows]
    notes = [*(("note", str(note)) for note in result.notes), *summary_lines(result)]
    compared = comparison_text(result, terminal_width())
    text = "\n".join([compared, "", *(labelled(label, line) for label, line in notes)])
    answer(text, {**summary_facts(result), **result.model_dump(mode="json")}, flat, json=json, csv=csv)


def _cells(name: str, value: object) -> dict[str, object]:
    """Return the columns of one value of a variant: one column for each number of a summary, else a single column."""
    if isinstance(value, list):
        return {name: "; ".join(map(str, value))}
    if isinstance(value, dict):
        return {f"{name}_{key}" if key != "value" else name: part for key, part in value.items() if key != "label"}
    return {name: value}
