"""The log of a run folder: what was said and when, over all calls, for its owner alone, without names or texts."""

import re
import shutil

import pytest

from heldin.base.errors import ResumableError
from heldin.base.progress import LOG, LineReporter, LoggedReporter, log_line, logged
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.stages.run_config import load_config
from heldin.stages.run_folder import take_new_folder
from tests.refusals import refused

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 "


def _said(folder):
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
    assert all(re.match(TIME, line) for line in lines)
    return [re.sub(TIME, "", line) for line in lines]


def test_what_is_said_goes_to_both_and_work_is_logged_with_its_end(tmp_path):
    heard = []
    with logged(LineReporter(heard.append), tmp_path, command="heldin run c.yaml") as reporter:
        reporter.say("one\nline")
        with reporter.track("work", 3, "steps") as advance:
            advance(2)
    begin, *lines, end = _said(tmp_path)
    assert re.fullmatch(r"begin: heldin [\d.]+, process \d+: heldin run c.yaml", begin)
    assert lines[:2] == ["one line", "work: begin, 3 steps"]
    assert re.fullmatch(r"work: 2/3 steps in [\d.]+ s", lines[2])
    assert re.fullmatch(r"end, after [\d.]+ s", end)
    assert heard[0] == "one\nline"
    assert (tmp_path / LOG).stat().st_mode & 0o777 == 0o600


def test_how_a_call_stopped_is_logged_without_what_the_error_says(tmp_path):
    with (
        pytest.raises(ResumableError),
        logged(LineReporter(lambda line: None), tmp_path, command="c") as reporter,
        reporter.track("work", 3, "steps"),
    ):
        raise ResumableError("the score of user 'ann@corp.example' is nan")
    said = _said(tmp_path)
    assert said[-2].startswith("work: 0/3 steps")
    assert said[-1].startswith("stopped by ResumableError, after")
    assert "ann" not in "".join(said)


def test_a_folder_that_is_not_there_is_not_made(tmp_path):
    log_line(tmp_path / "gone", "x")
    LoggedReporter(LineReporter(lambda line: None), tmp_path / "gone").say("y")
    assert not (tmp_path / "gone").exists()


def test_a_run_logs_every_call_and_neither_names_nor_texts(call, finished, small_config, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = _said(run)
    assert before[0].startswith("begin: heldin 0.1.0, process ")
    assert before[-1].startswith("end, after")
    code, _, _ = call("run", small_config, "--out", run)
    after = _said(run)
    assert (code, after[: len(before)]) == (0, before)
    assert after[-1].startswith("answer: ")
    parameters = load_config(small_config).corpus.source.parameters
    assert isinstance(parameters, SyntheticCorpus)
    log = " ".join(after)
    for record in generate(parameters):
        assert record.user not in log
        assert record.text[:40] not in log


def test_the_log_alone_does_not_keep_the_next_call_out(tmp_path):
    log_line(tmp_path, "begin")
    take_new_folder(tmp_path, "audit")
    (tmp_path / "other").touch()
    with refused(by="_require_empty", naming="--out", kind=ValueError):
        take_new_folder(tmp_path, "audit")


def test_a_folder_that_is_refused_gets_no_log(call, small_config, tmp_path):
    (tmp_path / "mine.txt").touch()
    code, _, _ = call("run", small_config, "--out", tmp_path)
    assert (code, (tmp_path / LOG).exists()) == (2, False)


def test_verify_and_export_do_not_mind_the_log(call, finished, tmp_path):
    assert (finished / LOG).is_file()
    assert call("verify", finished)[0] == 0
    assert call("export", finished, "--out", tmp_path / "public")[0] == 0
    assert not (tmp_path / "public" / LOG).exists()
