"""The benchmark of GPUs: its parts in miniature on a CPU, that it sees a wrong engine, what it says without a GPU."""

import importlib.util
import json
import math
import re
import subprocess
import sys
import time
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
NAMES = ("base", "table", "correctness", "steps", "examples", "scoring", "beside", "whole", "profile", "baselines")
gpu_base, tables, correctness, steps, examples, scoring, beside, whole, profiles, baselines = (
    _loaded(f"gpu_{name}") for name in NAMES
)
gpu = _loaded("gpu")
CPU = torch.device("cpu")
TINY = gpu_base.Shape(2, 16, 2, vocabulary=61, context=32)
TINY_RUN = {"vocabulary": 512, "context": 32, "hidden": 16, "layers": 2, "heads": 2, "window": 16}
TINY_CORPUS = {
    "source": {"kind": "synthetic", "parameters": {"users": 60, "mean_records": 12, "min_records": 8}},
    "users": {"min_records": 8, "fraction": 0.5},
}
TINY_OF_MANY_WORDS = gpu_base.Shape(2, 16, 2, vocabulary=2048, context=32)


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    """Medians of a GPU are of more steps, which are alike from the second on."""
    for module, name, number in (
        (steps, "STEPS", 3),
        (steps, "WARM", 1),
        (examples, "STEPS", 3),
        (profiles, "WARM", 1),
        (profiles, "TIMED", 1),
        (baselines, "STEPS", 3),
    ):
        monkeypatch.setattr(module, name, number)


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
    shares = {its.what.split(": ")[0]: its.value for its in figures if its.what.endswith("card")}
    expected = 6 * TINY.weights * 3 * 2 * 12 / taken["plain"]["seconds"] / gpu_base.peak(CPU)
    assert shares[f"{case.about}, plain"] == pytest.approx(expected)
    assert len(shares) == 3
    ratios = [its.value for its in figures if "step over plain" in its.what]
    assert ratios == [taken[name]["seconds"] / taken["plain"]["seconds"] for name in ("auto", "loop")]
    json.dumps(told)


def test_part_2_times_adapters_against_all_weights():
    case = steps.Case("tiny", 3, 2, 12, 2, ways=("auto", "lora"))
    figures, told = steps.steps(case, TINY, CPU)
    (taken,) = told.values()
    assert figures[0].value == taken["lora"]["seconds"] / taken["auto"]["seconds"]
    assert figures[0].limit == 0.5
    expected = 4 * TINY.weights * 3 * 2 * 12 / taken["lora"]["seconds"] / gpu_base.peak(CPU)
    assert figures[-1].value == pytest.approx(expected)
    stepped = steps.Stepped("lora", TINY.model(CPU), steps.token_runs(case, TINY), CPU)
    trained = [name for name, its in stepped.model.named_parameters() if its.requires_grad]
    assert len(trained) == 2 * 2 * 6  # two factors of each linear layer, of which a block has six
    assert all("lora_" in name for name in trained)


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
    said = steps._rehearsed(case, TINY, steps.token_runs(case, TINY), CPU)
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
    assert [its.limit for its in figures] == [1.5, 1.0, 1.0, *[None] * 5]


def test_part_4_scores_through_the_cache_what_the_bare_passes_see():
    figures, told = scoring.scoring(TINY_OF_MANY_WORDS, 40, 6, CPU)
    limits = {its.what.split(", ")[0].split()[-1]: its.limit for its in figures if its.what.endswith("passes")}
    assert limits == {"fp32": None, "bf16": 1.25}
    assert told["fp32"]["tokens"] == told["bf16"]["tokens"] > 40
    assert all(told[precision][name] > 0 for precision in ("fp32", "bf16") for name in ("bare", "scored"))


@pytest.mark.slow
def test_parts_1_to_5_run_on_a_gpu_that_is_pretended(monkeypatch):
    monkeypatch.setattr(gpu_base, "peak", lambda _: 1e12)  # products of a GPU's size would take this CPU minutes
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
    assert figures[0].value == sum(told[part] for part in beside.PARTS) > told["a draw"] > 0
    json.dumps(told)


