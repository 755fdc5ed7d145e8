"""Where the cells of a sweep run: slots of this machine's cores and GPUs, and what a process says while it works."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

import heldin
import heldin.sweeps.processes as processes
from heldin.base.errors import ResumableError
from heldin.record.document import read_record
from heldin.sweeps.cell_plan import take_sweep
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.load import load_sweep
from heldin.sweeps.loaded import Loaded
from heldin.sweeps.processes import Ended, Machine, Slot, Task, command, last_line, run_process, visible_gpus, why
from heldin.sweeps.sweep_config import Resources
from tests.refusals import names, refused
from tests.tiny_sweeps import CANARIES, QUIET, ULS, USERS, in_process, written


def slots(machine, monkeypatch):
    """What as many calls as fit at once get of the machine."""
    got, all_there = [], threading.Barrier(machine.width)

    def keeping(task, slot):
        got.append(slot)
        all_there.wait(10)
        return Ended(0)

    monkeypatch.setattr(processes, "run_process", keeping)
    calls = [threading.Thread(target=machine.run, args=(None,)) for _ in range(machine.width)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    return sorted(got, key=lambda slot: slot.gpus or ())


@pytest.mark.parametrize(
    ("gpus", "workers", "each", "expected"),
    [
        ("", 2, 1, [None, None]),
        ("0,1", 2, 1, [("0",), ("1",)]),
        ("2,3,4,5", 2, 2, [("2", "3"), ("4", "5")]),
        # More cells than GPUs: they share them.
        ("7", 2, 1, [("7",), ("7",)]),
    ],
)
def test_every_cell_at_work_has_its_own_share_of_the_machine(monkeypatch, gpus, workers, each, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    found = slots(Machine(Resources(workers=workers, processes=each), 10), monkeypatch)
    assert [slot.gpus for slot in found] == expected
    assert {(slot.threads, slot.processes) for slot in found} == {(16 // (workers * each), each)}


def test_no_more_slots_than_cells_and_a_limit_of_threads_is_kept(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (slot,) = slots(Machine(Resources(workers=4, threads=3), 1), monkeypatch)
    assert slot.threads == 3


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with refused(by="Machine.__init__", naming=("resources.processes", "4", "GPU", "2")):
        Machine(Resources(processes=4), 3)


def test_gpus_are_those_that_are_visible(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert visible_gpus() == ["GPU-a", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == ["0", "1"]
    # The tool is there, and no driver.
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus() == []
    tool.unlink()
    assert visible_gpus() == []


def test_several_processes_are_started_by_torchrun_and_only_for_a_cell(tmp_path):
    words = ("run", "config.yaml", "--out", "out")
    cell = Task(words, tmp_path / "said.txt", tmp_path)
    assert command(cell, Slot(1)) == [sys.executable, "-m", "heldin", *words]
    assert command(cell, Slot(1, 2)) == [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "heldin", *words),
    ]
    shared = Task(("out",), tmp_path / "said.txt", module="heldin.sweeps.shared")
    assert command(shared, Slot(1, 2)) == [sys.executable, "-m", "heldin.sweeps.shared", "out"]


def test_what_a_process_says_is_seen_while_it_works_and_only_by_its_owner(monkeypatch, tmp_path):
    task = Task((), tmp_path / "progress" / "1-none.txt", tmp_path)
    script = (
        "import sys, time; print('tuning: 1/9 steps', file=sys.stderr, flush=True); sys.stdin.read(); time.sleep(60)"
    )
    monkeypatch.setattr(processes, "command", lambda task, slot: [sys.executable, "-c", script])
    started = []
    popen = subprocess.Popen

    class Seen(popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    ended = []
    running = threading.Thread(target=lambda: ended.append(run_process(task, Slot(1, gpus=("3",)))))
    running.start()
    until = time.monotonic() + 60
    while last_line(task.progress) != "tuning: 1/9 steps":
        assert time.monotonic() < until
        time.sleep(0.02)
    assert stat.S_IMODE(task.progress.stat().st_mode) == 0o600
    started[0].send_signal(signal.SIGKILL)
    running.join()
    (found,) = ended
    assert found.code == -9
    assert names(found.reason, "signal 9", "tuning: 1/9 steps")
    assert 0 < found.seconds < 60
    assert last_line(tmp_path / "nothing.txt") == ""


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""


def is_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize(("alone", "forks"), [(False, False), (True, False), (True, True)])
def test_a_cell_that_does_not_hear_an_interrupt_is_killed_with_what_it_started(monkeypatch, tmp_path, alone, forks):
    (tmp_path / "stubborn.py").write_text(STUBBORN, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(heldin.__file__).parents[1]}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(processes, "Loaded", partial(Loaded, modules=()) if forks else lambda *_: None)
    monkeypatch.setattr(processes, "TO_STOP", 0.5)
    machine = Machine(Resources(workers=2), 3)
    tasks = [Task((), tmp_path / f"{i}.txt", tmp_path, "stubborn") for i in range(3)]
    ended, over = [], threading.Event()

    def run(task):
        ended.append(machine.run(task))
        over.wait()  # the kernel ends what a thread has started when the thread ends (heldin/sweeps/loaded.py)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while sum(last_line(task.progress) != "" for task in tasks) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    begun = time.monotonic()
    machine.stop(alone=alone)
    while len(ended) < len(tasks):
        assert time.monotonic() < begun + 5
        time.sleep(0.02)
    # The third, which waited for its turn, is not begun.
    assert sorted(its.code for its in ended) == [-9, -9, 130]
    machine.__exit__(None, None, None)
    grandchildren = [int(last_line(task.progress)) for task in tasks if last_line(task.progress)]
    until = time.monotonic() + 5
    while left := [pid for pid in grandchildren if not is_gone(pid)]:
        assert time.monotonic() < until, [psutil.Process(pid).as_dict(["status", "ppid", "cmdline"]) for pid in left]
        time.sleep(0.02)
    over.set()


def test_what_a_killed_process_started_is_told_to_end(tmp_path):
    """As a cell or the shared work of a sweep whose driver is killed."""
    script = f"""
