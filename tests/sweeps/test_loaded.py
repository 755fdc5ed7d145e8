"""Interpreters that fork for each call: what a call gets, how its end is known, and what happens without them."""

import os
import signal
import subprocess
import time

import psutil
import pytest

from heldin.sweeps.loaded import Loaded
from tests.tiny_sweeps import ROOT

PROBE = """
import os, signal, sys, time
# As heldin does: a job in the background of a shell begins with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
print(os.getpid(), os.environ["OMP_NUM_THREADS"], *sys.argv[1:], file=sys.stderr, flush=True)
try:
    time.sleep(float(sys.argv[1]))
except KeyboardInterrupt:
    raise SystemExit(130)
raise SystemExit(int(sys.argv[2]))
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    (tmp_path / "probe.py").write_text(PROBE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT / 'src'}")
    interpreters = Loaded(1, 1, modules=("json",))
    yield interpreters
    interpreters.close()


def call(loaded, path, *words, threads=1):
    """Start a call and return it once it has printed its line."""
    path.touch()
    forked = loaded.fork("probe", words, threads, path)
    until = time.monotonic() + 60
    while forked is not None and not path.read_text(encoding="utf-8").endswith("\n"):
        assert time.monotonic() < until
        time.sleep(0.01)
    return forked


def test_each_call_is_a_process_with_its_words_threads_and_exit_code(loaded, tmp_path):
    numbers = set()
    for code in ("0", "3", "5"):
        path = tmp_path / f"{code}.txt"
        forked = call(loaded, path, "0", code, threads=2)
        # It may have ended before anybody asked: both answers are in the pipe.
        assert forked.wait(60) == int(code) == forked.wait()
        number, threads, *words = path.read_text(encoding="utf-8").split()
        assert (threads, words) == ("2", ["0", code])
        assert int(number) == forked.pid
        numbers.add(number)
    assert len(numbers) == 3


def test_a_call_is_waited_for_interrupted_and_killed(loaded, tmp_path):
    forked = call(loaded, tmp_path / "a.txt", "600", "0")
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.05)
    # The only interpreter is at work.
    assert loaded.fork("probe", ("0", "0"), 1, tmp_path / "a.txt") is None
    forked.send_signal(signal.SIGINT)
    assert forked.wait(60) == 130
    forked = call(loaded, tmp_path / "b.txt", "600", "0")
    forked.kill()
    assert forked.wait(60) == -signal.SIGKILL
    forked.kill()  # it is gone, and nobody else is hit


def test_a_call_ends_with_its_interpreter(loaded, tmp_path):
    forked = call(loaded, tmp_path / "a.txt", "600", "0")
    (interpreter,) = loaded._all
    interpreter.kill()
    assert forked.wait(60) == -signal.SIGKILL
    until = time.monotonic() + 10
    while psutil.pid_exists(forked.pid):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert loaded.fork("probe", ("0", "0"), 1, tmp_path / "a.txt") is None


def test_after_a_stop_only_calls_at_work_go_on(loaded, tmp_path):
    forked = call(loaded, tmp_path / "a.txt", "0.2", "4")
    loaded.stop()
    assert forked.wait(60) == 4
    assert loaded.fork("probe", ("0", "0"), 1, tmp_path / "a.txt") is None


def test_an_interpreter_that_cannot_load_forks_nothing(tmp_path):
    loaded = Loaded(1, 1, modules=("no_such_module",))
    assert loaded.fork("probe", (), 1, tmp_path / "a.txt") is None
    assert not loaded.stopped
    loaded.close()
