"""A sweep's cells as processes of their own: kills of cells and of the driver, and what is shared before them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from heldin.record.sweep import read_sweep
from tests.conftest import SMALL

ULS = {"kind": "uls", "population": 30, "cohort": 8, "steps": 400, "delta": 1e-3, "noise_multiplier": 1.0}
pytestmark = pytest.mark.slow
PATIENCE = 600.0  # seconds
_STARTED: list[subprocess.Popen] = []


@pytest.fixture
def file(tmp_path):
    base = json.loads(json.dumps(SMALL))
    base["corpus"]["users"] = {"min_records": 8, "fraction": 0.7}
    base["finetune"] |= {"epochs": 30, "select": "last", "evaluations": 1}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    content = {
        "name": "killed",
        "base": "base.yaml",
        "variants": {"none": {}, "uls": {"defense": ULS}},
        "resources": {"workers": 2, "threads": 1},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    yield tmp_path / "sweep.yaml"
    # Of a test that failed, too: nothing goes on beside the next one.
    while _STARTED:
        sweep = _STARTED.pop()
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
        if not sweep.stderr.closed:
            sweep.communicate()


def started(file, out, *more):
    command = [sys.executable, "-m", "heldin", "sweep", str(file), "--out", str(out), *more]
    # A group of its own, so that a kill takes driver and cells, or the driver alone.
    sweep = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A suite that runs in the background ignores it, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _STARTED.append(sweep)
    return sweep


def until(condition, sweep=None):
    """Wait; a sweep that has ended, or a wait that lasts too long, fails with what it said."""
    ended = time.monotonic() + PATIENCE
    while not condition():
        over = sweep is not None and sweep.poll() is not None
        if over or time.monotonic() > ended:
            if sweep is not None and not over:
                os.killpg(sweep.pid, signal.SIGKILL)
            pytest.fail(f"{'ended' if over else 'too long'}: {sweep.communicate() if sweep else 'a process'}")
        time.sleep(0.02)


def said_in(number):
    """The file for what a process says; a cell is forked, and has the command line of the interpreter."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{number}/fd/2").readlink())
    return ""


def cell_process(out, name):
    """Number of the process of a cell; None if there is none."""
    numbers = [number for number in processes_of(out) if said_in(number).endswith(f"/{name.replace('/', '-')}.txt")]
    return numbers[0] if numbers else None


def processes_of(out):
    """Numbers of all processes whose command line, or file for what they say, names this folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(out).encode() in file.read_bytes() or said_in(file.parent.name).startswith(f"{out}/"):
                found.append(int(file.parent.name))
    return found


def ended(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def sharing(out):
    """Whether what the cells share is being made."""
    return any("/shared-" in said_in(number) for number in processes_of(out))


def half_done(out, name):
    return any((out / "cells" / name / "checkpoints" / "resume").glob("step-*"))


def numbers(out):
    """The comparison without what a machine's load decides, when it was made, and where."""
    found = read_sweep(out)
    cells = [cell.model_copy(update={"seconds": 0.0, "peak_memory": None}) for cell in found.cells]
    variants = [its.model_copy(update={"seconds": None}) for its in found.variants]
    # The folder is no part of the document: it is where the document was read.
    elsewhere = {"created": "", "command": "", "folder": Path()}
    return found.model_copy(update={"cells": cells, "variants": variants, **elsewhere})


def same_keys(out, calm):
    """The same keys and coins in a folder where nothing is killed."""
    for name in ("sweep.json", "ledger/coins.json"):
        (calm / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / name, calm / name)
    for cell in ("1/none", "1/uls"):
        (calm / "cells" / cell).mkdir(parents=True)
        shutil.copy(out / "cells" / cell / "config.yaml", calm / "cells" / cell / "config.yaml")
        ignored = shutil.ignore_patterns("origin", "job", "plan")
        shutil.copytree(out / "cells" / cell / "ledger", calm / "cells" / cell / "ledger", ignore=ignored)


def test_kills_of_driver_and_cells_change_no_number(file, tmp_path):
    out, calm = tmp_path / "out", tmp_path / "calm"
    sweep = started(file, out)
    until(lambda: half_done(out, "1/none") and half_done(out, "1/uls"), sweep)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    until(lambda: not processes_of(out))  # the next kill must not hit what is dying
    assert not (out / "comparison.json").exists()
    same_keys(out, calm)

    # A cell is killed: it is shown, the other goes on, and the sweep says that it can go on.
    sweep = started(file, out)
    until(lambda: cell_process(out, "1/uls") is not None)
    os.kill(cell_process(out, "1/uls"), signal.SIGKILL)
    printed, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 5, said
    assert "1/uls" in printed
    assert [cell.state for cell in read_sweep(out).cells] == ["done", "failed"]

    # The driver alone is killed: its cell stops where it can resume, and the next call waits for its end.
    sweep = started(file, out)
    until(lambda: cell_process(out, "1/uls") is not None)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    _, said = (sweep := started(file, out)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    _, said = (sweep := started(file, calm)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    assert numbers(out) == numbers(calm)


@pytest.mark.parametrize("way", ["Ctrl-C", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_an_interrupt_stops_cells_where_they_can_resume(file, tmp_path, way):
    out = tmp_path / "out"
    sweep = started(file, out)
    until(lambda: half_done(out, "1/uls"))
    # A terminal interrupts all of its processes, a scheduler or a service may end the first one alone.
    (os.killpg if way == "Ctrl-C" else os.kill)(sweep.pid, signal.SIGINT if way == "Ctrl-C" else signal.SIGTERM)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 130, said
    assert cell_process(out, "1/uls") is None
    assert cell_process(out, "1/none") is None
    _, said = (sweep := started(file, out)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said


@pytest.mark.parametrize("way", ["Ctrl-C", "SIGKILL"])
@pytest.mark.parametrize("at", ["shared", "cells"])
def test_an_interrupted_or_killed_sweep_is_gone_within_ten_seconds(file, tmp_path, at, way):
    out = tmp_path / "out"
    sweep = started(file, out)
    until(lambda: sharing(out) if at == "shared" else half_done(out, "1/uls"), sweep)
    interpreters = psutil.Process(sweep.pid).children()
    assert len(interpreters) == 2
    begun = time.monotonic()
    if way == "Ctrl-C":
        os.killpg(sweep.pid, signal.SIGINT)
        _, said = sweep.communicate(timeout=PATIENCE)
        assert sweep.returncode == 130, said
    else:
        # The driver alone: what it started learns of it by itself.
        os.kill(sweep.pid, signal.SIGKILL)
        until(lambda: processes_of(out) == [] and all(map(ended, interpreters)))
        sweep.communicate()
    assert time.monotonic() - begun < 10
    assert processes_of(out) == []
    assert all(map(ended, interpreters))


@pytest.mark.long
def test_a_cell_of_several_processes_has_the_numbers_of_one(file, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    _, said = (sweep := started(file, one)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    same_keys(one, two)
    file.write_text(file.read_text(encoding="utf-8").replace("workers: 2", "processes: 2"), encoding="utf-8")
    _, said = (sweep := started(file, two)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    # The same cohorts and noise; sums are rounded in another order.
    for its, other in zip(read_sweep(one).variants, read_sweep(two).variants, strict=True):
        assert other.loss.value == pytest.approx(its.loss.value, abs=2e-3)
        assert other.auroc.value == pytest.approx(its.auroc.value, abs=0.02)
