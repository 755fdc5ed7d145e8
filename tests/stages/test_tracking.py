"""Trackers of a run: what they receive, when, and what a tracker on another machine does not."""

import os

import pytest

import heldin
from heldin.corpus.document import Document
from heldin.finetune.batches import encode
from heldin.finetune.recipe import Recipe, TrackerName
from heldin.finetune.training import job_name
from heldin.stages.run_config import load_config
from heldin.stages.train.tracking import (
    RunTrackers,
    is_local_store,
    is_remote,
    is_reported,
    require_trackers,
    run_trackers,
)
from tests.refusals import refused

OF_MEMBERS = {"validation/member_loss", "validation/non_member_loss", "validation/auroc"}
PRIVATE = {"kind": "uls", "population": 30, "cohort": 8, "steps": 6, "delta": 1e-3, "target_epsilon": 4}


class Toy:
    """A tracker that keeps what it receives."""

    def __init__(self, fails=False):
        self.fails, self.received, self.finished = fails, [], False

    def log(self, values, step=None):
        if self.fails:
            raise ConnectionError("no answer")
        self.received.append((step, values))

    def finish(self):
        self.finished = True


def test_an_unnoised_number_reaches_only_a_tracker_that_may_have_it():
    here, elsewhere = Toy(), Toy()
    trackers = RunTrackers({TrackerName.TENSORBOARD: (here, True), TrackerName.WANDB: (elsewhere, False)}, print)
    trackers.log({"privacy/epsilon": 1.0, "none": None, "infinite": float("inf")}, 1, unnoised=False)
    trackers.log({"validation/auroc": 0.9}, 1, unnoised=True)
    trackers.close()
    assert here.received == [(1, {"privacy/epsilon": 1.0}), (1, {"validation/auroc": 0.9})]
    # Weights & Biases drops what has a smaller step than what it has, so that its step is a number like the others.
    assert elsewhere.received == [(None, {"privacy/epsilon": 1.0, "step": 1})]
    assert here.finished
    assert elsewhere.finished


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on():
    said, broken, whole = [], Toy(fails=True), Toy()
    trackers = RunTrackers({TrackerName.MLFLOW: (broken, True), TrackerName.WANDB: (whole, True)}, said.append)
    for step in (1, 2):
        trackers.log({"train/loss": 2.0}, step, unnoised=True)
    assert len(whole.received) == 2
    assert len(said) == 1
    assert said[0].startswith("mlflow: no answer")


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_done(small_with, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = load_config(small_with(finetune={"report_to": ["wandb", "mlflow"]}))
    with refused(by="require_trackers", naming=("wandb, mlflow", "'.[trackers]'"), kind=heldin.InputError):
        require_trackers(config)
    # Off by default.
    require_trackers(load_config(small_with()))


def test_a_folder_of_runs_is_no_tracker(small_with, tmp_path, monkeypatch):
    (tmp_path / "here" / "wandb").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.path", [str(tmp_path / "here")])
    with refused(by="require_trackers", naming=("wandb", "'.[trackers]'"), kind=heldin.InputError):
        require_trackers(load_config(small_with(finetune={"report_to": ["wandb"]})))


def test_what_a_run_reports_to_changes_no_name(make_lm):
    plain, reporting = Recipe(), Recipe(report_to=(TrackerName.MLFLOW,), report_unnoised=True)
    assert repr(plain) == repr(reporting)
    base = make_lm()
    sequences = encode(base.tokenizer, [Document.of("a text of a user")], 16)
    assert job_name(base, sequences, plain, None) == job_name(base, sequences, reporting, None)


@pytest.fixture
def local_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install '.[trackers]'")
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.fixture
def tensorboard():
    return pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: pip install '.[trackers]'",
    )


def _scalars(tensorboard, folder):
    """Numbers by name, each a list of (time, step, value)."""
    read = tensorboard.EventAccumulator(str(folder))
    read.Reload()
    return {
        name: [(its.wall_time, its.step, its.value) for its in read.Scalars(name)] for name in read.Tags()["scalars"]
    }


