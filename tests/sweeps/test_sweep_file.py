"""The file of a sweep: what it multiplies and groups, what is refused, and what --check says."""

import json
import re
import time

import pytest
import yaml

from heldin.record.sweep import read_sweep
from heldin.sweeps.load import load_sweep
from tests.refusals import names, refused
from tests.tiny_sweeps import CANARIES, ROOT, ULS, written


def test_axes_multiply_and_groups_follow_from_users_and_set_asides(tmp_path):
    sweep = load_sweep(
        written(
            tmp_path,
            variants={
                "none": None,
                "uls": {"defense": {**ULS, "noise_multiplier": None}},
                "fewer": {"corpus": {"users": {"max_users": 20}}},
                "fewer-uls": {"corpus": {"users": {"max_users": 20}}, "defense": ULS},
            },
            axes={"uls": {"defense.target_epsilon": [2, 8.5], "finetune.learning_rate": [1e-4]}},
            blocks=3,
        )
    )
    names = [variant.name for variant in sweep.variants]
    assert names == [
        "none",
        "uls-target_epsilon-2-learning_rate-0.0001",
        "uls-target_epsilon-8.5-learning_rate-0.0001",
        "fewer",
        "fewer-uls",
    ]
    assert [variant.group for variant in sweep.variants] == ["none", "none", "none", "fewer", "fewer"]
    assert sweep.variants[2].config.defense.target_epsilon == 8.5
    assert len(list(sweep.cells())) == 15
    first, third = sweep.of_block(sweep.variants[0], 1), sweep.of_block(sweep.variants[0], 3)
    assert (third.split.seed - first.split.seed, third.finetune.seed - first.finetune.seed) == (2, 2)
    assert (first.seed, first.model, first.corpus) == (third.seed, third.model, third.corpus)


def test_the_files_of_a_run_and_of_a_sweep_are_not_taken_for_each_other(call, tmp_path):
    file = written(tmp_path, variants={"none": None})
    code, _, err = call("run", file, "--check")
    assert (code, err.count("\n")) == (2, 1)
    assert names(err, f"error: {file}: ", f"heldin sweep {file}")
    base = file.parent / yaml.safe_load(file.read_text(encoding="utf-8"))["base"]
    code, _, err = call("sweep", base, "--check")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"heldin run {base}" in err


SHIPPED = ROOT.glob("configs/sweeps/*.yaml")
SCALED = [
    (path, scale)
    for path in sorted(SHIPPED)
    for scale in (None, *yaml.safe_load(path.read_text(encoding="utf-8")).get("scales", {}))
]


@pytest.mark.parametrize(("path", "scale"), SCALED, ids=[f"{path.stem}-{scale or 'full'}" for path, scale in SCALED])
def test_every_shipped_sweep_is_read_at_every_scale(path, scale, monkeypatch, tmp_path):
    monkeypatch.setenv("HELDIN_DATA_DIR", str(tmp_path))
    sweep = load_sweep(path, (), scale)
    assert len(sweep.variants) > 1
    if scale:
        assert sweep.config.name == f"{load_sweep(path).config.name}-{scale}"
        # Nothing that a hub has: two cores pre-train their own, or a study makes it in a folder; but for the trial of a
        # command that is given a folder.
        bases = [its.config.model.base for its in sweep.variants]
        assert scale == "trial" or all(base is None or base.startswith("runs/") for base in bases)


def test_a_scale_changes_the_file_section_by_section_and_null_takes_a_key_out(tmp_path):
    uls = {"defense": ULS, "finetune": {"epochs": 3}}
    scales = {"tiny": {"blocks": 2, "variants": {"uls": {"defense": {"steps": 2}, "finetune": None}}}}
    path = written(tmp_path, variants={"none": None, "uls": uls}, scales=scales)
    full, tiny = load_sweep(path), load_sweep(path, (), "tiny")
    assert (full.config.name, tiny.config.name) == ("two", "two-tiny")
    assert (full.config.blocks, tiny.config.blocks) == (1, 2)
    assert [its.variants[1].config.defense.steps for its in (full, tiny)] == [6, 2]
    assert [its.variants[1].config.finetune.epochs for its in (full, tiny)] == [3, 2]
    assert tiny.variants[1].config.defense.population == 30
    with refused(by=load_sweep, naming=("'large'", "tiny")):
        load_sweep(path, (), "large")
    with refused(by=load_sweep, naming="'tiny'"):
        load_sweep(written(tmp_path / "bare"), (), "tiny")


