"""The configuration: everything shipped loads, every error at once, the nearest key suggested."""

import math
from pathlib import Path

import pytest
import yaml

from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, write_text
from heldin.corpus.config import Markov, Synthetic
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.text_files import Csv, JsonLines, Parquet
from heldin.jobs.checkpoint.audit_config import parse_checkpoint
from heldin.stages.run_config import load_config, parse_config
from heldin.stages.run_folder import for_any_config_without_coins, require_folder, take_folder
from heldin.sweeps.load import demo_sweep
from tests.conftest import SMALL

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


def test_a_key_that_is_called_like_a_kind_elsewhere_is_named():
    """A cap is a data-side defense, and a key of ULS."""
    defense = {"kind": "uls", "population": 9, "cohort": 3, "steps": 2, "delta": 1e-3, "noise_multiplier": 1.0}
    with pytest.raises(InputError, match=r"\n  defense\.cap: Input should be greater than or equal to 1"):
        parse_config({**MINIMAL, "defense": {**defense, "cap": 0}}, "test")
    with pytest.raises(InputError, match=r"\n  data_defenses\.0: Cap: records: input should be greater than or equal"):
        parse_config({**MINIMAL, "data_defenses": [{"kind": "cap", "records": 0}]}, "test")


def test_the_demo_loads_and_the_defaults_are_the_papers():
    assert [its.name for its in demo_sweep().variants] == ["none", "dedup-cap", "example", "els", "uls"]
    config = parse_config(MINIMAL, "test")
    assert (config.finetune.epochs, config.finetune.batch_size, config.finetune.learning_rate) == (10, 8, 5e-5)
    assert (config.split.attacker_fraction, config.split.evaluation_fraction) == (0.1, 0.1)
    assert config.audit.fprs == (0.001, 0.005, 0.01, 0.05, 0.1)
    assert config.audit.resamples == 2000


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"kind": "jsonl", "path": "m.jsonl", "columns": {"user": "who"}}, JsonLines),
        ({"kind": "csv", "path": "m.csv"}, Csv),
        ({"kind": "parquet", "path": "m.parquet"}, Parquet),
        ({"kind": "huggingface", "name": "org/data", "split": "train"}, HuggingFace),
        ({"kind": "synthetic", "parameters": {"users": 5}}, Synthetic),
        ({"kind": "markov", "parameters": {"users": 5, "vocabulary": 8}}, Markov),
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
    text = str(caught.value)
    assert text.startswith("test: 6 errors\n")
    for line in (
        "finetune.learning_rte: unknown key; did you mean 'learning_rate'?",
        "splitt: unknown key; did you mean 'split'?",
        "corpus.source.columns.usr: unknown key; did you mean 'user'?",
        "corpus.users.min_record: unknown key; did you mean 'min_records'?",
        "audit.resamples: Input should be greater than or equal to 100 (found 5)",
        "finetune.batch_size: ",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {}}, "model: give exactly one of 'base' .* and 'pretrain'"),
        ({"finetune": {"epochs": 0}}, r"finetune.epochs: Input should be greater than 0 \(found 0\)"),
        ({"corpus": {"source": {"kind": "synthetic"}, "users": {"min_records": 3}}}, "it must be at least 4"),
        (
            {"corpus": {"source": {"kind": "synthetic", "parameters": {"users": 0}}}},
            r"parameters.users: .* greater than or equal to 1 \(found 0\)",
        ),
        ({"corpus": {"source": {"kind": "xml"}}}, "'xml'"),
        (
            {"corpus": {"source": {"kind": "jsonl", "path": "${NO_SUCH_VAR}/m"}}},
            r": 1 error\n  corpus.source.path: '\${NO_SUCH_VAR}/m' names an environment variable that is not set: .*$",
        ),
        (
            {"corpus": {"source": {"kind": "jsonl", "path": ["a", "$NO_SUCH_VAR"]}}},
            r": 1 error\n  corpus.source.path.1: '\$NO_SUCH_VAR' names an environment variable that is not set: .*$",
        ),
        (
            {"data_defenses": [{"kind": "cap", "records": 3, "selection": "all"}]},
            r": 1 error\n  data_defenses.0: Cap: selection: input should be 'random', .*, got 'all'$",
        ),
        ({"attack": {"names": ["magic"]}}, "unknown attack 'magic': choose from"),
        ({"attack": {"primary": "loss", "names": ["zlib"]}}, "primary attack 'loss' is not among names"),
        ({"attack": {"aggregations": ["median"]}}, "unknown aggregation 'median'"),
        (
            {"model": {"pretrain": {"shape": {"context": 64}}}},
            "finetune.sequence_length = 512 is above model.pretrain.shape.context = 64",
        ),
        ({"model": {"pretrain": {"recipe": {"select": "best"}}}}, "recipe.select must be 'last'"),
        ({"name": "a/b"}, "name: letters, digits, dots, underscores and hyphens were expected .found 'a/b'"),
        ({"defense": {**PRIVATE, "target_epsilon": math.inf}}, "defense.target_epsilon: a finite number was expected"),
        ({"defense": {**PRIVATE, "clip_norm": 1e-13}}, "defense.clip_norm: .* greater than or equal to 0.000000000001"),
        ({"finetune": {"learning_rate": math.nan}}, "finetune.learning_rate: a finite number was expected"),
    ],
)
def test_values_that_cannot_be(sections, message):
    with pytest.raises(InputError, match=message):
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
    with pytest.raises(InputError, match="--set epochs: expected key.key=value"):
        load_config(path, ["epochs"])
    with pytest.raises(InputError, match="--set name.x=1: 'name' is not a section"):
        load_config(path, ["name.x=1"])
    with pytest.raises(InputError, match="finetune.epoch: unknown key; did you mean 'epochs'"):
        load_config(path, ["finetune.epoch=3"])
    with pytest.raises(InputError, match="--set finetune=.*: the value is line 1: 'epochs' is given twice"):
        load_config(path, ["finetune={epochs: 1, epochs: 2}"])


