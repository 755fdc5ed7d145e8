"""Purging a run and a sweep: secrets go, what decided stays, and whatever needs them says so in one line."""

import json
import shutil
import socket

import pytest

from heldin.base.artefacts import PURGED
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time
from heldin.base.progress import LineReporter
from heldin.jobs.purge import lines, plan_purge, purge
from heldin.jobs.run import run
from heldin.jobs.user_scores import leading_scores
from heldin.jobs.verify import verify
from heldin.record.document import read_record
from heldin.stages.run_config import load_config
from heldin.sweeps.node import SHARED
from tests.pdf_pages import write_report
from tests.refusals import refused

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
    stay = {"record.json", "plan.json", "config.yaml", "seconds.json", "report.pdf", "notes.txt", PURGED}
    assert names(folder) == stay & names(folder)
    assert {"record.json", "report.pdf", "notes.txt", PURGED} <= names(folder)
    assert found.others == ("notes.txt",)
    assert set(found.removed) >= {"ledger", "scores.parquet", "checkpoints"}
    assert len(found.unverifiable) == 3
    read_record(folder / "record.json")
    write_report(folder)


@pytest.mark.parametrize("damage", ["lost", "emptied", "cut"])
def test_tables_go_whatever_became_of_the_list_of_artefacts(folder, damage):
    index = folder / "artefacts.json"
    tables = {path.name for path in folder.glob("*.parquet")}
    assert {"scores.parquet", "losses.parquet", "people.parquet"} <= tables
    if damage == "lost":
        index.unlink()
    else:
        index.write_text('{"files": {}}' if damage == "emptied" else '{"fi', encoding="utf-8")
    (folder / "mine.parquet").write_bytes(b"another program's")
    (folder / ".mine.parquet.vm.1.tmp").write_bytes(b"another program's")
    found = purge(folder, DEFAULT)
    assert {path.name for path in folder.glob("*.parquet")} == {"mine.parquet"}
    assert (folder / ".mine.parquet.vm.1.tmp").is_file()
    assert "mine.parquet" in found.others
    assert len(found.unverifiable) == 3


def test_what_killed_commands_were_writing_goes_with_the_next_one(call, folder):
    dead = f"{socket.gethostname()}.999999999.tmp"
    left = [folder / f".purged.json.{dead}", folder / f".manifest.json.{dead}", folder / "ledger" / f".users.{dead}"]
    for path in left:
        path.write_text("half", encoding="utf-8")
    assert call("run", folder / "config.yaml", "--out", folder)[0] == 0
    assert not any(path.exists() for path in left)
    left[0].write_text("half", encoding="utf-8")
    assert call("purge", folder, "--yes")[0] == 0
    assert not left[0].exists()


def test_what_needs_the_secrets_says_in_one_line_that_they_are_gone(folder):
    purge(folder, DEFAULT)
    for asked in (
        lambda: verify(folder, QUIET),
        lambda: leading_scores(folder),
        lambda: run(load_config(folder / "config.yaml"), folder, QUIET, command="heldin run"),
    ):
        with refused(by="require_not_purged") as error:
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
    with refused(by="require_not_purged"):
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
    (swept / "sweep.json").write_text('{"cells": []}', encoding="utf-8")
    for name in ("comparison.json", "state.json"):
        (swept / name).write_text("{}", encoding="utf-8")
    # Copies for the machines of a cluster, and what a killed sweep's processes said.
    for name in ("shared/1/corpora", "progress"):
        (swept / name).mkdir(parents=True)
    found = purge(swept, DEFAULT)
    assert not (swept / SHARED).exists()
    assert not (swept / "progress").exists()
    assert len(found.folders) == 3
    assert not list(swept.rglob("ledger")) + list(swept.rglob("*.safetensors")) + list(swept.rglob("*.parquet"))
    assert (swept / "comparison.json").is_file()
    assert len(list(swept.rglob(PURGED))) == 3
    assert "in 3 folders: artefacts.json, checkpoints" in lines(found, done=True)[0]
    # Even where the plan of the sweep was not kept, a second call finds the cells again.
    purge(swept, ())
    assert not list(swept.rglob("record.json"))
    purge(swept, ())


