"""The configuration: everything shipped loads, every error at once, the nearest key suggested."""

import math
from pathlib import Path

import pytest
import yaml

from heldin.audit.requirement import Requirement
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, write_text
from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.sources.csv_rows import Csv
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.parquet_rows import Parquet
from heldin.jobs.checkpoint.audit_config import parse_checkpoint
from heldin.stages.run_config import load_config, parse_config
from heldin.stages.run_folder import for_any_config_without_coins, require_folder, take_folder
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.load import demo_sweep
from tests.conftest import SMALL
from tests.refusals import names, refused

ROOT = Path(__file__).resolve().parents[2]
# Those of sweeps are read in tests/sweeps.
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "sweeps")
PRIVATE = {"kind": "uls", "population": 30, "cohort": 8, "steps": 6, "delta": 1e-3}
MINIMAL = {"name": "x", "corpus": {"source": {"kind": "synthetic"}}, "model": {"base": "EleutherAI/gpt-neo-125m"}}

AUDIT = {"model": "m", "reference": "r", "held_in": "a.jsonl", "held_out": "b.jsonl"}


def _with(**sections):
    return parse_config({**MINIMAL, **sections}, "test")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_loads(path, monkeypatch):
    monkeypatch.setenv("HELDIN_DATA_DIR", "/data")
    assert load_config(path).name == path.stem


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_a_shipped_config_reads_folders_where_the_commands_of_the_docs_write_them(path):
    """Paths start at the current folder, which is the repository in every command of the docs, and not at the file."""
    made = [value for value in _texts_in(yaml.safe_load(path.read_text(encoding="utf-8"))) if "runs/" in value]
    assert all(value.startswith("runs/") for value in made)


def _texts_in(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for each in value for text in _texts_in(each)]
    return [value] if isinstance(value, str) else []


def test_a_key_that_is_called_like_a_kind_elsewhere_is_named():
    """A cap is a data-side defense, and a key of ULS."""
    defense = {"kind": "uls", "population": 9, "cohort": 3, "steps": 2, "delta": 1e-3, "noise_multiplier": 1.0}
    with refused(by="checked", naming=("defense.cap", "1", "0")):
        parse_config({**MINIMAL, "defense": {**defense, "cap": 0}}, "test")
    with refused(by="checked", naming=("data_defenses.0", "records", "1", "0")):
        parse_config({**MINIMAL, "data_defenses": [{"kind": "cap", "records": 0}]}, "test")


def test_the_demo_loads_and_its_rule_can_select():
    short, whole = demo_sweep(), demo_sweep(every=True)
    assert [variant.name for variant in short.variants] == ["none", "dedup-cap", "uls"]
    assert [variant.name for variant in whole.variants] == ["none", "dedup-cap", "example", "els", "uls"]
    for sweep in (short, whole):
        # All have the same users, and the rule has its blocks.
        assert {variant.group for variant in sweep.variants} == {"none"}
        assert sweep.config.decision is not None
        # The audits call small what the rule accepts.
        limit = sweep.config.decision.require[0].at_most
        assert {variant.config.decision.auroc for variant in sweep.variants} == {limit}
        assert all(mechanism_of(variant.config, plain_steps=1, clip_norm=1.0) for variant in sweep.variants[2:])


def test_the_defaults_are_the_papers():
    config = parse_config(MINIMAL, "test")
    assert (config.finetune.epochs, config.finetune.batch_size, config.finetune.learning_rate) == (10, 8, 5e-5)
    assert (config.split.attacker_fraction, config.split.evaluation_fraction) == (0.1, 0.1)
    assert config.audit.fprs == (0.001, 0.005, 0.01, 0.05, 0.1)
    assert config.audit.resamples == 2000


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"kind": "jsonl", "path": "m.jsonl", "columns": {"user": "who"}}, Json),
        ({"kind": "csv", "path": "m.csv"}, Csv),
        ({"kind": "parquet", "path": "m.parquet"}, Parquet),
        ({"kind": "huggingface", "name": "org/data", "split": "train"}, HuggingFace),
        ({"kind": "synthetic", "parameters": {"users": 5}}, Synthetic),
    ],
)
def test_every_kind_of_corpus_is_configured(source, kind):
    assert isinstance(_with(corpus={"source": source}).corpus.source.source(), kind)


