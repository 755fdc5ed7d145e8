"""Processes of heldin on this machine: their shares of cores and GPUs, and their output."""

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

import psutil

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.sweeps.loaded import Forked, Loaded, end_with_parent
from heldin.sweeps.sweep_config import Resources

FINE = {0, 3, 4}  # exit codes of a finished run; a violation is a result
_SAID = ("error: ", "stopped: ")  # how the command line begins the line that says why it ended
_TAIL = 20_000  # bytes
_Process = subprocess.Popen[bytes] | Forked
_RUNNING: set[_Process] = set()  # that this process started and waits for
_INTERRUPTED = 130  # exit code
TO_STOP, _TO_DIE, _PAUSE = 6.0, 2.0, 0.1  # seconds


@dataclass(frozen=True)
class Task:
    """A call of heldin.

    Attributes:
        words: command-line arguments, of heldin or of ``module``.
        progress: file for the output of the call, on a file system that the driver can read.
        folder: folder of the cell; None for shared work.
        module: module to run.
    """

    words: tuple[str, ...]
    progress: Path
    folder: Path | None = None
    module: str = "heldin"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: exit code of the process; negative if a signal ended it.
        reason: reason of a failure, without quoted texts.
        seconds: duration of the process, without the time that it waited.
        halted: whether a filter halted the cell's training, so the cell ended normally without a record.
    """

    code: int
    reason: str = ""
    seconds: float = 0.0
    halted: bool = False


@dataclass(frozen=True)
class Slot:
    """The share of a machine that a call gets.

    Attributes:
        threads: number of threads per process.
        processes: number of processes that train together; torchrun starts them if there are several.
        gpus: the GPUs that the call sees, by CUDA's names; None: all that this process sees.
        loaded: interpreters that may fork for the call; None: start a new interpreter.
    """

    threads: int
    processes: int = 1
    gpus: tuple[str, ...] | None = None
    loaded: Loaded | None = field(default=None, compare=False, repr=False)


class CellPlace(Protocol):
    """The place where cells run: this machine, or a cluster.

    Attributes:
        width: maximum number of simultaneous cells.
        describes: one line about the machines and their resources.
    """

    width: int
    describes: str

    def run(self, task: Task) -> Ended:
        """Run a cell. Several threads may call this method at the same time."""
        ...

    def share(self, task: Task) -> Ended:
        """Make the shared work of cells. The calls run one after another."""
        ...

    def publish(self) -> None:
        """Publish the shared work after all of it is made."""
        ...

    def stop(self, *, alone: bool) -> None:
        """Stop processes that the interrupt did not reach.

        Args:
            alone: whether the interrupt reached only this process, as SIGTERM does, and not the terminal's whole
                process group.
        """
        ...


class Machine:
    """This machine. It runs ``resources.workers`` cells at a time, each with a share of cores and GPUs."""

    def __init__(self, resources: Resources, cells: int) -> None:
        self.width = min(resources.workers, max(1, cells))
        cores = len(os.sched_getaffinity(0))
        threads = resources.threads or max(1, cores // (self.width * resources.processes))
        gpus = visible_gpus()
        if gpus and resources.processes > len(gpus):
            raise InputError(
                f"resources.processes is {resources.processes}, with one GPU each, but this machine has {len(gpus)}:"
                " lower resources.processes"
            )
        forks = not gpus and resources.processes == 1
        self._loaded = Loaded(self.width, threads) if forks else None
        self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for number in range(self.width):
            first = number * resources.processes
            assigned = tuple(gpus[(first + i) % len(gpus)] for i in range(resources.processes)) if gpus else None
            self._slots.put(Slot(threads, resources.processes, assigned, self._loaded))
        # One call after another, so that each may have what the workers would share, unless the file sets a limit.
        self._alone = Slot(resources.threads or cores, loaded=self._loaded)
        self.describes = f"{self.width} at a time, {counted(threads, 'thread')} each"
        self._stopped = False

    def run(self, task: Task) -> Ended:
        """Run the call when a slot is free, unless somebody stops the sweep before."""
        slot = self._slots.get()
        try:
            return Ended(_INTERRUPTED) if self._stopped else run_process(task, slot)
        finally:
            self._slots.put(slot)

    def share(self, task: Task) -> Ended:
        """Run the call on all cores."""
        return run_process(task, self._alone)

    def publish(self) -> None:
        """Do nothing: the shared work is already in this machine's cache."""

    def stop(self, *, alone: bool) -> None:
        """Interrupt the cells, unless Ctrl-C already did. After some seconds, kill the cells that are still running.

        Killed cells resume from their last checkpoints.

        Args:
            alone: whether the interrupt reached only this process. Ctrl-C reaches the terminal's whole process group.
        """
        self._stopped = True
        if self._loaded is not None:
            self._loaded.stop()
        interrupted = set() if alone else set(_RUNNING)
        ends = time.monotonic() + TO_STOP
        try:
            while _RUNNING and time.monotonic() < ends:
                # One that a thread was about to start heard nothing of it.
                for process in set(_RUNNING) - interrupted:
                    process.send_signal(signal.SIGINT)
                    interrupted.add(process)
                time.sleep(_PAUSE)
        finally:  # after a second Ctrl-C too
            ends = time.monotonic() + _TO_DIE
            while _RUNNING and time.monotonic() < ends:
                _kill(*_RUNNING)
                time.sleep(_PAUSE)

    def __enter__(self) -> "Machine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the loaded interpreters."""
        if self._loaded is not None:
            self._loaded.close()


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started now would see, by CUDA's names."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    # Not by torch, which takes seconds to load and memory on each GPU that it looks at.
    asked = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listing = subprocess.run(asked, capture_output=True, text=True, check=False)
    return listing.stdout.split() if listing.returncode == 0 else []


