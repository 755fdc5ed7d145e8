"""`python -m replication`: names, table, findings, figure and numbers."""

import functools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from replication import effective_noise, mean_estimation_sweeps, proposition_sweeps
from replication.__main__ import app
from replication.markov import MarkovCorpus
from replication.mean_estimation import Task
from replication.proposition_sweeps import Size
from tests.refusals import names

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("typeset")  # figures are drawn, and not drafted


@pytest.fixture
def small(monkeypatch):
    """The study at a size of seconds."""
    task = Task(users=32, examples=4, dimension=4, rounds=8, delta=1e-5)
    monkeypatch.setattr(mean_estimation_sweeps, "Task", lambda: task)
    sweeps = functools.partial(mean_estimation_sweeps.Sweeps, (0.5, 1.0), (32, 64), (1.0, 4.0))
    monkeypatch.setattr(mean_estimation_sweeps, "Sweeps", sweeps)


def test_mean_estimation_writes_figure_and_numbers(replicate, small, tmp_path):
    code, out, err = replicate("mean-estimation", "--out", tmp_path / "new" / "study", "--repeats", 6, "--seed", 2)
    assert code == 0, err
    assert "4/4 settings" in err
    assert "32 users x 4 examples" in out
    assert out.count("confirmed: ") == 4
    numbers = json.loads((tmp_path / "new" / "study" / "mean-estimation.json").read_text(encoding="utf-8"))
    assert (numbers["repeats"], numbers["seed"]) == (6, 2)
    assert [point["epsilon"] for point in numbers["sweeps"]["epsilon"]] == [0.5, 1.0]
    error = numbers["sweeps"]["within"][1]["els"]["error"]
    assert f"{error['value']:.3f} ({error['low']:.3f} to {error['high']:.3f})" in out
    ET.parse(tmp_path / "new" / "study" / "mean-estimation.svg")
    code, out, _ = replicate("mean-estimation", "--out", tmp_path, "--repeats", 6, "--seed", 2, "--json")
    assert code == 0
    assert json.loads(out) == numbers


def test_effective_noise_writes_figure_and_numbers(replicate, tmp_path, monkeypatch):
    rows = effective_noise.effective_noise((1024,), (64, 256), (1000,), (3.0,))
    monkeypatch.setattr(effective_noise, "effective_noise", lambda **_: rows)
    code, out, err = replicate("effective-noise", "--out", tmp_path)
    assert code == 0, err
    assert "0.0415" in out  # docs/theory.md#table-of-break-even-concentrations
    assert names(out, "tau / C", "0.1", "2 of 2")
    numbers = json.loads((tmp_path / "effective-noise.json").read_text(encoding="utf-8"))
    assert [row["cohort"] for row in numbers["rows"]] == [64, 256]
    ET.parse(tmp_path / "effective-noise.svg")
    code, out, _ = replicate("effective-noise", "--out", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, numbers)


def test_proposition_writes_figure_and_numbers(replicate, tmp_path, monkeypatch):
    size = Size(MarkovCorpus(users=3, vocabulary=4, length=4), 0.25, (0.3, 0.9))
    monkeypatch.setattr(proposition_sweeps, "SIZES", (size,))
    code, out, err = replicate("proposition", "--out", tmp_path, "--draws", 500, "--seed", 1)
    assert code == 0, err
    assert "84/84 pairs" in err
    assert re.search(r"^ *confirmed: .*Proposition 1", out, re.MULTILINE)
    assert "not confirmed: Proposition 2 as printed" in out
    numbers = json.loads((tmp_path / "proposition.json").read_text(encoding="utf-8"))
    assert (numbers["draws"], numbers["seed"]) == (500, 1)
    assert f"KL(P || Q) {numbers['results'][0]['forwards']['value']:.4g}, " in out
    ET.parse(tmp_path / "proposition.svg")
    code, out, _ = replicate("proposition", "--out", tmp_path, "--draws", 500, "--seed", 1, "--json")
    assert (code, json.loads(out)) == (0, numbers)


def test_bad_options_are_one_line(replicate, tmp_path, monkeypatch):
    code, _, err = replicate("mean-estimation", "--repeats", 1)
    assert code == 2
    assert "--repeats" in err
    (tmp_path / "file").touch()
    monkeypatch.setattr(effective_noise, "effective_noise", None)  # the folder is tried before the work
    code, _, err = replicate("effective-noise", "--out", tmp_path / "file")
    assert code == 2
    assert err.count("\n") == 1
    assert names(err, tmp_path / "file")


def test_without_a_name_there_is_a_line_for_each(replicate):
    code, out, _ = replicate()
    assert code == 0
    names = [command.name for command in app.registered_commands]
    assert len(names) == len(set(names)) >= 22
    assert [line.split()[0] for line in out.splitlines()[: len(names)]] == names
    assert all(len(line.split()) > 4 for line in out.splitlines()[: len(names)])


@pytest.mark.parametrize("name", [[], *([command.name] for command in app.registered_commands)], ids=str)
def test_help_is_printed_for_every_name(replicate, name):
    code, out, _ = replicate(*name, "--help")
    assert (code, "Usage: python -m replication" in out) == (0, True)


def test_an_unknown_name_is_one_line_with_the_nearest(replicate):
    code, out, err = replicate("mean-estimaton")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'mean-estimation'" in err


def test_numbers_have_limits(replicate):
    code, _, err = replicate("mean-estimation", "--repeats", "9" * 24)
    assert (code, err.count("\n")) == (2, 1)


def test_it_runs_from_the_root_of_the_repository_and_heldin_does_without_it():
    """In a process of its own: the answer comes from what is installed and from this folder alone."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "replication", "user-entity-claims", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code = "import sys, heldin.commands.cli; print('replication' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.stdout == "False\n", done.stderr
