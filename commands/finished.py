"""Commands for finished runs (report, runs, compare, verify, export, purge) and for the cache."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heldin.base.errors import ExitCode, InputError
from heldin.commands.finish import terminal_width
from heldin.commands.options import AsCsv, AsHtml, AsJson, answer, confirm, json_text

if TYPE_CHECKING:
    from heldin.reports.blocks import Report


def report(
    run: Annotated[Path, typer.Argument(file_okay=False, help="Folder of a finished run, audit or sweep.")],
    people: Annotated[
        bool,
        typer.Option(
            "--people", help="Print the names of the most exposed members. Only the owner of the folder can do this."
        ),
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="With --people: maximum number of members to print.")] = 20,
    scores: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="CSV file for heldin bound and other tools, with the score and membership of each audited user. Only"
            " you can read the file. If no real user is audited, it lists canary users.",
        ),
    ] = None,
    html: AsHtml = False,
    figures: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for the figures as PDF, SVG and PNG, with their data as CSV."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for the tables as CSV, Markdown and LaTeX (booktabs)."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write the report of a finished run, audit or sweep again.

    heldin writes report.pdf from the record in the folder. The report contains no user names. With --people or
    --scores, heldin lists users instead, and writes no report.
    """
    if scores is not None:
        if people:
            raise InputError("give only one of --people and --scores")
        _write_scores(run, scores, json)
        return
    if people:
        from heldin.jobs.user_scores import exposed_members, people_table

        # Names are read from owner-only files: the record has none that this could print.
        exposed = exposed_members(run)
        if not exposed:
            raise InputError(f"no real user was audited in '{run}', so --people has nobody to list: leave out --people")
        rows = [asdict(user) for user in exposed[:most]]
        typer.echo(json_text({"users": len(exposed), "people": rows}) if json else people_table(exposed, most))
        return
    from heldin.reports.html import write_page
    from heldin.reports.typesetting import write_pdf

    made = _report_of(run)
    files = {"report": write_pdf(made, run / "report.pdf")}
    if html:
        files["page"] = write_page(made, run / "report.html")
    further = _exported(made, figures, tables)
    if json:
        named = {"page": None, **{name: str(path) for name, path in files.items()}}
        typer.echo(json_text({**named, "files": [str(path) for path in further]}))
    else:
        typer.echo("\n".join([*(f"report: {file}" for file in files.values()), *(f"file: {file}" for file in further)]))


def _report_of(run: Path) -> "Report":
    if (run / "sweep.json").is_file():
        from heldin.record.sweep import read_sweep
        from heldin.reports.sweep_report import report_sweep

        return report_sweep(read_sweep(run))
    from heldin.record.document import read_record
    from heldin.reports.record_report import report_record

    return report_record(read_record(run / "record.json"))


def _exported(report: "Report", figures: Path | None, tables: Path | None) -> list[Path]:
    if figures is None and tables is None:
        return []
    from heldin.reports.exports import write_figures, write_tables

    files = [] if figures is None else write_figures(report, figures)
    return files if tables is None else [*files, *write_tables(report, tables)]


def _write_scores(run: Path, to: Path, json: bool) -> None:
    from heldin.base.wording import counted
    from heldin.jobs.user_scores import leading_scores, write_user_scores

    scores = leading_scores(run)
    write_user_scores(scores, to)
    message = (
        f"{to}: {counted(len(scores), 'score')}. Only you can read this file, because it names people and states who"
        " is a member"
    )
    typer.echo(json_text({"scores": str(to), "users": len(scores)}) if json else message)


def runs(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="Folder to search for runs and audits, including subfolders.")
    ] = Path("runs"),
    html: Annotated[
        bool,
        typer.Option("--html", help="Also write index.html to FOLDER: a sortable table with a link to each report."),
    ] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """List runs and audits: kind, date, answer, people, epsilon.

    The column "people" shows the numbers of audited members and non-members. A sweep takes one line. The list marks
    damaged and unfinished folders, and contains no user names.
    """
    from heldin.reports.runs import list_runs, runs_page, runs_table

    listed = list_runs(folder)
    page = None
    if html:
        from heldin.reports.html import write_page

        page = write_page(runs_page(listed, folder), folder / "index.html")
    rows = [run.as_dict() for run in listed]
    fields = {"folder": str(folder), "page": None if page is None else str(page), "runs": rows}
    answer(runs_table(listed, folder, terminal_width()), fields, rows, json=json, csv=csv)
    if page is not None and not (json or csv):
        typer.echo(f"web page: {page}")


