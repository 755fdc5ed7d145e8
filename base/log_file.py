"""A run's log: what its reporter said and when, one plain line each, appended over all calls that work in its folder.

It holds no text of a user and no name: reporters say counts, and of an error the log has the kind and not the words.
"""

import contextlib
import importlib.metadata
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.progress import Advance, Reporter

LOG = "log.txt"


class LoggedReporter:
    """Says what it is told to another reporter, and to the log of a folder."""

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        self._reporter, self._folder = reporter, folder

    def say(self, line: str) -> None:
        """Say and log the line."""
        log_line(self._folder, line)
        self._reporter.say(line)

    @contextlib.contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Advance]:
        """Log the beginning of the work, and how much of it was done in which time, however it ended."""
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


@contextlib.contextmanager
def logged(reporter: Reporter, folder: Path, *, command: str) -> Iterator[Reporter]:
    """The reporter, logging to ``folder`` too; the log says how the call began and how it ended.

    Args:
        reporter: where progress goes besides.
        folder: of the run, taken before: it is not made here.
        command: how the program was called, without names of users.
    """
    log_line(folder, f"begin: heldin {importlib.metadata.version('heldin')}, process {os.getpid()}: {command}")
    started = time.monotonic()
    how = "end"
    try:
        yield LoggedReporter(reporter, folder)
    except BaseException as error:
        how = f"stopped by {type(error).__name__}"
        raise
    finally:
        log_line(folder, f"{how}, after {time.monotonic() - started:,.1f} s")


def log_line(folder: Path, line: str) -> None:
    """Append one line with the time to the folder's log, readable by its owner only; a folder that is gone has none."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with contextlib.suppress(FileNotFoundError), open(folder / LOG, "a", encoding="utf-8", opener=_private) as log:
        log.write(f"{now} {' '.join(line.split())}\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
