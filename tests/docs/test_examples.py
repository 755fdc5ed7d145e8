"""What the page about Python and the notebook show runs as printed, beside the example corpus."""

import ast
import json
import re
from pathlib import Path

import pytest

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


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


@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables(beside_the_example, monkeypatch):
    monkeypatch.chdir(beside_the_example)
    names, shown = {}, []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shown.append(_shown(ast.parse("".join(cell["source"])), names))
    assert sum("<table" in its for its in shown) >= 3


def test_the_notebook_shows_what_an_account_shows_today():
    *_, last = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names = {}
    exec("import heldin", names)
    assert _shown(ast.parse("".join(last["source"])), names) == "".join(last["outputs"][0]["data"]["text/html"])


def _shown(cell, names):
    """Run a cell; what a notebook would show of its last line."""
    last = cell.body.pop() if isinstance(cell.body[-1], ast.Expr) else None
    exec(compile(cell, "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    html = getattr(value, "_repr_html_", None)
    return html() if html else repr(value)
