"""`heldin run --check`: all that can be refused at once, what would be done, and nothing read, made or trained."""

import importlib.util
import json
import re
from types import SimpleNamespace

import pytest
import torch
import yaml

from heldin.base.progress import LineReporter
from heldin.corpus.made_up.chats import MadeUpRows
from heldin.defenses.guarantee import Guarantee
from heldin.finetune.memory import Peak
from heldin.jobs import run as pipeline
from heldin.jobs.check.costs import cost_of_run, sizes_of
from heldin.jobs.check.memory_forecast import does_not_fit, memory_lines, run_memory
from heldin.jobs.example import write_example
from heldin.models.devices import Planned
from heldin.record.document import read_record
from heldin.stages.run_config import RunConfig, load_config
from heldin.stages.starting.files import kinds, starting_file
from heldin.stages.train.plan import mechanism_of
from tests.planted_sets import save_base
from tests.refusals import names, refused


@pytest.fixture(autouse=True)
def _nothing_is_read(monkeypatch):
    for name in ("read_corpus", "base_model", "prepare_data", "finetune"):
        monkeypatch.setattr(pipeline, name, lambda *a, **k: pytest.fail("something was done"))


@pytest.mark.parametrize("kind", kinds("run"))
def test_every_starting_file_passes(call, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    if kind.startswith("own"):
        rows = {"own": "mails", "own-chat": "chats", "own-preference": "pairs"}[kind]
        write_example(tmp_path / "example", users=20, rows=MadeUpRows(rows), reporter=LineReporter(lambda line: None))
    (tmp_path / "start.yaml").write_text(starting_file("run", kind, RunConfig), encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call("run", "start.yaml", "--check")
    assert (code, err.count("\n"), err.split(":")[0]) == (0, 1, "cost")
    assert f"my-{kind}, begin in 'runs/my-{kind}'" in out
    promised = kind in ("uls", "banded", "els", "group", "filter", "example", "user-entity")
    assert (f"epsilon {8 if kind == 'filter' else 2}," in out) == promised
    promise = mechanism_of(load_config(tmp_path / "start.yaml"), plain_steps=1, clip_norm=1.0).guarantee()
    assert isinstance(promise, Guarantee) == promised
    assert f"{promise.label}\n" in out
    assert sorted(tmp_path.rglob("*")) == before


def test_all_problems_are_told_at_once_a_line_each(call, small_config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x", encoding="utf-8")
    defense = "{kind: uls, population: 20, cohort: 50, steps: 10, delta: 1.0e-3, target_epsilon: 8}"
    arguments = ["--check", "--out", tmp_path / "out", "--set", f"defense={defense}", "--set", "split.audit_pool=31"]
    arguments += ["--set", "attack.reference=./nowhere", "--set", f"corpus.aliases={tmp_path / 'a.yaml'}"]
    code, out, err = call("run", small_config, *arguments)
    assert (code, out) == (2, "")
    head, *lines = err.splitlines()
    assert head == f"error: {small_config}: 5 problems"
    for said in (
        "is not empty",
        "no such alias file",
        "cohort 50",
        "only 30 users",
        "no such model folder: './nowhere'",
    ):
        assert sum(said in line for line in lines) == 1
    code, out, err = call("run", small_config, *arguments, "--json")
    answer = json.loads(out)
    assert (code, err, answer["ok"]) == (2, "", False)
    assert answer["problems"] == [line.strip() for line in lines]


def test_a_tracker_that_is_not_installed_is_a_problem(call, small_config, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "wandb" else found(name, *rest))
    arguments = ("--check", "--out", tmp_path / "out", "--set", "finetune.report_to=[wandb]")
    code, _, err = call("run", small_config, *arguments)
    assert code == 2
    _, problem = err.splitlines()
    assert names(problem, "finetune.report_to", "wandb", "pip install")


def test_the_cost_is_that_of_the_runs_own_parts(finished, small_config, tmp_path):
    record, config = read_record(finished / "record.json"), load_config(small_config)
    cost = cost_of_run(config, mechanism_of(config, plain_steps=1, clip_norm=1.0), sizes_of(config))
    parts = {part.name: part for part in cost.parts}
    assert (cost.records, cost.corpus_read, cost.steps_measured) == (record.corpus.records, True, 20)
    assert parts["pre-training"].steps == config.model.pretrain.recipe.steps(record.corpus.public_records)
    assert parts["fine-tuning"].steps == pytest.approx(record.training.steps, rel=0.4)  # 30 users by coin
    assert all(part.seconds > 0 for part in cost.parts)
    assert cost.seconds == sum(part.seconds for part in cost.parts)
    assert json.loads(json.dumps(cost.as_dict()))["parts"][0]["name"] == "pre-training"


def test_a_reference_that_takes_most_of_the_time_is_named_before_it_is_trained(small_config):
    content = {"attack.references": "[{kind: public, users: {min_records: 1}}]", "finetune.epochs": "40"}
    config = load_config(small_config, [f"{key}={value}" for key, value in content.items()])
    cost = cost_of_run(config, mechanism_of(config, plain_steps=1, clip_norm=1.0), sizes_of(config))
    costly = max(cost.parts, key=lambda part: part.seconds)
    assert costly.name == f"reference {config.attack.references[0].label}"
    (marked,) = (line for line in cost.lines() if "<-" in line)
    assert marked.startswith(f"{costly.name}: {costly.steps:,} steps")


def test_what_is_too_large_to_be_read_or_timed_is_assumed_and_said_to_be(small_config, tmp_path, monkeypatch):
    corpus = tmp_path / "large.jsonl"
    corpus.write_text('{"user": "a", "text": "b"}\n' * 10, encoding="utf-8")
    config = load_config(small_config, [f"corpus.source={{kind: jsonl, path: {corpus}}}"])
    monkeypatch.setattr("heldin.jobs.check.costs.READ", 100)
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    cost = cost_of_run(config, mechanism_of(config, plain_steps=1, clip_norm=1.0), sizes_of(config))
    assert (cost.corpus_read, cost.steps_measured) == (False, 0)
    assert sum("assumed" in line for line in cost.lines()) == 2


def test_a_step_that_does_not_fit_here_is_assumed(small_config, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("heldin.jobs.check.costs.optimizer_of", full)
    config = load_config(small_config)
    cost = cost_of_run(config, mechanism_of(config, plain_steps=1, clip_norm=1.0), sizes_of(config))
    assert (cost.corpus_read, cost.steps_measured) == (True, 0)
    assert cost.seconds > 0


def test_errors_of_the_config_are_told_alone(call, small_config):
    code, _, err = call("run", small_config, "--check", "--set", "finetune.epoch=1", "--set", "seed=-1")
    assert (code, len(err.splitlines())) == (2, 3)
    code, out, _ = call("run", small_config, "--check", "--set", "finetune.epoch=1", "--json")
    problems = ["finetune.epoch: unknown key; did you mean 'epochs'?"]
    assert (code, json.loads(out)) == (2, {"ok": False, "problems": problems, "would": {}})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"kind": "jsonl", "path": ["gone.jsonl", "gone.csv"]},
            ["no such file: 'gone.jsonl'", "no such file: 'gone.csv'"],
        ),
        ({"kind": "maildir", "path": "gone"}, ["no such file or folder: 'gone'"]),
        ({"kind": "preset", "name": "reddit", "path": "gone"}, ["no such file or folder: 'gone'"]),
        ({"kind": "huggingface", "name": "org/data", "streaming": True}, ["give its revision"]),
    ],
)
def test_files_that_are_missing_are_told(call, small_config, tmp_path, source, said):
    content = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**content, "corpus": {"source": source}}), encoding="utf-8")
    code, _, err = call("run", path, "--check", "--out", tmp_path / "out")
    assert code == 2
    assert len(err.splitlines()) == 1 + len(said)
    assert all(words in err for words in said)