@pytest.mark.parametrize(
    ("key", "meant"),
    [("lr", "learning_rate"), ("num_epochs", "epochs"), ("max_length", "sequence_length"), ("batchsize", "batch_size")],
)
def test_a_key_of_another_tool_is_told_its_name_here(key, meant):
    with pytest.raises(InputError, match=f"finetune.{key}: unknown key; did you mean '{meant}'?"):
        _with(finetune={key: 1})


def test_what_a_recipe_of_pre_training_leaves_out_is_pre_training_s_own():
    short = {"sequence_length": 64}
    recipe = _with(finetune=short, model={"pretrain": {"recipe": {"epochs": 2}}}).model.pretrain.recipe
    assert (recipe.select, recipe.epochs, recipe.learning_rate, recipe.sequence_length) == ("last", 2, 2e-3, 128)
    with pytest.raises(InputError, match="recipe.select must be 'last'"):
        _with(finetune=short, model={"pretrain": {"recipe": {"epochs": 2, "select": "best"}}})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"defense": {"clip_norm": 1}}, "defense.kind: this key is required; choose from none, clip, uls"),
        ({"defense": {"kind": "ulss"}}, "defense.kind: there is no 'ulss'; did you mean 'uls'"),
        ({"defense": {"kind": True}}, "defense.kind: there is no 'True'; choose from none"),
        ({"finetune": 3}, "finetune: a section of keys and values was expected .found 3"),
        ({"data_defenses": 5}, "data_defenses: a list was expected .found 5"),
        ({"defense": {"kind": "uls", "local": {5: 1}}}, "a key must be text"),
    ],
)
def test_what_is_wrong_is_said_without_the_words_of_a_library(wrong, said):
    with pytest.raises(InputError, match=said):
        parse_config({**SMALL, **wrong}, "small")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "broken YAML"),
        ("name: 2026-02-30", "day is out of range for month.: put text that looks like a date or a number into quotes"),
        ("a: !!timestamp x", "broken YAML"),
        ("[" * 5000, "nested too deeply"),
        ("extends:\n", "extends: the name of a file was expected .found None"),
        ("- a", "a mapping of sections was expected, found list"),
        ("name: x\nseed: 1\nname: y\n", "c.yaml: line 3: 'name' is given twice: keep one"),
        ("finetune:\n  epochs: 1\n  epochs: 2\n", "line 3: 'epochs' is given twice"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_config(path)
    with pytest.raises(InputError, match="no such config: '.*gone.yaml'"):
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
    with pytest.raises(InputError, match=r"no such config: '.*b.yaml', which '.*a.yaml' extends"):
        load_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a.yaml' extends itself, through .*a.yaml, .*b.yaml"):
        load_config(tmp_path / "a.yaml")


def test_a_folder_is_of_the_same_config_only_with_all_its_keys_and_values(tmp_path):
    config = parse_config(SMALL, "small")
    write_text(tmp_path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json")))
    assert require_folder(config, tmp_path)
    (tmp_path / "ledger").mkdir()
    content = config.model_dump(mode="json")
    lacks = {**content, "corpus": {key: its for key, its in content["corpus"].items() if key != "text_unit"}}
    for change, said in (
        ({**content, "seed": 5}, "'seed' differs"),
        ({**content, "gone": 1}, "'gone' differs"),
        (lacks, "'corpus.text_unit' differs"),
    ):
        write_text(tmp_path / "config.yaml", yaml.safe_dump(change))
        with pytest.raises(InputError, match=said):
            require_folder(config, tmp_path)


def test_of_a_run_that_its_config_stopped_nothing_would_be_lost(tmp_path):
    """No coin was drawn there; the folder is left all the same, since the run may be at work."""
    config = parse_config(SMALL, "small")
    take_folder(config, tmp_path)
    other = parse_config({**SMALL, "seed": 5}, "small")
    with pytest.raises(InputError, match="or remove the folder, for which no coin was drawn yet"):
        take_folder(other, tmp_path)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == config.model_dump(mode="json")
    with one_process_at_a_time(tmp_path), pytest.raises(InputError, match="and a process works on it: choose another"):
        take_folder(other, tmp_path)
    (tmp_path / "ledger").mkdir()
    with pytest.raises(InputError, match="choose another --out$"):
        take_folder(other, tmp_path)


def test_a_folder_whose_input_could_not_be_read_is_for_the_mended_config(small_config, tmp_path, call):
    config = yaml.safe_load(small_config.read_text(encoding="utf-8"))
    for path in ("smal.jsonl", "small.jsonl"):
        wrong = {**config, "corpus": {"source": {"kind": "jsonl", "path": str(tmp_path / path)}}}
        (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong), encoding="utf-8")
        code, _, err = call("run", tmp_path / "wrong.yaml", "--out", tmp_path / "out")
        assert (code, "no such file" in err) == (2, True)
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
    ("release", "line"),
    [
        ({"access": "api"}, "release.access: Input should be 'weights', 'log-probabilities' or 'text' (found 'api')"),
        ({"access": "text", "rate_limit": 0}, "release.rate_limit: rate_limit is a number of queries a day, 1 or more"),
        (
            {"access": "text", "rate_limit": 2.5},
            "release.rate_limit: rate_limit is a number of queries a day, 1 or more",
        ),
        ({"access": "text", "whom": "all"}, "release.whom: unknown key; did you mean 'who'?"),
        ({"who": "the staff"}, "release.access: this key is required"),
    ],
)
def test_a_release_that_is_not_understood_is_one_line(release, line):
    for parse in (parse_config, lambda content, where: parse_checkpoint({**AUDIT, **content}, where)):
        with pytest.raises(InputError) as caught:
            parse({**(MINIMAL if parse is parse_config else {}), "release": release}, "test")
        head, said = str(caught.value).splitlines()
        assert head == "test: 1 error"
        assert line in said