import sys
from pathlib import Path
import heldin.sweeps.processes as processes
processes.command = lambda task, slot: [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True, "
    "file=__import__('sys').stderr); time.sleep(600)"]
processes.run_process(processes.Task((), Path({str(tmp_path / "said.txt")!r})), processes.Slot(1))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(heldin.__file__).parents[1])}
    driver = subprocess.Popen([sys.executable, "-c", script], env=environment)
    until = time.monotonic() + 60
    while not last_line(tmp_path / "said.txt"):
        assert time.monotonic() < until
        time.sleep(0.02)
    cell = int(last_line(tmp_path / "said.txt"))
    driver.kill()
    driver.wait()
    until = time.monotonic() + 5
    while not is_gone(cell):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_no_cell_scores_what_cells_share_and_nothing_is_scored_twice(monkeypatch, tmp_path):
    import heldin.models.score_cache as score_cache

    variants = {name: {**USERS, "canaries": CANARIES, "finetune": {"select": "last", "seed": 4}} for name in "ab"}
    variants["b"] = {**variants["b"], "defense": ULS}
    attack = {"references": [{"kind": "pretrained", "seed": 5}], "documents": ["fresh", "training"]}
    for its in variants.values():
        its["attack"] = attack
    scored, at = [], []
    score_texts = score_cache.score_texts

    def counted(lm, texts, *, moments=False, **more):
        scored.extend((at[-1], lm.fingerprint, moments, text) for text in texts)
        return score_texts(lm, texts, moments=moments, **more)

    def called(task, slot):
        at.append("shared" if task.module != "heldin" else task.words[1])
        return in_process(task, slot)

    monkeypatch.setattr(score_cache, "score_texts", counted)
    monkeypatch.setattr(processes, "run_process", called)
    sweep = load_sweep(written(tmp_path, variants=variants, blocks=2))
    out = tmp_path / "out"
    run_sweep(sweep, out, QUIET, command="heldin sweep")
    assert len(at) == 1 + 4
    of_shared = {model for where, model, *_ in scored if where == "shared"}
    records = [read_record(path) for path in out.glob("cells/*/*/record.json")]
    assert of_shared >= {its.reference.fingerprint for its in records}
    assert len(of_shared) == 2
    # Cells score their own model only, and every text once.
    of_cells = {model for where, model, *_ in scored if where != "shared"}
    assert of_cells == {its.target.fingerprint for its in records}
    assert len({its[1:] for its in scored}) == len(scored)