@pytest.mark.slow
def test_part_6_runs_and_attacks_in_both_precisions():
    uls = {**whole.DEFENSES["uls"], "population": 20, "cohort": 4, "steps": 6}
    figures, told = whole.whole_runs(TINY_CORPUS, TINY_RUN, 32, {"none": {"kind": "none"}, "uls": uls}, device=CPU)
    assert [its.limit for its in figures] == [1.01, *[None] * 7] * 2
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

    def unimportable():
        raise ImportError("no opacus")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "give_back", lambda: broken(None))  # as after an error that CUDA does not get over
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    parts = {1: lambda: [broken], 2: lambda: [lambda _: ([gpu_base.Figure("a step", 1.0, 1.1)], {})], 3: unimportable}
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "peak", lambda _: 1e12)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
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
    assert [its["part"] for its in lines] == [1, 2, 3, 1, 2, 3]
    assert names(said, "ImportError: no opacus")
    text = gpu.RESULTS.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Not measured" not in text
    assert text.count("| 2 | a step | 1 | 1.1 | pass |") == 1
    assert text.count("**FAIL**") == 2


def test_cases_are_chosen_and_appended_one_by_one(monkeypatch, tmp_path, capsys):
    def slow(_):
        while True:
            time.sleep(0.01)

    def case(number):
        return lambda _: ([gpu_base.Figure(f"case {number}", float(number))], {})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    monkeypatch.setattr(gpu, "peak", lambda _: 1e12)
    monkeypatch.setattr(gpu, "PARTS", {2: lambda: [case(0), case(1), slow, case(3)]})
    kept = {"device": "H100", "torch": "2", "driver": None, "commit": None, "time": "2026-11-25T00:00:00Z"}
    monkeypatch.setattr(gpu, "provenance", lambda _: kept)
    monkeypatch.setattr(gpu, "LINES", tmp_path / "gpu.jsonl")
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "RESULTS.md")
    (tmp_path / "RESULTS.md").write_text(f"{tables.BEGIN}\n{tables.END}\n")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "2", "--case", "1", "2", "3", "--seconds", "0.2"])
    assert gpu.main() == 1
    lines = [json.loads(line) for line in gpu.LINES.read_text().splitlines()]
    assert [its["case"] for its in lines] == [1, 2, 3]
    assert "TooLong" in lines[1]["failed"]
    out = capsys.readouterr().out
    assert names(out, "part 2, case 3")
    assert re.search(r"^part 2, \d+ s$", out, re.MULTILINE)
    assert "| 2 | case 3 | 3 | - |  |" in gpu.RESULTS.read_text()


def _op(name, *shapes, types=()):
    return profiles.Operation(name, shapes, types)


V, H, TOKENS = 50_257, 768, 8192
ADDMM = _op("aten::addmm", (H,), (TOKENS, H), (H, H))
CAST = _op("aten::copy_", (TOKENS, H), (TOKENS, H), types=("c10::BFloat16", "float", "Scalar"))
KINDS = profiles.KernelClass


@pytest.mark.parametrize(
    ("kernel", "operations", "expected"),
    [
        ("nvjet_sm90_tst_128x256", [ADDMM], KINDS.PRODUCTS),
        ("nvjet_sm90_tst_128x256", [], KINDS.PRODUCTS),
        ("nvjet_sm90", [_op("aten::mm", (TOKENS, H), (H, V))], KINDS.VOCABULARY_PRODUCTS),
        ("cunn_SoftMaxForward", [_op("aten::_log_softmax", (16, 512, V))], KINDS.VOCABULARY),
        ("elementwise_kernel", [_op("ToCopyBackward0", (16, 512, V)), _op("aten::copy_", (1,))], KINDS.VOCABULARY),
        ("embedding_backward", [_op("aten::embedding_dense_backward", (16, 512, H))], KINDS.VOCABULARY),
        ("triton_red_fused_log_softmax_3", [_op("triton_red_fused_log_softmax_3", (4096, V))], KINDS.VOCABULARY),
        ("flash_fwd_kernel", [_op("aten::_flash_attention_forward", (16, 12, 512, 64))], KINDS.ATTENTION),
        ("elementwise_kernel", [_op("ScaledDotProductEfficientAttentionBackward0"), CAST], KINDS.ATTENTION),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", [], KINDS.ATTENTION),
        # A weight's cast within a linear layer is no product.
        ("elementwise_kernel", [_op("aten::linear", (TOKENS, H), (H, H)), _op("aten::_to_copy"), CAST], KINDS.CASTS),
        ("elementwise_kernel", [_op("aten::copy_", (H,), (H,), types=("float", "float"))], KINDS.ELEMENTWISE),
        ("vectorized_elementwise_kernel", [_op("aten::tanh", (TOKENS, H))], KINDS.ELEMENTWISE),
        ("triton_poi_fused_gelu_0", [], KINDS.ELEMENTWISE),
        ("layer_norm_grad_input_kernel", [_op("NativeLayerNormBackward0")], KINDS.NORMS),
        ("multi_tensor_apply_kernel", [_op("Optimizer.step#Adam.step"), _op("aten::_fused_adam_")], KINDS.OPTIMIZER),
        ("distribution_elementwise", [_op(steps.NOISE), _op("aten::normal_", (V, H))], KINDS.NOISE),
        ("elementwise_kernel", [_op(steps.NOISE), _op("aten::mul_", (V, H))], KINDS.NOISE),
        ("Memcpy HtoD (Pinned -> Device)", [], KINDS.COPIES),
        ("something_new", [], KINDS.OTHER),
    ],
)
def test_kernels_are_put_into_classes(kernel, operations, expected):
    assert profiles.kernel_class(kernel, operations, V) is expected


