"""Every document names its schema version and the version of heldin that wrote it, and another version is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from heldin.base.artefacts import OtherSchemaError, read_document, write_document
from heldin.base.errors import InputError
from heldin.base.files import file_sha256
from heldin.base.machine import version
from heldin.defenses.plan_file import read_plan
from heldin.finetune.checkpoints import TrainingState, read_state, state_text
from heldin.jobs.retraining.engine import read_audit
from heldin.jobs.retraining.runs import read_results
from heldin.planting.looks import Look, looks_that_saw_a_change, write_look
from heldin.planting.plant_folder import (
    Manifest,
    plan_hash,
    read_form,
    read_planted,
    seal_before_coins,
    write_config,
    write_manifest,
)
from heldin.planting.training_log import Header, Segment, read_segment, segment_path, write_segment
from heldin.record.document import read_record
from heldin.record.facts import CellFacts
from heldin.record.sweep import read_sweep, write_sweep
from heldin.stages.sides.ledger import Cell, load_ledger, read_cell, write_cell
from heldin.sweeps.cell_plan import plan_of, require_sweep, take_sweep
from heldin.sweeps.load import load_sweep
from heldin.sweeps.running import read_states
from tests.made_facts import NOTHING_SKIPPED
from tests.made_sweeps import made_sweep
from tests.planted_sets import plan
from tests.refusals import names, refused
from tests.tiny_sweeps import written

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "run"


@dataclass(frozen=True)
class Document:
    """A document in a folder: its path there, and what writes and reads it."""

    path: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def golden(folder):
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)


def swept(folder):
    take_sweep(load_sweep(written(folder.parent, variants={"none": None})), folder)


def planted(folder):
    config = plan("rows.jsonl", "base")
    write_config(config, folder)
    seal_before_coins(folder, {"base": "f" * 64}, None)
    manifest = Manifest(
        "2026-01-01",
        plan_hash(folder),
        "f" * 64,
        "a" * 64,
        "rows.jsonl",
        "b" * 64,
        9,
        NOTHING_SKIPPED,
        {},
        1,
        "declared",
    )
    write_manifest(manifest, folder, None, None)


def looked(folder):
    write_look(Look(1, "f" * 64, ()), folder)


def of_trainings(folder):
    # The options alone are read before the config is.
    write_document(folder / "trainings.json", {"config": {}, "options": {"claims": []}})


def one_training(folder):
    write_document(folder / "runs" / "00000.json", {"of": "another", "number": 0, "held_in": True})


def segment(folder):
    write_segment(Segment(Header(1, 0, 1, "token", "", "set", (), 0, None, {})), folder)


def cell(folder):
    write_cell(Cell(CellFacts(sweep="s", block=1, group="g", variant="v"), b"k" * 32, {"name": "x"}), folder)


def checkpoint(folder):
    folder.mkdir()
    (folder / "state.json").write_text(state_text(TrainingState("job", step=3), optimizer={}), encoding="utf-8")


def sweep_again(folder):
    return require_sweep(plan_of(load_sweep(folder.parent / "sweep.yaml")), folder)


DOCUMENTS = {
    "record": Document("record.json", golden, lambda folder: read_record(folder / "record.json")),
    "plan": Document("plan.json", golden, lambda folder: read_plan(folder / "plan.json")),
    "ledger": Document("ledger/ledger.json", golden, lambda folder: load_ledger(folder / "ledger")),
    "cell": Document("cell.json", cell, read_cell),
    "sweep": Document("sweep.json", swept, sweep_again),
    "coins of a sweep": Document("ledger/coins.json", swept, swept),
    "states of cells": Document("state.json", lambda folder: write_document(folder / "state.json", {}), read_states),
    "comparison": Document("comparison.json", lambda folder: write_sweep(made_sweep(), folder), read_sweep),
    "seal": Document("ledger/planted.json", planted, read_form),
    "looks": Document("ledger/looks.json", looked, looks_that_saw_a_change),
    "manifest": Document("manifest.json", planted, read_planted),
    "trainings": Document("trainings.json", of_trainings, read_audit),
    "one training": Document("runs/00000.json", one_training, lambda folder: read_results(_job(), 1, folder)),
    "training log": Document(
        segment_path(Path(), 1, 0).name, segment, lambda folder: read_segment(segment_path(folder, 1, 0))
    ),
    "checkpoint": Document("state.json", checkpoint, read_state),
}


def _job():
    return SimpleNamespace(identity="x", key_of=lambda number: b"k", held_in=lambda number: True)


def rewritten(path, **changes):
    """The document with other first keys and a fitting digest, as another version may have written it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    digest = content.pop("sha256", None)
    content = {name: value for name, value in {**content, **changes}.items() if value is not None}
    path.write_text(json.dumps(content), encoding="utf-8")
    if digest is not None:
        write_document(path, content)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_another_schema_version_is_refused_in_one_line(name, tmp_path):
    document, folder = DOCUMENTS[name], tmp_path / "folder"
    document.write(folder)
    path = folder / document.path
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["schema_version"], content["heldin"]) == (1, version())
    try:
        document.read(folder)
    except OtherSchemaError:
        raise
    except InputError:
        # Not the whole of what is read stands here.
        assert name in ("trainings", "one training")
    for other, writer, named in (
        (2, "9.9", ("heldin 9.9", "version 2")),
        (True, "9.9", ("heldin 9.9", "version none")),
        ("1", "9\n9", ("unknown version", "version none")),
    ):
        rewritten(path, schema_version=other, heldin=writer)
        if name == "manifest":
            seal = folder / "ledger" / "planted.json"
            write_document(seal, {**read_document(seal), "manifest": file_sha256(path)})
        with pytest.raises(OtherSchemaError) as caught:
            document.read(folder)
        line = str(caught.value)
        assert str(path) in line
        assert names(line, *named, "version 1")
        assert ("use heldin 9.9" in line) == (writer == "9.9")
        assert "\n" not in line


def test_a_document_without_a_version_is_of_another(tmp_path):
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with refused(by="unstamped", naming="version none", kind=OtherSchemaError):
        read_document(tmp_path / "x.json")


def test_a_document_of_a_later_schema_is_read_by_who_asks_for_it(tmp_path):
    path = tmp_path / "x.json"
    write_document(path, {"a": 1}, schema=2)
    assert read_document(path, schema=2) == {"a": 1}
    with refused(by="unstamped", naming=("version 2", "version 1"), kind=OtherSchemaError):
        read_document(path)
