"""The reference of a config's keys: complete, true, and the same in terminal, page, schema and starting files."""

import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from docs.config_pages import config_pages
from heldin.base.errors import InputError
from heldin.defenses.guarantee import Guarantee
from heldin.jobs.checkpoint.audit_config import CheckpointConfig
from heldin.planting.plant_config import PlantConfig
from heldin.stages.config_keys import blocks, blocks_at, file_schema, lines
from heldin.stages.run_config import RunConfig, load_config, parse_config
from heldin.stages.starting.files import contents, kinds, starting_file
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.load import load_sweep
from heldin.sweeps.sweep_config import SweepConfig
from tests.packages import register
from tests.refusals import names

ROOT = Path(__file__).resolve().parents[2]
# Files for sweeps have keys of their own.
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "sweeps")
REGENERATE = "make it again: make golden"
BUILT_IN = contents("built_in")
MINIMAL = {"name": "x", "corpus": {"source": {"kind": "synthetic"}}, "model": {"base": "EleutherAI/gpt-neo-125m"}}


@pytest.fixture(scope="module")
def schema_of_a_file():
    """A validator: the schema itself is checked by a test of its own, and once."""
    return jsonschema.Draft202012Validator(file_schema())


def test_every_key_and_section_has_a_meaning():
    without = [key.name for block in blocks() for key in block.keys if len(key.meaning) < 10]
    without += [block.name for block in blocks() if len(block.meaning) < 10]
    assert without == [], "write a docstring below each of these fields"


def test_every_key_that_the_config_accepts_is_listed_and_no_other():
    listed = {key.name for block in blocks() for key in block.keys} | {block.name for block in blocks()}
    named = {name.replace("[]", "") for name in listed}
    keys = set(_keys_of(RunConfig.model_json_schema()))
    assert keys == {name.rsplit(".", 1)[-1] for name in named if name} - {"extends"}
    dumped = parse_config({**BUILT_IN, "finetune": {"lora": {}, "sequence_length": 9}}, "test").model_dump(mode="json")
    assert set(_dotted(dumped)) <= named


def _keys_of(schema):
    """Keys of every section in a schema, wherever it is written out."""
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _keys_of(part)
    # What a kind of somebody else's must not be called is no section.
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        yield from schema["properties"]


def _dotted(content, name=""):
    for key, value in content.items():
        dotted = f"{name}.{key}" if name else key
        yield dotted
        if isinstance(value, dict):
            yield from _dotted(value, dotted)


def test_the_defaults_that_are_listed_are_those_of_a_config_that_states_nothing():
    config = parse_config(MINIMAL, "test").model_dump(mode="json")
    pretrained = parse_config(
        {**MINIMAL, "model": {"pretrain": {"recipe": {}}}, "finetune": {"sequence_length": 9}}, "t"
    )
    config["model"]["pretrain"] = pretrained.model_dump(mode="json")["model"]["pretrain"]
    seen = 0
    for block in blocks():
        for key in block.keys:
            value = config
            for part in key.name.split("."):
                value = value.get(part, ...) if isinstance(value, dict) else ...
            if value is not ... and not key.required and key.name not in ("model.base", "extends"):
                seen += 1
                assert yaml.safe_load(key.default) == value, key.name
    assert seen > 60
    alone = parse_config({**MINIMAL, "corpus": {"source": {"kind": "synthetic"}, "users": {"include": ["a*"]}}}, "test")
    (users,) = blocks_at("corpus.users.min_records", blocks())
    assert yaml.safe_load(users.keys[0].default_alone) == alone.corpus.users.min_records == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key.name, value)
        for block in blocks()
        for key in block.keys
        if not block.kinds
        for match in [re.match(r"(integer|number) (from|above) ([\d.e-]+)", key.allowed)]
        if match
        for value in [float(match[3]) - (1 if match[2] == "from" else 0)]
    ],
)
def test_what_is_outside_the_range_that_is_listed_is_refused(key, value):
    content = json.loads(json.dumps({**BUILT_IN, "finetune": {"lora": {}, "sequence_length": 9}}))
    section = content
    *parents, last = key.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = int(value) if value == int(value) else value
    if "previous" in content:  # the one list of sections without kinds
        content["previous"] = [{"plan": "week.json", **content["previous"]}]
    with pytest.raises(InputError, match=re.escape(last)):
        parse_config(content, "test")


@pytest.mark.parametrize("name", ["configuration", "audit-configuration"])
def test_the_pages_of_keys_are_those_of_the_code(name):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page == config_pages()[name] + "\n", REGENERATE


