"""The benchmark of GPUs: its parts in miniature on a CPU, that it sees a wrong engine, what it says without a GPU."""

import importlib.util
import json
import math
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from heldin.defenses.gradients import per_unit_gradients
from tests.gpu.pretended import pretend
from tests.refusals import names

ROOT = Path(__file__).resolve().parents[2]


def _loaded(name):
    # By its path: an installed package is called benchmarks too.
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# In the order in which one imports another.
NAMES = ("base", "table", "correctness", "steps", "examples", "scoring", "beside", "whole")
gpu_base, tables, correctness, steps, examples, scoring, beside, whole = (_loaded(f"gpu_{name}") for name in NAMES)
gpu = _loaded("gpu")
CPU = torch.device("cpu")
TINY = gpu_base.Shape(2, 16, 2, vocabulary=61, context=32)
TINY_OF_MANY_WORDS = gpu_base.Shape(2, 16, 2, vocabulary=2048, context=32)


def test_every_engine_passes_part_1_in_miniature():
    figures = correctness.correctness(TINY, 12, CPU)
    assert len([its for its in figures if its.limit]) == 2 * 2 * (len(correctness.ENGINES) + 1)
    assert [its.line() for its in figures if its.fails] == []
    assert torch.get_float32_matmul_precision() == "highest"


def test_part_1_fails_an_engine_that_clips_too_high(monkeypatch):
    real = per_unit_gradients.clip_factors
    monkeypatch.setattr(per_unit_gradients, "clip_factors", lambda *a: real(*a) * 1.001)
    failing = {its.what.split(": ")[1] for its in correctness.correctness(TINY, 12, CPU) if its.fails}
    assert failing == {"error of the sum", "largest contribution over C"}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_part_2_times_steps(checkpointing):
    case = steps.Case("tiny", 3, 2, 12, 2, checkpointing)
    figures, told = steps.steps(case, TINY, CPU)
    (taken,) = told.values()
    assert set(taken) == {"plain", "auto", "loop"}
    assert taken["auto"]["ways"][0].startswith("auto: ")
    assert all(its["seconds"] > 0 for its in taken.values())
    ratios = [its.value for its in figures if "step over plain" in its.what]
    assert ratios == [taken[name]["seconds"] / taken["plain"]["seconds"] for name in ("auto", "loop")]
    json.dumps(told)


def test_a_timed_step_holds_no_sum_of_the_one_before(monkeypatch):
    sums, alive = [], []
    real = steps.clipped_sum

    def watched(*args, **kwargs):
        alive.append(sum(its() is not None for its in sums))
        found = real(*args, **kwargs)
        sums.extend(map(weakref.ref, found.gradients.values()))
        return found

    monkeypatch.setattr(steps, "clipped_sum", watched)
    steps.steps(steps.Case("tiny", 3, 2, 12, 2), TINY, CPU)
    assert alive == [0] * steps.STEPS


@pytest.mark.parametrize(("name", "fails"), [("_plain_gradient", "plain"), ("clipped_sum", "auto")])
def test_steps_that_do_not_fit_fail_their_figure(monkeypatch, name, fails):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(steps, name, full)
    figures, told = steps.steps(steps.Case("tiny", 1, 2, 12), TINY, CPU)
    (taken,) = told.values()
    assert [way for way, its in taken.items() if its.keys() == {"failed"}] == [fails]
    assert figures[0].fails


@pytest.mark.slow
def test_a_rehearsal_stands_beside_the_measured_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**33))
    case = steps.Case("tiny", 3, 2, 12, 2)
    said = steps._rehearsed(case, TINY, steps._runs(case, TINY), CPU)
    weights = 4 * sum(its.numel() for its in TINY.model(CPU).parameters())
    # Weights, Adam's state, and at least the sums.
    assert 4 * weights < said < 100 * weights


def test_part_3_holds_example_dp_against_plain_training_and_opacus():
    pytest.importorskip("opacus", reason="Opacus (the extra 'trainers') is missing")
    figures, told = examples.example_dp(TINY, 4, 12, CPU)
    (taken,) = told.values()
    assert set(taken) == {"plain", "ours", "Opacus, hooks", "ours, untied", "Opacus, ghost"}
    assert all(its["seconds"] > 0 for its in taken.values())
    assert figures[0].value == taken["ours"]["seconds"] / taken["plain"]["seconds"]
    assert [its.limit for its in figures] == [1.5, 1.0, 1.0]


def test_part_4_scores_through_the_cache_what_the_bare_passes_see():
    figures, told = scoring.scoring(TINY_OF_MANY_WORDS, 40, 6, CPU)
    assert [its.limit for its in figures] == [None, 1.25]
    assert told["fp32"]["tokens"] == told["bf16"]["tokens"] > 40
    assert all(told[precision][name] > 0 for precision in ("fp32", "bf16") for name in ("bare", "scored"))


