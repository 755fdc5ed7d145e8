"""The commands of the pages, run as a reader would type them, and what the pages say they print.

A block of ``sh`` is run, and a block of ``text`` shows lines of what was printed before it, where numbers may differ,
or has a comment above it that says why it varies.
A block of ``python`` or ``yaml`` whose first line is a comment with a file name is written to this file.
Every other block of commands in the documentation has a comment above it that says why it is not run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_theory import PAGES, ROOT

TUTORIALS = ("tutorial-checkpoint", "tutorial-training", "tutorial-trl", "chat", "preferences")
FROM_NOTHING = ("README.md", *(f"docs/{name}.md" for name in TUTORIALS))
WITH_EXAMPLE = tuple(
    f"docs/{name}.md"
    for name in (
        *(
            "canaries",
            "ci",
            "continual",
            "corpora",
            "defenses",
            "endpoints",
            "faq",
            "figures",
            "own-files",
            "plant",
            "presets",
            "private-training",
        ),
        *("retraining", "run", "scale", "studies", "sweeps", "user-entity-dp", "users", "verdict", "white-box"),
    )
)
RUN = FROM_NOTHING + WITH_EXAMPLE
BLOCK = re.compile(
    r"(?:^<!-- (?:not run|varies): (?P<why>.+?) -->\n+)?^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.M | re.S
)


def masked(text):
    """The words of a text without its numbers."""
    return re.sub(r"\d[\d,.]*(e-?\d+)?", "#", " ".join(text.split()))


def commands_in(body):
    """Lines that call heldin or a script of the repository, in a block."""
    return [line for line in body.splitlines() if re.match(r"(heldin|python|make|pip|sh) ", line)]


def ran(body, folder):
    """What a block of commands prints, run in a folder as a reader of the page would."""
    bin_ = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bin_, "COLUMNS": "80", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    call = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(["bash", "-ec", body], timeout=3600, **call)
    assert done.returncode == 0, (body, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def example(make_once):
    return make_once("pages", lambda folder: ran("heldin corpus example --out example --models", folder)) / "example"


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_as_printed(page, tmp_path, request):
    for name in ("examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    if page in WITH_EXAMPLE:
        shutil.copytree(request.getfixturevalue("example"), tmp_path / "example")
    printed = ""
    for its in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        body = its["body"]
        if its["kind"] in ("python", "yaml") and (name := re.match(r"# ([\w-]+\.(?:py|yaml))\b", body)):
            (tmp_path / name[1]).write_text(body, encoding="utf-8")
        if its["kind"] == "sh" and not its["why"]:
            printed += " " + masked(ran(body, tmp_path))
        if its["kind"] == "text" and not its["why"]:
            for line in body.splitlines():
                assert masked(line) in printed, (line, printed)


@pytest.mark.parametrize("page", [its for its in PAGES if its.parent.name not in ("decisions", "log")], ids=str)
def test_every_block_of_commands_is_run_or_says_why_not(page):
    runs = str(page.relative_to(ROOT)) in RUN
    for its in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if its["kind"] in ("", "sh", "bash", "text") and commands_in(its["body"]):
            assert its["why"] or (runs and its["kind"] == "sh"), its["body"]