def test_a_scale_that_is_no_section_is_one_line(tmp_path):
    for value in (5, [1], "small", True):
        with refused(by=load_sweep, naming=("sweep.yaml", "scales.tiny")):
            load_sweep(written(tmp_path, scales={"tiny": value}), (), "tiny")


def test_patterns_of_user_names_are_numbered_and_not_spelled_in_names_of_variants(tmp_path):
    axes = {"none": {"corpus.users.include": [["alice@*"], ["bob@*"]]}}
    sweep = load_sweep(written(tmp_path, variants={"none": None}, axes=axes))
    assert [its.name for its in sweep.variants] == ["none-include-1", "none-include-2"]


SUBSTRINGS = [{"kind": "substring", "users": 2, "lengths": [3]}]


@pytest.mark.parametrize(
    ("content", "data"),
    [
        ({"variants": {}}, ("variants",)),
        ({"base": "nothing.yaml"}, ("nothing.yaml",)),
        ({"blocks": 0}, ("blocks",)),
        ({"variant": {}}, ("variant:", "'variants'")),
        ({"variants": {"a b": {}}}, ("variants",)),
        ({"variants": {"..": {}}}, ("variants",)),
        ({"variants": {"a": {}, "A": {}}}, ("variants", "'A'")),
        ({"variants": {"a" * 101: {}}}, ("variants",)),
        ({"axes": {"uls": {"defense.steps": []}}}, ("axes.uls.defense.steps",)),
        ({"axes": {"uls": {"name": ["2020-01-01"], "defense.steps": ["x" * 99]}}}, ("100",)),
        ({"axes": {"other": {"seed": [1]}}}, ("axes.other",)),
        ({"axes": {"uls": {"defense.target_epsilom": [1]}}}, ("target_epsilom", "'target_epsilon'")),
        ({"axes": {"none": {"seed": [1, 1]}}}, ("variants", "'none-seed-1'")),
        ({"variants": {"a": {"seed": -1}, "b": {"name": {}, "finetune": {"epoch": 1}}}}, ("2 problems",)),
        ({"variants": {"a": {}, "b": {"canaries": CANARIES}}}, ("variants.b", "'a'")),
        (
            {
                "variants": {
                    "a": {"canaries": SUBSTRINGS},
                    "b": {"canaries": SUBSTRINGS, "finetune": {"sequence_length": 24}},
                }
            },
            ("variants.b", "'a'"),
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_every_problem(tmp_path, call, content, data):
    code, _, err = call("sweep", written(tmp_path, **content), "--out", tmp_path / "out")
    assert code == 2, err
    assert names(err, *data)
    assert not (tmp_path / "out").exists()


def test_two_variants_of_one_name_are_refused(tmp_path, call):
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("  uls:", "  none:"), encoding="utf-8")
    code, _, err = call("sweep", path, "--out", tmp_path / "out")
    assert (code, names(err, "sweep.yaml", "line 5")) == (2, True), err


def test_check_lists_every_variant_with_its_promise_and_gradients(tmp_path, call):
    path = written(tmp_path, blocks=5)
    code, printed, err = call("sweep", path, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert printed.startswith("2 variants in 5 blocks: 10 cells, 1 at a time")
    code, printed, _ = call("sweep", path, "--check", "--json", "--out", tmp_path / "out")
    rows = json.loads(printed)["variants"]
    assert [row["variant"] for row in rows] == ["none", "uls"]
    assert "gradients" in rows[1]["gradients"]
    assert not (tmp_path / "out").exists()
    assert "note: none and " not in printed
    twice = written(tmp_path, variants={"none": {}, "cap": {"data_defenses": [{"kind": "cap", "records": 9}]}, "b": {}})
    code, printed, _ = call("sweep", twice, "--check", "--out", tmp_path / "out")
    assert (code, "note: none and b " in printed) == (0, True)
    broken = {"a": {"attack": {"reference": "/no/such/model"}}, "b": {"model": {"base": "/no", "pretrain": None}}}
    code, _, err = call("sweep", written(tmp_path, variants=broken), "--check", "--out", tmp_path / "out")
    assert code == 2
    assert "variants.a: " in err
    assert "variants.b: " in err


def test_a_damaged_document_is_one_line(tmp_path):
    (tmp_path / "comparison.json").write_text('{"schema_version": 1}', encoding="utf-8")
    with refused(by="read_document", naming="comparison.json"):
        read_sweep(tmp_path)
    with refused(by="read_sweep", naming=("nowhere", "heldin sweep")):
        read_sweep(tmp_path / "nowhere")


def test_a_sweep_that_is_still_written_is_not_damaged(tmp_path, call):
    (tmp_path / "sweep.json").write_text("{}", encoding="utf-8")
    for words in (("report", tmp_path), ("compare", tmp_path)):
        code, _, err = call(*words)
        assert (code, names(err, "not finished", "log.txt"), "damaged" in err) == (2, True, False)


def test_the_page_of_sweeps_leads_to_every_key(call):
    from heldin.audit.requirement import RequirementConfig
    from heldin.sweeps.sweep_config import DecisionRule, Resources, SweepConfig, Tuning

    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    assert "config sweep`" in page
    code, out, err = call("config", "sweep")
    assert code == 0, err
    sections = {"": SweepConfig, "tune.": Tuning, "decision.": DecisionRule, "decision.require[].": RequirementConfig}
    for section, model in {**sections, "resources.": Resources}.items():
        # A key with its default and meaning, or the heading of a section.
        wanted = [rf"^ *{re.escape(section + key)}(?:\[\])?[:,]" for key in model.model_fields]
        assert [its for its in wanted if not re.search(its, out, re.MULTILINE)] == []


TEN = [i / 100 for i in range(1, 11)]
AXES = {f"finetune.{key}": TEN for key in ("learning_rate", "epochs", "weight_decay")}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"blocks": 1e9}, "blocks"),
        ({"blocks": 10**9}, "blocks"),
        ({"blocks": 6000}, "blocks x variants give 12,000 cells"),
        ({"axes": {"uls": {**AXES, "defense.clip_norm": TEN, "finetune.batch_size": [*range(1, 100)]}}}, "cells"),
        (
            {"tune": {"over": {"none": {**AXES, "finetune.batch_size": [*range(1, 100)]}}, "blocks": 1}},
            "tune.blocks x tries give 99,000 cells",
        ),
        ({"resources": {"workers": 10**9}}, "resources.workers"),
    ],
)
def test_a_sweep_of_more_cells_than_anybody_runs_is_refused_before_it_is_multiplied_out(call, tmp_path, parts, said):
    file = written(tmp_path, variants={"none": None, "uls": {"defense": ULS}}, **parts)
    started = time.monotonic()
    code, _, err = call("sweep", file, "--check")
    assert (code, said in err) == (2, True), err
    assert time.monotonic() - started < 10


def test_aliases_that_multiply_are_refused_wherever_they_stand(call, tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
    bomb = "\n".join(f"  {line}" for line in lines)
    value = "*a8"
    file = written(tmp_path, variants={"none": None})
    plain = file.read_text(encoding="utf-8")
    base = file.parent / yaml.safe_load(plain)["base"]
    run = base.read_text(encoding="utf-8")
    for changed, text in (
        (file, f"unused:\n{bomb}\n{plain}"),
        (file, f"scales:\n{bomb}\n{plain}"),
        (base, f"corpus:\n  users:\n    include: {value}\nx:\n{bomb}\n"),
        (base, f"x:\n{bomb}\n{run}"),
    ):
        changed.write_text(text, encoding="utf-8")
        started = time.monotonic()
        for command in ("sweep", "run"):
            code, _, err = call(command, file if command == "sweep" else changed, "--check")
            assert (code, len(err.splitlines())) == (2, 1), err
        assert time.monotonic() - started < 5
        file.write_text(plain, encoding="utf-8")
        base.write_text(run, encoding="utf-8")
