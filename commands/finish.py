"""The end of a command that makes a record: report, findings and exit code; and the handling of Ctrl-C."""

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from heldin.base.errors import Terminated
from heldin.commands.options import json_text

if TYPE_CHECKING:
    from heldin.record.document import Record


def finish(record: "Record", folder: Path, *, json: bool = False, verbose: bool = False) -> NoReturn:
    """Write the report, print the findings (``json``: as one JSON object) and exit with the verdict's code."""
    if json:
        typer.echo(json_text(findings_as_json(record, folder)))
    else:
        tell(record, folder, verbose=verbose)
    raise typer.Exit(record.judgement.exit_code)


def tell(record: "Record", folder: Path, *, verbose: bool = False) -> None:
    """Write the report and print the findings; ``verbose``: of a planted audit every condition and count as well."""
    from heldin.reports.attacks import marks_line
    from heldin.reports.extraction import extraction_line
    from heldin.reports.findings import BOUNDS, CANARY_USERS, HOW_WELL, NEXT, RECOMMENDED, findings

    rendered, answered, code = findings(record), _answered(record, folder), record.judgement.exit_code
    paragraphs = dict(rendered.paragraphs)
    # The words come before the report is typeset, so that they are read even if that fails.
    typer.echo(rendered.headline)
    for warning in rendered.warnings:
        typer.echo(f"note: {warning}")
    # By the organisation's own limits; without any there is nothing to print here.
    limits = [RECOMMENDED] if record.decision.by.require else []
    planted = [CANARY_USERS] if CANARY_USERS in paragraphs else []
    for title in (HOW_WELL, *planted, BOUNDS, *limits, NEXT):
        typer.echo(f"{title}: {paragraphs[title]}")
    if emitted := extraction_line(record):
        typer.echo(f"Extraction: {emitted}")
    if exposed := marks_line(record):
        typer.echo(f"Exposure: {exposed}")
    if record.planted is not None:
        from heldin.record.condition_words import condition_lines, declared_line

        if declared := declared_line(record.planted):
            typer.echo(f"Conditions: {declared}")
        for line in condition_lines(record.planted, every=True) if verbose else ():
            typer.echo(line)
    typer.echo(f"report: {_report(record, folder) or 'none'}")
    # Last, where scripts and people look for it.
    typer.echo(f"answer: {answered}" + (f" (exit code {code})" if code else ""))


def findings_as_json(record: "Record", folder: Path) -> dict[str, Any]:
    """Write the report; the findings as JSON has them."""
    from heldin.reports.findings import NEXT, RECOMMENDED, findings

    rendered, answered = findings(record), _answered(record, folder)
    paragraphs = dict(rendered.paragraphs)
    words = {"answer": answered, "headline": rendered.headline, "notes": list(rendered.warnings)}
    words |= {"recommendation": paragraphs[RECOMMENDED], "next": paragraphs[NEXT]}
    report = _report(record, folder)
    return {**words, **_facts(record), "folder": str(folder), "report": report}


def _answered(record: "Record", folder: Path) -> str:
    """Return the answer in words, which the log holds before a report is typeset: it stands even if that fails."""
    from heldin.base.progress import log_line
    from heldin.reports.findings import answer_line

    answered = answer_line(record.decision)
    log_line(folder, f"answer: {answered}")
    return answered


def _report(record: "Record", folder: Path) -> str | None:
    """Return the path of the report; None, with a line that says why, if it cannot be typeset: the record stands."""
    from heldin.base.errors import InputError
    from heldin.reports.record_report import report_record
    from heldin.reports.typesetting import write_pdf

    try:
        return str(write_pdf(report_record(record), folder / "report.pdf"))
    except InputError as error:
        typer.echo(f"error: {error}; the record is whole", err=True)
        return None


def _facts(record: "Record") -> dict[str, Any]:
    """Return what a record's answer rests on: thresholds, bounds, verdicts, extraction and a planted set's facts."""
    return {
        "kind": record.kind,
        "name": record.name,
        "exit_code": record.judgement.exit_code,
        # The exit code of its own: it follows from the verdicts and is not in the record.
        **record.model_dump(mode="json", include={"decision", "judgement", "extraction", "planted"}),
    }


def finish_without_model(folder: Path, *, json: bool = False) -> None:
    """Say that a filter halted training, which is a result; the reporter has named the step."""
    message = "the filter halted training: no model is released, and there is nothing to audit"
    fields = {"answer": None, "headline": message, "exit_code": 0, "folder": str(folder)}
    typer.echo(json_text(fields) if json else message)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during work that can be resumed; typer would otherwise only say that it was aborted."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into ``Interrupted``."""
    # Schedulers end a job by SIGTERM. Only the main thread of a process may set what happens then.
    before = (
        signal.signal(signal.SIGTERM, _terminated) if threading.current_thread() is threading.main_thread() else None
    )
    try:
        yield
    # Only around work that a second call resumes; elsewhere Ctrl-C ends the command as typer does.
    except KeyboardInterrupt as error:
        raise Interrupted from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    raise Terminated


def command_line() -> str:
    """Return the command line of this process, for the record."""
    return shlex.join(["heldin", *sys.argv[1:]])
