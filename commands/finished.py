"""What is done with finished runs: report, compare, verify, export."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.options import BAD_INPUT, AsJson, json_text


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or audit.")],
    people: Annotated[
        bool, typer.Option("--people", help="Print the most exposed users by name, from the owner-only people.parquet.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="With --people: at most so many of them.")] = 20,
    json: AsJson = False,
) -> None:
    """Make report.pdf from a folder's record.json. With --people print single users, whom the report never names."""
    if people:
        from heldin.audit.exposure import people_table, read_people

        exposed = read_people(run / "people.parquet")
        rows = [asdict(user) for user in exposed[:most]]
        typer.echo(json_text({"users": len(exposed), "people": rows}) if json else people_table(exposed, most))
        return
    from heldin.reports.pdf import write_report

    file = write_report(run)
    typer.echo(json_text({"report": str(file)}) if json else f"report: {file}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    over: Annotated[
        str | None, typer.Option(help="Config key that differs (finetune.epochs), or parameters, users or records.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder for compare.svg and compare.json.")] = None,
    json: AsJson = False,
) -> None:
    """Set finished runs side by side: epsilon, validation loss, AUROC, TPR at low FPR, ceiling and verdict of each.

    With --to also as a figure: AUROC and loss over --over, ROC curves, and canary users by substring length.
    """
    from heldin.record import compare as engine

    compared = engine.compare(runs, over)
    fields = {"over": over, "runs": [row.as_dict() for row in compared.rows], "notes": compared.notes}
    if to is not None:
        from heldin.base.files import private_directory, write_text
        from heldin.reports.comparison import comparison_figure

        for name, content in (("compare.svg", comparison_figure(compared)), ("compare.json", json_text(fields))):
            write_text(private_directory(to) / name, content)
    typer.echo(json_text(fields) if json else engine.table(compared))


def verify(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run or audit.")] = None,
    exported: Annotated[
        Path | None, typer.Option(help="In place of a run: a folder that heldin export wrote; compare its files.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute every number of a record from its scores, ledger and plan, and say which differ (exit code 2).

    With --exported DIR show that every file of an exported model is the one that its plan names.
    """
    if (run is None) == (exported is None):
        raise InputError("name the folder of a finished run, or --exported and the folder that heldin export wrote")
    if exported is not None:
        from heldin.jobs.export import verify_exported

        said = verify_exported(exported)
        typer.echo(json_text({"exported": str(exported), "agrees": True, "found": said}) if json else said)
        return
    assert run is not None
    from heldin.base.progress import LineReporter, reporter_for_this_terminal
    from heldin.jobs import verify as engine

    found = engine.verify(run, LineReporter(lambda _: None) if json else reporter_for_this_terminal())
    typer.echo(json_text(found.as_dict()) if json else engine.table(found))
    raise typer.Exit(BAD_INPUT if found.differences else 0)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Path, typer.Option(help="New folder for what may leave.")],
    json: AsJson = False,
) -> None:
    """Write what may leave: the model folder with a model card and the public plan, nothing else."""
    from heldin.jobs.export import export_run

    files = export_run(run, to)
    typer.echo(json_text({"folder": str(to), "files": files}) if json else f"{to}: {', '.join(files)}")
