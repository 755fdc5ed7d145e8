"""Sentences are no data: with every one of them altered, a folder is verified, and read, as before."""

import json

import pytest

from heldin.base.progress import LineReporter
from heldin.jobs.verify import verify
from heldin.words.statement import all_codes
from tests.end_to_end.test_damage import jobs

__all__ = ["jobs"]  # a fixture

QUIET = LineReporter(lambda line: None)
KINDS = ("run", "audit", "planted", "trainings")


def _alter(monkeypatch):
    for code in all_codes():
        monkeypatch.setattr(code, "sentence", f"Quite another way to put it: {code.sentence}")


@pytest.mark.parametrize("kind", KINDS)
def test_verify_compares_no_sentence(kind, jobs, monkeypatch):
    before = verify(jobs[kind].folder, QUIET)
    _alter(monkeypatch)
    after = verify(jobs[kind].folder, QUIET)
    assert after.agrees, after.differences
    assert after.compared == before.compared > 100


def test_the_altered_words_are_those_that_people_read(jobs, call, monkeypatch):
    _, before, _ = call("report", jobs["run"].folder, "--json")
    _alter(monkeypatch)
    _, after, _ = call("report", jobs["run"].folder, "--json")
    assert json.loads(after)["exit_code"] == json.loads(before)["exit_code"]
    text = (jobs["run"].folder / "record.json").read_text(encoding="utf-8")
    assert "another way to put it" not in text
