"""Sentences are no data: with every one of them altered, a folder is verified, gone on with and read as before."""

import json
import re
import shutil

import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.jobs.verify import verify
from heldin.record.document import read_record
from heldin.words.data_steps import DataStepText
from heldin.words.statement import all_codes
from tests.end_to_end.test_damage import jobs
from tests.pdf_pages import text_of
from tests.tiny_sweeps import ULS

__all__ = ["jobs"]  # a fixture

QUIET = LineReporter(lambda line: None)
ANOTHER = "Quite another way to put it"
KINDS = ("run", "audit", "planted", "trainings", "cell")


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


@pytest.mark.parametrize("kind", ["run", "trainings"])
def test_a_finished_job_is_gone_on_with_under_other_words(kind, jobs, call, tmp_path, monkeypatch):
    job = jobs[kind]
    folder = shutil.copytree(job.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("origin"))
    before = (folder / "record.json").read_text(encoding="utf-8")
    _alter(monkeypatch)
    code, _, err = call(*job.again, folder)
    assert code in (0, 3, 4), err
    # The same record, with its date: nothing in it is a sentence.
    assert (folder / "record.json").read_text(encoding="utf-8") == before


def test_documents_that_are_written_under_other_words_hold_none(jobs, call, tmp_path, monkeypatch):
    _alter(monkeypatch)
    config = yaml.safe_load((jobs["run"].folder / "config.yaml").read_text(encoding="utf-8"))
    config |= {"defense": ULS, "canaries": [], "measures": {}, "finetune": {**config["finetune"], "select": "last"}}
    config["corpus"]["users"] |= {"fraction": 0.5, "max_users": None}
    config["data_defenses"] = [{"kind": "deduplicate"}, {"kind": "cap", "records": 4}]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, out, err = call("run", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert code in (0, 3, 4), err
    assert ANOTHER in out
    files = list((tmp_path / "run").rglob("*.json"))
    assert {"plan.json", "record.json", "ledger.json"} < {path.name for path in files}
    assert [path for path in files if ANOTHER in path.read_text(encoding="utf-8")] == []
    monkeypatch.undo()
    assert call("verify", tmp_path / "run")[0] == 0
    record = read_record(tmp_path / "run" / "record.json")
    assert [str(removal.name) for removal in record.training.removals] == [
        str(DataStepText.DEDUPLICATED_USERS(alike=DataStepText.EQUAL())),
        str(DataStepText.CAPPED(records=4, selection="random")),
    ]


# Names of several words that are fixed, each defined in one place, and what a user wrote.
NAMES = re.compile(
    r"record\.json(\.canaries|\.dials\[\])?\.(blind\[\]\.name|decision\.law|command|config\..*|environment\..*|effort\.ways\[\]"
    r"|exposure\.correlations\[\]\.name|judgement\.(bounds|refused)\[\]\.name|measures\.\w+\.groups\[\]\.group"
    r"|split\.records_by_part)"
    r"|(plan|record|comparison)\.json\..*generator|comparison\.json\.(command|config\..*|notes.*|cells\[\]\.reason)"
    r"|(plan|record|comparison)\.json\..*\.values\.(score|leading)"
)
SENTENCE = re.compile(r"\w{2,} \w+,? \w{2,}")


def _sentences(content, at):
    if isinstance(content, dict):
        for key, value in content.items():
            yield from [(at, key)] if SENTENCE.search(key) else []
            yield from _sentences(value, f"{at}.{key}")
    elif isinstance(content, list):
        for value in content:
            yield from _sentences(value, f"{at}[]")
    elif isinstance(content, str) and SENTENCE.search(content):
        yield at, content


def test_documents_hold_codes_in_place_of_sentences(jobs):
    found, documents = [], 0
    for job in jobs.values():
        for name in ("plan.json", "record.json", "comparison.json", "ledger/cell.json"):
            for path in job.folder.rglob(name):
                documents += 1
                found += _sentences(json.loads(path.read_text(encoding="utf-8")), path.name)
    assert documents > 10
    assert sorted({(at, text) for at, text in found if NAMES.fullmatch(at) is None}) == []


def test_the_altered_words_are_those_that_people_read(jobs, call, tmp_path, monkeypatch):
    folder = shutil.copytree(jobs["run"].folder, tmp_path / "run")
    _alter(monkeypatch)
    assert call("report", folder)[0] == 0
    assert ANOTHER in text_of(folder / "report.pdf")
    assert ANOTHER not in (folder / "record.json").read_text(encoding="utf-8")
