"""A YAML file that expands to more than it says, or is nested without end, is refused at once."""

import time

import pytest

from heldin.base.yaml_files import parse_yaml, read_yaml
from tests.refusals import refused


def bomb(kind, levels=9):
    """A few lines that expand to 9 to the power of ``levels`` values."""
    if kind == "list":
        first, later = "a0: &a0 [x]\n", "a{0}: &a{0} [{1}]\n"
    else:
        first, later = "a0: &a0 {k: 1}\n", "a{0}: &a{0} {{<<: [{1}]}}\n"
    return first + "".join(later.format(i, ", ".join([f"*a{i - 1}"] * 9)) for i in range(1, levels))


@pytest.mark.parametrize(
    ("text", "by", "naming"),
    [
        (bomb("list"), "_UniqueKeys.get_single_node", ()),
        (bomb("merge"), "_UniqueKeys.get_single_node", ()),
        ("a: &a [*a]", "_values", "line 1"),
        ("a: &a {<<: *a}", "_values", "line 1"),
        ("[" * 60 + "]" * 60, read_yaml, ()),
        ("{a: " * 5000, read_yaml, ()),
        ("- " * 5000, read_yaml, ()),
        ('"a\\uD800": [ann]', "_values", "line 1"),
        ('a: ["\\uDFFF"]', "_values", "line 1"),
        ("a: " + "9" * 24, "_UniqueKeys.construct_yaml_int", ()),
        ("a: 0x" + "f" * 9000, "_UniqueKeys.construct_yaml_int", ()),
        ("a: " + "9" * 9000, "_UniqueKeys.construct_yaml_int", "YAML"),
    ],
)
def test_what_stands_for_too_much_is_refused_at_once(tmp_path, text, by, naming):
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    started = time.monotonic()
    with refused(by=by, naming=naming) as error:
        read_yaml(tmp_path / "c.yaml")
    assert time.monotonic() - started < 5
    assert len(str(error.value).splitlines()) == 1
    assert "c.yaml" in str(error.value)


def test_ordinary_aliases_merges_and_numbers_are_read():
    text = "a: &a {k: 1_000, l: [1, 2]}\nb: {<<: *a, k: 0x10}\nc: [*a, *a]\nd: -9223372036854775808"
    whole = {"k": 1000, "l": [1, 2]}
    assert parse_yaml(text) == {"a": whole, "b": {**whole, "k": 16}, "c": [whole, whole], "d": -(2**63)}
    assert len(parse_yaml(f"a: [{'1, ' * 5_000}]")["a"]) == 5_000