def compare(
    runs: Annotated[
        list[Path], typer.Argument(file_okay=False, help="Folders of finished runs, or the folder of a sweep.")
    ],
    over: Annotated[
        str | None,
        typer.Option(
            help=(
                "Horizontal axis: a config key that differs between the runs, such as finetune.epochs, or"
                " parameters, users or records."
            )
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", file_okay=False, help="Folder for compare.svg and compare.json."),
    ] = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Compare finished runs side by side.

    heldin prints epsilon, validation loss, AUROC, TPR at low FPR, bound on AUROC, answer and verdict. --out adds
    figures: ROC curves, AUROC and loss against the key in --over, and AUROC of canary users against substring length.
    For the folder of a sweep, heldin prints the same table as heldin sweep.
    """
    if len(runs) == 1 and (runs[0] / "sweep.json").is_file():
        from heldin.commands.sweep import print_sweep
        from heldin.record.sweep import read_sweep

        if over is not None or out is not None:
            raise InputError(
                "--over and --out need the folders of runs, not of a sweep: give the runs in the sweep's folder cells/"
            )
        print_sweep(read_sweep(runs[0]), json=json, csv=csv)
        return
    from heldin.jobs.user_scores import paired_difference
    from heldin.record import compare as engine

    compared = engine.compare(runs, over, paired_difference)
    fields = {"over": over, "runs": [row.as_dict() for row in compared.rows], "notes": compared.notes}
    # Files before the table: an error of writing is not lost above a screen of numbers.
    if out is not None:
        from heldin.base.files import private_directory, write_text
        from heldin.reports.comparison import comparison_figure

        for name, content in (("compare.svg", comparison_figure(compared)), ("compare.json", json_text(fields))):
            write_text(private_directory(out) / name, content)
    rows = [_cells(row.as_dict()) for row in compared.rows]
    answer(engine.table(compared, terminal_width()), fields, rows, json=json, csv=csv)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a run's row with one number per CSV cell."""
    difference = row.pop("difference") or (None, None, None)
    # Runs with other false-positive rates get columns of their own (``csv_text``), not each other's.
    rates = {f"tpr_at_{fpr:g}": tpr for fpr, tpr in row.pop("tpr_at")}
    changes = dict(zip(("difference", "difference_low", "difference_high"), difference, strict=True))
    people = row.pop("flagged") or {}
    for group in ("members", "others"):
        limits = people.pop(f"{group}_limits", (None, None))
        people |= dict(zip((f"{group}_low", f"{group}_high"), limits, strict=True))
    return {**row, **{f"flagged_{name}": value for name, value in people.items()}, **changes, **rates}


def verify(
    run: Annotated[Path | None, typer.Argument(file_okay=False, help="Folder of a finished run or audit.")] = None,
    exported: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Check this folder, which heldin export wrote, instead of a run."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute every number of a record, and check its files.

    heldin computes the numbers again from scores, ledger and plan, and compares files with their digests. The exit code
    is 2 if anything differs. heldin lists the files that it could not compare. --exported compares every file of an
    exported model with its plan.
    """
    if (run is None) == (exported is None):
        raise InputError(
            "give exactly one folder: of a finished run, or with --exported a folder that heldin export wrote"
        )
    if exported is not None:
        from heldin.jobs.export import verify_exported

        message = verify_exported(exported)
        typer.echo(json_text({"exported": str(exported), "agrees": True, "found": message}) if json else message)
        return
    assert run is not None
    from heldin.base.progress import LineReporter, reporter_for_this_terminal
    from heldin.jobs import verify as engine

    # With --json no progress: the object is all that is printed.
    verification = engine.verify(run, LineReporter(lambda _: None) if json else reporter_for_this_terminal())
    typer.echo(json_text(verification.as_dict()) if json else engine.table(verification))
    # A record that does not follow from its files is bad input to whoever relies on it.
    raise typer.Exit(ExitCode.DONE if verification.agrees else ExitCode.BAD_INPUT)


def export(
    run: Annotated[Path, typer.Argument(file_okay=False, help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="New folder for the exported files.")],
    json: AsJson = False,
) -> None:
    """Write only those files of a run that may be released.

    These files are the public plan and the model folder, which includes the adapter (if there is one) and a model card.
    """
    from heldin.jobs.export import export_run

    files = export_run(run, out)
    typer.echo(json_text({"folder": str(out), "files": files}) if json else f"{out}: {', '.join(files)}")


def purge(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Folder of a finished run, audit or sweep.")],
    keep: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Kinds of files to keep, separated by commas: record (with config and plan), report, log, model.",
        ),
    ] = "record,report",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: AsJson = False,
) -> None:
    """Delete the weights, scores, ledger and keys of a run.

    heldin lists the results that cannot be verified afterwards. For a sweep, heldin purges all runs. heldin deletes
    only files that it wrote, and does not follow links. Copies in backups and snapshots remain.
    """
    from heldin.jobs import purge as engine

    kept = [name.strip() for name in keep.split(",") if name.strip()]
    purged = engine.plan_purge(folder, kept)
    confirm(engine.lines(purged, done=False), "Remove these files? They cannot be made again.", yes=yes)
    engine.purge(folder, kept)
    fields = {
        "folder": str(folder),
        "removed": purged.removed,
        "bytes": purged.bytes,
        "kept": purged.kept,
        "others": purged.others,
        "unverifiable": purged.unverifiable,
    }
    typer.echo(json_text(fields) if json else "\n".join(engine.lines(purged, done=True)))


def cache(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="WORD",
            help="Kind of content to show or clear: corpora, scores, pretrained, references, sweeps, pld or plugins"
            " (default: all).",
        ),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove the contents, unless another process is using them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --clear: do not ask for confirmation.")] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Show the contents and size of the cache, or clear it.

    The cache is the folder $HELDIN_CACHE_DIR, or ~/.cache/heldin if this variable is not set.
    """
    from heldin.base import cache as engine
    from heldin.base.files import cache_root

    parts = engine.parts(kind)
    if not clear:
        rows = [part.as_dict() for part in parts]
        answer("\n".join(engine.lines(parts)), {"folder": str(cache_root()), "kinds": rows}, rows, json=json, csv=csv)
        return
    if csv:
        raise InputError("--csv is only for the list of contents: leave out --csv or --clear")
    # Asked after the folders were read, so that sizes are seen before the answer.
    confirm(engine.lines(parts), "Remove these files? heldin makes them again when needed.", yes=yes)
    size = engine.clear(parts)
    kinds = [part.kind for part in parts]
    typer.echo(
        json_text({"removed_bytes": size, "kinds": kinds}) if json else f"removed {size:,} bytes: {', '.join(kinds)}"
    )
