"""Run the cells of a sweep: first their shared work, then as many cells at a time as the place allows."""

import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import ExitCode, InputError, ResumableError, Terminated
from heldin.base.files import is_held
from heldin.base.progress import Reporter, WorkOverview
from heldin.base.wording import counted
from heldin.stages.run_config import RunConfig
from heldin.sweeps.finished import is_finished
from heldin.sweeps.processes import FINE, CellPlace, Ended, Task, last_line, without_names, without_prefix
from heldin.sweeps.sweep_config import PlacedCell

STATE = "state.json"
PROGRESS = "progress"  # what cells say while they work; removed when none does
_INTERRUPTED = 130
_PAUSE = 1.0  # seconds between looks at a cell that another process works on


def shared_work(config: RunConfig) -> str:
    """Return a name for the cached work that a cell of this config uses. Cells with equal names share the work."""
    model = config.model_dump(mode="json")
    recipe = model["finetune"] if any(reference.kind == "public" for reference in config.attack.references) else None
    parts = [model["seed"], model["corpus"], model["model"], model["attack"]["references"], recipe]
    return json.dumps(parts, sort_keys=True)


def shared_scores(config: RunConfig) -> str:
    """Return a name for the texts that shared models score for a cell of this config. Cells with equal names share
    them."""
    model = config.model_dump(mode="json")
    # What is set aside, planted and cut, and all that chooses among it.
    return json.dumps([model[key] for key in ("split", "canaries", "attack", "audit", "data_defenses")], sort_keys=True)


@dataclass
class CellState:
    """The state of a cell.

    Attributes:
        seconds: duration of all processes of the cell so far, except those of killed sweeps.
        calls: number of processes of the cell so far.
        code: exit code of the last process; null before the first process.
        reason: last output line of the last process if it failed. It has no quoted text, because no user name may be
            published.
        halted: whether a filter ended training without a model, which counts as a result.
    """

    seconds: float = 0.0
    calls: int = 0
    code: int | None = None
    reason: str = ""
    halted: bool = False


def read_states(out: Path) -> dict[str, CellState]:
    """Return the states of a sweep's cells by name; empty before the first cell starts."""
    path = out / STATE
    if not path.is_file():
        return {}
    content = read_document(path, "remove this file; no results are lost")
    return {name: CellState(**state) for name, state in content.items()}


def cells_to_do(cells: Sequence[PlacedCell], out: Path) -> list[PlacedCell]:
    """Return the cells without a result."""
    states = read_states(out)
    return [cell for cell in cells if not _done(cell, states)]


def run_cells(cells: Sequence[PlacedCell], out: Path, place: CellPlace, reporter: Reporter) -> dict[str, CellState]:
    """Run the cells without a result. Return the states of all cells by name.

    Args:
        place: place where the cells run.

    Raises:
        InputError: no cell has a result, and none can run, because the shared work of every cell was refused.
        ResumableError: like InputError, but the shared work of at least one cell stopped for another reason.
        KeyboardInterrupt: the user interrupted a cell.
    """
    states, todo = read_states(out), cells_to_do(cells, out)
    if len(todo) < len(cells):
        reporter.say(f"sweep: {len(cells) - len(todo)} of {counted(len(cells), 'cell')} are already done")
    # All before the first thread: none adds to what another one writes.
    for cell in todo:
        states.setdefault(cell.name, CellState())
    try:
        unfinished, todo = todo, _with_shared(todo, out, place, states, reporter)
        if not todo and len(unfinished) == len(cells):
            raise _nothing_can_run([states[cell.name] for cell in cells])
        if todo:
            reporter.say(f"sweep: {counted(len(todo), 'cell')}, {place.describes}")
            _Running(todo, out, place, states, reporter).to_the_end()
    finally:
        shutil.rmtree(out / PROGRESS, ignore_errors=True)
    return states


