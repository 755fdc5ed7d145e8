"""The benchmark of GPUs: its parts in miniature on a CPU, that it sees a wrong engine, what it says without a GPU."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from heldin.defenses.gradients import per_unit_gradients
from tests.gpu.pretended import pretend

ROOT = Path(__file__).resolve().parents[2]


def _loaded(name):
    # By its path: an installed package is called benchmarks too.
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# In the order in which one imports another.
gpu_base, further, whole, gpu = map(_loaded, ("gpu_base", "gpu_further", "gpu_whole", "gpu"))
CPU = torch.device("cpu")
TINY = gpu.Shape(2, 16, 2, vocabulary=61, context=32)
TINY_OF_MANY_WORDS = gpu.Shape(2, 16, 2, vocabulary=2048, context=32)


def test_every_engine_passes_part_1_in_miniature():
    figures = gpu.correctness(TINY, 12, CPU)
    assert len([its for its in figures if its.limit]) == 2 * 2 * (len(gpu.ENGINES) + 1)
    assert [its.line() for its in figures if its.fails] == []
    assert torch.get_float32_matmul_precision() == "highest"


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


@pytest.mark.parametrize(("name", "fails"), [("_plain_gradient", "plain"), ("clipped_sum", "auto")])
def test_steps_that_do_not_fit_fail_their_figure(monkeypatch, name, fails):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, name, full)
    figures, told = gpu.steps(gpu.Case("tiny", 1, 2, 12), TINY, CPU)
    (taken,) = told.values()
    assert [way for way, its in taken.items() if its == {"failed": "out of memory"}] == [fails]
    assert figures[0].fails


@pytest.mark.slow
def test_a_rehearsal_stands_beside_the_measured_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**33))
    case = gpu.Case("tiny", 3, 2, 12, 2)
    said = gpu._rehearsed(case, TINY, gpu._runs(case, TINY), CPU)
    weights = 4 * sum(its.numel() for its in TINY.model(CPU).parameters())
    # Weights, Adam's state, and at least the sums.
    assert 4 * weights < said < 100 * weights


def test_part_3_holds_example_dp_against_plain_training_and_opacus():
    pytest.importorskip("opacus", reason="Opacus (the extra 'trainers') is missing")
    figures, told = further.example_dp(TINY, 4, 12, CPU)
    (taken,) = told.values()
    assert set(taken) == {"plain", "ours", "Opacus, hooks", "ours, untied", "Opacus, ghost"}
    assert all(its["seconds"] > 0 for its in taken.values())
    assert figures[0].value == taken["ours"]["seconds"] / taken["plain"]["seconds"]
    assert [its.limit for its in figures] == [1.5, 1.0, 1.0]


def test_part_4_scores_through_the_cache_what_the_bare_passes_see():
    figures, told = further.scoring(TINY_OF_MANY_WORDS, 40, 6, CPU)
    assert [its.limit for its in figures] == [None, 1.25]
    assert told["fp32"]["tokens"] == told["bf16"]["tokens"] > 40
    assert all(told[precision][name] > 0 for precision in ("fp32", "bf16") for name in ("bare", "scored"))


@pytest.mark.slow
def test_parts_1_to_5_run_on_a_gpu_that_is_pretended(monkeypatch):
    with pretend(monkeypatch):
        device = torch.device("cuda")
        assert [its.line() for its in gpu.correctness(TINY, 12, device) if its.fails] == []
        for checkpointing in (False, True):
            figures, _ = gpu.steps(gpu.Case("tiny", 3, 2, 12, 2, checkpointing), TINY, device)
            assert all(math.isfinite(its.value) for its in figures)
        assert further.example_dp(TINY, 4, 12, device)[0]
        assert further.scoring(TINY_OF_MANY_WORDS, 40, 6, device)[0]
        assert further.beside_gradients(TINY, 400, 10, device)[0]
        assert gpu.provenance(device)["device"] == "pretended GPU"


def test_part_5_draws_cohorts_of_the_stated_size():
    figures, told = further.beside_gradients(TINY, 4000, 100, CPU)
    # Eleven draws of 100 expected: twelve of their standard deviations.
    assert abs(sum(told["cohorts"]) / len(told["cohorts"]) - 100) < 12 * (100 / len(told["cohorts"])) ** 0.5
    assert {"noise, philox", "noise, secure", "optimizer", "first draw"} < set(told)
    assert figures[0].limit == 0.2
    json.dumps(told)


@pytest.mark.slow
def test_part_6_runs_and_attacks_in_both_precisions():
    parameters = {"users": 60, "mean_records": 12, "min_records": 8}
    corpus = {"source": {"kind": "synthetic", "parameters": parameters}, "users": {"min_records": 8, "fraction": 0.5}}
    shape = {"vocabulary": 512, "context": 32, "hidden": 16, "layers": 2, "heads": 2, "window": 16}
    uls = {**whole.DEFENSES["uls"], "population": 20, "cohort": 4, "steps": 6}
    figures, told = whole.whole_runs(corpus, shape, 32, {"none": {"kind": "none"}, "uls": uls})
    assert [its.limit for its in figures] == [1.01, None, None, None] * 2
    assert set(told["runs"]) == {f"{kind}, {precision}" for kind in ("none", "uls") for precision in ("fp32", "bf16")}
    for its in told["runs"].values():
        assert 0 < its["auroc"] < 1
        assert its["loss"] < 512
    assert figures[0].value >= 1
    json.dumps(told)


@pytest.mark.slow
def test_part_7_holds_replicas_and_shards_against_one_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    figures, told = whole.several(TINY, CPU, 2)
    assert [its.limit for its in figures] == [0.56, 1e-4, None, 1e-4]
    assert [its.line() for its in figures[1::2] if its.fails] == []
    taken = told["several"]
    assert all(its["seconds"] > 0 for its in taken.values())
    # The sums of clipped gradients, of which no step has none.
    assert all(0.001 < norm < 0.11 for its in taken.values() for norm in its["norms"])


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for options in (["--check"], ["--only", "1"]):
        command = [sys.executable, "benchmarks/gpu.py", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": "src"})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "no GPU: torch finds no CUDA device here, and nothing was measured\n"
