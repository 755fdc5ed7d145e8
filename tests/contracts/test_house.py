"""Rooms of a size in which somebody finds their way: files, folders, functions and parameters."""

import ast
import os
from collections import Counter
from pathlib import Path

import heldin

ROOT = Path(heldin.__file__).parent
FILES = {
    (Path(folder) / name).relative_to(ROOT): (Path(folder) / name).read_text(encoding="utf-8")
    for folder, _, names in os.walk(ROOT, followlinks=True)
    for name in names
    if name.endswith(".py")
}
FUNCTIONS = [
    (path, function)
    for path, text in FILES.items()
    for function in ast.walk(ast.parse(text))
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
]


def _parameters(function):
    its = function.args
    named = [arg.arg for arg in (*its.posonlyargs, *its.args, *its.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def _lines(function):
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_no_file_is_longer_than_400_lines():
    assert len(FILES) > 300
    assert {str(path): n for path, text in FILES.items() if (n := len(text.splitlines())) > 400} == {}


def test_no_folder_has_more_than_22_percent_of_the_code():
    lines = Counter()
    for path, text in FILES.items():
        lines[path.parts[0]] += len(text.splitlines())
    assert {name: n for name, n in lines.items() if n > 0.22 * lines.total()} == {}
    assert lines["audit"] < 0.15 * lines.total()


def test_few_functions_are_long_or_have_many_parameters():
    long = [f"{path}: {f.name}" for path, f in FUNCTIONS if _lines(f) > 40]
    assert len(long) < 0.01 * len(FUNCTIONS), long
    many = [f"{path}: {f.name}" for path, f in FUNCTIONS if _parameters(f) > 6]
    assert len(many) < 0.02 * len(FUNCTIONS), many
