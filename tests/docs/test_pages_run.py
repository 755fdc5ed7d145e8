"""The commands of README and of the tutorials, run as a reader types them, and what they print.

A block of ``sh`` is run, and a block of ``text`` shows lines of what was printed before it, where numbers may differ.
Every other block of commands in the documentation has a comment above it that says why it is not run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_theory import PAGES, ROOT

RUN = ("README.md", "docs/tutorial-checkpoint.md", "docs/tutorial-training.md", "docs/tutorial-trl.md")
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.M | re.S)


def masked(text):
    """The words of a text without its numbers."""
    return re.sub(r"\d[\d,.]*(e-?\d+)?", "#", " ".join(text.split()))


def commands_in(body):
    """Lines that call heldin or a script of the repository, in a block."""
    return [line for line in body.splitlines() if re.match(r"(heldin|python|make|pip|sh) ", line)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_as_printed(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bin_ = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bin_, "COLUMNS": "80", "PYTHONPATH": str(ROOT / "src")}
    printed = ""
    for its in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        body = its["body"]
        if its["kind"] == "python" and (name := re.match(r"# (\w+\.py)\n", body)):
            (tmp_path / name[1]).write_text(body, encoding="utf-8")
        if its["kind"] == "sh" and not its["why"]:
            done = subprocess.run(
                ["bash", "-ec", body], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (body, done.stdout, done.stderr)
            printed += " " + masked(done.stdout)
        if its["kind"] == "text":
            for line in body.splitlines():
                assert masked(line) in printed, (line, printed)


@pytest.mark.parametrize("page", [its for its in PAGES if its.parent.name not in ("decisions", "log")], ids=str)
def test_every_block_of_commands_is_run_or_says_why_not(page):
    runs = str(page.relative_to(ROOT)) in RUN
    for its in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if its["kind"] in ("", "sh") and commands_in(its["body"]):
            assert its["why"] or (runs and its["kind"] == "sh"), its["body"]