def test_a_plain_run_is_in_tensorboard_and_a_local_mlflow(small_with, tmp_path, local_mlflow, tensorboard):
    config = small_with(finetune={"report_to": ["tensorboard", "mlflow"]})
    result = heldin.run(config, out=tmp_path / "run", quiet=True)
    record, client = result.record, local_mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'heldin'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["answer"] == result.answer
    assert run.info.run_name == "run"
    settings = {"defense/kind": "none", "finetune/optimizer": "adam", "model/base": "pretrain"}
    assert settings.items() <= run.data.params.items()
    assert run.data.tags["mlflow.note.content"] == result.headline
    assert run.data.metrics["result/auroc"] == result.auroc.value
    assert [its.path for its in client.list_artifacts(run.info.run_id)] == ["report.pdf"]
    curve = client.get_metric_history(run.info.run_id, "validation/auroc")
    assert {its.step: its.value for its in curve} == {its.step: its.auroc for its in record.training.curve}
    shown = _scalars(tensorboard, tmp_path / "run" / "tensorboard")
    assert shown["train/loss"][-1][2] == pytest.approx(record.training.curve[-1].train_loss, rel=1e-5)
    # No number that compares members with non-members while the model trains.
    trained = max(time for name in shown if name.startswith("train/") for time, *_ in shown[name])
    assert set(shown) >= OF_MEMBERS
    assert min(time for name in OF_MEMBERS for time, *_ in shown[name]) > trained
    # A finished run is not logged twice.
    heldin.run(config, out=tmp_path / "run", quiet=True)
    assert is_reported(load_config(config), tmp_path / "run")
    assert len(client.search_runs([experiment.experiment_id])) == 1
    assert _scalars(tensorboard, tmp_path / "run" / "tensorboard") == shown


def test_epsilon_of_a_private_run_rises_to_that_of_its_plan(call, small_with, tmp_path, tensorboard):
    finetune = {"report_to": ["tensorboard"], "select": "last", "evaluations": 2}
    call("run", small_with(defense=PRIVATE, finetune=finetune), "--out", tmp_path / "run")
    result = heldin.load_record(tmp_path / "run")
    shown = _scalars(tensorboard, tmp_path / "run" / "tensorboard")
    spent = [value for *_, value in shown["privacy/epsilon"]]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1] == pytest.approx(result.record.training.epsilon, rel=1e-5)
    # The loss of private people is un-noised.
    assert "train/loss" not in shown
    # One run in TensorBoard, which has the settings next to the results.
    assert [its for its in (tmp_path / "run" / "tensorboard").iterdir() if its.is_dir()] == []
    read = tensorboard.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    begun = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"defense/cohort" in begun
    assert b"plan/noise_multiplier" in begun
    assert b"finetune/epochs" not in begun  # a private run takes steps of its plan
    # The command logs the results too.
    assert set(shown) >= OF_MEMBERS


@pytest.mark.parametrize(("mode", "remote"), [("offline", False), ("disabled", False), ("online", True), (None, True)])
def test_weights_and_biases_is_remote_unless_it_is_offline(monkeypatch, mode, remote):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    assert is_remote(TrackerName.WANDB) is remote
    assert not is_remote(TrackerName.TENSORBOARD)


def test_a_local_mlflow_is_on_this_machine(local_mlflow):
    with local_mlflow.start_run():
        assert not is_remote(TrackerName.MLFLOW)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("sqlite:///mlflow.db", True),
        ("file:///home/me/mlruns", True),
        ("/home/me/mlruns", True),
        ("./mlruns", True),
        ("http://localhost:5000", False),
        ("databricks", False),
        ("databricks-uc://profile", False),
        ("postgresql://host/db", False),
        ("s3://bucket/1", False),
    ],
)
def test_an_address_is_local_only_if_it_is_a_file(address, local):
    assert is_local_store(address) is local


def test_a_tracker_that_cannot_be_opened_is_left_out(small_with, tmp_path, local_mlflow):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    local_mlflow.set_tracking_uri((tmp_path / "file").as_uri())
    said = []
    (tmp_path / "run").mkdir()
    config = load_config(small_with(finetune={"report_to": ["mlflow"]}))
    with run_trackers(config, tmp_path / "run", said.append) as trackers:
        trackers.log({"train/loss": 1.0}, 1, unnoised=True)
    assert said
    assert said[0].startswith("mlflow: ")


@pytest.mark.parametrize("unnoised", [False, True])
def test_unnoised_numbers_of_a_private_run_leave_the_machine_only_with_the_switch(
    small_with, tmp_path, tensorboard, monkeypatch, unnoised
):
    monkeypatch.setattr("heldin.stages.train.tracking.is_remote", lambda name: True)
    finetune = {"report_to": ["tensorboard"], "report_unnoised": unnoised, "select": "last", "evaluations": 2}
    heldin.run(small_with(defense=PRIVATE, finetune=finetune), out=tmp_path / "run", quiet=True)
    shown = set(_scalars(tensorboard, tmp_path / "run" / "tensorboard"))
    public = {"privacy/epsilon", "train/learning_rate"}
    assert shown >= public | OF_MEMBERS if unnoised else shown == public


def test_a_run_of_a_sweep_is_named_by_its_cell(small_with, tmp_path, local_mlflow):
    out = tmp_path / "runs" / "many" / "cells" / "2" / "uls"
    out.mkdir(parents=True)
    with run_trackers(load_config(small_with(finetune={"report_to": ["mlflow"]})), out, print):
        assert local_mlflow.active_run().info.run_name == "2/uls"
