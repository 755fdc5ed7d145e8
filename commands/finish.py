"""How a command that makes a record ends: the report, what was found, the exit code; and how it is interrupted."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from heldin.record.document import Record


def finish(record: "Record", folder: Path) -> NoReturn:
    """Make the report and say what was found."""
    from heldin.reports.findings import BOUNDS, HOW_WELL, NEXT, answer_line, findings
    from heldin.reports.pdf import write_report

    said = findings(record)
    typer.echo(said.headline)
    for warning in said.warnings:
        typer.echo(f"note: {warning}")
    paragraphs = dict(said.paragraphs)
    for title in (HOW_WELL, BOUNDS, NEXT):
        typer.echo(f"{title}: {paragraphs[title]}")
    typer.echo(f"report: {write_report(folder)}")
    code = record.judgement.exit_code
    typer.echo(f"answer: {answer_line(record.decision)}" + (f" (exit code {code})" if code else ""))
    raise typer.Exit(code)


class Interrupted(Exception):
    """Ctrl-C during work that can be resumed; typer would otherwise only say that it was aborted."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into ``Interrupted``."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted from error


def command_line() -> str:
    """How this process was called, for the record."""
    return shlex.join(["heldin", *sys.argv[1:]])
