"""Run the cells of a sweep, each in a process of its own, so that a crash takes only itself; then compare them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import is_held, one_process_at_a_time, write_text
from heldin.base.log_file import logged
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.jobs.sweep.comparison import compare_cells
from heldin.jobs.sweep.config import Sweep
from heldin.jobs.sweep.plan import PlacedCell, placed_cells, take_sweep
from heldin.jobs.sweep.shared import shared_work
from heldin.jobs.sweep.tuning import tries, with_choices
from heldin.record.masking import without_names
from heldin.record.sweep import FILE, TUNING, SweepResult, write_sweep

STATE = "state.json"
_FINE = {0, 3, 4}  # exit codes of a finished run; a violation is a result
_INTERRUPTED = 130
VIOLATED = 3  # exit code of a jointly certified violation
_PAUSE = 1.0  # seconds between looks at a cell that another process works on


@dataclass
class CellState:
    """How a cell stands.

    Attributes:
        seconds: duration of all its processes so far, those of killed sweeps aside.
        calls: number of these processes.
        code: exit code of the last one; null before the first.
        said: its last line if it failed, up to what it quotes: names of users never reach documents.
        halted: whether a filter ended training without a model, which is a result.
    """

    seconds: float = 0.0
    calls: int = 0
    code: int | None = None
    said: str = ""
    halted: bool = False


def run_sweep(sweep: Sweep, out: Path, reporter: Reporter, *, command: str) -> SweepResult:
    """Do what is not yet done of the sweep in ``out``, compare the cells, and write ``comparison.json``.

    Args:
        sweep: the sweep; the same as that of an earlier, unfinished call in ``out``.
        out: its folder.
        reporter: receives the progress.
        command: the command line, for the log.

    Raises:
        InputError: ``out`` holds another sweep, or another process works in it.
        ResumableError: a cell that tunes has no result.
    """
    with one_process_at_a_time(out):
        violated = False
        if sweep.tuning is not None:
            tuned = run_sweep(sweep.tuning, out / TUNING, reporter, command=command)
            failed = [its for its in tuned.cells if its.state in ("failed", "to do")]
            if failed:
                raise ResumableError(
                    f"tuning: cell {failed[0].block}/{failed[0].variant}: {failed[0].said}; the same command tries it"
                    " again; if it cannot succeed, take it out of the grid and begin in a new folder"
                )
            violated = tuned.exit_code == VIOLATED
            # Before the coins of the blocks: what is chosen is part of the plan that they are drawn after.
            sweep = with_choices(sweep, tries(sweep, out))
        take_sweep(sweep, out)
        # Until the cells are compared anew there is nothing to read: an older comparison may be of other cells.
        (out / FILE).unlink(missing_ok=True)
        with logged(reporter, out, command=without_names(command)) as kept:
            cells = placed_cells(sweep, out)
            states = _run_cells(sweep, cells, out, kept)
            result = compare_cells(sweep, out, states, kept, command=without_names(command))
            if violated:
                note = f"a claim is violated in '{out / TUNING}', certified for all of its cells at once"
                result = result.model_copy(update={"tuning_violated": True, "notes": [note, *result.notes]})
            write_sweep(result, out)
            return result


def read_states(out: Path) -> dict[str, CellState]:
    """How the cells of a sweep stand, by name; empty before the first."""
    path = out / STATE
    if not path.is_file():
        return {}
    try:
        return {name: CellState(**its) for name, its in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' is damaged: remove it; it holds durations, and no result") from error


def _run_cells(sweep: Sweep, cells: Sequence[PlacedCell], out: Path, reporter: Reporter) -> dict[str, CellState]:
    states = read_states(out)
    todo = [cell for cell in cells if not _done(cell, states)]
    workers = min(sweep.config.resources.workers, max(1, len(todo)))
    cores = len(os.sched_getaffinity(0))
    threads = sweep.config.resources.threads or max(1, cores // workers)
    if len(todo) < len(cells):
        reporter.say(f"sweep: {len(cells) - len(todo)} of {counted(len(cells), 'cell')} are done already")
    # All before the first thread: none adds to what another one writes.
    for cell in todo:
        states.setdefault(cell.name, CellState())
    # One after another, so that each may have what the workers would share, unless the file sets a limit.
    todo = _with_shared(todo, sweep.config.resources.threads or cores, states, reporter)
    writing = threading.Lock()

    def one(cell: PlacedCell) -> None:
        its = states[cell.name]
        _wait_for(cell, reporter)
        # It may have been finished by the process that was waited for.
        if (cell.folder / "record.json").is_file():
            its.code, its.said = 0, ""
        else:
            started = time.monotonic()
            its.code, its.said = _process(["run", str(cell.folder / "config.yaml"), "--out", str(cell.folder)], threads)
            its.seconds += time.monotonic() - started
            its.calls += 1
            its.halted = its.code == 0 and not (cell.folder / "record.json").is_file()
        with writing:
            write_text(out / STATE, json.dumps({name: asdict(state) for name, state in states.items()}, indent=1))

    with reporter.track("sweep", len(todo), "cells") as advance, ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(one, cell): cell for cell in todo}
        try:
            for future in as_completed(running):
                future.result()
                cell = running[future]
                state = states[cell.name]
                if state.code == _INTERRUPTED:
                    raise KeyboardInterrupt
                what = "done" if state.code in _FINE else f"failed: {state.said}"
                reporter.say(f"cell {cell.name}: {what} ({state.seconds:,.0f} s)")
                advance(1)
        except BaseException:
            # Ctrl-C reaches the cells too, which stop where they can resume.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return states


def _done(cell: PlacedCell, states: dict[str, CellState]) -> bool:
    # A cell whose folder was lost is laid out anew, and has no plan.
    halted = cell.name in states and states[cell.name].halted and (cell.folder / "plan.json").is_file()
    return halted or (cell.folder / "record.json").is_file()


def _with_shared(
    cells: Sequence[PlacedCell], threads: int, states: dict[str, CellState], reporter: Reporter
) -> list[PlacedCell]:
    """Make corpus, base and reference models, each once and one after another; those cells that have theirs."""
    sharing: dict[str, list[PlacedCell]] = {}
    for cell in cells:
        sharing.setdefault(shared_work(cell.config), []).append(cell)
    ready = []
    with reporter.track("what cells share", len(sharing), "parts") as advance:
        for its in sharing.values():
            config = str(its[0].folder / "config.yaml")
            code, said = _process([config], threads, module="heldin.jobs.sweep.shared")
            if code in (_INTERRUPTED, -signal.SIGINT):
                raise KeyboardInterrupt
            if code:
                for cell in its:
                    states[cell.name].code, states[cell.name].said = code, f"what it shares could not be made: {said}"
                    reporter.say(f"cell {cell.name}: failed: {states[cell.name].said}")
            else:
                ready += its
            advance(1)
    return [cell for cell in cells if cell in ready]


def _process(arguments: Sequence[str], threads: int, *, module: str = "heldin") -> tuple[int, str]:
    """Exit code and last line of a process of heldin."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    quiet = ["--quiet"] if module == "heldin" else []
    done = subprocess.run(
        [sys.executable, "-m", module, *quiet, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    said = lines[-1].strip() if lines else f"ended with code {done.returncode} and no word"
    return done.returncode, "" if done.returncode in _FINE else _without_names(said)


def _without_names(line: str) -> str:
    """The line up to what it quotes, but for paths: that may be a user's name, and the line goes into documents."""
    first = re.search(r"(?<!\w)['\"](?!/|\.{1,2}/)", line)
    return line if first is None else f"{line[: first.start()]}... (heldin run with this cell's config says more)"


def _wait_for(cell: PlacedCell, reporter: Reporter) -> None:
    """Wait while a process that a killed sweep left behind still works on the cell."""
    said = False
    with contextlib.suppress(FileNotFoundError):
        while is_held(cell.folder):
            if not said:
                reporter.say(f"cell {cell.name}: a process of an earlier call still works on it; waiting for it")
                said = True
            time.sleep(_PAUSE)
