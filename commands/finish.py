"""The last step of commands that make a record (report, findings, exit code), and the handling of Ctrl-C."""

import shlex
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from heldin.base.errors import ExitCode, Terminated
from heldin.commands.options import FailOn, json_text

if TYPE_CHECKING:
    from heldin.record.document import Record

_LABEL = 18  # width of the column of labels in a terminal


def finish(
    record: "Record",
    folder: Path,
    *,
    json: bool = False,
    verbose: bool = False,
    fail_on: frozenset[FailOn] | None = None,
    html: bool = False,
) -> NoReturn:
    """Write the report, print the findings (as JSON if ``json`` is true), and exit with the code of ``exit_code``."""
    code = exit_code(record, fail_on)
    if json:
        typer.echo(json_text(findings_as_json(record, folder, code, html=html)))
    else:
        tell(record, folder, code, verbose=verbose, html=html)
    raise typer.Exit(code)


def exit_code(record: "Record", fail_on: frozenset[FailOn] | None) -> int:
    """Return the exit code of a finished record.

    If a claim is contradicted, the code is the kind of evidence: CERTIFIED or INDICATIVE. Otherwise, the code is GATED
    if ``fail_on`` contains the answer, and DONE if not. If ``fail_on`` is given, the answer "not valid" always leads to
    GATED, and "inconclusive" in ``fail_on`` includes "leaks". A leak of canary users counts as the answer "leaks", as
    on page one.
    """
    from heldin.reports.recommendation import canaries_leak

    code = record.judgement.exit_code
    if code or fail_on is None:
        return code
    reasons = {record.decision.decision.answer.value.replace(" ", "-"), *(["leaks"] if canaries_leak(record) else [])}
    # Who does not accept "inconclusive" does not accept a leak.
    worse = {FailOn.LEAKS} if FailOn.INCONCLUSIVE in fail_on else set()
    return ExitCode.GATED if reasons & {*fail_on, *worse, FailOn.NOT_VALID} else ExitCode.DONE


def tell(record: "Record", folder: Path, code: int, *, verbose: bool = False, html: bool = False) -> None:
    """Print page one as labelled lines, and write the report. ``verbose``: also print statistics and conditions."""
    from heldin.reports.findings import explain_further
    from heldin.reports.page_one import summary_lines

    _log_answer(record, folder)
    # The words come before the report is typeset, so that they are read even if that fails.
    for label, text in summary_lines(record):
        typer.echo(labelled(label, text))
    for label, text in explain_further(record) if verbose else ():
        typer.echo(labelled(label, text))
    if record.planted is not None and verbose:
        from heldin.record.condition_words import condition_lines

        for line in condition_lines(record.planted, every=True):
            typer.echo(labelled("condition", line))
    if code:
        typer.echo(labelled("exit code", f"{code}: {ExitCode(code).meaning}"))
    report, page = _reports(record, folder, html=html)
    typer.echo(labelled("report", report or "none"))
    if page is not None:
        typer.echo(labelled("web page", page))


def terminal_width() -> int:
    """Return the width of the terminal in characters, at least 60."""
    return max(60, shutil.get_terminal_size().columns)


def labelled(label: str, text: str) -> str:
    """Return ``label: text``, wrapped at the width of the terminal, with the text in a separate column."""
    return textwrap.fill(
        f"{label + ':':<{_LABEL}}{text}",
        terminal_width(),
        subsequent_indent=" " * _LABEL,
        # A path or an option is copied whole.
        break_long_words=False,
        break_on_hyphens=False,
    )


def findings_as_json(record: "Record", folder: Path, code: int, *, html: bool = False) -> dict[str, Any]:
    """Write the report, and return the findings for JSON: answer, people and recommendation, then the facts."""
    from heldin.reports.page_one import summary_facts

    _log_answer(record, folder)
    summary = summary_facts(record)
    report, page = _reports(record, folder, html=html)
    return {**summary, **_facts(record), "exit_code": code, "folder": str(folder), "report": report, "page": page}


def _log_answer(record: "Record", folder: Path) -> None:
    """Write the answer to the log. This comes before typesetting, so a failure there does not lose the answer."""
    from heldin.base.progress import log_line

    log_line(folder, f"answer: {record.decision.decision.answer.value}")


def _reports(record: "Record", folder: Path, *, html: bool) -> tuple[str | None, str | None]:
    """Write the report, and return the paths of the PDF and of the web page; None for a file that was not written.

    If the PDF cannot be typeset, this prints the reason to stderr. The record stays valid.
    """
    from heldin.base.errors import InputError
    from heldin.reports.record_report import report_record
    from heldin.reports.typesetting import write_pdf

    made = report_record(record)
    page = None
    if html:
        from heldin.reports.html import write_page

        page = str(write_page(made, folder / "report.html"))
    try:
        return str(write_pdf(made, folder / "report.pdf")), page
    except InputError as error:
        typer.echo(f"error: {error}. The record is complete, and only the PDF is missing", err=True)
        return None, page


def _facts(record: "Record") -> dict[str, Any]:
    """Return the facts behind a record's answer: thresholds, bounds, verdicts, measures and facts of a planted set."""
    return {
        "kind": record.kind,
        "name": record.name,
        **record.model_dump(mode="json", include={"decision", "judgement", "planted"}),
        "measures": record.measures,
    }


def finish_without_model(folder: Path, fail_on: frozenset[FailOn] | None, *, json: bool = False) -> NoReturn:
    """Print that a filter halted training, and exit. There is no answer, so the code is GATED with any ``fail_on``."""
    message = "the filter halted training: there is no model to release or audit"
    code = ExitCode.DONE if fail_on is None else ExitCode.GATED
    fields = {"answer": None, "headline": message, "exit_code": code, "folder": str(folder)}
    typer.echo(json_text(fields) if json else message)
    raise typer.Exit(code)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during work that can be resumed. Without this error, typer prints only "Aborted"."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interrupted`` for Ctrl-C and SIGTERM inside the block."""
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
    """Return the command line of this process, which the record stores."""
    return shlex.join(["heldin", *sys.argv[1:]])