def run_process(task: Task, slot: Slot, on: Mapping[str, str] | None = None, *, cwd: Path | None = None) -> Ended:
    """Run a call of heldin until it ends. Its output goes to ``task.progress``.

    Args:
        slot: the share of the machine for the call.
        on: further environment variables, for a cluster machine, which kills the call when its parent process ends;
            None: the call is asked to end when its parent ends, and stops at a point from which it can resume.
        cwd: folder for relative paths; None: this process's folder.
    """
    task.progress.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    started = time.monotonic()
    # Owner-only: the last line may quote a user.
    with open(task.progress, "wb", opener=_private) as output:
        process: _Process | None = None
        if slot.loaded is not None:
            process = slot.loaded.fork(task.module, task.words, slot.threads, task.progress)
            if process is None and slot.loaded.stopped:
                return Ended(_INTERRUPTED)
        process = process or _started(task, slot, on, cwd, output)
        _RUNNING.add(process)
        if slot.loaded is not None and slot.loaded.stopped:  # while it was forked, and it heard nothing of it
            process.send_signal(signal.SIGINT)
        try:
            code = _ended(process)
        except BaseException:
            # What is killed goes on from its last checkpoint.
            _kill(process)
            process.wait()
            raise
        finally:
            _RUNNING.discard(process)
    seconds = time.monotonic() - started
    recorded = task.folder is not None and (task.folder / "record.json").is_file()
    # torchrun ends with a code of its own.
    if slot.processes > 1 and code not in FINE and recorded:
        code = 0
    if code in FINE:
        return Ended(code, "", seconds, halted=code == 0 and task.folder is not None and not recorded)
    return Ended(code, why(task.progress, code), seconds)


def _started(
    task: Task, slot: Slot, on: Mapping[str, str] | None, cwd: Path | None, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a call in its own interpreter, and return its process."""
    given = {"OMP_NUM_THREADS": str(slot.threads), **(on or {})}
    if slot.gpus is not None:
        given["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    return subprocess.Popen(
        command(task, slot),
        env={**os.environ, **given},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM if on is None else signal.SIGKILL),
    )


def _ended(process: _Process) -> int:
    # With a limit each time: an interrupt that Ray raises in its worker does not end a system call.
    while True:
        try:
            return process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            continue


def _kill(*processes: _Process) -> None:
    """Kill processes with all their children, such as the children of torchrun."""
    started: list[psutil.Process] = []
    # Of all before the first is killed: whose thread then ends may take others along, and what those started is left.
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            started += psutil.Process(process.pid).children(recursive=True)
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    for process in processes:
        process.kill()


def command(task: Task, slot: Slot) -> list[str]:
    """Return the command line of a call."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(slot.processes)]
    # Only training is shared out.
    start = several if slot.processes > 1 and task.module == "heldin" else []
    return [sys.executable, *start, "-m", task.module, *task.words]


def last_line(progress: Path) -> str:
    """Return the last line of a process's output, without quoted texts; empty if there is no output."""
    lines = _lines(progress)
    return without_names(lines[-1]) if lines else ""


def why(progress: Path, code: int) -> str:
    """Return the reason why a process failed. heldin publishes this reason, so it omits quoted texts (they may be user
    names).

    Args:
        progress: file with the output of the process.
    """
    lines = _lines(progress)
    # Under torchrun others speak after the line that matters.
    reasons = [line for line in lines if line.startswith(_SAID)]
    if reasons:
        return without_names(reasons[-1])
    how = f"ended by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"{how}; its last line: {without_names(lines[-1])}" if lines else f"{how} without a message"


def _lines(progress: Path) -> list[str]:
    with contextlib.suppress(OSError), progress.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
        return [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def without_prefix(reason: str) -> str:
    """Return the reason of an ``Ended`` without the word with which the command line begins it."""
    for prefix in _SAID:
        reason = reason.removeprefix(prefix)
    return reason


def without_names(line: str) -> str:
    """Return the line up to the first quoted text that is not a path."""
    first = re.search(r"(?<!\w)['\"](?!/|\.{1,2}/)", line)
    return (
        line
        if first is None
        else f"{line[: first.start()]}... (heldin run with this cell's config.yaml prints the whole line)"
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