def test_every_key_of_an_audit_has_a_meaning():
    everything = [(block.name, key) for block in blocks(CheckpointConfig) for key in block.keys]
    assert not [key.name for _, key in everything if not key.meaning]
    assert "endpoint.max_tries" in {key.name for _, key in everything}


def test_a_section_or_a_key_is_narrowed_to_and_a_mistyped_one_is_told_the_nearest():
    assert {block.name for block in blocks_at("finetune", blocks())} == {"finetune", "finetune.lora"}
    assert [key.name for block in blocks_at("defense.clip_norm", blocks()) for key in block.keys] == [
        "defense.clip_norm"
    ] * 8
    assert next(block.kinds for block in blocks_at("canaries", blocks())) == ("unseen_token",)
    for wrong, hint in (
        ("finetune.learning_rte", "did you mean finetune.learning_rate?"),
        ("tau", "did you mean defense.tau?"),
        ("qqqq", "heldin config lists them all"),
    ):
        with pytest.raises(InputError, match=re.escape(hint)):
            blocks_at(wrong, blocks())


def test_kinds_of_installed_packages_are_listed_and_not_imported(call, tmp_path, monkeypatch):
    entries = {
        "heldin.sources": {"forum": "explosive:Forum"},
        "heldin.mechanisms": {"mine": "explosive:Mine", "uls": "explosive:Mine"},
        "heldin.canaries": {"poem": "explosive:Poem"},
        "heldin.measures": {"gender": "explosive:Gender"},
        "heldin.attacks": {"surprise": "explosive:Surprise"},
    }
    (tmp_path / "explosive.py").write_text("raise SystemError('imported')\n", encoding="utf-8")
    register(tmp_path, {"name": "explosive", "version": "2.0", "entry-points": entries}, ["explosive"])
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    added = [block for block in blocks(installed=True) if block not in blocks()]
    # ``attack`` itself is another block: one of its keys allows another name.
    of_packages = [block for block in added if not block.keys]
    assert [(block.name, block.kinds) for block in of_packages] == [
        ("corpus.source", ("forum",)),
        ("model.pretrain.source", ("forum",)),
        ("model.saliency.source", ("forum",)),
        ("defense", ("mine",)),  # a name of heldin's own is heldin's
        ("canaries[]", ("poem",)),
        ("measures.gender", ()),
    ]
    assert all(names(block.meaning, "explosive 2.0") for block in of_packages)
    ours = {key for block in blocks() for key in block.keys}
    changed = {key.name: key.allowed for block in added for key in block.keys if key not in ours}
    assert all(names(allowed, "loss", "surprise (of explosive)") for allowed in changed.values())
    assert {"attack.names", "attack.primary"} <= changed.keys()
    code, out, _ = call("config", "run", "defense")
    assert code == 0
    assert names(out, "defense, kind mine", "explosive 2.0")
    assert max(map(len, lines(blocks(installed=True), 80))) <= 80


def test_lines_fit_a_narrow_terminal():
    assert max(map(len, lines(blocks(), 80))) <= 80


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_schema_accepts_every_shipped_config(path, schema_of_a_file):
    schema_of_a_file.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_schema_accepts_what_the_loader_accepts_and_refuses_what_it_refuses():
    schema = file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    accepts = jsonschema.Draft202012Validator(schema).is_valid
    for content in (
        MINIMAL,
        BUILT_IN,
        {"extends": "other.yaml", "name": "y", "defense": {"target_epsilon": 4}},
        {**MINIMAL, "attack": {"references": ["gpt2", {"kind": "public"}]}},
        {**MINIMAL, "corpus": {"source": {"kind": "csv", "path": ["a", "${B}/c"]}}},
    ):
        assert accepts(content), content
    for content in (
        {"name": "x"},
        {**MINIMAL, "modell": {}},
        {**MINIMAL, "finetune": {"learning_rate": 0}},
        {**MINIMAL, "defense": {"kind": "uls"}},
        {**MINIMAL, "defense": {"kind": "none", "cohort": 3}},
        {"extends": "other.yaml", "finetune": {"epochs": "many"}},
        {"extends": "other.yaml", "finetun": {}},
    ):
        assert not accepts(content), content


