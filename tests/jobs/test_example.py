"""The built-in corpus as files: the same by seed, with true groups, and eaten by the commands that are printed."""

import json
import shlex

import pytest

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from tests.refusals import refused

QUIET = LineReporter(lambda line: None)


def _rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example") / "files"
    return folder, write_example(folder, users=60, reporter=QUIET)


def test_the_groups_are_what_they_are_called(example):
    folder, _ = example
    of = {name: _rows(folder / f"{name}.jsonl") for name in ("corpus", "public", "training", "held_in", "held_out")}
    users = {name: {row["author"] for row in rows} for name, rows in of.items()}
    ids = {name: {row["id"] for row in rows} for name, rows in of.items()}
    assert users["training"] == users["held_in"]
    assert not users["held_in"] & users["held_out"]
    assert users["public"] == users["corpus"] - users["held_in"] - users["held_out"]
    assert not ids["training"] & (ids["held_in"] | ids["held_out"])
    assert min(len(users["held_in"]), len(users["held_out"])) >= 8
    scores = (folder / "scores.csv").read_text(encoding="utf-8").splitlines()[1:]
    sides = {line.split(",")[0]: line.split(",")[2] for line in scores}
    assert sides == {user: str(int(user in users["held_in"])) for user in users["held_in"] | users["held_out"]}


def test_equal_seeds_give_equal_files_and_other_seeds_others(example, tmp_path):
    folder, _ = example
    again = {f.path.name: f.path.read_bytes() for f in write_example(tmp_path / "a", users=60, reporter=QUIET)}
    other = {f.path.name: f.path.read_bytes() for f in write_example(tmp_path / "b", users=60, seed=1, reporter=QUIET)}
    for name in ("corpus.jsonl", "held_in.jsonl", "held_out.jsonl", "scores.csv"):
        assert again[name] == (folder / name).read_bytes()
        assert other[name] != again[name]


@pytest.mark.parametrize("name", ["corpus.jsonl", "scores.csv"])
def test_the_command_that_is_printed_eats_the_file(call, example, name):
    _, files = example
    (command,) = [file.command for file in files if file.path.name == name]
    program, *arguments = shlex.split(command)
    assert program == "heldin"
    code, out, err = call(*arguments)
    assert code in (0, 4), err
    assert out


def test_a_folder_that_holds_something_and_too_few_users_are_refused(example, tmp_path):
    folder, _ = example
    with refused(by=write_example, naming="files"):
        write_example(folder, reporter=QUIET)
    with refused(by=write_example, naming=("--users", "20")):
        write_example(tmp_path / "few", users=19, reporter=QUIET)
    assert not (tmp_path / "few").exists()


def test_the_command_says_what_each_file_is_for(call, tmp_path):
    code, out, _ = call("corpus", "example", "--out", tmp_path / "x", "--users", 40)
    assert code == 0
    assert f"{tmp_path / 'x' / 'corpus.jsonl'}: everybody: 40 users" in out
    assert f"heldin run {tmp_path / 'x' / 'run.yaml'} --check" in out


@pytest.mark.slow
def test_the_models_that_are_trained_along_are_audited_by_the_command_that_is_printed(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    files = write_example(tmp_path / "x", users=60, models=True, reporter=QUIET)
    for name in ("held_in.jsonl", "public.jsonl"):
        named = "training.jsonl" if name == "held_in.jsonl" else name
        (command,) = [file.command for file in files if file.path.name == named]
        arguments = shlex.split(command)[1:]
        code, out, err = call(*arguments, *(["--out", tmp_path / "audit"] if arguments[0] == "audit" else []))
        assert code in (0, 4), err
        assert out
    code, _, err = call("report", tmp_path / "audit", "--scores", tmp_path / "scores.csv")
    assert code == 0, err
    code, _, err = call("bound", tmp_path / "scores.csv", "--assignment", "coin", "--delta", 1e-5)
    assert code == 0, err
