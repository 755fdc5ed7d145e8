"""The corpus format of the guide for contributors does what its contract asks; the page on packages shows real ones."""

import ast
import sys
import types

import pytest

from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.rows import Columns
from tests.contracts.guide import EXTENDING, example
from tests.packages import EXAMPLES


def _run(containing, monkeypatch):
    module = types.ModuleType("guide_example")
    monkeypatch.setitem(sys.modules, "guide_example", module)  # dataclasses look for the module of a class
    exec(compile(example(containing), "contributing.md", "exec"), module.__dict__)
    return module


def test_the_format_yields_records_and_reports_bad_rows_by_line(monkeypatch, tmp_path):
    reader = _run("class TabSeparated", monkeypatch).TabSeparated
    path = tmp_path / "mail.tsv"
    path.write_text("who\tbody\nann\tGood morning.\nbob\n", encoding="utf-8")
    source = reader(path, Columns(user="who", text="body"))
    bad = BadRows(OnBadRows.SKIP)
    rows = [row for batch in source.batches(bad) for row in batch.to_pylist()]
    assert [(row["user"], row["text"]) for row in rows] == [("ann", "Good morning.")]
    assert "line 3" in str(bad.first)
    assert source.fingerprint() != reader(path, Columns(user="body", text="who")).fingerprint()


PACKAGES = sorted(path for path in EXAMPLES.glob("*/heldin_*.py"))


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.stem)
def test_the_page_on_packages_shows_the_examples_as_they_are(path):
    """``make lint`` checks the style of the files, and their own tests what they do."""
    code = path.read_text(encoding="utf-8")
    assert f"```python\n{code}```" in EXTENDING.read_text(encoding="utf-8")
    # Of code: without blank lines and docstrings.
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Expr)]
    words = {n for text in texts if isinstance(text, ast.Constant) for n in range(text.lineno, text.end_lineno + 1)}
    lines = [line for number, line in enumerate(code.splitlines(), start=1) if line.strip() and number not in words]
    assert len(lines) < 60
