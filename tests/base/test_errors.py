"""Errors of heldin reach a person as they were raised, also from another process."""

import ast
import importlib
import pickle
from pathlib import Path

import heldin

ROOT = Path(heldin.__file__).parent


def _errors_with_arguments():
    """Every exception class that has an ``__init__`` of its own: (class, number of arguments)."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    name = ".".join(("heldin", *path.relative_to(ROOT).with_suffix("").parts))
                    if any("Error" in ast.unparse(base) for base in node.bases) or node.name.endswith("Error"):
                        yield getattr(importlib.import_module(name), node.name), len(method.args.args) - 1


def test_every_error_survives_the_way_from_another_process():
    """Workers and clusters pickle what a task raises; an error that cannot be loaded again hides the fault."""
    errors = list(_errors_with_arguments())
    assert len(errors) >= 3
    for kind, arguments in errors:
        error = kind(*(f"argument {i}" for i in range(arguments)))
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error)), kind