def test_under_torchrun_the_line_that_matters_is_found_and_a_record_is_a_result(monkeypatch, tmp_path):
    lines = ["fine-tuning: 3/9 steps", "error: the model is broken: user 'anna'", "ChildFailedError: rank 0", "=== 1"]
    (tmp_path / "said.txt").write_text("\n".join(lines), encoding="utf-8")
    reason = why(tmp_path / "said.txt", 1)
    assert reason.startswith(lines[1].partition("'")[0])
    assert names(reason, "heldin run", "config.yaml")
    assert "anna" not in reason
    monkeypatch.setattr(processes, "command", lambda task, slot: [sys.executable, "-c", "raise SystemExit(1)"])
    task = Task((), tmp_path / "progress.txt", tmp_path)
    found = run_process(task, Slot(1, 2))
    assert (found.code, found.halted) == (1, False)
    assert names(found.reason, "code 1")
    # A violation is a result, and torchrun ends with its own code for it.
    (tmp_path / "record.json").touch()
    assert run_process(task, Slot(1, 2)).code == 0
    assert run_process(task, Slot(1)).code == 1
    # What ends well and leaves no record was halted by a filter.
    monkeypatch.setattr(processes, "command", lambda task, slot: [sys.executable, "-c", ""])
    assert not run_process(task, Slot(1)).halted
    (tmp_path / "record.json").unlink()
    assert run_process(task, Slot(1)).halted


def test_one_cell_that_cannot_be_prepared_takes_no_other_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "run_process", in_process)
    sweep = load_sweep(written(tmp_path, variants={"none": USERS, "uls": {**USERS, "defense": ULS}}))
    out = tmp_path / "out"
    take_sweep(sweep, out)
    # Damaged before the first call: neither what it shares nor the cell itself can be made.
    (out / "cells" / "1" / "none" / "ledger" / "cell.json").write_text("{", encoding="utf-8")
    found = run_sweep(sweep, out, QUIET, command="heldin sweep")
    assert [its.state for its in found.cells] == ["refused", "done"]
    assert "cell.json' is damaged" in found.cells[0].reason


def test_a_place_that_fails_for_one_cell_fails_for_no_other(monkeypatch, tmp_path):
    reason = "Ray: WorkerCrashedError: again"

    def failing(task, slot):
        if task.folder and task.folder.name == "none":
            raise ResumableError(reason)
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", failing)
    sweep = load_sweep(written(tmp_path, variants={"none": USERS, "uls": {**USERS, "defense": ULS}}))
    found = run_sweep(sweep, tmp_path / "out", QUIET, command="heldin sweep")
    assert [(its.state, its.reason) for its in found.cells] == [
        ("failed", f"error: {reason}"),
        ("done", ""),
    ]


def test_a_scratch_of_shared_scores_leaves_nothing_and_touches_no_cell(monkeypatch, tmp_path):
    seen = []

    def only_shared(task, slot):
        if task.module == "heldin":
            return Ended(1, "not today")
        before = sorted(path for path in (tmp_path / "out" / "cells").rglob("*"))
        ended = in_process(task, slot)
        seen.append((before, sorted(path for path in (tmp_path / "out" / "cells").rglob("*"))))
        return ended

    monkeypatch.setattr(processes, "run_process", only_shared)
    variants = {"none": {**USERS, "canaries": CANARIES}}
    run_sweep(load_sweep(written(tmp_path, variants=variants)), tmp_path / "out", QUIET, command="heldin sweep")
    ((before, after),) = seen
    assert before == after
    assert not (tmp_path / "out" / "progress").exists()
