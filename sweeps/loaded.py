"""Interpreters that have already loaded the modules of a run, and fork for each call of heldin.

Loading torch, transformers and other modules takes about ten seconds on a core. This is longer than the training of a
small cell. Each call still has its own process. Calls that use a GPU start a new interpreter, because CUDA does not
survive a fork.

An interpreter reads one line of JSON per call, and answers with the id of the new process and, later, its exit code.
"""

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

_LIBC = ctypes.CDLL(None)  # loaded now: between a fork and what is started nothing may be
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_LOADED = (
    "heldin.commands.run",
    "heldin.jobs.run",
    "heldin.reports.findings",
    "heldin.reports.page_one",
    "heldin.reports.record_report",
    "heldin.reports.typesetting",
    "heldin.sweeps.shared",
    "transformers.models.gpt_neo.modeling_gpt_neo",
)
_KILLED = -signal.SIGKILL  # exit code of a process that ended with its interpreter


class Forked:
    """A process that an interpreter forked. It has the methods of ``subprocess.Popen`` that a sweep uses.

    Args:
        release: function to call when the process has ended, if the interpreter still runs.
    """

    def __init__(self, pid: int, interpreter: "subprocess.Popen[bytes]", release: Callable[[], None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._interpreter, self._release = interpreter, release

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            answer = _answer(self._interpreter, timeout)
            # The kernel ends the process with its interpreter.
            self.returncode = _KILLED if answer is None else answer
            if answer is not None:
                self._release()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


class Loaded:
    """Interpreters that have loaded all modules. Loading begins at the first call.

    The thread of the first call must outlive all calls. When this thread ends, the kernel ends the processes that it
    started.

    Args:
        count: maximum number of simultaneous calls.
        threads: number of threads per interpreter.
        modules: modules that an interpreter loads.

    Attributes:
        stopped: whether ``stop`` was called, so no further calls are forked.
    """

    def __init__(self, count: int, threads: int, modules: Sequence[str] = _LOADED) -> None:
        self._count, self._threads, self._modules = count, threads, modules
        self.stopped = False
        self._changing = threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._at_work: set[subprocess.Popen[bytes]] = set()

    def fork(self, module: str, words: Sequence[str], threads: int, output: Path) -> Forked | None:
        """Start ``python -m module words`` in a fork of an idle interpreter. Return None if no interpreter can fork.

        Args:
            threads: number of threads for the call.
            output: file to which the messages of the call are appended.
        """
        with self._changing:
            if self.stopped:
                return None
            if not self._all:
                self._all = [self._begun() for _ in range(self._count)]
                self._idle = list(self._all)
            if not self._idle:
                return None
            interpreter = self._idle.pop(0)
            # Before it forks: one that is ended in between leaves what its call has started.
            self._at_work.add(interpreter)
        call = {"module": module, "words": list(words), "threads": threads, "output": str(output)}
        assert interpreter.stdin is not None
        try:
            interpreter.stdin.write(json.dumps(call).encode() + b"\n")
            interpreter.stdin.flush()
        except BrokenPipeError:
            return None
        pid = _answer(interpreter, None)
        if pid is None:
            return None
        return Forked(pid, interpreter, partial(self._release, interpreter))

    def _begun(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "heldin.sweeps.loaded", *self._modules],
            bufsize=0,  # what is left in a buffer would not be seen by ``select``
            env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Without an interpreter a call is started afresh, and says itself what cannot be loaded.
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )

    def _release(self, interpreter: "subprocess.Popen[bytes]") -> None:
        with self._changing:
            self._at_work.discard(interpreter)
            self._idle.append(interpreter)

    def stop(self) -> None:
        """Fork no further calls. End the interpreters without a running call, including interpreters that are still
        loading."""
        with self._changing:
            self.stopped = True
            for interpreter in self._all:
                if interpreter not in self._at_work:
                    interpreter.kill()

    def close(self) -> None:
        """End the interpreters and their calls."""
        for interpreter in self._all:
            interpreter.kill()
            with interpreter:  # closes its pipes and waits
                pass


def end_with_parent(parent: int, number: int) -> None:
    """Make the kernel send this process a signal when its parent ends for any reason. Call it before any work."""
    # Nobody else ends what a sweep started: not the system if the sweep is killed, nor Ray, which kills its worker.
    _LIBC.prctl(_DIE_WITH_PARENT, number)
    if os.getppid() != parent:  # it was gone before it was asked for
        os.kill(os.getpid(), number)


def _answer(interpreter: "subprocess.Popen[bytes]", timeout: float | None) -> int | None:
    """Return an interpreter's numeric answer; None if the interpreter has ended. Raises TimeoutExpired."""
    assert interpreter.stdout is not None
    if not select.select([interpreter.stdout], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired(interpreter.args, timeout or 0.0)
    line = interpreter.stdout.readline()  # of an unbuffered pipe
    return int(line) if line.strip() else None


def serve(modules: Sequence[str]) -> None:
    """Load the modules, and fork for each call on standard input. In a forked process, return after its call."""
    # Ctrl-C reaches all of a terminal's group; the calls stop by themselves. Blocked and not ignored, so that a call
    # that is interrupted just after the fork gets the signal once it unblocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    for name in modules:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        call = json.loads(line)
        interpreter = os.getpid()
        pid = os.fork()
        if pid == 0:
            end_with_parent(interpreter, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            _do(call)
            return
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _do(call: Mapping[str, object]) -> None:
    """Run ``python -m module words`` in this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    output = os.open(str(call["output"]), os.O_WRONLY | os.O_APPEND)
    for new, number in ((nothing, 0), (nothing, 1), (output, 2)):
        os.dup2(new, number)
    threads, words = call["threads"], call["words"]
    assert isinstance(threads, int)
    assert isinstance(words, list)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # which has read the environment before
        sys.modules["torch"].set_num_threads(threads)
    sys.argv = [str(call["module"]), *words]
    runpy.run_module(str(call["module"]), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
