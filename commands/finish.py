"""How a command that makes a record ends: report, findings and exit code; and what Ctrl-C does."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from heldin.commands.options import json_text

if TYPE_CHECKING:
    from heldin.record.document import Record


def finish(record: "Record", folder: Path, *, json: bool = False) -> NoReturn:
    """Write the report, print the findings (``json``: as one JSON object) and exit with the verdict's code."""
    from heldin.base.log_file import log_line
    from heldin.reports.findings import BOUNDS, HOW_WELL, NEXT, RECOMMENDED, answer_line, findings

    said, answered, code = findings(record), answer_line(record.decision), record.judgement.exit_code
    paragraphs = dict(said.paragraphs)
    # Before the report: the log holds the answer even if typesetting fails.
    log_line(folder, f"answer: {answered}")
    if json:
        words = {"answer": answered, "headline": said.headline, "notes": list(said.warnings)}
        words |= {"recommendation": paragraphs[RECOMMENDED], "next": paragraphs[NEXT]}
        report = _report(record, folder)
        typer.echo(json_text({**words, **_facts(record), "folder": str(folder), "report": report}))
        raise typer.Exit(code)
    # The words come before the report is typeset, so that they are read even if that fails.
    typer.echo(said.headline)
    for warning in said.warnings:
        typer.echo(f"note: {warning}")
    # By the organisation's own limits; without any there is nothing to print here.
    limits = [RECOMMENDED] if record.decision.by.require else []
    for title in (HOW_WELL, BOUNDS, *limits, NEXT):
        typer.echo(f"{title}: {paragraphs[title]}")
    typer.echo(f"report: {_report(record, folder) or 'none'}")
    # Last, where scripts and people look for it.
    typer.echo(f"answer: {answered}" + (f" (exit code {code})" if code else ""))
    raise typer.Exit(code)


def _report(record: "Record", folder: Path) -> str | None:
    """The path of the report; None, with a line that says why, if it cannot be typeset: the record stands."""
    from heldin.base.errors import InputError
    from heldin.reports.pdf import typeset

    try:
        return str(typeset(record, folder / "report.pdf"))
    except InputError as error:
        typer.echo(f"error: {error}; the record is whole", err=True)
        return None


def _facts(record: "Record") -> dict[str, Any]:
    """What a record's answer rests on: the decision with its thresholds, bounds and verdicts."""
    return {
        "kind": record.kind,
        "name": record.name,
        "exit_code": record.judgement.exit_code,
        # The exit code of its own: it follows from the verdicts and is not in the record.
        **record.model_dump(mode="json", include={"decision", "judgement"}),
    }


def finish_without_model(folder: Path, *, json: bool = False) -> None:
    """Say that a filter halted training, which is a result; the reporter has named the step."""
    said = "the filter halted training: no model is released, and there is nothing to audit"
    typer.echo(json_text({"answer": None, "headline": said, "exit_code": 0, "folder": str(folder)}) if json else said)


class Interrupted(Exception):
    """Ctrl-C during work that can be resumed; typer would otherwise only say that it was aborted."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into ``Interrupted``."""
    try:
        yield
    # Only around work that a second call resumes; elsewhere Ctrl-C ends the command as typer does.
    except KeyboardInterrupt as error:
        raise Interrupted from error


def command_line() -> str:
    """The command line of this process, for the record."""
    return shlex.join(["heldin", *sys.argv[1:]])
