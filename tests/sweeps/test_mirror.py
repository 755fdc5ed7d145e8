"""Copies of a sweep elsewhere: records and reports, and nothing that says who was held in."""

import fsspec
import pytest

from heldin.base.progress import LineReporter
from heldin.sweeps.driver import mirror, open_mirror
from tests.refusals import refused

QUIET = LineReporter(lambda line: None)
SECRET = ("ledger/ledger.json", "ledger/coins.json", "scores.parquet", "losses.parquet", "people.parquet", "log.txt")
OPEN = ("comparison.json", "record.json", "report.pdf", "report.html")
MODEL = ("checkpoints/final/model.safetensors", "checkpoints/resume/step-1/optimizer.safetensors")


@pytest.fixture
def out(tmp_path):
    for folder in (tmp_path / "out", tmp_path / "out/cells/1/none", tmp_path / "out/tuning/cells/1/none"):
        for name in (*SECRET, *OPEN, *MODEL):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(path), encoding="utf-8")
    return tmp_path / "out"


def copied(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_records_and_reports_are_copied_and_no_secret(out, tmp_path):
    assert mirror(out, str(tmp_path / "to"), models=False, reporter=QUIET) == 8
    assert copied(tmp_path / "to") == {*OPEN, *(f"cells/1/none/{name}" for name in OPEN)}
    assert (tmp_path / "to/cells/1/none/record.json").read_text() == str(out / "cells/1/none/record.json")
    # Again: what is there is replaced.
    (out / "comparison.json").write_text("new", encoding="utf-8")
    mirror(out, str(tmp_path / "to"), models=False, reporter=QUIET)
    assert (tmp_path / "to" / "comparison.json").read_text() == "new"


def test_models_are_copied_on_request_without_the_optimizers_state(out, tmp_path):
    mirror(out, str(tmp_path / "to"), models=True, reporter=QUIET)
    assert {path for path in copied(tmp_path / "to") if "checkpoints" in path} == {
        f"{folder}checkpoints/final/model.safetensors" for folder in ("", "cells/1/none/")
    }


def test_any_place_that_fsspec_knows(out):
    mirror(out, "memory://somewhere/else", models=False, reporter=QUIET)
    system = fsspec.filesystem("memory")
    assert system.exists("/somewhere/else/cells/1/none/report.pdf")
    assert not [path for path in system.find("/somewhere") if "ledger" in path or path.endswith((".part", ".parquet"))]


def test_a_place_that_cannot_be_written_is_one_line_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for url in ("nowhere://bucket", str(tmp_path / "file" / "below")):
        with refused(by=open_mirror, naming="--mirror") as error:
            open_mirror(url)
        assert "\n" not in str(error.value)