class _Running:
    """The cells that are running, and the states of all cells."""

    def __init__(
        self, cells: Sequence[PlacedCell], out: Path, place: CellPlace, states: dict[str, CellState], reporter: Reporter
    ) -> None:
        self._cells, self._out, self._place = cells, out, place
        self._states, self._reporter = states, reporter
        self._started: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._begun, self._writing = time.monotonic(), threading.Lock()
        self._stopped = threading.Event()

    def to_the_end(self) -> None:
        """Run all cells until they end."""
        with self._reporter.follow(self._standing), ThreadPoolExecutor(self._place.width) as pool:
            try:
                running = {pool.submit(self._one, cell): cell for cell in self._cells}
                for future in as_completed(running):
                    future.result()
                    cell = running[future]
                    state = self._states[cell.name]
                    if state.code == _INTERRUPTED:
                        raise KeyboardInterrupt
                    outcome = "done" if state.code in FINE else f"failed: {state.reason}"
                    self._reporter.say(f"cell {cell.name}: {outcome} ({state.seconds:,.0f} s; {self._left()})")
            except BaseException as error:
                # The pool waits for its threads, and these for the cells. Ctrl-C reaches the cells here too, which stop
                # where they can resume; it does not elsewhere, nor where this process alone was told to end.
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                self._place.stop(alone=isinstance(error, Terminated) or not isinstance(error, KeyboardInterrupt))
                raise

    def _one(self, cell: PlacedCell) -> None:
        cell_state = self._states[cell.name]
        _wait_for(cell, self._reporter, self._stopped)
        if self._stopped.is_set():
            return
        # It may have been finished by the process that was waited for.
        if is_finished(cell.folder):
            cell_state.code, cell_state.reason = 0, ""
        else:
            self._started[cell.name] = time.monotonic()
            ended = self._called(cell)
            # What stopped it may be over, such as a full disk or a cache that somebody removed.
            if ended.code == ExitCode.RESUMABLE and not self._stopped.is_set():
                self._reporter.say(f"cell {cell.name}: {ended.reason}; heldin tries again")
                ended = self._called(cell)
            cell_state.code, cell_state.reason, cell_state.halted = ended.code, ended.reason, ended.halted
        self._ended[cell.name] = time.monotonic()
        with self._writing:
            content = {name: asdict(state) for name, state in self._states.items()}
            write_document(self._out / STATE, content)

    def _called(self, cell: PlacedCell) -> Ended:
        words = ("run", str(cell.folder / "config.yaml"), "--out", str(cell.folder))
        try:
            ended = self._place.run(Task(words, self._progress(cell), cell.folder))
        # Of its place: the others go on.
        except (InputError, ResumableError, OSError) as error:
            ended = Ended(ExitCode.RESUMABLE, without_names(f"error: {error}"))
        self._states[cell.name].seconds += ended.seconds
        self._states[cell.name].calls += 1
        return ended

    def _progress(self, cell: PlacedCell) -> Path:
        return self._out / PROGRESS / f"{cell.block}-{cell.variant.name}.txt"

    def _standing(self) -> WorkOverview:
        now = time.monotonic()
        at_work = [cell for cell in self._cells if cell.name in self._started and cell.name not in self._ended]
        ended = [cell for cell in self._cells if cell.name in self._ended]
        last_lines = {cell.name: last_line(self._progress(cell)) for cell in at_work}
        rows = [
            (cell.name, "at work", f"{now - self._started[cell.name]:,.0f} s", last_lines[cell.name])
            for cell in at_work
        ]
        for cell in reversed(ended):
            state = self._states[cell.name]
            outcome = "done" if state.code in FINE else "failed"
            rows.append((cell.name, outcome, f"{state.seconds:,.0f} s", state.reason))
        return WorkOverview(
            columns=("cell", "state", "time", "last line"),
            rows=rows,
            caption=self._left(),
            lines=[f"cell {name}: {line}" for name, line in last_lines.items() if line],
        )

    def _left(self) -> str:
        """Return a text with the number of finished cells, and roughly how long the other cells will take."""
        done = len(self._ended)
        failed = sum(self._states[name].code not in FINE for name in self._ended)
        summary = f"{done - failed} of {counted(len(self._cells), 'cell')} done"
        summary += f", {failed} failed" if failed else ""
        if not 0 < done < len(self._cells):
            return summary
        # Cells at work count as half done: by the pace so far, which the number at a time is in already.
        at_work = [cell for cell in self._cells if cell.name not in self._ended and self._progress(cell).is_file()]
        gone = done + len(at_work) / 2
        pace = (time.monotonic() - self._begun) / gone
        return f"{summary}, about {pace * (len(self._cells) - gone):,.0f} s left"


def _nothing_can_run(states: Sequence[CellState]) -> InputError | ResumableError:
    """Return the error of a sweep without a cell that can run."""
    refused = all(state.code == ExitCode.BAD_INPUT for state in states)
    return (InputError if refused else ResumableError)(f"no cell can run: {without_prefix(states[0].reason)}")


def _done(cell: PlacedCell, states: dict[str, CellState]) -> bool:
    # A cell whose folder was lost is laid out anew, and has no plan.
    halted = cell.name in states and states[cell.name].halted and (cell.folder / "plan.json").is_file()
    return halted or is_finished(cell.folder)


def _with_shared(
    cells: Sequence[PlacedCell], out: Path, place: CellPlace, states: dict[str, CellState], reporter: Reporter
) -> list[PlacedCell]:
    """Make the corpus, base and reference models, and the references' scores, each only once. Return the cells that can
    run."""
    sharing: dict[str, list[PlacedCell]] = {}
    for cell in cells:
        sharing.setdefault(shared_work(cell.config), []).append(cell)
    ready = []
    for number, alike in enumerate(sharing.values(), start=1):
        progress = out / PROGRESS / f"shared-{number}.txt"
        reporter.say(f"sweep: shared work, part {number} of {len(sharing)}")
        # Of the cells that score the same texts, the first.
        scored = {shared_scores(cell.config): cell for cell in reversed(alike)}
        folders = [str(cell.folder) for cell in alike if cell in scored.values()]

        def look(progress: Path = progress) -> WorkOverview:
            line = last_line(progress)
            return WorkOverview(("shared work",), [(line,)], "", [line] if line else [])

        with reporter.follow(look):
            task = Task(tuple(folders), progress, module="heldin.sweeps.shared")
            ended = place.share(task)
            if ended.code == ExitCode.RESUMABLE:
                reporter.say(f"sweep: shared work: {ended.reason}; heldin tries again")
                ended = place.share(task)
        if ended.code in (_INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if ended.code:
            for cell in alike:
                state = states[cell.name]
                state.code, state.reason = ended.code, ended.reason
            reporter.say(f"sweep: shared work of {counted(len(alike), 'cell')} failed: {ended.reason}")
        else:
            ready += alike
    place.publish()
    return [cell for cell in cells if cell in ready]


def _wait_for(cell: PlacedCell, reporter: Reporter, stopped: threading.Event) -> None:
    """Wait while a process of a killed sweep still works on the cell. Stop waiting if somebody stops this sweep."""
    announced = False
    with contextlib.suppress(FileNotFoundError):
        while is_held(cell.folder) and not stopped.is_set():
            if not announced:
                reporter.say(
                    f"cell {cell.name}: a process of an earlier call still works on this cell; waiting for that process"
                )
                announced = True
            stopped.wait(_PAUSE)