def test_all_errors_are_said_at_once_with_the_nearest_key():
    with pytest.raises(InputError) as caught:
        _with(
            finetune={"epochs": 2, "learning_rte": 1e-3, "batch_size": "many"},
            splitt={},
            corpus={"source": {"kind": "jsonl", "path": "x", "columns": {"usr": "a"}}, "users": {"min_record": 9}},
            audit={"resamples": 5},
        )
    head, *faults = str(caught.value).splitlines()
    assert head == "test: 6 errors"
    named = {
        "finetune.learning_rte": ("'learning_rate'",),
        "splitt": ("'split'",),
        "corpus.source.columns.usr": ("'user'",),
        "corpus.users.min_record": ("'min_records'",),
        "audit.resamples": ("100", "5"),
        "finetune.batch_size": ("'many'",),
    }
    by_key = dict(fault.strip().split(": ", 1) for fault in faults)
    assert by_key.keys() == named.keys()
    assert all(names(by_key[key], *data) for key, data in named.items())


@pytest.mark.parametrize(
    ("sections", "by", "naming"),
    [
        ({"model": {}}, "ModelConfig._one_of_both", ("'base'", "'pretrain'")),
        ({"finetune": {"epochs": 0}}, "checked", ("finetune.epochs", "0")),
        (
            {"corpus": {"source": {"kind": "synthetic"}, "users": {"min_records": 3}}},
            "CorpusConfig._enough_to_split",
            "4",
        ),
        (
            {"corpus": {"source": {"kind": "synthetic", "parameters": {"users": 0}}}},
            "checked",
            ("parameters.users", "1", "0"),
        ),
        ({"corpus": {"source": {"kind": "xml"}}}, "checked", "'xml'"),
        (
            {"corpus": {"source": {"kind": "jsonl", "path": "${NO_SUCH_VAR}/m"}}},
            "_expanded",
            ("1 error", "corpus.source.path", "'${NO_SUCH_VAR}/m'"),
        ),
        (
            {"corpus": {"source": {"kind": "jsonl", "path": ["a", "$NO_SUCH_VAR"]}}},
            "_expanded",
            ("1 error", "corpus.source.path.1", "'$NO_SUCH_VAR'"),
        ),
        (
            {"data_defenses": [{"kind": "cap", "records": 3, "selection": "all"}]},
            "checked",
            ("1 error", "data_defenses.0", "selection", "'random'", "'all'"),
        ),
        ({"attack": {"names": ["magic"]}}, "AttackConfig._known", "'magic'"),
        ({"attack": {"primary": "loss", "names": ["zlib"]}}, "AttackConfig._known", "'loss'"),
        ({"attack": {"aggregations": ["median"]}}, "AttackConfig._known", "'median'"),
        (
            {"model": {"pretrain": {"shape": {"context": 64}}}},
            "RunConfig._sequence_fits",
            ("finetune.sequence_length", "512", "model.pretrain.shape.context", "64"),
        ),
        (
            {"model": {"pretrain": {"recipe": {"select": "best"}}}},
            "PretrainConfig._pretrains",
            ("recipe.select", "'last'"),
        ),
        ({"name": "a/b"}, "checked", "'a/b'"),
        ({"defense": {**PRIVATE, "target_epsilon": math.inf}}, "checked", ("defense.target_epsilon", "inf")),
        ({"defense": {**PRIVATE, "clip_norm": 1e-13}}, "checked", ("defense.clip_norm", "0.000000000001")),
        ({"finetune": {"learning_rate": math.nan}}, "checked", ("finetune.learning_rate", "nan")),
    ],
)
def test_values_that_cannot_be(sections, by, naming):
    with refused(by=by, naming=naming):
        _with(**sections)


