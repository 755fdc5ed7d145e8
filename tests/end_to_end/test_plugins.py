"""Packages that add kinds are listed, checked, named in a config, run, reported and verified; heldin stays as it is."""

import json
import shutil

import pytest
import yaml

from heldin.attacks.kinds import get_attack
from heldin.record.document import read_record
from heldin.stages.families import FAMILIES, family
from heldin.words.data_steps import DataStepText
from tests.conftest import SMALL
from tests.packages import install
from tests.refusals import refused

EXAMPLES = ("surprise", "forum", "digits")


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
    assert call("plugins", "--check", "digits")[0] == 2
    assert call.refused(by="Family.find", naming="'digits'")
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
    assert call.refused(by="require_same_code", naming=("defenses", "'digits'", "heldin-digits 1.0"))
    # Nor is the run gone on with under another code.
    assert call("run", plugged / "config.yaml", "--out", plugged)[0] == 2
    assert call.refused(by="require_same_code", naming="'digits'")
    shutil.rmtree(packages / "heldin_digits-1.0.dist-info")
    assert call("verify", plugged)[0] == 2
    assert call.refused(naming="'digits'")
