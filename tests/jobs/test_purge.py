"""Purging a run and a sweep: secrets go, what decided stays, and whatever needs them says so in one line."""

import json
import shutil

import pytest

from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time
from heldin.base.progress import LineReporter
from heldin.base.purged import MARK
from heldin.jobs.config import load_config
from heldin.jobs.purge import lines, plan_purge, purge
from heldin.jobs.run.pipeline import run
from heldin.jobs.user_scores import leading_scores
from heldin.jobs.verify import verify
from heldin.record.document import read_record
from heldin.reports.pdf import write_report

QUIET = LineReporter(lambda line: None)
DEFAULT = ("record", "report")


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_weights_scores_ledger_and_keys_go_and_record_and_report_stay(folder):
    write_report(folder)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    found = purge(folder, DEFAULT)
    assert names(folder) == {"record.json", "plan.json", "config.yaml", "report.pdf", "notes.txt", MARK} & names(folder)
    assert {"record.json", "report.pdf", "notes.txt", MARK} <= names(folder)
    assert found.others == ("notes.txt",)
    assert set(found.removed) >= {"ledger", "scores.parquet", "checkpoints"}
    assert len(found.unverifiable) == 3
    read_record(folder / "record.json")
    write_report(folder)


def test_what_needs_the_secrets_says_in_one_line_that_they_are_gone(folder):
    purge(folder, DEFAULT)
    for asked in (
        lambda: verify(folder, QUIET),
        lambda: leading_scores(folder),
        lambda: run(load_config(folder / "config.yaml"), folder, QUIET, command="heldin run"),
    ):
        with pytest.raises(InputError, match=r"was purged \(20.*start again in a new folder") as error:
            asked()
        assert "\n" not in str(error.value)


def test_the_model_can_be_kept_without_what_resumes_training(folder):
    found = plan_purge(folder, ("record", "model"))
    assert not any("checkpoints/final" in path for path in found.removed)
    purge(folder, ("record", "model"))
    assert names(folder / "checkpoints") == {"final"}
    assert not (folder / "report.pdf").exists()


def test_nothing_is_removed_by_looking(folder):
    before = sorted(folder.rglob("*"))
    found = plan_purge(folder, DEFAULT)
    assert sorted(folder.rglob("*")) == before
    assert any("would remove" in line for line in lines(found, done=False))


def test_a_purge_that_was_killed_goes_on(folder, monkeypatch):
    monkeypatch.setattr("heldin.jobs.purge.shutil.rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        purge(folder, DEFAULT)
    monkeypatch.undo()
    # What is left of its secrets is not gone on with.
    with pytest.raises(InputError, match="was purged"):
        verify(folder, QUIET)
    purge(folder, DEFAULT)
    assert not (folder / "ledger").exists()
    assert not (folder / "checkpoints").exists()


def test_of_a_sweep_the_coins_and_every_cell_are_purged(folder, tmp_path):
    swept = tmp_path / "swept"
    for block in "12":
        shutil.copytree(folder, swept / "cells" / block / "none")
    (swept / "ledger").mkdir()
    (swept / "ledger" / "coins.json").write_text("{}", encoding="utf-8")
    for name in ("sweep.json", "comparison.json", "state.json"):
        (swept / name).write_text("{}", encoding="utf-8")
    found = purge(swept, DEFAULT)
    assert len(found.folders) == 3
    assert not list(swept.rglob("ledger")) + list(swept.rglob("*.safetensors")) + list(swept.rglob("*.parquet"))
    assert (swept / "comparison.json").is_file()
    assert len(list(swept.rglob(MARK))) == 3
    assert "in 2 cells and the folder itself" in lines(found, done=True)[0]
    # Even where the plan of the sweep was not kept, a second call finds the cells again.
    purge(swept, ())
    assert not list(swept.rglob("record.json"))
    purge(swept, ())


def test_a_folder_in_use_and_a_folder_of_something_else_are_refused(folder, tmp_path):
    with one_process_at_a_time(folder), pytest.raises(InputError):
        purge(folder, DEFAULT)
    assert (folder / "ledger").is_dir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("a: 1", encoding="utf-8")
    with pytest.raises(InputError, match="holds no run, audit or sweep"):
        purge(tmp_path / "mine", DEFAULT)
    with pytest.raises(InputError, match="--keep weights: choose from record, report, log, model"):
        plan_purge(folder, ("weights",))


def test_links_are_removed_and_not_what_they_point_to(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("stays", encoding="utf-8")
    (folder / "shadow").symlink_to(tmp_path / "elsewhere")
    purge(folder, DEFAULT)
    assert not (folder / "shadow").exists()
    assert (tmp_path / "elsewhere" / "file").is_file()


def test_a_damaged_mark_is_still_one_line(folder):
    (folder / MARK).write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="was purged"):
        verify(folder, QUIET)
    assert json.loads((folder / "record.json").read_text(encoding="utf-8"))["name"]
