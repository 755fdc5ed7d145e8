"""A run under a mechanism, through the command line: its plan, its label, its ceiling; copies and changes refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import heldin
from heldin.base.errors import ExitCode
from heldin.defenses.guarantee import NoGuarantee
from heldin.defenses.plan_file import read_plan, write_plan
from heldin.finetune.checkpoints import finished_state
from heldin.record.document import read_record, write_record
from heldin.reports.page_one import state_guarantee
from heldin.stages.run_config import load_config
from heldin.stages.train.plan import configured_mechanism, mechanism_of
from heldin.stages.train.training_facts import promise_facts
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import Assumption, EarlierText, GuaranteeCondition, GuaranteeText, NoGuaranteeReason
from heldin.words.page_one import Guaranteed
from tests.conftest import SMALL
from tests.made_mechanisms import uls
from tests.refusals import names, refused
from tests.statements import states, values_of

DEFENSE = {
    "kind": "uls",
    "population": 20,
    "cohort": 5,
    "steps": 10,
    "delta": 1.0e-3,
    "target_epsilon": 6,
    "group_size": 3,
}


@pytest.fixture
def config(tmp_path):
    """The small run under a mechanism; write(changes) gives the file."""

    def write(users=None, previous=None, **defense):
        content = json.loads(json.dumps(SMALL))
        content |= {} if previous is None else {"previous": previous}
        content["corpus"]["users"] = users or {"min_records": 8, "fraction": 0.5}
        content["finetune"] = {
            "learning_rate": 1e-3,
            "sequence_length": 48,
            "evaluations": 3,
            "select": "last",
            "checkpoint_every": 4,
        }
        content["defense"] = {k: v for k, v in {**DEFENSE, **defense}.items() if v is not None}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


def test_the_plan_is_written_read_back_and_accounted_to_the_same_epsilon(call, config, tmp_path):
    """With a clip norm that follows a quantile, for which epsilon pays without growing, and an earlier release."""
    write_plan(uls(), tmp_path / "week.json")
    previous = [{"plan": str(tmp_path / "week.json"), "times": 3}]
    out, file = tmp_path / "run", config(clip_quantile={"quantile": 0.4}, previous=previous)
    code, printed, err = call("run", file, "--out", out)
    assert code == 0, err
    assert re.search(r"statistics: (\d+)/\1 parts in", printed + err)  # the stage says how far it is
    _assert_power_comes_before_training(err.splitlines())
    record = read_record(out / "record.json")
    assert record.training.guarantee.startswith("epsilon 6, delta 0.001 per user (add/remove)") or (
        record.training.guarantee.startswith("epsilon 5.99")
    )
    assert record.training.epsilon <= 6
    assert values_of(record.training.promise, GuaranteeCondition.CLIP_QUANTILE) == {"quantile": 0.4}
    assert finished_state(out / "checkpoints" / "resume").effort.clip_norm != 1.0
    (tmp_path / "week.json").unlink()  # the run has a copy
    assert call("verify", out)[0] == 0
    together = heldin.compose([uls(), out], delta=1e-3, times=[3, 1]).epsilon
    assert record.training.earlier.epsilon == pytest.approx(together, rel=1e-9)
    (earlier,) = [s for s in state_guarantee(record) if s.states(EarlierText.TOGETHER)]
    assert earlier.values["releases"] == 3
    code, printed, _ = call("account", out / "plan.json", "--json")
    assert code == 0
    row = json.loads(printed)
    assert row["epsilon"] == pytest.approx(record.training.epsilon)
    assert row["noise_multiplier"] == record.training.noise_multiplier
    assert row["auroc_bound"] == pytest.approx(record.training.ceiling.auroc)
    code, printed, _ = call(
        "account",
        "uls",
        "--users",
        20,
        "--cohort",
        5,
        "--steps",
        10,
        "--delta",
        1e-3,
        "--json",
        "--noise-multiplier",
        row["noise_multiplier"],
    )
    assert json.loads(printed)["epsilon"] == pytest.approx(row["epsilon"], rel=1e-6)
    code, printed, _ = call("export", out, "--out", tmp_path / "public")
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert "per user (add/remove)" in card
    assert str(earlier).strip() in card
    assert read_plan(tmp_path / "public" / "plan.json") == read_plan(out / "plan.json")
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    _promise_more(copy)
    code, _, err = call("export", copy, "--out", tmp_path / "unearned")
    assert (code, err.count("\n")) == (2, 1)
    assert call.refused(by="require_trained_under", naming=f"'{copy / 'plan.json'}'")
    shutil.rmtree(copy)
    shutil.copytree(out, copy)
    code, _, err = call("run", file, "--out", copy)
    assert code == 2
    assert call.refused(by="refuse_copies", naming=str(copy))
    _assert_the_key_serves_one_job(call, file, out)


def _assert_power_comes_before_training(lines):
    power = next(i for i, line in enumerate(lines) if line.startswith("power: "))
    assert "can certify" in lines[power]
    assert power < next(i for i, line in enumerate(lines) if line.startswith("fine-tuning"))


def _assert_the_key_serves_one_job(call, path, out):
    """Even where the checkpoints are gone; changes the folder of the run."""
    shutil.rmtree(out / "checkpoints")
    content = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
    content["finetune"]["sequence_length"] = 40
    (out / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    code, _, _ = call("run", path, "--out", out, "--set", "finetune.sequence_length=40")
    assert code == 2
    assert call.refused(by="_bind_key")


def _promise_more(run):
    """Config, plan and record of a finished run, changed together: a smaller delta than was trained under."""
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["defense"]["delta"] = 1e-4
    content["defense"]["target_epsilon"] = None
    plan = read_plan(run / "plan.json")
    content["defense"]["noise_multiplier"] = plan.noise_multiplier
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    new = configured_mechanism(load_config(path), plan, plan.steps)
    assert new != plan
    (run / "plan.json").unlink()
    write_plan(new, run / "plan.json")
    record = read_record(run / "record.json")
    training = type(record.training).model_validate({**record.training.model_dump(), **promise_facts(new)})
    write_record(record.model_copy(update={"training": training}), run / "record.json")


NO_GUARANTEE = [
    (
        None,
        {"sampler": "shuffled", "population": 60},
        "cohorts are shuffled while accounting assumes Poisson sampling",
    ),
    ({"min_records": 8, "max_users": 20}, {}, "preprocessing looks across users (sample of max_users users)"),
    (None, {"base_model_saw_protected": True}, "the base model was trained on protected users"),
    (None, {"noise_multiplier": 0.0, "target_epsilon": None}, "noise is missing (noise multiplier 0)"),
]


@pytest.mark.parametrize(
    ("users", "defense", "label"), NO_GUARANTEE, ids=["shuffled", "not user-local", "base model", "no noise"]
)
def test_what_is_no_guarantee_has_a_reason_of_its_own(config, users, defense, label):
    promise = mechanism_of(load_config(config(users, **defense)), plain_steps=1).guarantee()
    assert isinstance(promise, NoGuarantee)
    assert sum(label in str(reason) for reason in promise.reasons) == 1


def test_every_reason_for_no_guarantee_is_on_the_terminal_and_in_record_and_card(call, config, tmp_path):
    out, users, defense = tmp_path / "run", None, {}
    for its_users, its_defense, _ in NO_GUARANTEE:
        users, defense = its_users or users, {**defense, **its_defense}
    code, printed, err = call("run", config(users, **defense), "--out", out, "-v")
    assert code == 0, err
    record = read_record(out / "record.json")
    assert states(state_guarantee(record), Guaranteed.NO_GUARANTEE)
    assert record.training.epsilon is None
    assert record.training.ceiling is None
    call("export", out, "--out", tmp_path / "public")
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    for *_, label in NO_GUARANTEE:
        assert all(label in text for text in (" ".join(printed.split()), record.training.guarantee, card))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["split.audit_pool=20", "split.assignment=exact_half"])
def test_sides_that_depend_on_other_users_void_the_guarantee(call, config, tmp_path, change):
    code, _, err = call("run", config(), "--out", tmp_path / "run", "--set", change)
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    (step,) = (s.name for s in read_plan(tmp_path / "run" / "plan.json").data_steps if not s.user_local)
    assert values_of(training.promise, NoGuaranteeReason.LOOKS_ACROSS_USERS) == {"steps": [step]}
    assert training.guarantee in err


@pytest.mark.slow
def test_users_audited_by_public_coins_leave_the_guarantee_as_it_is(call, config, tmp_path):
    code, _, err = call("run", config(), "--out", tmp_path / "run", "--set", "split.audit_fraction=0.7")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    assert record.training.epsilon == pytest.approx(6, abs=0.01)
    assert record.split.always_in > 0
    steps = read_plan(tmp_path / "run" / "plan.json").data_steps
    (step,) = [each for each in steps if each.name.states(DataStepText.PUBLIC_COINS)]
    assert step.user_local
    code, printed, _ = call("verify", tmp_path / "run")
    assert code == 0, printed
    for other in ("split.audit_pool=5", "split.audited=both"):
        command = ["run", config(), "--out", tmp_path / "no", "--set", "split.audit_fraction=0.7", "--set", other]
        code, _, err = call(*command)
        assert call.refused(naming=("audit_fraction", "audit_pool"))


@pytest.mark.slow
def test_the_label_says_who_is_not_covered(call, config, tmp_path):
    out = tmp_path / "run"
    assert call("run", config(), "--out", out)[0] == 0
    call("export", out, "--out", tmp_path / "public")
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    promise = read_plan(tmp_path / "public" / "plan.json").guarantee()
    assert states(promise.statement, Assumption.PUBLIC_USERS)
    assert promise.label[1:] in card


@pytest.mark.slow
def test_choosing_by_validation_on_protected_users_is_no_guarantee(call, config, tmp_path):
    code, _, err = call("run", config(), "--out", tmp_path / "run", "--set", "finetune.select=best")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    assert states(training.promise, NoGuaranteeReason.PROTECTED_VALIDATION)
    assert training.guarantee in err


@pytest.mark.parametrize(
    "kind", ["els", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("group", "example"))]
)
def test_every_kind_of_unit_trains(call, config, tmp_path, kind):
    changes = {"kind": kind, "population": 400, "cohort": 20, "steps": 3}
    if kind == "example":
        changes["group_size"] = None
    code, _, err = call("run", config(**changes), "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    assert record.training.unit == ("example" if kind == "example" else "user")
    assert (record.training.ceiling is None) == (kind == "example")


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"noise_multiplier": 1.0}, ("target_epsilon", "noise_multiplier")),
        # Keys of other kinds.
        ({"kind": "example"}, "defense.group_size"),
        ({"kind": "els", "cap": 9}, "defense.cap"),
        ({"sampler": "shuffled", "cap": 9}, "cap"),
        ({"group_size": 0}, ("defense.group_size", "1")),
        ({"delta": 2.0}, ("defense.delta", "1")),
        ({"kind": "usl"}, "'usl'"),
        ({"clip_nrm": 1.0}, ("defense.clip_nrm", "'clip_norm'")),
    ],
)
def test_defenses_that_cannot_be(config, changes, naming):
    with refused(by="checked", naming=naming):
        load_config(config(**changes))


def test_a_cohort_above_the_population_and_a_delta_too_small_are_one_line(call, config, tmp_path):
    code, _, err = call("run", config(cohort=30), "--out", tmp_path / "a")
    assert code == 2
    assert call.refused(by="_rate", naming=("30", "20"))
    code, _, err = call("run", config(delta=1e-12), "--out", tmp_path / "b")
    assert code == 2
    assert "1e-11" in err


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["batch", "example"])
def test_clipping_without_noise_takes_its_norm_from_a_plain_run(call, config, tmp_path, unit):
    path = config()
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["defense"] = {"kind": "clip", "unit": unit}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    (norm,) = (line for line in err.splitlines() if line.startswith("clip norm: "))
    assert names(norm, unit)
    clip = read_plan(tmp_path / "run" / "plan.json").clip
    assert clip.kind == ("batch" if unit == "batch" else "flat")
    assert clip.norm > 0
    record = read_record(tmp_path / "run" / "record.json")
    assert states(record.training.promise, GuaranteeText.NO_GUARANTEE, NoGuaranteeReason.NO_UNIT)
    assert record.training.defense == "clip"
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    call("export", tmp_path / "run", "--out", tmp_path / "public")
    assert call.refused(naming=(f"'{tmp_path / 'run' / 'plan.json'}'", "clip norm"))
    assert not (tmp_path / "public").exists()


@pytest.mark.slow
def test_user_level_training_on_random_chunks_of_a_users_text(call, config, tmp_path):
    code, _, err = call("run", config(record_selection="random_chunk"), "--out", tmp_path / "run")
    assert code == 0, err
    assert read_plan(tmp_path / "run" / "plan.json").record_selection == "random_chunk"
    code, _, err = call("run", config(kind="els", record_selection="random_chunk"), "--out", tmp_path / "other")
    assert call.refused(naming=("'random_chunk'", "'uls'"))


@pytest.mark.parametrize(("tau", "halts"), [(1e-3, True), pytest.param(1e3, False, marks=pytest.mark.slow)])
def test_the_filter_halts_as_a_result_or_trains(call, config, tmp_path, monkeypatch, tau, halts):
    path = config()
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["defense"] = {
        "kind": "filter",
        "population": 24,
        "steps": 3,
        "delta": 1e-3,
        "target_epsilon": 500,
        "tau": tau,
        "group_size": 2,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    assert ("halted after 0 steps" in err) == halts
    assert (tmp_path / "run" / "record.json").exists() != halts
    plan = read_plan(tmp_path / "run" / "plan.json")
    assert plan.adjacency == "replace"
    assert plan.guarantee().epsilon == pytest.approx(500, rel=1e-3)
    code, printed, _ = call("account", tmp_path / "run" / "plan.json", "--json")
    assert json.loads(printed)["method"] == "filter"
    # Somebody else's RANK does not silence the gate: only several processes have a first one.
    monkeypatch.setenv("RANK", "1")
    assert (call("run", path, "--out", tmp_path / "run", "--fail-on", "leaks")[0] == ExitCode.GATED) >= halts


@pytest.mark.slow
def test_a_whole_run_in_two_processes(config, tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "--no-python", "heldin", "run", str(config()), "--out", str(tmp_path / "run")]
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_record(tmp_path / "run" / "record.json").training.steps == 10
    assert done.stdout.count("report:") == 1


@pytest.mark.slow
def test_choosing_by_public_users_keeps_the_guarantee_at_the_last_step(call, config, tmp_path):
    path = config()
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["finetune"] |= {"select": "best_public", "patience": 1, "evaluations": 5, "learning_rate": 1.0}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 2
    assert "set corpus.public_validation" in err
    content["corpus"]["public_validation"] = {"min_records": 8, "fraction": 0.3}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    assert training.guarantee.startswith(("epsilon 6", "epsilon 5.99"))
    assert states(training.promise, GuaranteeCondition.PUBLIC_VALIDATION)
    losses = [p.public_loss for p in training.curve]
    assert training.chosen_step == training.curve[losses.index(min(losses))].step
    assert read_plan(tmp_path / "run" / "plan.json").steps == 10
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