def test_copies_for_a_cluster_are_purged_where_a_sweep_was_only_tuned(folder, tmp_path):
    tuned = tmp_path / "swept" / "tuning"
    shutil.copytree(folder, tuned / "cells" / "1" / "none")
    (tuned / "sweep.json").write_text('{"cells": []}', encoding="utf-8")
    (tmp_path / "swept" / SHARED / "1").mkdir(parents=True)
    purge(tmp_path / "swept", DEFAULT)
    assert not (tmp_path / "swept" / SHARED).exists()


def test_a_folder_in_use_and_a_folder_of_something_else_are_refused(folder, tmp_path):
    with one_process_at_a_time(folder), pytest.raises(InputError):
        purge(folder, DEFAULT)
    assert (folder / "ledger").is_dir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("a: 1", encoding="utf-8")
    with refused(by="_folders", naming="mine"):
        purge(tmp_path / "mine", DEFAULT)
    with refused(by=plan_purge, naming=("--keep", "weights")):
        plan_purge(folder, ("weights",))


def test_links_are_removed_or_left_and_never_followed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    before = sorted(path for path in elsewhere.rglob("*"))
    (folder / "shadow").symlink_to(elsewhere)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(elsewhere)
    (folder / "people.parquet").unlink(missing_ok=True)
    (folder / "people.parquet").symlink_to(tmp_path / "nowhere")
    purge(folder, ("record", "model"))
    assert not (folder / "shadow").is_symlink()
    assert not (folder / "people.parquet").is_symlink()
    assert (folder / "checkpoints").is_symlink()
    purge(folder, ("record",))
    assert not (folder / "checkpoints").is_symlink()
    swept = tmp_path / "swept"
    (swept / "cells" / "1").mkdir(parents=True)
    (swept / "sweep.json").write_text('{"cells": []}', encoding="utf-8")
    (swept / "cells" / "1" / "none").symlink_to(elsewhere)
    purge(swept, ("record",))
    assert sorted(path for path in elsewhere.rglob("*")) == before


def test_a_folder_of_somebody_else_with_names_like_heldins_is_refused(tmp_path):
    for name in ("runs", "work", "record.json"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    for name in ("state.json", "trainings.json", "sweep.json", "work/thesis.tex", "runs/1.txt"):
        (tmp_path / "mine" / name).write_text("{}", encoding="utf-8")
    with refused(by="_folders", naming="mine"):
        purge(tmp_path / "mine", ())
    assert (tmp_path / "mine" / "work" / "thesis.tex").is_file()


def test_what_is_no_part_of_a_run_stays_in_a_runs_folder(folder):
    (folder / "work").mkdir()
    (folder / "work" / "thesis.tex").write_text("mine", encoding="utf-8")
    found = purge(folder, ("record",))
    assert found.others == ("work",)
    assert (folder / "work" / "thesis.tex").is_file()


def test_what_killed_processes_left_goes_too(folder):
    left = [folder / f".{name}.host.123.tmp" for name in ("scores.parquet", "people.parquet", "record.json")]
    for path in left:
        path.write_text("secret", encoding="utf-8")
    (folder / ".checkpoints.host.1.old.tmp").mkdir()
    purge(folder, ("record", "report"))
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_one_cell_of_a_sweep_is_not_purged_alone_since_others_keep_its_coins(folder, tmp_path):
    swept = tmp_path / "swept"
    cell = swept / "cells" / "1" / "none"
    shutil.copytree(folder, cell)
    (cell / "ledger" / "cell.json").write_text("{}", encoding="utf-8")
    (swept / "sweep.json").write_text('{"cells": []}', encoding="utf-8")
    with refused(by="_folders", naming="swept"):
        purge(cell, ())


def test_a_sweep_that_was_killed_while_it_was_tuned_can_be_purged(folder, tmp_path):
    swept = tmp_path / "swept" / "tuning"
    shutil.copytree(folder, swept / "cells" / "1" / "none")
    (swept / "sweep.json").write_text('{"cells": []}', encoding="utf-8")
    assert len(purge(tmp_path / "swept", ()).folders) == 3
    assert not list(swept.rglob("ledger"))


def test_a_damaged_mark_is_still_one_line(folder):
    (folder / PURGED).write_text("{", encoding="utf-8")
    with refused(by="require_not_purged"):
        verify(folder, QUIET)
    assert json.loads((folder / "record.json").read_text(encoding="utf-8"))["name"]
