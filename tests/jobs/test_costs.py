"""The cost model: benchmarks/RESULTS.md has what its constants give, and a check of a run prints the same."""

from pathlib import Path

import pytest
import yaml

from heldin.base.wording import in_bytes
from heldin.finetune.recipe import Optimizer
from heldin.jobs.check import costs
from heldin.jobs.check.costs import SET_ASIDE, STATES, STORE, TOKENIZED, Cohort, CorpusSize, Weights
from heldin.stages.run_config import load_config
from tests.refusals import names


@pytest.fixture(autouse=True)
def _untimed(monkeypatch):
    """Steps are timed in tests/jobs/test_check.py."""
    monkeypatch.setattr(costs, "SECONDS", 0.0)


PAGE = (Path(__file__).parents[2] / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
ADAM = STATES[Optimizer.ADAM]
# By name: corpus, cohort, weights.
SIZES = {
    "Enron": (CorpusSize(129_005, 560, 128), Cohort(200, 16, 4, 129_005), Weights(1_330_000, ADAM)),
    "Stack Overflow, 350M": (
        CorpusSize(135_818_730, 90, 20),
        Cohort(342_477, 1024, 16, 135_818_730),
        Weights(353_000_000, ADAM),
    ),
    "the same, 1.3B": (
        CorpusSize(135_818_730, 90, 20),
        Cohort(342_477, 1024, 16, 135_818_730),
        Weights(1_316_000_000, ADAM),
    ),
    "a billion records, 8B": (CorpusSize(10**9, 90, 20), Cohort(10**7, 4096, 16, 10**9), Weights(8 * 10**9, ADAM)),
}


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _sizes() -> list[str]:
    rows = {
        "records, characters and tokens each": [
            f"{c.records:,}, {c.characters}, {c.tokens}" for c, _, _ in SIZES.values()
        ],
        "units, drawn in a step, records of each": [
            f"{u.units:,}, {u.drawn:,}, {u.records}" for _, u, _ in SIZES.values()
        ],
        "parameters": [f"{w.parameters / 1e6:,g} million" for _, _, w in SIZES.values()],
        "store": [_long(c.records * c.characters * STORE.size) for c, _, _ in SIZES.values()],
        "set-asides": [_long(c.records * SET_ASIDE.size) for c, _, _ in SIZES.values()],
        "tokens, one core": [_long(c.records * c.tokens * TOKENIZED.size) for c, _, _ in SIZES.values()],
        "store and tokens on disk": [in_bytes(c.disk) for c, _, _ in SIZES.values()],
        "draws at a start; of a step": [
            f"{_long(u.start_seconds)}; {1000 * u.step_seconds:.2g} ms" for _, u, _ in SIZES.values()
        ],
        "units and records in the memory of each process": [in_bytes(u.memory) for _, u, _ in SIZES.values()],
        "noise of a step, one core: Philox; AES-256": [
            f"{_long(w.noise_seconds(False))}; {_long(w.noise_seconds(True))}" for _, _, w in SIZES.values()
        ],
        "weights, gradients, sum, Adam": [in_bytes(w.training) for _, _, w in SIZES.values()],
        "a checkpoint": [in_bytes(w.checkpoint) for _, _, w in SIZES.values()],
        "sent in a step by a replica": [in_bytes(w.replica_step) for _, _, w in SIZES.values()],
        "moved for a unit by a shard group": [in_bytes(w.sharded_pass) for _, _, w in SIZES.values()],
    }
    head = [f"| | {' | '.join(SIZES)} |", "|---" * (1 + len(SIZES)) + "|"]
    return head + [f"| {name} | {' | '.join(values)} |" for name, values in rows.items()]


@pytest.mark.parametrize("line", _sizes())
def test_the_page_of_sizes_says_what_the_constants_give(line):
    assert line in PAGE.splitlines()


def test_the_page_has_no_further_row_of_the_table():
    between = PAGE.partition("**Costs of four sizes**")[2].partition("\n**")[0]
    rows = [line for line in between.splitlines() if line.startswith("|")]
    assert rows == _sizes()


@pytest.fixture
def config_file(tmp_path):
    def write(**changed):
        source = {"kind": "synthetic"}
        shape = {"vocabulary": 2048, "context": 64, "hidden": 64, "layers": 2, "heads": 2, "window": 32}
        content = {
            "name": "sizes",
            "corpus": {"source": source},
            "model": {"pretrain": {"shape": shape, "recipe": {"sequence_length": 64}}},
            "finetune": {"sequence_length": 64, "select": "last"},
            "defense": {
                "kind": "uls",
                "population": 400_000,
                "cohort": 1000,
                "steps": 500,
                "delta": 1e-6,
                "noise_multiplier": 1.0,
                "group_size": 4,
            },
        }
        for section, its in changed.items():
            content[section] = {**content[section], **its}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


def test_a_check_prints_the_costs_of_the_run(config_file, call, tmp_path):
    code, out, err = call("run", config_file(), "--check", "--out", tmp_path / "out")
    assert code == 0, err
    its = Cohort(400_000, 1000, 4)
    assert names(out, f"{1000 * its.step_seconds:,.1f}", "1,000", f"{its.start_seconds:.1f}")
    assert f"{in_bytes(its.memory)} in memory" in out
    parameters = costs.parameters_of(load_config(config_file()))
    assert parameters == 2048 * 64 + 64 * 64 + 2 * (4 * 64 * 64 + 8 * 64 * 64 + 13 * 64 - 3 * 64) + 2 * 64
    assert f"{in_bytes(Weights(parameters, ADAM).checkpoint)} to write" in out


def test_secure_noise_is_in_the_costs(config_file, call, tmp_path, monkeypatch):
    plain = call("run", config_file(), "--check", "--out", tmp_path / "out")[1]
    assert "drawn a step ahead" not in plain
    assert "shard group" not in plain
    secure = call("run", config_file(defense={"secure_noise": True}), "--check", "--out", tmp_path / "out")[1]
    # Too few numbers to start processes for.
    assert "of a core a step" in secure
    assert "drawn a step ahead" not in secure
    monkeypatch.setattr(costs, "AHEAD_FROM", 1000)
    secure = call("run", config_file(defense={"secure_noise": True}), "--check", "--out", tmp_path / "out")[1]
    assert "of a core a step, drawn a step ahead" in secure
    # Over two processes each draws half.
    monkeypatch.setattr(costs, "AHEAD_FROM", costs.parameters_of(load_config(config_file())))
    for shard, said in ((None, True), (2, False)):
        path = config_file(defense={"secure_noise": True}, finetune={"shard": shard})
        found = call("run", path, "--check", "--out", tmp_path / "out")
        assert found[0] == 0, found[2]
        assert ("drawn a step ahead" in found[1]) == said
        assert ("noise: at least " in found[1] and " a step over a shard group" in found[1]) == (shard is not None)


def test_adapters_have_no_line_of_all_weights(config_file, call, tmp_path):
    code, out, err = call("run", config_file(finetune={"lora": {"rank": 2}}), "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert "units" in out
    assert "a checkpoint" not in out


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_what_banded_noise_carries_along_is_in_the_costs(config_file, call, tmp_path, lora):
    path = config_file(defense={"kind": "banded", "bands": 8}, finetune={"lora": lora})
    code, out, err = call("run", path, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    numbers = costs.parameters_of(load_config(config_file()))
    if lora:
        # Of each linear layer of width a x b, 2 (a + b) numbers.
        numbers = 2 * 2 * (4 * 2 * 64 + 2 * (64 + 256))
    assert names(out, "7 vectors", f"{numbers:,}")
    assert in_bytes(7 * 4 * numbers) in out
    assert "vectors" not in call("run", config_file(), "--check", "--out", tmp_path / "out")[1]


@pytest.mark.parametrize(("optimizer", "bands", "said"), [("adam", 8, True), ("sgd", 8, False), ("adam", 2, False)])
def test_advice_on_the_optimizer_of_banded_noise(config_file, call, tmp_path, optimizer, bands, said):
    path = config_file(defense={"kind": "banded", "bands": bands}, finetune={"optimizer": optimizer})
    code, out, err = call("run", path, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert ("finetune.momentum" in out) == said