@pytest.mark.parametrize("kind", kinds("run"))
def test_every_starting_file_loads_and_explains_each_of_its_keys(kind, tmp_path, schema_of_a_file):
    path = tmp_path / "start.yaml"
    path.write_text(starting_file("run", kind, RunConfig), encoding="utf-8")
    config = load_config(path)
    mechanism = mechanism_of(config, plain_steps=1, clip_norm=1.0)
    promise = mechanism.guarantee()
    promised = {"uls": "user", "banded": "user", "els": "user", "group": "user", "filter": "user", "example": "example"}
    promised |= {"user-entity": "user-entity"}  # and not "uedp", whose claim is no guarantee
    assert (promise.unit if isinstance(promise, Guarantee) else None) == promised.get(kind)
    schema_of_a_file.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    text = path.read_text(encoding="utf-8").splitlines()
    for above, line in itertools.pairwise(text):
        if re.match(r"\s*\w+: .", line) and "kind:" not in line:
            assert above.lstrip().startswith("#"), line


def test_the_starting_files_of_audits_planted_sets_and_sweeps_load_and_explain_their_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(starting_file("run", "none", RunConfig), encoding="utf-8")
    for what, model in (("audit", CheckpointConfig), ("plant", PlantConfig), ("sweep", SweepConfig)):
        for kind in kinds(what):
            text = starting_file(what, kind, model)
            (tmp_path / "start.yaml").write_text(text, encoding="utf-8")
            model.model_validate(yaml.safe_load(text))
            assert what != "sweep" or len(load_sweep(tmp_path / "start.yaml").variants) == 3
            keys = [i for i, line in enumerate(text.splitlines()) if re.match(r"(?!canaries)\w+:", line)]
            assert all(text.splitlines()[i - 1].startswith("#") for i in keys)


@pytest.mark.parametrize(("command", "kind"), [(c, k) for c in ("run", "audit", "plant", "sweep") for k in kinds(c)])
def test_init_says_which_command_makes_what_its_file_names(call, tmp_path, monkeypatch, command, kind):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("init", command, "--kind", kind, "--json")
    assert code == 0
    said = json.loads(out)
    named = set(re.findall(r"^[^#]*?\b(example/[\w.]+|run\.yaml)", Path(said["file"]).read_text("utf-8"), re.MULTILINE))
    assert set(said["missing"]) == named
    assert (said["make"] is None) == (not named)
    assert named or (command, kind) != ("plant", "users")
    if not named:
        return
    call("init", command, "--kind", kind, "--out", "again.yaml")
    _, out, _ = call("init", command, "--kind", kind, "--out", "third.yaml")
    assert names(out, *named, said["make"])
    # The command makes them: models would take a minute, and are listed with the files.
    if command == "sweep":
        call(*shlex.split(said["make"])[1:])
    else:
        call(*shlex.split(said["make"].removesuffix(" --models"))[1:], "--users", "20")
        for model in ("example/base", "example/model"):
            Path(model).mkdir()
    assert all(Path(name).exists() for name in named)
    code, out, _ = call("init", command, "--kind", kind, "--out", "fourth.yaml", "--json")
    assert (json.loads(out)["missing"], json.loads(out)["make"]) == ([], None)


def test_init_in_another_folder_names_the_base_next_to_its_file(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    _, out, _ = call("init", "sweep", "--out", "a b/sweep.yaml", "--json")
    assert json.loads(out)["make"] == "heldin init run --out 'a b/run.yaml'"
    call(*shlex.split(json.loads(out)["make"])[1:])
    code, _, err = call("sweep", "a b/sweep.yaml", "--check")
    assert code == 0, err


def test_the_command_prints_keys_schema_and_starting_files_and_refuses_two_at_once(call, tmp_path):
    code, out, _ = call("config", "run", "finetune.epochs")
    assert code == 0
    assert "finetune.epochs: 10.0   (number above 0 to 1000000)" in out
    code, out, _ = call("config", "run", "--schema")
    assert json.loads(out) == file_schema()
    code, out, _ = call("config", "run", "--json")
    assert len(json.loads(out)["sections"]) == len(blocks())
    target = tmp_path / "new.yaml"
    code, out, _ = call("init", "run", "--kind", "uls", "--out", target)
    assert (code, target.read_text(encoding="utf-8")) == (0, starting_file("run", "uls", RunConfig))
    assert f"heldin run {target} --check" in out
    for arguments, by, naming in (
        (["init", "run", "--kind", "uls", "--out", target], "init", f"'{target}'"),
        (["init", "run", "--kind", "ulss"], "starting_file", ("'ulss'", "uls")),
        (["config", "run", "--schema", "--csv"], "config", ("--schema", "--csv")),
        (["config", "run", "finetune", "--schema"], "config", "--schema"),
    ):
        code, out, err = call(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert call.refused(by=by, naming=naming)
    _, out, _ = call("init", "--help")
    assert all(kind in out for what in ("run", "audit", "plant") for kind in kinds(what))