def test_a_column_that_the_file_lacks_is_told(call, small_config, tmp_path):
    (tmp_path / "mail.csv").write_text("who;body\nann;hello\n", encoding="utf-8")
    source = f"{{kind: csv, path: {tmp_path / 'mail.csv'}, columns: {{user: author, text: body}}}}"
    code, _, err = call("run", small_config, "--check", "--set", f"corpus.source={source}")
    assert code == 2
    assert names(err, "mail.csv", "'author'", "who, body")


def test_a_base_model_that_takes_fewer_tokens_is_told(call, make_lm, small_config, tmp_path):
    lm = make_lm(context=32)
    lm.model.save_pretrained(tmp_path / "base")
    lm.tokenizer.save_pretrained(tmp_path / "base")
    code, _, _ = call("run", small_config, "--check", "--set", f"model={{base: {tmp_path / 'base'}}}")
    assert code == 2
    assert call.refused(by="_check", naming=("finetune.sequence_length", "48", "32"))


def test_a_revision_that_the_hub_does_not_have_is_told(call, make_lm, small_config, tmp_path, monkeypatch):
    make_lm().model.save_pretrained(tmp_path / "model")

    def unknown(*_, **options):
        raise OSError(f"{options['revision']} is not a valid git identifier for this model name\nlong story")

    monkeypatch.setattr("heldin.jobs.check.check_run.AutoConfig", SimpleNamespace(from_pretrained=unknown))
    content = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    path, model = tmp_path / "c.yaml", {"base": str(tmp_path / "model"), "revision": "v9"}
    path.write_text(yaml.safe_dump({**content, "model": model}), encoding="utf-8")
    code, _, err = call("run", path, "--check", "--out", tmp_path / "out")
    said = "at revision 'v9' has no readable config (v9 is not a valid git identifier for this model name)"
    assert (code, said in err) == (2, True)