def test_overrides_reach_any_depth_and_their_mistakes_are_told(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: x\ncorpus: {source: {kind: synthetic}}\nmodel: {base: gpt2}\n", encoding="utf-8")
    config = load_config(
        path, ["finetune.epochs=3", "corpus.source.parameters.users=7", "attack.names=[likelihood-ratio]"]
    )
    assert config.finetune.epochs == 3
    assert config.corpus.source.parameters.users == 7
    assert config.attack.names == ("likelihood-ratio",)
    with refused(by="_override", naming=("--set", "epochs", "key.key=value")):
        load_config(path, ["epochs"])
    with refused(by="_override", naming=("--set", "name.x=1", "'name'")):
        load_config(path, ["name.x=1"])
    with refused(by="checked", naming=("finetune.epoch", "'epochs'")):
        load_config(path, ["finetune.epoch=3"])
    with refused(by="_override", naming=("--set", "1", "line 1", "'epochs'")):
        load_config(path, ["finetune={epochs: 1, epochs: 2}"])


@pytest.mark.parametrize(
    ("key", "meant"),
    [("lr", "learning_rate"), ("num_epochs", "epochs"), ("max_length", "sequence_length"), ("batchsize", "batch_size")],
)
def test_a_key_of_another_tool_is_told_its_name_here(key, meant):
    with refused(by="checked", naming=(f"finetune.{key}", f"'{meant}'")):
        _with(finetune={key: 1})


def test_what_a_recipe_of_pre_training_leaves_out_is_pre_training_s_own():
    short = {"sequence_length": 64}
    recipe = _with(finetune=short, model={"pretrain": {"recipe": {"epochs": 2}}}).model.pretrain.recipe
    assert (recipe.select, recipe.epochs, recipe.learning_rate, recipe.sequence_length) == ("last", 2, 2e-3, 128)
    with refused(by="PretrainConfig._pretrains", naming=("recipe.select", "'last'")):
        _with(finetune=short, model={"pretrain": {"recipe": {"epochs": 2, "select": "best"}}})


@pytest.mark.parametrize(
    ("wrong", "naming"),
    [
        ({"defense": {"clip_norm": 1}}, ("defense.kind", "none", "clip", "uls")),
        ({"defense": {"kind": "ulss"}}, ("defense.kind", "'ulss'", "'uls'")),
        ({"defense": {"kind": True}}, ("defense.kind", "'True'", "none", "clip", "uls")),
        ({"finetune": 3}, ("finetune", "3")),
        ({"data_defenses": 5}, ("data_defenses", "5")),
        ({"defense": {"kind": "uls", "local": {5: 1}}}, ("small", "key", "text")),
    ],
)
def test_what_is_wrong_is_said_without_the_words_of_a_library(wrong, naming):
    with refused(by="checked", naming=naming):
        parse_config({**SMALL, **wrong}, "small")


@pytest.mark.parametrize(
    ("content", "by", "naming"),
    [
        ("a: [", "read_yaml", "YAML"),
        ("name: 2026-02-30", "_UniqueKeys.construct_mapping", ()),
        ("a: !!timestamp x", "read_yaml", "YAML"),
        ("[" * 5000, "_UniqueKeys.get_single_node", ()),
        ("extends:\n", "read_config", ("extends", "None")),
        ("- a", "read_config", ("c.yaml", "list")),
        ("name: x\nseed: 1\nname: y\n", "_UniqueKeys.construct_mapping", ("c.yaml", "line 3", "'name'")),
        ("finetune:\n  epochs: 1\n  epochs: 2\n", "_UniqueKeys.construct_mapping", ("line 3", "'epochs'")),
    ],
)
def test_files_that_are_no_config(tmp_path, content, by, naming):
    path = tmp_path / "c.yaml"
    path.write_text(content, encoding="utf-8")
    with refused(by=by, naming=naming):
        load_config(path)
    with refused(by="read_config", naming="gone.yaml"):
        load_config(tmp_path / "gone.yaml")


def test_a_config_extends_another_section_by_section(small_config, tmp_path):
    (tmp_path / "base.yaml").write_text(small_config.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "over.yaml").write_text(
        "extends: base.yaml\nname: over\nfinetune: {learning_rate: 0.5}\n", encoding="utf-8"
    )
    base, over = load_config(tmp_path / "base.yaml"), load_config(tmp_path / "over.yaml", ["seed=7"])
    assert (over.name, over.seed, over.finetune.learning_rate) == ("over", 7, 0.5)
    assert over.finetune.sequence_length == base.finetune.sequence_length == 48
    assert over.corpus == base.corpus


def test_extending_nothing_or_itself_is_one_clear_line(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n", encoding="utf-8")
    with refused(by="read_config", naming=("b.yaml", "a.yaml")):
        load_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n", encoding="utf-8")
    with refused(by="read_config", naming=("a.yaml'", "a.yaml", "b.yaml")):
        load_config(tmp_path / "a.yaml")


def test_a_folder_is_of_the_same_config_only_with_all_its_keys_and_values(tmp_path):
    config = parse_config(SMALL, "small")
    write_text(tmp_path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json")))
    assert require_folder(config, tmp_path)
    (tmp_path / "ledger").mkdir()
    content = config.model_dump(mode="json")
    lacks = {**content, "corpus": {key: its for key, its in content["corpus"].items() if key != "text_unit"}}
    for change, naming in (
        ({**content, "seed": 5}, "'seed'"),
        ({**content, "gone": 1}, "'gone'"),
        (lacks, "'corpus.text_unit'"),
    ):
        write_text(tmp_path / "config.yaml", yaml.safe_dump(change))
        with refused(by=require_folder, naming=naming):
            require_folder(config, tmp_path)


def test_of_a_run_that_its_config_stopped_nothing_would_be_lost(tmp_path):
    """No coin was drawn there; the folder is left all the same, since the run may be at work."""
    config = parse_config(SMALL, "small")
    take_folder(config, tmp_path)
    other = parse_config({**SMALL, "seed": 5}, "small")
    with refused(by=require_folder, naming=("'seed'", "--out")) as undrawn:
        take_folder(other, tmp_path)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == config.model_dump(mode="json")
    with one_process_at_a_time(tmp_path), refused(by=require_folder, naming=("'seed'", "--out")) as working:
        take_folder(other, tmp_path)
    (tmp_path / "ledger").mkdir()
    with refused(by=require_folder, naming=("'seed'", "--out")) as drawn:
        take_folder(other, tmp_path)
    # Whether the folder can be removed, and whether a process works on it.
    assert len({str(caught.value) for caught in (undrawn, working, drawn)}) == 3


def test_a_folder_whose_input_could_not_be_read_is_for_the_mended_config(small_config, tmp_path, call):
    config = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    for path in ("smal.jsonl", "small.jsonl"):
        wrong = {**config, "corpus": {"source": {"kind": "jsonl", "path": str(tmp_path / path)}}}
        (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong), encoding="utf-8")
        call("run", tmp_path / "wrong.yaml", "--out", tmp_path / "out")
        assert call.refused(by="existing", naming=f"'{tmp_path / path}'")
        assert [its.name for its in (tmp_path / "out").iterdir()] == ["log.txt"]


def test_only_what_no_coin_was_drawn_for_is_left_to_any_config(tmp_path):
    take_folder(parse_config(SMALL, "small"), tmp_path)
    for error, left in ((KeyboardInterrupt, True), (InputError, False)):
        with pytest.raises(error), for_any_config_without_coins(tmp_path):
            raise error
        assert (tmp_path / "config.yaml").is_file() == left
    take_folder(parse_config(SMALL, "small"), tmp_path)
    (tmp_path / "ledger").mkdir()
    with pytest.raises(InputError), for_any_config_without_coins(tmp_path):
        raise InputError("too late")
    assert (tmp_path / "config.yaml").is_file()


@pytest.mark.parametrize(
    ("release", "naming"),
    [
        ({"access": "api"}, ("release.access", "'weights'", "'log-probabilities'", "'text'", "'api'")),
        ({"access": "text", "rate_limit": 0}, ("release.rate_limit", "1")),
        ({"access": "text", "rate_limit": 2.5}, ("release.rate_limit", "1")),
        ({"access": "text", "whom": "all"}, ("release.whom", "'who'")),
        ({"who": "the staff"}, ("release.access",)),
    ],
)
def test_a_release_that_is_not_understood_is_one_line(release, naming):
    for parse in (parse_config, lambda content, where: parse_checkpoint({**AUDIT, **content}, where)):
        with refused(naming=naming) as caught:
            parse({**(MINIMAL if parse is parse_config else {}), "release": release}, "test")
        head, _ = str(caught.value).splitlines()
        assert head == "test: 1 error"


def test_limits_are_in_the_words_of_a_sweep():
    limits = [{"of": "auroc", "limit": "upper", "at_most": 0.6}]
    (its,) = _with(decision={"require": limits}).decision.require
    assert its.requirement() == Requirement("auroc", at_most=0.6)
    with refused(by="RequirementConfig._one_limit", naming=("decision.require.0", "at_most", "at_least")):
        _with(decision={"require": [{"of": "auroc"}]})
    for limit in (math.nan, math.inf, -math.inf):
        with refused(by="checked", naming=("decision.require.0.at_most", limit)):
            _with(decision={"require": [{"of": "auroc", "at_most": limit}]})
    with refused(by="checked", naming=("decision.require.0.of", "'named'")):
        _with(decision={"require": [{"of": "named", "at_most": 100}]})


def test_a_precision_needs_a_model_that_is_loaded_here():
    served = {**AUDIT, "endpoint": {"url": "http://127.0.0.1:1/v1"}, "attack": {"precision": "bf16"}}
    said = r"attack.precision \(--dtype\).* every model is behind the endpoint"
    with pytest.raises(InputError, match=said):
        parse_checkpoint({**served, "reference": ["endpoint:r", "endpoint:s"]}, "")
    # One of them is loaded here, and float32 asks for nothing.
    assert parse_checkpoint({**served, "reference": ["endpoint:r", "s"]}, "").attack.precision == "bf16"
    assert parse_checkpoint({**served, "reference": ["endpoint:r"], "attack": {"precision": "fp32"}}, "").reference
