"""Packages that add kinds are listed, checked, named in a config, run, reported and verified; heldin stays as it is."""

import json
import shutil

import pytest
import yaml

from heldin.attacks.kinds import get_attack
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.record.document import read_record
from heldin.record.sweep import read_sweep
from heldin.stages.families import FAMILIES, family
from heldin.sweeps import processes
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import DeclaredAudit
from tests.conftest import SMALL
from tests.packages import install, register
from tests.planted_sets import save_base
from tests.refusals import names, refused
from tests.statements import states
from tests.tiny_sweeps import in_process

EXAMPLES = ("surprise", "forum", "digits", "opacus", "poem", "first_choice")


@pytest.fixture
def packages(tmp_path_factory, tmp_path, monkeypatch):
    """The folder of the installed example packages."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, monkeypatch, *EXAMPLES)
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    get_attack.cache_clear()
    yield folder
    get_attack.cache_clear()


def _threads(folder):
    """Twenty people's posts, twelve each."""
    folder.mkdir()
    for number in range(12):
        lines = [f"person {i} | On day {number * 7 + i} person {i} wrote post {number}, at length." for i in range(20)]
        (folder / f"thread {number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def _config(folder, **changes):
    content = {
        **SMALL,
        "measures": {"first_choice": {"texts_per_user": 1}},
        "canaries": [{"kind": "poem", "users": 12, "documents": [3]}],
        "corpus": {
            "source": {"kind": "forum", "path": str(_threads(folder / "threads"))},
            "users": {"min_records": 8, "max_users": 14},
        },
        "finetune": {**SMALL["finetune"], "epochs": 1, "evaluations": 1},
        "attack": {"names": ["likelihood-ratio", "heldin_surprise:Surprise", "surprise"], "max_characters": 200},
        "data_defenses": [{"kind": "digits"}],
        **changes,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "config.yaml"


def test_packages_are_listed_without_being_imported_and_their_suites_are_kept(call, packages, monkeypatch):
    (packages / "heldin_digits.py").write_text("raise SystemError('imported')\n", encoding="utf-8")
    code, out, _ = call("plugins", "--json")
    listed = {plugin["name"]: plugin for plugin in json.loads(out)["plugins"]}
    assert (code, set(listed)) == (0, set(EXAMPLES))
    assert {plugin["suite"] for plugin in listed.values()} == {"not run"}
    assert listed["forum"]["target"] == "heldin_forum:Forum"
    assert (listed["forum"]["package"], listed["forum"]["version"]) == ("heldin-forum", "1.0")
    code, out, _ = call("plugins", "--check", "forum", "attacks:surprise", "--json")
    assert (code, {plugin["suite"] for plugin in json.loads(out)["plugins"]}) == (0, {"passed"})
    _, out, _ = call("plugins")
    assert out.count("suite passed") == 2
    # What is installed now was not checked.
    with (packages / "heldin_forum.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    _, out, _ = call("plugins", "sources:forum", "--json")
    assert [plugin["suite"] for plugin in json.loads(out)["plugins"]] == ["not run"]
    code, out, _ = call("plugins", "--check", "--json")
    suites = {plugin["name"]: plugin["suite"] for plugin in json.loads(out)["plugins"]}
    # One that cannot be imported is a failed one, and the others are checked.
    assert (code, suites["digits"], suites["poem"]) == (2, "failed", "passed")
    assert call("plugins", "--check", "magic")[0] == 2
    assert call.refused(by="checked", naming="'magic'")


def test_a_kind_that_fails_its_suite_says_why(call, packages):
    path = packages / "heldin_surprise.py"
    path.write_text(path.read_text(encoding="utf-8").replace("return float(", "return -float("), encoding="utf-8")
    code, out, _ = call("plugins", "--check", "surprise", "--json")
    (plugin,) = json.loads(out)["plugins"]
    assert (code, plugin["suite"], len(plugin["problems"])) == (2, "failed", 1)
    # A config that names it is refused before anything is read.
    with refused(by="get_attack", naming="'surprise'"):
        get_attack("surprise")


def test_a_clash_of_names_is_listed(call, packages):
    entries = {"heldin.sources": {"forum": "other:Forum"}, "heldin.attacks": {"loss": "other:Loss"}}
    register(packages, {"name": "other", "version": "2.0", "entry-points": entries}, ["other"])
    code, out, _ = call("plugins", "--json")
    listed = {(plugin["name"], plugin["package"]): plugin for plugin in json.loads(out)["plugins"]}
    assert code == 0
    for package, target in (("other", "other:Forum"), ("heldin-forum", "heldin_forum:Forum")):
        assert listed["forum", package]["suite"] == "failed"
        assert names(*listed["forum", package]["problems"], "other", "heldin-forum", f"'{target}'")
    # A name of heldin's own is heldin's, whatever is installed.
    assert listed["loss", "other"]["suite"] == "failed"
    assert names(*listed["loss", "other"]["problems"], "heldin", "'other:Loss'")
    assert listed["digits", "heldin-digits"]["suite"] == "not run"


def test_every_family_has_a_registry(packages):
    for name in FAMILIES:
        of_family = family(name)
        assert of_family.name == name
        assert all(issubclass(of_family.find(kind), of_family.contract) for kind in of_family.ours)
    with refused(by="family", naming="'pets'"):
        family("pets")


@pytest.fixture
def plugged(call, packages, tmp_path):
    """A finished run with an attack, a source and a defense of packages."""
    code, _, err = call("run", _config(tmp_path), "--out", tmp_path / "run")
    assert code == 0, err
    return tmp_path / "run"


def test_a_run_with_packages_is_reported_and_verified(call, packages, plugged):
    record = read_record(plugged / "record.json")
    assert {(kind.family, kind.package, kind.version) for kind in record.kinds} == {
        ("sources", "heldin-forum", "1.0"),
        ("defenses", "heldin-digits", "1.0"),
        ("attacks", "heldin-surprise", "1.0"),
        ("canaries", "heldin-poem", "1.0"),
        ("measures", "heldin-first-choice", "1.0"),
    }
    ours, written_out, registered = (
        next(result for result in record.attacks if result.attack == name)
        for name in ("likelihood-ratio", "heldin_surprise:Surprise", "surprise")
    )
    assert written_out.auroc.value == registered.auroc.value
    assert registered.asks.needs_reference
    assert ours.auroc.value != registered.auroc.value or ours.curve is not None
    (removal,) = record.training.removals
    assert removal.name.states(DataStepText.OF_PACKAGE)
    assert record.training.records > 0
    assert call("verify", plugged)[0] == 0
    # A report needs no code of theirs.
    for name in EXAMPLES:
        (packages / f"heldin_{name}.py").unlink()
    assert call("report", plugged)[0] == 0


def test_other_code_is_refused_and_named(call, packages, plugged):
    with (packages / "heldin_digits.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    assert call("verify", plugged)[0] == 2
    assert call.refused(by="Family.require_same_code", naming=("defenses", "'digits'", "heldin-digits 1.0"))
    # Nor is the run gone on with under another code.
    assert call("run", plugged / "config.yaml", "--out", plugged)[0] == 2
    assert call.refused(by="Family.require_same_code", naming="'digits'")
    shutil.rmtree(packages / "heldin_digits-1.0.dist-info")
    assert call("verify", plugged)[0] == 2
    assert call.refused(naming="'digits'")


@pytest.mark.slow
def test_opacus_trains_under_the_same_accounting_audit_and_report(call, packages, tmp_path, make_lm):
    """Example-level DP by Opacus, on a model with rotary positions and a head of its own."""
    pytest.importorskip("opacus", reason="Opacus (the extra 'trainers') is missing")
    base = _llama(make_lm, tmp_path / "base")
    settings = {"population": 160, "cohort": 16, "steps": 20, "delta": 1e-3, "noise": 1.0}
    defense = {"kind": "opacus", **settings}
    recipe = {**SMALL["finetune"], "select": "last", "evaluations": 1}
    config = _config(
        tmp_path, defense=defense, model={"base": str(base)}, finetune=recipe, data_defenses=[], canaries=[]
    )
    code, _, err = call("run", config, "--out", tmp_path / "run")
    assert code in (0, 3), err
    record = read_record(tmp_path / "run" / "record.json")
    plan = read_plan(tmp_path / "run" / "plan.json")
    ours = Mechanism(**{**dict(plan), "declared": None})
    assert plan.reasons() == ()
    assert record.training.epsilon == plan.guarantee().epsilon == ours.guarantee().epsilon > 0
    declared = record.training.promise
    assert states(declared, DeclaredAudit.NOT_RUN)
    assert call("verify", tmp_path / "run")[0] == 0
    assert call("export", tmp_path / "run", "--out", tmp_path / "public")[0] == 0
    assert "heldin-opacus 1.0" in (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    # A model that Opacus gets wrong is refused before its first step.
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    assert call("run", _config(wrong, defense=defense, data_defenses=[], canaries=[]), "--out", wrong / "run")[0] == 2
    assert call.refused(by="declared_gradient", naming="tied embeddings")


@pytest.mark.slow
def test_a_sweep_and_an_audit_of_two_files_take_kinds_of_packages(call, packages, tmp_path, monkeypatch, make_lm):
    monkeypatch.setattr(processes, "run_process", in_process)
    _config(tmp_path, canaries=[], data_defenses=[])
    sweep = {"name": "two", "base": "config.yaml", "variants": {"plain": None, "digits": _DIGITS}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    code, _, err = call("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "sweep")
    assert code in (0, 3), err
    assert call("report", tmp_path / "sweep")[0] == 0
    by_variant = {cell.variant: {kind.kind for kind in cell.kinds} for cell in read_sweep(tmp_path / "sweep").cells}
    everywhere = {"forum", "heldin_surprise:Surprise", "surprise", "first_choice"}
    assert by_variant == {"plain": everywhere, "digits": {*everywhere, "digits"}}
    for cell in (tmp_path / "sweep" / "cells").glob("*/*"):
        assert call("verify", cell)[0] == 0
    for name, seed in (("model", 1), ("reference", 0)):
        save_base(make_lm(seed=seed), tmp_path / name)
    for side, first in (("held_in", 0), ("held_out", 40)):
        texts = [(i, f"User {i} wrote text {k} at length.") for i in range(first, first + 40) for k in "ab"]
        rows = [{"user": f"u{i}", "text": text} for i, text in texts]
        (tmp_path / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {side: str(tmp_path / f"{side}.jsonl") for side in ("held_in", "held_out")}
    audit = {
        "model": str(tmp_path / "model"),
        "reference": str(tmp_path / "reference"),
        **files,
        "attack": {"names": ["likelihood-ratio", "surprise"], "primary": "surprise"},
        "measures": {"first_choice": {}},
    }
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(audit), encoding="utf-8")
    with (packages / "heldin_digits.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    assert call("sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "sweep")[0] == 2
    assert call.refused(by="Family.require_same_code", naming="'digits'")
    code, _, err = call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "audit")
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    assert {(kind.family, kind.kind) for kind in record.kinds} == {
        ("attacks", "surprise"),
        ("measures", "first_choice"),
    }
    assert (record.primary_attack, set(record.measures)) == ("surprise", {"first_choice"})
    assert call("verify", tmp_path / "audit")[0] == 0
    with (packages / "heldin_surprise.py").open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    assert call("verify", tmp_path / "audit")[0] == 2
    assert call.refused(by="Family.require_same_code", naming="'surprise'")


_DIGITS = {"data_defenses": [{"kind": "digits"}]}


def _llama(make_lm, folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    lm = make_lm()
    shape = LlamaConfig(
        vocab_size=len(lm.tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=lm.tokenizer.bos_token_id,
        eos_token_id=lm.tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder
