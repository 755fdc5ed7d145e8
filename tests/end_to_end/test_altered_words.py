"""Sentences are no data: with every one of them altered, a folder is verified, and read, as before."""

import shutil

import pytest

from heldin.base.progress import LineReporter
from heldin.jobs.verify import verify
from heldin.words.statement import all_codes
from tests.end_to_end.test_damage import jobs
from tests.pdf_pages import text_of

__all__ = ["jobs"]  # a fixture

QUIET = LineReporter(lambda line: None)
ANOTHER = "Quite another way to put it"
KINDS = ("run", "audit", "planted", "trainings")


def _alter(monkeypatch):
    for code in all_codes():
        monkeypatch.setattr(code, "sentence", f"{ANOTHER}: {code.sentence}")


@pytest.mark.parametrize("kind", KINDS)
def test_verify_compares_no_sentence(kind, jobs, monkeypatch):
    before = verify(jobs[kind].folder, QUIET)
    _alter(monkeypatch)
    after = verify(jobs[kind].folder, QUIET)
    assert after.agrees, after.differences
    assert after.compared == before.compared > 100


def test_the_altered_words_are_those_that_people_read(jobs, call, tmp_path, monkeypatch):
    folder = shutil.copytree(jobs["run"].folder, tmp_path / "run")
    _alter(monkeypatch)
    assert call("report", folder)[0] == 0
    assert ANOTHER in text_of(folder / "report.pdf")
    assert ANOTHER not in (folder / "record.json").read_text(encoding="utf-8")
