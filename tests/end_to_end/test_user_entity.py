"""Runs that protect users and entities: text sampling, UeDP-Alg and model differences, from config to report."""

import pytest

from heldin.defenses.guarantee import NoGuarantee
from heldin.defenses.plan_file import read_plan
from heldin.record.document import read_record
from heldin.reports.record_report import report_record
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import Assumption, GuaranteeCondition
from tests.pdf_pages import squashed, text_of
from tests.statements import states, values_of


@pytest.fixture
def config(small_with):
    return small_with


TEXT_SAMPLING = {
    "kind": "user-entity",
    "population": 300,
    "cohort": 60,
    "steps": 6,
    "delta": 1e-3,
    "target_epsilon": 6,
}


@pytest.mark.slow
def test_a_text_sampled_run_states_the_curve_and_who_is_exposed(call, config, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("report\nmeeting\nmarket\nthe\n", encoding="utf-8")
    caps = {"group_size": 4, "entity_cap": 6, "entities": {"kind": "words", "path": str(names)}}
    path = config(defense={**TEXT_SAMPLING, **caps}, finetune={"select": "last"})
    code, out, err = call("run", path, "--out", tmp_path / "run", "--check")
    assert code == 0, err
    assert "epsilon 6, delta 0.001 " in out
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    caps_stated = values_of(training.removals[0].name, DataStepText.CAPS)
    assert caps_stated == {"records": 4, "per_entity": 6, "entities": "words"}
    assert training.removals[0].removed > 0
    assert states(training.promise, Assumption.FINDER_UNSEEN)
    assert (training.by_exposure.group_size, training.by_exposure.entity_cap) == (4, 6)
    reached = {its.exposed: its for its in training.exposed}
    assert reached[4].users <= reached[10].users == reached[10].entities == reached[6].entities == 1.0
    assert training.epsilon == reached[10].epsilon
    # The claim about users is at epsilon(G), and the ceiling with it.
    (verdict,) = read_record(tmp_path / "run" / "record.json").judgement.verdicts
    assert f"epsilon {reached[4].epsilon:.4g}" in str(verdict.claim)
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
    rows = report_record(read_record(tmp_path / "run" / "record.json")).section("promise")
    assert all(f"{point.epsilon:.4g}" in repr(rows) for point in training.exposed)
    code, _, err = call("export", tmp_path / "run", "--out", tmp_path / "public")
    assert code == 0, err
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert f"| 10 | {training.epsilon:.4g} |" in card
    assert "share" not in card
    assert "shares" not in (tmp_path / "public" / "plan.json").read_text(encoding="utf-8")
    code, out, _ = call("compare", tmp_path / "run", tmp_path / "run")
    assert "6 per user" in out
    code, out, _ = call("account", tmp_path / "run" / "plan.json")
    assert code == 0
    assert training.guarantee in out
    # Who is named decides what is trained on: another list gives another run.
    names.write_text("nobody at all\n", encoding="utf-8")
    code, out, err = call("verify", tmp_path / "run")
    assert code != 0
    assert "training.re" in out + err


@pytest.mark.slow
def test_an_entity_in_every_record_is_told_its_epsilon(call, config, tmp_path):
    """Without caps; the curve of the record goes on until everybody is below it."""
    names = tmp_path / "names.txt"
    names.write_text("the\nmarket\n", encoding="utf-8")
    its = {"entities": {"kind": "words", "path": str(names)}}
    path = config(defense={**TEXT_SAMPLING, **its, "exposed": 3, "target_epsilon": 1}, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    assert training.removals == []
    last = training.exposed[-1]
    assert last.exposed >= 0.5 * training.records > 64
    assert last.entities == last.users == 1.0
    assert training.exposed[-2].entities < 1.0
    assert last.epsilon > training.by_exposure.curve[-1].epsilon
    assert training.guarantee.startswith("epsilon ")
    steps = read_plan(tmp_path / "run" / "plan.json").data_steps
    compared = [step.name for step in steps if not step.record_local]
    assert values_of(training.promise, GuaranteeCondition.AFTER_PREPROCESSING) == {"steps": compared}
    assert len(compared) == 2
    assert training.ceiling is None
    code, out, _ = call("compare", tmp_path / "run", tmp_path / "run")
    assert "1 per person" in out
    assert "3 records" in out


@pytest.mark.parametrize(
    ("defense", "steps", "by", "naming"),
    [
        ({"record_selection": "random_chunk"}, [], "checked", "defense.record_selection"),
        ({"group_size": 4}, [], "UserEntityDefense._caps_go_together", ("group_size", "entity_cap")),
        ({"group_size": 4, "entity_cap": 2}, [], "UserEntityDefense._caps_go_together", ("entity_cap", "entities")),
        (
            {"group_size": 4, "entity_cap": 2, "exposed": 3, "entities": {"kind": "patterns"}},
            [],
            "UserEntityDefense._caps_go_together",
            ("exposed", "group_size", "entity_cap"),
        ),
        ({"noise_multiplier": 1.0}, [], "SampledDefense._one_scale", ("target_epsilon", "noise_multiplier")),
        ({}, [{"kind": "deduplicate"}], "RunConfig._nothing_compares_texts", ("data_defenses", "'user-entity'")),
        (
            {},
            [{"kind": "cap", "records": 2, "selection": "longest"}],
            "RunConfig._nothing_compares_texts",
            ("data_defenses", "2", "longest"),
        ),
        (
            {"entities": {"kind": "gold", "path": "x"}},
            [],
            "RunConfig._gold_is_of_the_corpus",
            ("defense.entities", "'iob'"),
        ),
    ],
)
def test_by_exposure_refuses_what_has_no_epsilon(call, config, tmp_path, defense, steps, by, naming):
    path = config(defense={**TEXT_SAMPLING, **defense}, data_defenses=steps, finetune={"select": "last"})
    call("run", path, "--out", tmp_path / "run")
    assert call.refused(by=by, naming=naming)
    assert not (tmp_path / "run").exists()


UEDP = {
    "kind": "uedp",
    "population": 60,
    "cohort": 8,
    "steps": 4,
    "delta": 1e-3,
    "noise_multiplier": 2.0,
    "sensitive_share": 0.5,
}


@pytest.mark.slow
def test_the_papers_algorithm_claims_one_epsilon_and_states_what_holds(call, config, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("report\nmeeting\nmarket\n", encoding="utf-8")
    its = {"entities": {"kind": "words", "path": str(names)}, "local": {"learning_rate": 0.1, "batch_size": 4}}
    path = config(defense={**UEDP, **its}, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    training, plan = record.training, read_plan(tmp_path / "run" / "plan.json")
    assert plan.noise_multiplier == 2.0 * 9
    promise = plan.guarantee()
    assert isinstance(promise, NoGuarantee)
    assert training.epsilon is None
    assert training.guarantee == promise.label
    assert training.by_exposure.claimed == promise.assumed_epsilon
    assert [p.exposed for p in training.by_exposure.curve] == [0, 1, 2, 4, 8, 16, 59]
    assert training.exposed == []
    text = text_of(tmp_path / "run" / "report.pdf")
    assert "delta 0.001" in text
    assert squashed(f"Claimed for this run: epsilon {promise.assumed_epsilon:.4g}") in squashed(text)
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
    code, out, _ = call("account", tmp_path / "run" / "plan.json")
    assert promise.label in out
    # Resumed under another list it would be another job under the same key.
    (tmp_path / "run" / "record.json").unlink()
    (tmp_path / "run" / "scores.parquet").unlink()
    names.write_text("day\nthe\n", encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 2
    assert call.refused(by="_bind_key", naming=str(tmp_path / "run"))


def test_the_strict_account_of_two_levels_is_a_guarantee(call, config, tmp_path):
    its = {"entities": {"kind": "patterns"}, "account": "strict", "rule": "all", "noise_scale": "clip_norm"}
    path = config(defense={**UEDP, **its, "group_size": 3, "sensitive_share": None}, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    curve = {p.exposed: p.epsilon for p in record.training.by_exposure.curve}
    assert record.training.epsilon == curve[59]
    assert record.training.ceiling is not None
    (verdict,) = record.judgement.verdicts
    assert f"epsilon {curve[0]:.4g}" in str(verdict.claim)
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
    code, _, err = call("export", tmp_path / "run", "--out", tmp_path / "public")
    assert code == 0, err
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert all(f"| {holders} | {bound:.4g} |" in card for holders, bound in curve.items() if holders)
    assert f"| a user alone | {curve[0]:.4g} |" in card
    assert "written by a person" not in card
    code, _, err = call("white-box", "--plan", tmp_path / "run" / "plan.json")
    assert code == 2
    assert call.refused(by="check_auditable", naming=("two-level", "heldin retrain"))


@pytest.mark.slow
def test_dp_fedavg_keeps_the_guarantee_of_user_sampling(call, config, tmp_path):
    uls = {
        "kind": "uls",
        "population": 20,
        "cohort": 5,
        "steps": 4,
        "delta": 1e-3,
        "target_epsilon": 6,
        "group_size": 4,
    }
    local = {"learning_rate": 0.1, "batch_size": 2, "epochs": 2}
    code, _, err = call("run", config(defense=uls, finetune={"select": "last"}), "--out", tmp_path / "uls")
    assert code == 0, err
    path = config(
        defense={**uls, "local": local}, finetune={"select": "last", "optimizer": "sgd", "learning_rate": 1.0}
    )
    code, _, err = call("run", path, "--out", tmp_path / "fedavg")
    assert code == 0, err
    one, other = (read_record(tmp_path / name / "record.json").training for name in ("uls", "fedavg"))
    assert (one.guarantee, one.epsilon, one.ceiling) == (other.guarantee, other.epsilon, other.ceiling)
    code, out, _ = call("verify", tmp_path / "fedavg")
    assert code == 0, out
    code, _, err = call("white-box", "--plan", tmp_path / "fedavg" / "plan.json")
    assert code == 2
    assert call.refused(by="check_auditable", naming=("local updates", "heldin retrain"))


@pytest.mark.slow
def test_independent_trainings_of_the_papers_algorithm_add_a_user_whom_it_uses(call, config, tmp_path):
    its = {**UEDP, "entities": {"kind": "patterns"}, "local": {"learning_rate": 0.1}}
    # Rejected before anything is read: documents that name nobody would hardly be used.
    path = config(defense={**its, "extended_rate": 0.5}, finetune={"select": "last"})
    code, _, err = call("retrain", path, "--trainings", 24, "--out", tmp_path / "no", "--processes", 1)
    assert code == 2
    assert "set defense.extended_rate to 1" in err
    path = config(defense=its, finetune={"select": "last"})
    out = tmp_path / "audit"
    command = ["retrain", path, "--trainings", 24, "--out", out, "--processes", 1, "--documents", 2]
    code, _, err = call(*command, "--claim", "epsilon=1,delta=1e-3")
    assert code in (0, 3, 4), err
    record = read_record(out / "record.json")
    assert record.trainings.runs == 24
    assert record.training.by_exposure.counted == "holders"
    code, said, _ = call("verify", out)
    assert code == 0, said


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        ({"noise_multiplier": None, "target_epsilon": 4}, "needs noise_multiplier"),
        ({"sensitive_share": None}, "the paper's claim needs sensitive_share"),
        ({"weight_caps": {"user": 10, "entity": 10}}, "weight_caps needs local"),
        ({"entity_rate": 1.5}, "entity_rate"),
        ({"extended_rate": -0.1}, "extended_rate"),
        ({"entities": None}, "entities"),
        ({"entities": {"kind": "spacy", "pipeline": "nowhere"}}, "spaCy pipeline 'nowhere'"),
    ],
)
def test_uedp_refuses_what_it_cannot_state(call, config, tmp_path, defense, said):
    its = {**UEDP, "entities": {"kind": "patterns"}, **defense}
    path = config(defense={k: v for k, v in its.items() if v is not None}, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run", "--check")
    assert (code, said in err) == (2, True), err
