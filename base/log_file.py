"""A run's log: one plain line with a time per message; every call that works in the folder appends to it.

It contains no user's text and no names: reporters give counts, and an error is logged by its class, not its message.
"""

import contextlib
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.progress import Advance, Reporter, WorkOverview

LOG = "log.txt"


class LoggedReporter:
    """Passes everything on to another reporter and writes it to a folder's log."""

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        self._reporter, self._folder = reporter, folder

    def say(self, line: str) -> None:
        """Log the line and pass it on."""
        log_line(self._folder, line)
        self._reporter.say(line)

    @contextlib.contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        """Log the start of the work and, however it ends, how much was done in how long."""
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
        """Pass it on: how work stands in between is not logged."""
        return self._reporter.follow(look)


@contextlib.contextmanager
def logged(reporter: Reporter, folder: Path, *, command: str) -> Iterator[Reporter]:
    """A reporter that also logs to ``folder``, including how the call began and ended.

    Args:
        reporter: receives everything as well.
        folder: of the run; it must exist.
        command: how the program was called, without names of users.
    """
    log_line(folder, f"begin: heldin {importlib.metadata.version('heldin')}, process {os.getpid()}: {command}")
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
    """Append one line with the time to the folder's log, readable by its owner only."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # A folder that was removed meanwhile has no log; that must not hide the error which ended the call.
    # Opened for each line and in append mode, so that two processes in one folder add lines and overwrite none.
    with contextlib.suppress(FileNotFoundError), open(folder / LOG, "a", encoding="utf-8", opener=_private) as log:
        log.write(f"{now} {' '.join(line.split())}\n")


def _private(path: str, flags: int) -> int:
    # The mode counts when the file is created; an existing log keeps its own.
    return os.open(path, flags, 0o600)
