"""No sentence that a user reads has the name of a class of heldin, as a rename over files once left it in one."""

import ast
import re

import pytest

from tests.contracts.test_core import size

# A class that users call by its name, in messages about it.
PUBLIC = {"AuditCallback"}


def class_names(trees):
    """Return the names of all classes that are made of two words or more."""
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name for node in nodes if re.fullmatch(r"([A-Z][a-z0-9]+){2,}", node.name)} - PUBLIC


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sentences(tree):
    """Yield the texts of three words or more, without docstrings."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        # Without addresses such as package.module:Class, which people write into configs.
        text = re.sub(r"\w+(\.\w+)+:\w+", "", node.value) if _is_text(node) else None
        if isinstance(text, str) and id(node) not in alone and len(re.findall(r"\b[a-z]+\b", text)) >= 3:
            yield text


def named_in(tree, names):
    return sorted({word for text in sentences(tree) for word in re.findall(r"\b[A-Za-z0-9]+\b", text)} & names)


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in size.product_files()}


def test_no_sentence_has_the_name_of_a_class(trees):
    names = class_names(trees.values())
    assert len(names) > 300
    found = {path.name: named for path, tree in trees.items() if (named := named_in(tree, names))}
    assert found == {}


def test_a_name_that_a_rename_left_in_a_sentence_is_found():
    tree = ast.parse(
        'class PresetTokens:\n    "PresetTokens are words."\n\nx = "PresetTokens are words between blanks"\n'
    )
    assert named_in(tree, class_names([tree])) == ["PresetTokens"]
    assert named_in(ast.parse('x = "Tokens are words between blanks"'), class_names([tree])) == []