def test_a_run_that_is_there_would_go_on(call, finished, small_config):
    code, out, _ = call("run", small_config, "--check", "--out", finished)
    assert code == 0
    assert names(out, f"'{finished}'")
    code, _, _ = call("run", small_config, "--check", "--out", finished, "--set", "seed=9")
    assert code == 2
    assert call.refused(by="_check", naming=(f"'{finished}'", "'seed'", "--out"))


def test_a_cache_that_cannot_be_is_told(call, small_config, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    code, _, _ = call("run", small_config, "--check", "--out", tmp_path / "file" / "run")
    assert code == 2
    assert call.refused(by="_check", naming="HELDIN_CACHE_DIR")
    assert call.refused(by="_check", naming=("2 problems", "--out", f"'{tmp_path / 'file' / 'cache'}'"))


def test_what_a_run_would_hold_on_a_gpu_is_said_and_refused_where_it_cannot_fit(call, small_config):
    code, out, _ = call("run", small_config, "--check", "--gpu-memory", 16)
    assert code == 0
    assert "memory      on a GPU of 16.0 GiB" in out
    for part in ("pre-training: ", "fine-tuning: ", "scoring: 201 MiB "):
        assert f"            {part}" in out
    code, out, _ = call("run", small_config, "--check", "--gpu-memory", 0.1, "--json")
    assert (code, json.loads(out)["ok"]) == (2, False)
    problems = " ".join(json.loads(out)["problems"])
    assert names(problems, "scoring", "201 MiB", "102 MiB")
    # Without a GPU's size nothing is rehearsed.
    assert "memory" not in call("run", small_config, "--check")[1]
    code, _, _ = call("run", small_config, "--gpu-memory", 16)
    assert (code, call.refused(naming=("--gpu-memory", "--check"))) == (2, True)


GPU = Planned("cuda", 2**34)


@pytest.fixture(scope="module")
def base(make_lm, tmp_path_factory):
    """A model of one layer: a rehearsal takes time for every operation of a layer."""
    return save_base(make_lm(layers=1), tmp_path_factory.mktemp("base"))


def _rehearsed(small_config, base, **finetune):
    """The small run from that model, of which fine-tuning alone is rehearsed."""
    content = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    attack = {**content["attack"], "precision": "bf16"}
    return {**content, "model": {"base": str(base)}, "attack": attack, "finetune": finetune}


@pytest.mark.parametrize(
    "defense",
    [
        {"kind": "clip", "unit": "batch"},
        {"kind": "uls", "group_size": 4, "cohort": 8, "noise_multiplier": 1.0},
        {"kind": "uls", "group_size": 4, "record_selection": "all", "cohort": 8, "noise_multiplier": 1.0},
        {"kind": "banded", "bands": 3, "group_size": 4, "cohort": 8, "noise_multiplier": 1.0},
        {"kind": "els", "group_size": 4, "cohort": 8, "noise_multiplier": 1.0},
        {"kind": "uls", "cohort": 8, "noise_multiplier": 1.0, "local": {"learning_rate": 0.1, "batch_size": 2}},
        {"kind": "user-entity", "cohort": 8, "noise_multiplier": 1.0},
    ],
)
def test_memory_is_known_of_every_defense_but_the_filter(small_config, base, defense):
    public = {} if defense["kind"] == "clip" else {"population": 100, "steps": 3, "delta": 1e-5}
    content = _rehearsed(small_config, base, select="last", patience=None, sequence_length=24)
    peak = run_memory(RunConfig.model_validate({**content, "defense": {**public, **defense}}), GPU)["fine-tuning"]
    assert peak.work > 0
    assert (peak.ways == "") == ("local" in defense)
    if "local" in defense:
        assert peak.records == 2


def test_memory_of_a_model_that_is_spread_over_processes_is_that_of_one_of_them(small_config, base):
    defense = {"kind": "uls", "group_size": 8, "cohort": 8, "population": 100, "steps": 3, "delta": 1e-5}
    totals, lines = [], []
    for shard in (None, 4):
        content = _rehearsed(small_config, base, select="last", patience=None, sequence_length=24, shard=shard)
        for its in ({"kind": "none"}, {**defense, "noise_multiplier": 1.0, "micro_records": 4}):
            peaks = run_memory(RunConfig.model_validate({**content, "defense": its}), GPU)
            peak = peaks["fine-tuning"]
            totals.append((shard, peak.processes, peak.weights, peak.records))
            lines.append(memory_lines(peaks, GPU))
    # Of a batch of 8 records and of a unit of 8: what one process has of it in a pass.
    whole = totals[0][2]
    assert totals[:2] == [(None, 1, whole, 8), (None, 1, whole, 4)]
    assert [(of, most) for _, of, _, most in totals[2:]] == [(4, 2), (4, 2)]
    assert all(abs(weights * shard / whole - 1) < 0.1 for shard, _, weights, _ in totals[2:])
    assert ["4 processes" in its for its in lines] == [False, False, True, True]
    assert all(its.endswith(" left") for its in lines)


def test_what_a_rehearsal_finds_wrong_with_the_config_is_a_problem(call, small_config):
    lora = "finetune.lora={rank: 4, targets: [nope]}"
    code, out, _ = call("run", small_config, "--check", "--gpu-memory", 16, "--set", lora)
    assert (code, out) == (2, "")
    assert call.refused(by="_check", naming=("finetune.lora.targets", "('nope',)"))


def test_a_name_that_the_hub_cannot_have_is_one_line(call, small_config, tmp_path):
    content = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**content, "model": {"base": "llama3.1:8b"}}), encoding="utf-8")
    call("run", path, "--check")
    assert call.refused(by="_check", naming="'llama3.1:8b'")


