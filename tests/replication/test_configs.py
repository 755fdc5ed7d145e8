"""Files of the papers: all load, have the papers' settings, and are listed under their names."""

import os
import re
import shlex
import subprocess

import jsonschema
import pytest
import yaml

from heldin.corpus.presets.catalogue import PRESETS
from heldin.finetune.recipe import Optimizer
from heldin.stages.config_keys import file_schema
from heldin.stages.run_config import load_config
from heldin.sweeps.load import load_sweep
from replication.classification.config import load_classification
from replication.experiments import FOLDER, RUNS, SWEEPS, sweep_file
from replication.sweep_findings import findings_of

CONFIGS = sorted(path for path in FOLDER.glob("configs/*/*.yaml"))
FILES = [*sorted(FOLDER.glob("sweeps/*.yaml")), sweep_file("affordable")]
SCALED = [
    (path, scale)
    for path in FILES
    for scale in (None, *yaml.safe_load(path.read_text(encoding="utf-8")).get("scales", {}))
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_is_one_by_the_schema(path, monkeypatch):
    monkeypatch.setenv("HELDIN_DATA_DIR", "/data")
    assert load_config(path).name == path.stem
    jsonschema.Draft202012Validator(file_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_config_of_text_classification_loads(monkeypatch):
    monkeypatch.setenv("HELDIN_DATA_DIR", "/data")
    assert load_classification(FOLDER / "configs" / "ag-news.yaml").name == "ag-news"


@pytest.mark.parametrize(("path", "scale"), SCALED, ids=[f"{path.stem}-{scale or 'full'}" for path, scale in SCALED])
def test_every_sweep_is_read_at_every_scale_with_its_findings(path, scale, monkeypatch, tmp_path):
    monkeypatch.setenv("HELDIN_DATA_DIR", str(tmp_path))
    sweep = load_sweep(path, (), scale)
    assert len(sweep.variants) > 1
    # Raises if there are no findings of variants that are there.
    assert findings_of(path.stem, sweep)
    if scale:
        assert sweep.config.name == f"{load_sweep(path).config.name}-{scale}"
        # Nothing that a hub has: two cores pre-train their own.
        assert all(variant.config.model.base is None for variant in sweep.variants)


def test_every_finding_is_of_variants_that_some_scale_has(monkeypatch, tmp_path):
    monkeypatch.setenv("HELDIN_DATA_DIR", str(tmp_path))
    judged = {path.stem: set() for path in FILES}
    for path, scale in SCALED:
        judged[path.stem] |= {its.finding for its in findings_of(path.stem, load_sweep(path, (), scale))}
    listed = yaml.safe_load((FOLDER / "findings.yaml").read_text(encoding="utf-8"))
    assert judged == {name: {its["finding"] for its in findings} for name, findings in listed.items()}


def test_every_file_has_a_name_on_the_command_line():
    assert {path.stem for path in FILES} == set(SWEEPS)
    named = {path for group in RUNS.values() for path in group.configs}
    assert all(path.is_file() for path in named)
    audits = {"conll-entities", "conll-text-entities"}  # ours, of no figure
    left = {path for path in CONFIGS if path.parent.name != "paper"} - named
    assert {path.stem for path in left} == audits


def test_private_trainings_of_one_figure_of_lai_et_al_take_the_same_work(monkeypatch):
    """Same rate, steps and gradients a step, on the same users: what differs is the mechanism."""
    monkeypatch.setenv("HELDIN_DATA_DIR", "/data")
    for group in ("lai-figure-2", "lai-figure-2b", "lai-figure-5"):
        configs = [load_config(path) for path in RUNS[group].configs]
        private = [config for config in configs if config.defense.kind != "none"]
        assert len(private) >= 2
        work = {
            (
                config.finetune.learning_rate,
                config.defense.steps,
                config.defense.cohort * records,
                str(config.corpus.users),
            )
            for config in private
            for records in (1 if config.defense.kind == "user-entity" else config.defense.group_size,)
        }
        assert len(work) == 1
        assert len({str(config.model) for config in configs}) == 1


def test_runs_are_heldins_own_and_the_table_follows_them(replicate, monkeypatch, tmp_path):
    called = []

    def heldin(*arguments):
        called.append(shlex.join(arguments))
        return 2 if "conll-uls.yaml" in called[-1] and "--check" in called[-1] else 3

    monkeypatch.setattr("replication.experiments._heldin", heldin)
    assert replicate("lai-figure-2", "--out", tmp_path, "--set", "finetune.epochs=1")[0] == 3
    assert [words.split()[0] for words in called] == ["run"] * 7 + ["compare"]
    assert all(words.endswith("--set finetune.epochs=1") for words in called[:7])
    called.clear()
    assert replicate("lai-figure-2", "--out", tmp_path, "--check")[0] == 2
    assert len(called) == 3  # those after a refused config are not tried
    called.clear()
    replicate("lai-figure-2", "--out", tmp_path, "--only-table")
    assert [words.split()[0] for words in called] == ["compare"]
    assert replicate("lai-figure-2", "--only-table", "--check")[0] == 2


def test_every_config_of_the_paper_is_in_its_page():
    page = (FOLDER.parent / "docs" / "replication" / "kandpal.md").read_text(encoding="utf-8")
    page += (FOLDER / "configs" / "paper" / "README.md").read_text(encoding="utf-8")
    files = {path.stem for path in FOLDER.glob("configs/paper/*.yaml")}
    assert files <= set(re.findall(r"`([a-z0-9.-]+)`", page))


def test_the_papers_configs_have_the_papers_hyperparameters(monkeypatch):
    monkeypatch.setenv("HELDIN_DATA_DIR", "/data")
    for path in (FOLDER / "configs" / "paper").glob("*.yaml"):
        config = load_config(path)
        recipe = config.finetune
        assert (recipe.epochs, recipe.batch_size, recipe.warmup_steps) == (10, 8, 200)
        assert recipe.optimizer is Optimizer.ADAM
        assert config.model.base in ("EleutherAI/gpt-neo-125m", "EleutherAI/gpt-neo-1.3B")
        assert config.corpus.users == PRESETS[config.corpus.source.name].users
        if config.defense.kind == "example":
            stated = config.defense
            assert (stated.cohort, stated.delta, stated.clip_norm) == (1024, 1e-6, 1.0)
        else:
            assert recipe.learning_rate == 5e-5
        if config.canaries and config.name.startswith(("cc-news", "reddit")):
            assert sum(spec.count() for spec in config.canaries) == 180


@pytest.mark.parametrize("scale", [None, "trial"])
def test_the_command_for_the_released_gpt_neo_names_its_model_in_every_variant(scale, monkeypatch, tmp_path):
    """A stand-in for heldin writes down what the script calls; the sweep is then read with these words."""
    calls, stand_in = tmp_path / "calls", tmp_path / "bin" / "heldin"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HELDIN_DATA_DIR", str(tmp_path))
    options = ["--scale", scale] if scale else []
    subprocess.run([FOLDER / "gpt_neo.sh", "folder/of-weights", tmp_path / "out", *options], check=True)
    check, run = (shlex.split(line) for line in calls.read_text(encoding="utf-8").splitlines())
    assert [word for word in check if word != "--check"] == [word for word in run if word != "--html"]
    changes = [run[i + 1] for i, word in enumerate(run) if word == "--set"]
    sweep = load_sweep(FOLDER.parent / run[1], changes, scale)
    assert run[run.index("--out") + 1] == str(tmp_path / "out")
    assert {variant.config.model.base for variant in sweep.variants} == {"folder/of-weights"}
    # Whole and by LoRA, plain and private.
    kinds = {(variant.config.defense.kind, variant.config.finetune.lora is not None) for variant in sweep.variants}
    assert kinds == {("none", False), ("none", True), ("uls", False), ("uls", True)}
