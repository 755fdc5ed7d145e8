"""Programs that tests write for processes of their own: what they import is there.

Most are run by slow tests alone, of which CI takes a third: a name that moved would be found late.
"""

import ast
import importlib
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def _programs(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "from heldin" in node.value:
            yield from _imports(node.value)


def _imports(text):
    """Imports of heldin in a text, if it is a program or a line of one."""
    try:
        parsed = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("heldin."):
            yield from ((node.module, alias.name) for alias in node.names)


def test_what_written_programs_import_is_there():
    wanted = {(path, *found) for path in TESTS.rglob("*.py") for found in _programs(path)}
    wanted = {each for each in wanted if each[0].parent.name != "contracts"}  # whose programs are wrong on purpose
    assert len(wanted) > 40  # of the programs as they stand
    gone = [(path.name, module, name) for path, module, name in sorted(wanted) if not _is_there(module, name)]
    assert gone == []


def _is_there(module, name):
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    if hasattr(found, name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize(
    ("line", "there"), [("from heldin.base import errors", True), ("from heldin.base import x", False)]
)
def test_a_name_that_is_gone_is_found(line, there):
    ((module, name),) = _imports(line)
    assert _is_there(module, name) is there
