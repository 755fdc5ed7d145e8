"""What the page about Python shows runs as printed, beside the example corpus."""

import re
from pathlib import Path

import pytest

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def beside_the_example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    write_example(folder / "example", users=120, models=True, reporter=LineReporter(lambda line: None))
    return folder


def _blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_python_of_a_page_runs_as_printed(beside_the_example, monkeypatch):
    page = "docs/python.md"
    monkeypatch.chdir(beside_the_example)
    blocks = _blocks(ROOT / page)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert Path("audit.pdf").read_bytes().startswith(b"%PDF")


def test_python_is_on_no_page_that_nobody_runs():
    shown = {path.name for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if _blocks(path)}
    # The guide's code is run by tests/contracts/guide.py, and that of other pages as a file that a command reads.
    assert "README.md" not in shown
    assert "python.md" in shown