def _event(kind, name, begin, length, thread=1, **told):
    return {"ph": "X", "cat": kind, "name": name, "pid": 9, "tid": thread, "ts": begin, "dur": length, "args": told}


def test_kernels_of_a_trace_know_the_operations_that_started_them():
    shapes = {"Input Dims": [[TOKENS, H], [[H, V], [V]], []], "Input type": ["float"]}
    trace = [
        _event("cpu_op", "aten::linear", 10, 50),
        _event("cpu_op", "aten::mm", 20, 20, **shapes),
        _event("cpu_op", "aten::add", 70, 10),
        _event("cpu_op", "aten::other", 10, 80, thread=2),
        _event("cuda_runtime", "cudaLaunchKernel", 25, 2, correlation=5),
        _event("cuda_driver", "cuLaunchKernel", 45, 2, correlation=6),
        _event("cuda_runtime", "cudaLaunchKernel", 90, 2, correlation=7),
        _event("kernel", "gemm", 100, 30, thread=7, correlation=5),
        _event("kernel", "scale", 120, 20, thread=8, correlation=6),
        _event("gpu_memcpy", "Memcpy DtoD", 200, 10, thread=7, correlation=7),
        {"ph": "M", "name": "process_name"},
    ]
    kernels = profiles.kernels_of(trace)
    assert [[its.name for its in kernel.operations] for kernel in kernels] == [
        ["aten::linear", "aten::mm"],
        ["aten::linear"],
        [],
    ]
    assert kernels[0].operations[1].shapes == ((TOKENS, H), (H, V), (V,), ())
    assert profiles.busy_seconds(kernels) == pytest.approx(50e-6)  # 100 to 140 and 200 to 210
    classes = profiles.seconds_by_class(kernels, V)
    kinds = (KINDS.VOCABULARY_PRODUCTS, KINDS.OTHER, KINDS.COPIES)
    assert {name: row["calls"] for name, row in classes.items()} == {kind.value: 1 for kind in kinds}
    costly = profiles.most_costly(kernels, V)
    assert (costly[0]["kernel"], costly[0]["operation"], costly[0]["share"]) == ("gemm", "aten::mm", pytest.approx(0.5))


def test_without_kernels_operations_count_for_their_own_time():
    trace = [_event("cpu_op", "aten::linear", 10, 50), _event("cpu_op", "aten::mm", 20, 20)]
    assert [(its.name, round(its.seconds * 1e6)) for its in profiles.kernels_of(trace)] == [
        ("aten::linear", 30),
        ("aten::mm", 20),
    ]


