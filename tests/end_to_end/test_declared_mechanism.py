"""A mechanism of a package through the commands: run, report, verify, export, white-box; heldin stays as it is."""

import json

import pytest
import yaml

from heldin.base.errors import ExitCode
from heldin.defenses.mechanisms.declared import OF_PLAN
from heldin.defenses.plan_file import read_plan
from heldin.record.document import read_record
from heldin.reports.page_one import state_guarantee
from heldin.words.guarantee import DeclaredAudit, GuaranteeText, NoGuaranteeReason, without_conditions
from heldin.words.page_one import Guaranteed
from tests.conftest import SMALL
from tests.declared_steps import HONEST, install
from tests.statements import states

DEFENSE = {"kind": "heldin_mine:Mine", "population": 200, "cohort": 6, "steps": 3, "delta": 1e-3, "noise": 1.2}


@pytest.fixture
def package(tmp_path_factory, monkeypatch):
    """The folder of an installed package with a mechanism."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, monkeypatch)
    return folder


def _config(path, **defense):
    content = json.loads(json.dumps(SMALL))
    content["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
    content["finetune"] = {"learning_rate": 1e-3, "sequence_length": 48, "evaluations": 1, "select": "last"}
    content["defense"] = {**DEFENSE, **defense}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture
def run(call, package, tmp_path):
    """A finished run under the mechanism."""
    code, _, err = call("run", _config(tmp_path / "config.yaml"), "--out", tmp_path / "run")
    assert code == 0, err
    return tmp_path / "run"


def test_a_run_says_whose_word_its_epsilon_is(call, package, run, tmp_path):
    record = read_record(run / "record.json")
    training = record.training
    assert (training.defense, training.unit, training.steps) == ("heldin_mine:Mine", "example", 3)
    declared = training.declared_by
    assert (declared.package, declared.version, declared.audit) == ("heldin_mine", "0.3", "not run")
    assert read_plan(run / "plan.json").declared.sha256 == declared.sha256
    assert without_conditions(training.promise).states(GuaranteeText.DECLARED)
    page = state_guarantee(record)
    assert [statement.code for statement in page if statement.states(Guaranteed.DECLARED)]
    assert states(training.declared_by.stated, DeclaredAudit.NOT_RUN)
    assert call("report", run)[0] == 0
    assert call("verify", run)[0] == 0
    code, _, err = call("export", run, "--out", tmp_path / "public")
    assert code == 0, err
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert str(declared.stated).strip() in card
    assert str(without_conditions(training.promise))[1:] in card
    # A report and an exported folder need no code of the package.
    (package / "heldin_mine.py").unlink()
    assert call("verify", "--exported", tmp_path / "public")[0] == 0


def test_other_code_is_refused_where_a_run_goes_on(call, package, tmp_path, monkeypatch):
    path = _config(tmp_path / "config.yaml")
    assert call("run", path, "--out", tmp_path / "run", "--check")[0] == 0
    assert call("run", path, "--out", tmp_path / "run")[0] == 0
    install(package, monkeypatch, HONEST + "\n# another version\n")
    assert call("verify", tmp_path / "run")[0] == 2
    # A step that raises ends the run with a line of its own.
    install(package, monkeypatch, HONEST.replace("losses = []", "losses = []\n        raise KeyError('nothing')"))
    assert call("run", path, "--out", tmp_path / "raises")[0] == 2
    assert call.refused(by="declared_gradient", naming=("'heldin_mine:Mine'", "KeyError"))


@pytest.mark.parametrize(
    ("code", "naming"),
    [
        (HONEST.replace("return dp_event.SelfComposedDpEvent(single, self.steps)", "return self.noise"), "float"),
        (HONEST.replace("SelfComposedDpEvent(single, self.steps)", "SelfComposedDpEvent(single, 2)"), ("2", "3")),
        (HONEST.replace("dp_event.GaussianDpEvent(self.noise)", "dp_event.LaplaceDpEvent(1.0)"), "LaplaceDpEvent"),
        (HONEST.replace('] = "example"', '] = "sentence"'), "unit"),
    ],
)
def test_a_declaration_that_nothing_accounts_for_is_refused_before_anything_is_read(
    call, package, tmp_path, monkeypatch, code, naming
):
    assert code != HONEST
    install(package, monkeypatch, code)
    assert call("run", _config(tmp_path / "config.yaml"), "--out", tmp_path / "run", "--check")[0] == 2
    assert call.refused(naming=naming)
    assert call("run", _config(tmp_path / "config.yaml"), "--out", tmp_path / "run")[0] == 2
    assert call.refused(by="DeclaredDefense.plan", naming=naming)
    assert not (tmp_path / "run" / "ledger").exists()


@pytest.mark.slow
def test_a_white_box_audit_watches_the_step_and_the_next_run_says_so(call, package, tmp_path, monkeypatch):
    assert call("run", _config(tmp_path / "config.yaml"), "--out", tmp_path / "run", "--set", "seed=1")[0] == 0
    plan = tmp_path / "run" / "plan.json"
    audit = ("white-box", "--plan", plan, "--canaries", 40, "--json")
    code, printed, err = call(*audit)
    assert code == 0, err
    (tmp_path / "audit.json").write_text(printed, encoding="utf-8")
    assert json.loads(printed)["step"] == OF_PLAN
    watched = _config(tmp_path / "watched.yaml", white_box=str(tmp_path / "audit.json"))
    assert call("run", watched, "--out", tmp_path / "watched")[0] == 0
    assert read_record(tmp_path / "watched" / "record.json").training.declared_by.audit in ("passed", "inconclusive")
    # One that adds too little noise is found, and has no guarantee.
    install(package, monkeypatch, HONEST.replace("+ given.gaussian(", "+ 0.5 * given.gaussian("))
    assert call("run", _config(tmp_path / "config.yaml"), "--out", tmp_path / "less")[0] == 0
    code, printed, err = call("white-box", "--plan", tmp_path / "less" / "plan.json", "--canaries", 40, "--json")
    assert code == ExitCode.OTHER_MECHANISM, err
    (tmp_path / "failed.json").write_text(printed, encoding="utf-8")
    lying = _config(tmp_path / "lying.yaml", white_box=str(tmp_path / "failed.json"))
    assert call("run", lying, "--out", tmp_path / "lying")[0] == 0
    record = read_record(tmp_path / "lying" / "record.json")
    assert record.training.epsilon is None
    assert states(record.training.promise, NoGuaranteeReason.WHITE_BOX_FAILED)


def test_its_step_is_given_the_loss_of_preference_pairs(call, package, tmp_path):
    path = _config(tmp_path / "config.yaml")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["corpus"]["source"]["rows"] = "pairs"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    state = json.loads(next((tmp_path / "run" / "checkpoints" / "resume").rglob("state.json")).read_text("utf-8"))
    # A model that is its own reference guesses, at log 2; as texts, its answers would cost nats for each token.
    assert state["state"]["history"][0]["train_loss"] == pytest.approx(0.693, abs=0.05)
