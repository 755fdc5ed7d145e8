"""The list of runs: what a folder is and holds, also where it is damaged, unfinished or not a run; and its web page."""

import csv
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from heldin.audit.decision import Answer
from heldin.base.artefacts import write_document
from heldin.base.files import one_process_at_a_time
from heldin.record.compare import wrapped
from heldin.record.document import Record, read_record, write_record
from heldin.record.sweep import write_sweep
from heldin.reports.html import render
from heldin.reports.runs import RunKind, RunState, list_runs, runs_page, runs_table
from heldin.stages.sides.ledger import load_ledger
from tests.made_sweeps import made_sweep
from tests.refusals import names
from tests.reports.browser import show
from tests.reports.conftest import GOLDEN_RECORD
from tests.reports.golden_pages import made_cases

CASES = made_cases()


def _made(folder, case, created="2026-11-23T10:00:00+00:00"):
    folder.mkdir(parents=True)
    record = CASES[case].model_copy(update={"created": created})
    write_record(record, folder / "record.json")
    return record


@pytest.fixture
def folder(tmp_path):
    """A folder with one of each: what a year of work leaves."""
    root = tmp_path / "runs"
    _made(root / "leaky", "run: leaks", "2026-01-05T23:59:59+00:00")
    (root / "leaky" / "report.pdf").write_bytes(b"%PDF")
    _made(root / "a series" / "one & two", "audit: no leak found", "2026-11-30T10:00:00+00:00")
    for name in ("report.pdf", "report.html"):
        (root / "a series" / "one & two" / name).write_text("x", encoding="utf-8")
    _made(root / "canaries" / "audits" / "1", "planted audit: canary users leak")
    for name in ("planted", "canaries"):
        (root / name / "ledger").mkdir(parents=True)
        (root / name / "manifest.json").write_text("{}", encoding="utf-8")
    for name, sweep in (("compared", made_sweep(shipped="uls")), ("stopped-sweep", None)):
        (root / name / "cells" / "1" / "uls").mkdir(parents=True)
        (root / name / "sweep.json").write_text("{}", encoding="utf-8")
        if sweep is not None:
            write_sweep(sweep.model_copy(update={"created": "2026-10-01T10:00:00+00:00"}), root / name)
            _made(root / name / "cells" / "1" / "uls" / "inner", "run: leaks")
    for name in ("changed", "cut", "no-record", "another"):
        _made(root / name, "run: leaks")
        path = root / name / "record.json"
        text = path.read_text(encoding="utf-8")
        if name == "changed":
            path.write_text(text.replace('"leaks"', '"no leak found"'), encoding="utf-8")
        elif name == "cut":
            path.write_text(text[: len(text) // 2], encoding="utf-8")
        elif name == "no-record":
            write_document(path, {"kind": "run"})
        else:
            content = {k: v for k, v in json.loads(text).items() if k not in ("schema_version", "heldin", "sha256")}
            write_document(path, content, schema=99)
    for name in ("killed", "working", "purged"):
        (root / name).mkdir()
        (root / name / "log.txt").write_text("", encoding="utf-8")
    (root / "purged" / "purged.json").write_text('{"purged": "2026-11-23"}', encoding="utf-8")
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("x", encoding="utf-8")
    return root


def test_every_folder_is_listed_as_what_it_is(folder):
    with one_process_at_a_time(folder / "working"):
        listed = {str(run.path.relative_to(folder)): run for run in list_runs(folder)}
    assert {name: (run.kind, run.state) for name, run in listed.items()} == {
        "leaky": (RunKind.RUN, RunState.DONE),
        "a series/one & two": (RunKind.AUDIT, RunState.DONE),
        "canaries/audits/1": (RunKind.PLANTED, RunState.DONE),
        "planted": (RunKind.SET, RunState.NOT_AUDITED),
        "compared": (RunKind.SWEEP, RunState.DONE),
        "stopped-sweep": (RunKind.SWEEP, RunState.UNFINISHED),
        "changed": (RunKind.UNKNOWN, RunState.DAMAGED),
        "cut": (RunKind.UNKNOWN, RunState.DAMAGED),
        "no-record": (RunKind.UNKNOWN, RunState.DAMAGED),
        "another": (RunKind.UNKNOWN, RunState.OTHER_VERSION),
        "killed": (RunKind.UNKNOWN, RunState.UNFINISHED),
        "working": (RunKind.UNKNOWN, RunState.RUNNING),
        "purged": (RunKind.UNKNOWN, RunState.PURGED),
    }
    # A folder without a result has no answer, whatever its damaged file states.
    assert all((run.answer is None) == (run.state is not RunState.DONE) for run in listed.values())
    assert all((run.problem is None) != (run.state in ("damaged", "other version")) for run in listed.values())
    # The newest first, and those without a date last.
    assert list(listed)[:4] == ["a series/one & two", "canaries/audits/1", "compared", "leaky"]


def test_an_entry_has_the_records_numbers(folder):
    listed = {run.path.name: run for run in list_runs(folder)}
    for name, case in (("leaky", "run: leaks"), ("one & two", "audit: no leak found")):
        run, record = listed[name], CASES[case]
        assert isinstance(record, Record)
        assert (run.answer, run.members, run.non_members) == (
            record.decision.decision.answer,
            record.split.held_in,
            record.split.held_out,
        )
        assert run.epsilon == (record.training.epsilon if record.training else None)
    assert listed["1"].canaries_leak
    assert listed["1"].answer is Answer.INCONCLUSIVE
    assert not listed["leaky"].canaries_leak
    sweep, chosen = listed["compared"], made_sweep(shipped="uls").variants[-1]
    assert (sweep.epsilon, sweep.unit) == (chosen.epsilon, chosen.unit)
    assert sweep.epsilon is not None
    assert (listed["leaky"].report.name, listed["one & two"].report.name) == ("report.pdf", "report.html")
    assert listed["killed"].report is None


def test_what_is_grave_is_in_the_list(tmp_path):
    changed = json.loads(read_record(GOLDEN_RECORD).model_dump_json())
    changed["judgement"]["verdicts"][0]["outcome"] = "contradicted"
    (tmp_path / "broken").mkdir()
    write_document(tmp_path / "broken" / "record.json", changed)
    (run,) = list_runs(tmp_path)
    assert run.contradicted
    assert "contradicted" in " ".join(runs_table([run], tmp_path, 80).split())
    trainings = {**changed, "kind": "trainings"}
    write_document(tmp_path / "broken" / "record.json", trainings)
    (run,) = list_runs(tmp_path)
    # Numbers of trainings are not people.
    assert (run.kind, run.members, run.non_members) == (RunKind.TRAININGS, None, None)


def test_the_command_prints_a_table_json_csv_and_a_page_that_links_to_each_report(call, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    code, out, _ = call("runs")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[0].split() == ["date", "kind", "answer", "people", "epsilon", "path"]
    assert names(out, "leaky", "2026-01-05", "not audited", "canaries/audits/1")
    code, out, _ = call("runs", "runs", "--json")
    answer = json.loads(out)
    assert (answer["folder"], answer["page"], len(answer["runs"])) == ("runs", None, 13)
    code, out, _ = call("runs", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["path"] for row in rows] == [run["path"] for run in answer["runs"]]
    code, out, _ = call("runs", "--html")
    assert out.splitlines()[-1] == f"web page: {Path('runs') / 'index.html'}"
    page = (folder / "index.html").read_text(encoding="utf-8")
    linked = [unquote(address) for address in re.findall(r'<td><a href="([^"]+)">', page)]
    assert linked == ["a series/one & two/report.html", "leaky/report.pdf"]
    assert all((folder / address).is_file() for address in linked)
    assert "http" not in page.replace("http://www.w3.org", "")
    for words in (["runs", "nowhere"], ["runs", "--json", "--csv"]):
        code, out, err = call(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
    shutil.rmtree(folder)
    folder.mkdir()
    code, out, _ = call("runs", "--json")
    assert (code, json.loads(out)["runs"]) == (0, [])


def test_a_click_sorts_the_page_by_date(folder, tmp_path):
    step = """
    const button = [...document.querySelectorAll("th button")].find((b) => b.textContent === "date");
    button.click();
    const cells = [...document.querySelector("tbody").rows].map((row) => row.cells[1].textContent);
    document.querySelector("h1").textContent = cells.join("|");
    """
    page = render(runs_page(list_runs(folder), folder))
    dates = show(page, tmp_path, step=step).headings[0].split("|")
    assert dates == sorted(dates)
    assert len(set(dates)) == 5


def test_nobody_is_named(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    listed = list_runs(tmp_path)
    page = render(runs_page(listed, tmp_path))
    said = runs_table(listed, tmp_path, 80) + page + json.dumps([run.as_dict() for run in listed])
    users = load_ledger(finished / "ledger").roles
    assert len(users) > 20
    assert not [user for user in users if re.search(rf"\b{re.escape(user)}\b", said)]


def test_a_thousand_runs_take_seconds(tmp_path):
    for i in range(1000):
        (tmp_path / f"series-{i % 10}" / f"run-{i}").mkdir(parents=True)
        shutil.copy(GOLDEN_RECORD, tmp_path / f"series-{i % 10}" / f"run-{i}")
    began = time.process_time()
    listed = list_runs(tmp_path)
    assert time.process_time() - began < 15
    assert {run.state for run in listed} == {RunState.DONE}
    assert len(listed) == 1000


def test_a_long_path_is_whole_in_its_column(folder):
    run = replace(list_runs(folder)[0], path=folder / "/".join(["a-long-name-of-a-folder"] * 5))
    lines = runs_table([run], folder, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "/".join(["a-long-name-of-a-folder"] * 5) in "".join(line[62:].strip() for line in lines[1:])
    assert wrapped(("", "b"), (3, 3)) == ["     b"]