@pytest.mark.parametrize("name", ["plain", "auto"])
def test_part_8_profiles_a_step(tmp_path, name):
    figures, told = profiles.profile_step(steps.Case("tiny", 2, 2, 12), name, TINY, CPU)
    (profile,) = told["profile"].values()
    classes = {kind for kind in KINDS if kind.value in profile["classes"]}
    usual = {KINDS.PRODUCTS, KINDS.ATTENTION, KINDS.VOCABULARY_PRODUCTS, KINDS.CASTS, KINDS.NORMS, KINDS.OPTIMIZER}
    assert usual < classes
    assert (KINDS.NOISE in classes) == (name == "auto")
    assert 0 < len(profile["most costly"]) <= profiles.KERNELS
    # Weights are read and written once at least.
    assert profile["classes"][KINDS.PRODUCTS.value]["bytes"] > 2 * TINY.weights
    assert any(its.what.endswith("card") for its in figures)
    measured = {"device": "H100", "torch": "2", "driver": None, "commit": None, "time": "2026-11-25T00:00:00Z"}
    figures = [{"what": its.what, "value": its.value, "limit": None} for its in figures]
    lines = tmp_path / "gpu.jsonl"
    lines.write_text(json.dumps({**measured, "part": 8, "case": 0, "seconds": 1, "figures": figures, **told}) + "\n")
    rows = tables.table(lines)
    assert sum(row.startswith(f"| {KINDS.PRODUCTS.value} |") for row in rows) == 1
    assert sum("aten::addmm" in row for row in rows) >= 1


def test_bytes_are_of_operations_that_move_them():
    x = torch.zeros(5, 7)
    with profiles._Moved(61) as moved:
        x.view(7, 5).t()[1:].reshape(-1)  # which copies 28 numbers
        torch.empty(100)
        x.add_(1)
        x.to(torch.bfloat16)
    assert dict(moved.bytes) == {
        KINDS.ELEMENTWISE.value: 2 * 28 * 4 + 2 * 35 * 4,
        KINDS.CASTS.value: 35 * 4 + 35 * 2,
    }


def test_weights_in_products_are_all_but_the_positions():
    model = TINY.model(CPU)
    counted = sum(its.numel() for name, its in model.named_parameters() if "wpe" not in name)
    assert counted == TINY.weights


def test_the_chunked_loss_is_the_mean_cross_entropy(monkeypatch):
    monkeypatch.setattr(baselines, "CHUNK", 7)
    torch.manual_seed(0)
    model = baselines.Gpt(TINY, torch.float64).double()
    ids = torch.randint(0, TINY.vocabulary, (3, 13))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    (2 * model(inputs, targets)).backward()
    taken = [its.grad.clone() for its in model.parameters()]
    model.zero_grad()
    x = model.tokens(inputs) + model.positions.weight[:12]
    for block in model.blocks:
        x = block(x)
    logits = model.norm(x) @ model.tokens.weight.T
    (2 * torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())).backward()
    for gradient, parameter in zip(taken, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)


COMPILED = pytest.param(True, marks=pytest.mark.slow)


@pytest.mark.parametrize("compiled", [False, COMPILED])
@pytest.mark.parametrize("kind", [{}, {"half": True}, {"half": True, "whole": True}, {"trainer": True}])
@pytest.mark.filterwarnings("default")  # of the compiler and of the Trainer's libraries
def test_part_9_times_baselines(kind, compiled):
    baseline = baselines.Baseline(steps.Case("tiny", 2, 2, 12), compiled=compiled, **kind)
    figures, told = baselines.beside(baseline, TINY, CPU)
    (taken,) = told.values()
    assert figures[-1].value == taken["ours"] / taken["seconds"] > 0
    assert ("compiled" in baseline.name) == compiled
    json.dumps(told)


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
import torch, gpu, gpu_beside, gpu_correctness, gpu_profile, gpu_steps
"""
PARTS = """
shape, cpu = gpu.Shape(2, 16, 2, vocabulary=61, context=32), torch.device("cpu")
assert not [its.line() for its in gpu_correctness.correctness(shape, 12, cpu) if its.fails]
assert gpu_steps.steps(gpu_steps.Case("tiny", 3, 2, 12, 2), shape, cpu)
assert gpu_beside.beside_gradients(shape, 400, 10, cpu)
assert gpu_profile.profile_step(gpu_steps.Case("tiny", 3, 2, 12), "auto", shape, cpu)
"""


def test_the_parts_for_a_bare_machine_are_imported_there(tmp_path):
    assert alone(tmp_path, BARE) == (0, [])


@pytest.mark.slow
def test_parts_1_2_5_and_8_run_where_only_torch_and_transformers_are(tmp_path):
    assert alone(tmp_path, BARE + PARTS) == (0, [])


def alone(folder, script):
    """The exit code and what a script said, where most packages are missing."""
    (folder / "bare.py").write_text(script)
    path = f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"
    done = subprocess.run(
        [sys.executable, str(folder / "bare.py")], capture_output=True, text=True, env={"PYTHONPATH": path}
    )
    # The profiler's own lines are left out.
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("USDT:")]
