"""What CI runs of the slow suites: each test is in one third, files stay together, and time that is up is said."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.thirds import THIRDS, third_of

ROOT = Path(__file__).resolve().parents[2]
MINE = """
import pytest
@pytest.mark.parametrize("case", range(60))
def test_of_cases(case): pass
def test_of_file(): pass
def test_fails(): assert False
"""


def _ran(folder, *options):
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.thirds",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "-rs",
        "-v",
    ]
    done = subprocess.run([*call, *options, "mine_test.py"], cwd=folder, capture_output=True, text=True, check=False)
    return (
        done.returncode,
        {line.split()[0] for line in done.stdout.splitlines() if "::" in line.split(" ")[0]},
        done.stdout,
    )


def test_every_test_is_in_one_third_and_a_failure_fails_its_third(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "mine_test.py").write_text(MINE, encoding="utf-8")
    codes, ran = zip(*(_ran(tmp_path, "--third", str(third))[:2] for third in THIRDS), strict=True)
    assert Counter(name for names in ran for name in names).most_common(1)[0][1] == 1
    assert sum(map(len, ran)) == 62
    assert min(map(len, ran)) >= 10
    of_file = third_of("mine_test.py::test_of_file")
    assert [code for code in codes if code == 1] == [1]
    assert codes.index(1) + 1 == of_file


def test_what_time_did_not_allow_is_skipped_and_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "mine_test.py").write_text(MINE, encoding="utf-8")
    code, _, said = _ran(tmp_path, "--minutes", "0")
    assert code == 0
    assert "62 skipped" in said
    assert "minutes of this call are over" in said


def test_the_commit_chooses_the_third_that_ci_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (chosen,) = (line for line in makefile.splitlines() if line.startswith("THIRD ?= "))
    asked = chosen.removeprefix("THIRD ?= $(shell ").removesuffix(")").replace("$$", "$")
    for commit, third in (("0000000", 1), ("0000001", 2), ("000000b", 3), ("fffffff", 1)):
        line = asked.replace("git rev-parse --short=7 HEAD", f"echo {commit}")
        said = subprocess.run(["sh", "-ec", line], capture_output=True, text=True, check=True)
        assert int(said.stdout) == third == int(commit, 16) % 3 + 1
    shown = subprocess.run(["make", "-n", "check-third"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert any(f"--third {third} " in shown for third in THIRDS)
    assert "make check-third" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