@pytest.mark.parametrize(
    "change",
    [
        "finetune.optimizer=adafactor",
        "finetune.lora={rank: 4}",
        "attack.shadow_models=2",
        "defense.local={learning_rate: 0.1}",
        "defense.clip_quantile={quantile: 0.5}",
    ],
)
def test_what_needs_whole_models_is_refused_with_shards_before_anything_runs(small_with, change):
    path = small_with(
        defense={"kind": "uls", "population": 20, "steps": 2, "cohort": 4, "delta": 1e-3, "target_epsilon": 6}
    )
    load_config(path, ["finetune.shard=2"])
    with refused(naming=("finetune.shard", change.partition("=")[0].split(".")[-1])):
        load_config(path, ["finetune.shard=2", change])


@pytest.mark.parametrize(
    ("fixed", "ways", "records", "keys"),
    [
        (9, "unit by unit", 4, ["finetune.optimizer"]),
        (1, "unit by unit", 4, ["defense.micro_records", "finetune.sequence_length", "finetune.checkpointing"]),
        (1, "", 4, ["finetune.micro_batch", "finetune.sequence_length", "finetune.checkpointing"]),
        (1, "", 1, ["finetune.sequence_length", "finetune.checkpointing"]),
    ],
)
def test_what_helps_where_each_of_several_processes_holds_too_much(fixed, ways, records, keys):
    peak = Peak("a later step", 1, 1, 10, records, False, ways, fixed, processes=4)
    (line,) = does_not_fit({"fine-tuning": peak}, Planned("cuda", 8))
    assert re.findall(r"(?:finetune|defense)\.\w+", line) == [*keys, "finetune.shard"]
