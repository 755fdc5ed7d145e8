"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere and in a run's log.

Every call that works in a folder appends to the folder's log, one plain line with a time per message. A log has no
user's text and no names: reporters give counts, and heldin logs the class of an error without its message.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.table import Table
from rich.text import Text

from heldin.base.machine import is_quiet, version

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_TABLES = 60.0

Advance = Callable[[int], None]
LOG = "log.txt"


@dataclass(frozen=True)
class WorkOverview:
    """The state of several pieces of work that run in parallel.

    Attributes:
        columns: headings of the table's columns.
        rows: rows of the table, the most important first.
        caption: a line below the table.
        lines: the report for output without a terminal.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    lines: Sequence[str]


class Reporter(Protocol):
    """Receives the progress of a run."""

    def say(self, line: str) -> None:
        """Report one line."""
        ...

    def track(self, title: str, total: int, unit: str) -> contextlib.AbstractContextManager[Advance]:
        """Follow ``total`` units of work. Call the returned function with the number of units just finished."""
        ...

    def follow(self, look: Callable[[], WorkOverview]) -> contextlib.AbstractContextManager[None]:
        """Show the state of the work at intervals until the context ends. A separate thread calls ``look``."""
        ...


class _RateColumn(TextColumn):
    """Units per second, which rich estimates from recent updates. The last estimate stays after the work ends."""

    def render(self, task: RichTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s", style="progress.data.speed")


class TerminalReporter:
    """Shows bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        """Print the line."""
        # Without markup, so that "[bold]" in a path or a text is printed as it stands.
        self._console.print(line, highlight=False, markup=False)

    @contextlib.contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        """Show a bar until the context ends."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(""),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(title, total=total, unit=unit)
            yield lambda done: progress.advance(task, done)

    @contextlib.contextmanager
    def follow(self, look: Callable[[], WorkOverview]) -> Iterator[None]:
        """Show a table, with as many rows as fit, until the context ends."""

        def drawn() -> Table:
            standing = look()
            # Without markup: a line of a process may have brackets.
            table = Table(*standing.columns, caption=Text(standing.caption), caption_justify="left", box=None)
            for row in standing.rows[: max(1, self._console.height - 4)]:
                table.add_row(*(Text(cell, overflow="ellipsis", no_wrap=True) for cell in row))
            return table

        with Live(get_renderable=drawn, console=self._console, refresh_per_second=1):
            yield


class LineReporter:
    """Writes plain lines, at most one every ten seconds per piece of work."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        # Standard error, because standard output is for answers: ``--json`` must stay one JSON object.
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))

    def say(self, line: str) -> None:
        """Write the line."""
        self._write(line)

    @contextlib.contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        """Write the progress with rate and time left, and the total time at the end."""
        started = last = time.monotonic()
        done = 0

        def advance(units: int) -> None:
            nonlocal done, last
            done += units
            now = time.monotonic()
            # With nothing done the rate is 0, and the time left would divide by it.
            if now - last >= SECONDS_BETWEEN_LINES and done:
                last = now
                rate = done / (now - started)
                self._write(
                    f"{title}: {done}/{total} {unit}, {rate:,.1f} {unit}/s, {(total - done) / rate:,.0f} s left"
                )

        yield advance
        self._write(f"{title}: {done}/{total} {unit} in {time.monotonic() - started:,.1f} s")

    @contextlib.contextmanager
    def follow(self, look: Callable[[], WorkOverview]) -> Iterator[None]:
        """Write the lines once a minute."""
        ended = threading.Event()

        def write() -> None:
            while not ended.wait(SECONDS_BETWEEN_TABLES):
                for line in look().lines:
                    self._write(line)

        looking = threading.Thread(target=write, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


class SilentReporter:
    """Shows nothing, for work that is too short to show."""

    def say(self, line: str) -> None:
        """Drop the line."""

    def track(self, title: str, total: int, unit: str) -> contextlib.AbstractContextManager[Advance]:
        """Show nothing."""
        return contextlib.nullcontext(lambda _done: None)

    def follow(self, look: Callable[[], WorkOverview]) -> contextlib.AbstractContextManager[None]:
        """Show nothing."""
        return contextlib.nullcontext()


def reporter_for_this_terminal() -> Reporter:
    """Return a reporter for standard error: bars on a terminal, otherwise lines, and nothing with ``--quiet``."""
    if is_quiet():
        return LineReporter(lambda line: None)
    console = Console(stderr=True)
    return TerminalReporter(console) if console.is_terminal else LineReporter()


class LoggedReporter:
    """Passes everything to another reporter, and writes it to a folder's log."""

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        self._reporter, self._folder = reporter, folder

    def say(self, line: str) -> None:
        """Log the line and pass it on."""
        log_line(self._folder, line)
        self._reporter.say(line)

    @contextlib.contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        """Log the start of the work. When the work ends or fails, log the finished amount and the time."""
        started, done = time.monotonic(), 0
        log_line(self._folder, f"{title}: begin, {total} {unit}")
        try:
            with self._reporter.track(title, total, unit) as inner:

                def advance(units: int) -> None:
                    nonlocal done
                    done += units
                    inner(units)

                yield advance
        finally:
            log_line(self._folder, f"{title}: {done}/{total} {unit} in {time.monotonic() - started:,.1f} s")

    def follow(self, look: Callable[[], WorkOverview]) -> contextlib.AbstractContextManager[None]:
        """Pass the call on. The log omits progress within the work."""
        return self._reporter.follow(look)


@contextlib.contextmanager
def logged(reporter: Reporter, folder: Path, *, command: str) -> Iterator[Reporter]:
    """Yield a reporter that also logs to ``folder``, including how the call began and ended.

    Args:
        reporter: reporter that also receives every message.
        folder: folder of the run; it must exist.
        command: the program's call, without names of users.
    """
    log_line(folder, f"begin: heldin {version()}, process {os.getpid()}: {command}")
    started = time.monotonic()
    how = "end"
    try:
        yield LoggedReporter(reporter, folder)
    # An interrupt too, which is no ``Exception``: the log must say that the call was stopped, and when.
    except BaseException as error:
        # The class only: a message may quote a user's name or text.
        how = f"stopped by {type(error).__name__}"
        raise
    finally:
        log_line(folder, f"{how}, after {time.monotonic() - started:,.1f} s")


def log_line(folder: Path, line: str) -> None:
    """Append one line with the time to the folder's log. Only its owner can read the log."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # A folder that was removed meanwhile has no log; that must not hide the error which ended the call.
    # Opened for each line and in append mode, so that two processes in one folder add lines and overwrite none.
    with contextlib.suppress(FileNotFoundError), open(folder / LOG, "a", encoding="utf-8", opener=_private) as log:
        log.write(f"{now} {' '.join(line.split())}\n")


def _private(path: str, flags: int) -> int:
    # The mode counts when the file is created; an existing log keeps its own.
    return os.open(path, flags, 0o600)
