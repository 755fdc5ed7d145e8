"""The benchmark of GPUs: its parts in miniature on a CPU, that it sees a wrong engine, what it says without a GPU."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heldin.defenses.gradients import per_unit_gradients

ROOT = Path(__file__).resolve().parents[2]


def _loaded():
    # By its path: an installed package is called benchmarks too.
    spec = importlib.util.spec_from_file_location("benchmark_of_gpus", ROOT / "benchmarks" / "gpu.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu = _loaded()
CPU = torch.device("cpu")
TINY = gpu.Shape(2, 16, 2, vocabulary=61, context=32)


@pytest.fixture(autouse=True)
def _float32_as_it_was():
    """Part 1 switches TF32 on, as containers do."""
    yield
    torch.set_float32_matmul_precision("highest")


def test_every_engine_passes_part_1_in_miniature():
    figures = gpu.correctness(TINY, 12, CPU)
    assert len(figures) == 2 * 2 * (len(gpu.ENGINES) + 1)
    assert [its.line() for its in figures if its.fails] == []


def test_part_1_fails_an_engine_that_clips_too_high(monkeypatch):
    real = per_unit_gradients.clip_factors
    monkeypatch.setattr(per_unit_gradients, "clip_factors", lambda *a: real(*a) * 1.001)
    failing = {its.what.split(": ")[1] for its in gpu.correctness(TINY, 12, CPU) if its.fails}
    assert failing == {"error of the sum", "largest contribution over C"}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_part_2_times_steps(checkpointing):
    case = gpu.Case("tiny", 3, 2, 12, 2, checkpointing)
    figures, told = gpu.steps(case, TINY, CPU)
    (taken,) = told.values()
    assert set(taken) == {"plain", "auto", "loop"}
    assert taken["auto"]["ways"][0].startswith("auto: ")
    assert all(its["seconds"] > 0 for its in taken.values())
    ratios = [its.value for its in figures if "step over plain" in its.what]
    assert ratios == [taken[name]["seconds"] / taken["plain"]["seconds"] for name in ("auto", "loop")]
    json.dumps(told)


def test_steps_that_do_not_fit_fail_their_figure(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "_private_sum", full)
    figures, told = gpu.steps(gpu.Case("tiny", 1, 2, 12), TINY, CPU)
    (taken,) = told.values()
    assert taken["auto"] == {"failed": "out of memory"}
    assert figures[0].fails
    assert math.isinf(figures[0].value)


def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for options in (["--check"], ["--only", "1"]):
        command = [sys.executable, "benchmarks/gpu.py", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": "src"})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "no GPU: torch finds no CUDA device here, and nothing was measured\n"
