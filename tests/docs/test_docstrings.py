"""Docstrings: every public thing has one, ``Args:`` names every parameter of a long signature, code is in backticks."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("base", "words", "corpus", "models", "canaries", "defenses", "finetune", "attacks", "bounds", "audit", "record"),
    *("stages", "white_box", "jobs", "reports", "planting", "sweeps", "api"),
)
SECTION = re.compile(r"^(?:Returns|Raises|Yields|Attributes|Examples?|Note):$", re.MULTILINE)


def public(tree):
    """(name, node) of the module, its public classes and functions, and their public methods."""
    found = [("module", tree)]
    levels = [("", tree)]
    for prefix, parent in levels:
        for node in parent.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                found.append((f"{prefix}{node.name}", node))
                if isinstance(node, ast.ClassDef):
                    levels.append((f"{prefix}{node.name}.", node))
    return found


def parameters(function):
    """Names of the parameters that a caller gives."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs]
    return [name.arg for name in [*every, *filter(None, [given.kwarg])] if name.arg not in ("self", "cls")]


def documented(docstring):
    """Names in the section ``Args:``, or None without one."""
    _, header, rest = docstring.partition("\nArgs:\n")
    if not header:
        return None
    return re.findall(r"^ {4}\**(\w+): ", SECTION.split(rest)[0], re.MULTILINE)


def wrong_in(source):
    """(name, what is wrong) for every docstring of a module, private ones included, that breaks a rule."""
    tree = ast.parse(source)
    wrong = [(name, "no docstring") for name, node in public(tree) if not ast.get_docstring(node)]
    for name, node in public(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names, listed = parameters(node), documented(ast.get_docstring(node) or "")
            if listed is not None and listed != [name for name in names if name in listed]:
                wrong.append((name, f"Args: {listed} for {names}"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            prose = re.sub(r"``[^`]+``", "", ast.get_docstring(node) or "")
            if "`" in prose:
                wrong.append((getattr(node, "name", "module"), "single backticks"))
    return wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_a_package(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert [(str(path.relative_to(ROOT)), *what) for path in files for what in wrong_in(path.read_text("utf-8"))] == []


def test_what_breaks_a_rule_is_found():
    swapped = '"""M."""\n\ndef f(a, b):\n    """F.\n\n    Args:\n        b: two.\n        a: one.\n    """\n'
    assert wrong_in(swapped) == [("f", "Args: ['b', 'a'] for ['a', 'b']")]
    assert wrong_in(swapped.replace("a: one", "e: one")) == [("f", "Args: ['b', 'e'] for ['a', 'b']")]
    assert wrong_in("def _f(a, b, c, d): ...\n") == [("module", "no docstring")]
    listed = '"""M."""\n\ndef f(self, a, b, *c, **d):\n    """F.\n\n    Args:\n        a: one.\n        b: two.\n'
    rest = "        *c: three.\n        **d: four.\n\n    Returns:\n        e: five.\n"
    assert wrong_in(f'{listed}{rest}    """\n') == []
    assert wrong_in(f'{listed}    """\n') == []  # the others say no more than name and type
    assert wrong_in('"""M."""\n\nclass A:\n    """``A``."""\n\n    def f(self): ...\n') == [("A.f", "no docstring")]
    assert wrong_in('"""``a`` and `b`."""\n') == [("module", "single backticks")]
