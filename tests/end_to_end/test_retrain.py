"""`heldin retrain`: what is printed first, what is in the folder, resuming, and wrong calls in one line."""

import csv
import json

import pytest
import yaml

from heldin.bounds.trainings import forecast
from heldin.record.document import read_record
from heldin.reports.findings import warn
from heldin.words.answer import Headline, TrainingsCertify
from heldin.words.evidence import ClaimLabel
from tests.conftest import SMALL, TRIAL
from tests.refusals import names
from tests.statements import answer_in, line_in, states, values_of

TINY = {
    **TRIAL,
    "name": "tiny-trainings",
    "defense": {"kind": "uls", "population": 10, "cohort": 10, "steps": 2, "delta": 1e-5, "target_epsilon": 0.5},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _fixed_key(monkeypatch):
    """Coins that are known, so that chance cannot leave one side empty."""
    monkeypatch.setattr("heldin.jobs.retraining.engine.new_key", lambda: b"\x22" * 32)


def test_an_audit_from_config_to_report_and_the_same_command_goes_on(call, config, tmp_path):
    out = tmp_path / "audit"
    command = ["retrain", config, "--trainings", 24, "--out", out, "--processes", 1, "--documents", 2]
    code, printed, err = call(*command, "--claim", "epsilon=8,delta=1e-5")
    assert code == 0, err
    first = err.splitlines()[0]
    assert names(first, "power: 24", "1.02")
    assert "mechanism: epsilon 0.5, delta 1e-05 per user (add/remove)" in err
    decision = read_record(out / "record.json").decision
    assert values_of(decision.statement, TrainingsCertify.WHOLE)["trainings"] == 24
    assert states(decision.statement, Headline.INCONCLUSIVE)
    assert answer_in(printed) == decision.decision.answer == "inconclusive"
    record = read_record(out / "record.json")
    assert (record.kind, record.trainings.runs, record.trainings.documents) == ("trainings", 24, 2)
    assert record.training.epsilon == pytest.approx(0.5, abs=0.01)
    assert [v.claim for v in record.judgement.verdicts] == [
        ClaimLabel.CURVE(epsilon=0.5, delta=1e-5),
        ClaimLabel.STATED(epsilon=8.0, delta=1e-5),
    ]
    assert {v.standing for v in record.judgement.verdicts} == {"certified"}
    assert record.split.held_in == record.trainings.with_user == 24 - record.split.held_out
    secret = (out / "ledger" / "key").read_text(encoding="ascii")
    assert secret not in (out / "record.json").read_text(encoding="utf-8")
    assert (out / "ledger" / "key").stat().st_mode & 0o777 == 0o600
    assert len(list((out / "runs").iterdir())) == 24
    code, printed, _ = call(*command, "--claim", "epsilon=8,delta=1e-5", "--json")
    assert (code, json.loads(printed)["answer"], json.loads(printed)["kind"]) == (0, "inconclusive", "trainings")
    (out / "runs" / "00004.json").unlink()
    before = {p.name: p.stat().st_mtime_ns for p in (out / "runs").iterdir()}
    kept = record.model_dump(exclude={"created", "environment", "training", "trainings"})
    code, _, err = call(*command, "--claim", "epsilon=8,delta=1e-5")
    assert code == 0, err
    after = {p.name: p.stat().st_mtime_ns for p in (out / "runs").iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"00004.json"}
    assert read_record(out / "record.json").model_dump(exclude=set(kept) ^ set(record.model_dump())) == kept
    (out / "report.pdf").unlink()
    code, printed, _ = call("report", out)
    assert code == 0
    assert (out / "report.pdf").read_bytes().startswith(b"%PDF")
    code, _, err = call(*command)
    assert code == 2
    assert call.refused(by="_take_folder", naming=(f"'{out}'", "options.claims", "--out"))


def test_a_folder_of_too_few_trainings_takes_another_number(call, config, tmp_path):
    out = tmp_path / "audit"
    for trainings in (4, 6):
        code, _, _ = call("retrain", config, "--trainings", trainings, "--out", out, "--processes", 1)
        assert code == 2
        assert call.refused(by=forecast, naming=str(trainings))


@pytest.mark.slow
def test_its_scores_go_into_heldin_bound(call, config, tmp_path):
    out = tmp_path / "audit"
    call("retrain", config, "--trainings", 30, "--out", out, "--processes", 1)
    rows = list(csv.DictReader((out / "scores.csv").read_text(encoding="utf-8").splitlines()))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "runs").iterdir())]
    assert [float(row["score"]) for row in rows] == [result["score"] for result in results]
    assert [int(row["member"]) for row in rows] == [result["held_in"] for result in results]
    design = ["--assignment", "coin", "--independent-trainings", "--plan", out / "plan.json"]
    code, printed, err = call("bound", out / "scores.csv", *design, "--json")
    assert code == 0, err
    said = {b["name"]: b["epsilon_lower"] for b in json.loads(printed)["bounds"]}
    stated = {b.name: b.epsilon_lower for b in read_record(out / "record.json").judgement.bounds}
    assert said["DKW band"] == pytest.approx(stated["DKW band"])
    assert said["one-run"] == pytest.approx(stated["one-run"])