def test_limits_are_in_the_words_of_a_sweep():
    limits = [{"of": "auroc", "limit": "upper", "at_most": 0.6}]
    (its,) = _with(decision={"require": limits}).decision.require
    assert its.requirement().words() == "auroc at most 0.6"
    with pytest.raises(InputError, match="decision.require.0: give one of at_most and at_least"):
        _with(decision={"require": [{"of": "auroc"}]})
    for limit in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="decision.require.0.at_most: a finite number was expected"):
            _with(decision={"require": [{"of": "auroc", "at_most": limit}]})
    with pytest.raises(InputError, match="decision.require.0.of: Input should be"):
        _with(decision={"require": [{"of": "named", "at_most": 100}]})


def test_a_precision_needs_a_model_that_is_loaded_here():
    served = {**AUDIT, "endpoint": {"url": "http://127.0.0.1:1/v1"}, "attack": {"precision": "bf16"}}
    said = r"attack.precision \(--precision\): every model stands behind the endpoint, and none is loaded here"
    with pytest.raises(InputError, match=said):
        parse_checkpoint({**served, "reference": ["endpoint:r", "endpoint:s"]}, "")
    # One of them is loaded here, and float32 asks for nothing.
    assert parse_checkpoint({**served, "reference": ["endpoint:r", "s"]}, "").attack.precision == "bf16"
    assert parse_checkpoint({**served, "reference": ["endpoint:r"], "attack": {"precision": "fp32"}}, "").reference
