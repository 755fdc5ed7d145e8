"""`heldin study`: table, findings, figure and numbers."""

import functools
import json
import xml.etree.ElementTree as ET

import pytest

from heldin.corpus.made_up.markov import MarkovCorpus
from heldin.studies import effective_noise, mean_estimation_sweeps, proposition_sweeps
from heldin.studies.mean_estimation import Task
from heldin.studies.proposition_sweeps import Size


@pytest.fixture
def small(monkeypatch):
    """The study at a size of seconds."""
    task = Task(users=32, examples=4, dimension=4, rounds=8, delta=1e-5)
    monkeypatch.setattr(mean_estimation_sweeps, "Task", lambda: task)
    sweeps = functools.partial(mean_estimation_sweeps.Sweeps, (0.5, 1.0), (32, 64), (1.0, 4.0))
    monkeypatch.setattr(mean_estimation_sweeps, "Sweeps", sweeps)


def test_mean_estimation_writes_figure_and_numbers(call, small, tmp_path):
    code, out, err = call("study", "mean-estimation", "--to", tmp_path / "new" / "study", "--repeats", 6, "--seed", 2)
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
    code, out, _ = call("study", "mean-estimation", "--to", tmp_path, "--repeats", 6, "--seed", 2, "--json")
    assert code == 0
    assert json.loads(out) == numbers


def test_effective_noise_writes_figure_and_numbers(call, tmp_path, monkeypatch):
    rows = effective_noise.effective_noise((1024,), (64, 256), (1000,), (3.0,))
    monkeypatch.setattr(effective_noise, "effective_noise", lambda **_: rows)
    code, out, err = call("study", "effective-noise", "--to", tmp_path)
    assert code == 0, err
    assert "0.0415" in out  # docs/theory.md#table-of-break-even-concentrations
    assert "tau / C must be below 0.1 in 2 of 2 settings." in out
    numbers = json.loads((tmp_path / "effective-noise.json").read_text(encoding="utf-8"))
    assert [row["cohort"] for row in numbers["rows"]] == [64, 256]
    ET.parse(tmp_path / "effective-noise.svg")
    code, out, _ = call("study", "effective-noise", "--to", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, numbers)


def test_proposition_writes_figure_and_numbers(call, tmp_path, monkeypatch):
    size = Size(MarkovCorpus(users=3, vocabulary=4, length=4), 0.25, (0.3, 0.9))
    monkeypatch.setattr(proposition_sweeps, "SIZES", (size,))
    code, out, err = call("study", "proposition", "--to", tmp_path, "--draws", 500, "--seed", 1)
    assert code == 0, err
    assert "84/84 pairs" in err
    assert "confirmed: the bounds of Proposition 1 bracket T\n" in out
    assert "not confirmed: Proposition 2 as printed" in out
    numbers = json.loads((tmp_path / "proposition.json").read_text(encoding="utf-8"))
    assert (numbers["draws"], numbers["seed"]) == (500, 1)
    assert f"KL(P || Q) {numbers['results'][0]['forwards']['value']:.4g}, " in out
    ET.parse(tmp_path / "proposition.svg")
    code, out, _ = call("study", "proposition", "--to", tmp_path, "--draws", 500, "--seed", 1, "--json")
    assert (code, json.loads(out)) == (0, numbers)


def test_bad_options_are_one_line(call, tmp_path, monkeypatch):
    code, _, err = call("study", "mean-estimation", "--repeats", 1)
    assert code == 2
    assert "--repeats" in err
    (tmp_path / "file").touch()
    monkeypatch.setattr(effective_noise, "effective_noise", None)  # the folder is tried before the work
    code, _, err = call("study", "effective-noise", "--to", tmp_path / "file")
    assert code == 2
    assert err == f"error: cannot use folder '{tmp_path / 'file'}' (File exists): name another one\n"