@pytest.mark.slow
def test_the_control_without_defense_is_found_in_several_processes(call, config, tmp_path):
    out = tmp_path / "audit"
    command = ["retrain", config, "--trainings", 60, "--out", out, "--processes", 2, "--target", "none"]
    sets = ["--set", "finetune.learning_rate=0.05", "--set", "finetune.epochs=2"]
    code, printed, err = call(*command, *sets, "--claim", "epsilon=1,delta=1e-5")
    assert code == 3, err
    record = read_record(out / "record.json")
    assert record.trainings.target == "none"
    assert any("--target none" in line for line in warn(record))
    certified = values_of(record.decision.statement, TrainingsCertify.WHOLE)
    assert certified["trainings"] == 60
    stated = (TrainingsCertify.WITHOUT_DEFENSE, TrainingsCertify.AT_LEAST)
    assert states(record.decision.statement, Headline.LEAKS, *stated, TrainingsCertify.CONTRADICTED)
    assert answer_in(printed) == "leaks"
    assert line_in(printed, "exit code").startswith("3:")


@pytest.mark.parametrize(
    ("arguments", "by", "naming"),
    [
        (["retrain"], None, ("'FILE'", "heldin retrain --help")),
        (["retrain", "x.yaml", "--model", "m"], None, ("--model", "heldin retrain --help")),
        (["retrain", "x.yaml"], "read_config", "'x.yaml'"),
        (["audit", "--trainings", "20"], None, ("--trainings", "heldin audit --help")),
        (["audit"], "_content", ("--held-in", "--held-out", "--config", "--model")),
    ],
)
def test_a_call_that_is_not_whole_is_one_line(call, arguments, by, naming):
    _, _, err = call(*arguments)
    assert call.refused(by=by, naming=naming)
    assert err.count("\n") == 1


def test_too_few_trainings_a_strange_target_and_the_folder_of_a_run_are_refused(call, config, tmp_path, finished):
    code, _, _ = call("retrain", config, "--trainings", 8, "--out", tmp_path / "a", "--processes", 1)
    assert code == 2
    assert call.refused(by="forecast", naming=("8 training runs", "--trainings"))
    code, _, _ = call("retrain", config, "--trainings", 20, "--target", "both")
    assert code == 2
    assert call.refused(by="target_of", naming=("--target both", "defense", "none"))
    code, _, _ = call("retrain", config, "--trainings", 20, "--out", finished)
    assert code == 2
    assert call.refused(by="_require_empty", naming=f"'{finished}'")
    assert SMALL["name"] == read_record(finished / "record.json").name


def test_the_first_line_says_what_200_trainings_can_certify(call, config, tmp_path):
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "file").touch()
    code, _, err = call("retrain", config, "--trainings", 200, "--out", tmp_path / "busy")
    assert code == 2
    assert names(err.splitlines()[0], "power:", "3.28")


@pytest.mark.parametrize(
    ("sections", "options", "by", "naming"),
    [
        ({"data_defenses": [{"kind": "cap", "records": 1}]}, (), "_require_supported", "'data_defenses'"),
        ({"finetune": {**TINY["finetune"], "patience": 1}}, (), "_require_supported", ("finetune.select", "'last'")),
        ({}, ("--threshold", "nan"), "TrainingsAudit.trained", ("--threshold", "nan")),
    ],
)
def test_what_trainings_would_not_do_is_refused_before_a_folder_is_made(call, tmp_path, sections, options, by, naming):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **sections}), encoding="utf-8")
    code, _, _ = call("retrain", path, "--trainings", 40, "--out", tmp_path / "out", *options)
    assert code == 2
    assert call.refused(by=by, naming=naming)
    assert not (tmp_path / "out").exists()