@pytest.mark.slow
def test_parts_1_to_5_run_on_a_gpu_that_is_pretended(monkeypatch):
    with pretend(monkeypatch):
        device = torch.device("cuda")
        assert [its.line() for its in correctness.correctness(TINY, 12, device) if its.fails] == []
        for checkpointing in (False, True):
            figures, _ = steps.steps(steps.Case("tiny", 3, 2, 12, 2, checkpointing), TINY, device)
            assert all(math.isfinite(its.value) for its in figures)
        assert examples.example_dp(TINY, 4, 12, device)[0]
        assert scoring.scoring(TINY_OF_MANY_WORDS, 40, 6, device)[0]
        assert beside.beside_gradients(TINY, 400, 10, device)[0]
        assert gpu.provenance(device)["device"] == "pretended GPU"


def test_part_5_draws_cohorts_of_the_stated_size():
    figures, told = beside.beside_gradients(TINY, 4000, 100, CPU)
    # Eleven draws of 100 expected: twelve of their standard deviations.
    assert abs(sum(told["cohorts"]) / len(told["cohorts"]) - 100) < 12 * (100 / len(told["cohorts"])) ** 0.5
    assert {"noise, philox", "noise, secure", "optimizer", "first draw"} < set(told)
    assert figures[0].limit == 0.2
    assert figures[0].value == sum(told[part] for part in beside._PARTS) > told["a draw"] > 0
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
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_part_7_holds_replicas_and_shards_against_one_process(monkeypatch, precision, most):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    figures, told = whole.several(TINY, CPU, 2, precision)
    assert [its.limit for its in figures] == [0.56, most, None, most]
    assert [its.line() for its in figures[1::2] if its.fails] == []
    taken = told["several"]
    assert all(its["seconds"] > 0 for its in taken.values())
    # The sums of clipped gradients, of which no step has none.
    assert all(0.001 < norm < 0.11 for its in taken.values() for norm in its["norms"])


def test_a_part_that_ends_in_an_error_fails_and_lets_the_others_run(monkeypatch, tmp_path, capsys):
    def broken(_):
        raise RuntimeError("no such kernel\nmore of it")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "give_back", lambda: broken(None))  # as after an error that CUDA does not get over
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu, "PARTS", {1: broken, 2: lambda _: ([gpu_base.Figure("a step", 1.0, 1.1)], {})})
    # Made anew, as no GPU is asked.
    kept = {"device": "H100", "torch": "2", "driver": None, "commit": "abc", "time": "2026-11-25T00:00:00Z"}
    monkeypatch.setattr(gpu, "provenance", lambda _: kept)
    monkeypatch.setattr(gpu, "LINES", tmp_path / "gpu.jsonl")
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "RESULTS.md")
    (tmp_path / "RESULTS.md").write_text(f"before\n{tables.BEGIN}\nNot measured.\n{tables.END}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    for _ in range(2):  # the newest of each part is shown
        assert gpu.main() == 1
    said = capsys.readouterr().out
    assert names(said, "RuntimeError: no such kernel: inf", "FAIL")
    assert "a step: 1 (at most 1.1): pass" in said
    lines = [json.loads(line) for line in gpu.LINES.read_text().splitlines()]
    assert [its["part"] for its in lines] == [1, 2, 1, 2]
    text = gpu.RESULTS.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Not measured" not in text
    assert text.count("| 2 | a step | 1 | 1.1 | pass |") == 1
    assert text.count("**FAIL**") == 1


def test_the_table_of_gpus_stands_in_the_results(tmp_path):
    results = tmp_path / "RESULTS.md"
    results.write_text((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8"), "utf-8")
    lines = tmp_path / "gpu.jsonl"
    lines.write_text("")
    tables.renew(results, lines)
    results.write_text("no marks")
    with pytest.raises(ValueError, match="RESULTS.md"):
        tables.renew(results, lines)


BARE = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dp_accounting", "duckdb", "pyarrow", "opacus", "typer", "typst", "httpx2", "peft"}:
            raise ImportError(name)

import transformers
from transformers import GPTNeoForCausalLM  # which may want them
for name in [name for name in sys.modules if name.split(".")[0] in {"httpx2", "pyarrow", "peft"}]:
    del sys.modules[name]
sys.meta_path.insert(0, Missing())
import torch, gpu, gpu_beside, gpu_correctness, gpu_steps
shape, cpu = gpu.Shape(2, 16, 2, vocabulary=61, context=32), torch.device("cpu")
assert not [its.line() for its in gpu_correctness.correctness(shape, 12, cpu) if its.fails]
assert gpu_steps.steps(gpu_steps.Case("tiny", 3, 2, 12, 2), shape, cpu)
assert gpu_beside.beside_gradients(shape, 400, 10, cpu)
"""


@pytest.mark.slow
def test_parts_1_2_and_5_run_where_only_torch_and_transformers_are(tmp_path):
    (tmp_path / "bare.py").write_text(BARE)
    path = f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bare.py")], capture_output=True, text=True, env={"PYTHONPATH": path}
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for options in (["--check"], ["--only", "1"]):
        command = [sys.executable, "benchmarks/gpu.py", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": "src"})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert names(done.stderr, "CUDA")
