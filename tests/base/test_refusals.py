"""The check of refusals itself: it accepts the refusal that is meant, and no other."""

import pytest

from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.section import ExpandedPath, Section
from heldin.base.yaml_files import parse_yaml, read_yaml
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import Columns, batched
from heldin.defenses.accounting.events import check_count
from tests.refusals import lacks, names, raised_apart, refused, refused_apart


def _repeated_key(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("ann: 1\nann: 2\n", encoding="utf-8")
    return read_yaml(path)


def test_a_refusal_is_known_by_function_and_data(tmp_path):
    with refused(by=read_yaml, naming=("keys.yaml", "line 2", "'ann'")) as caught:
        _repeated_key(tmp_path)
    assert isinstance(caught.value, InputError)
    # The functions that raised what it was made from.
    for function in (parse_yaml, "parse_yaml", "_UniqueKeys.construct_mapping"):
        with refused(by=function):
            _repeated_key(tmp_path)


@pytest.mark.parametrize(
    "refusal",
    [
        {"by": batched},
        {"by": "construct_mapping"},
        {"naming": "line 22"},
        {"naming": ("'ann'", "'bob'")},
        {"by": read_yaml, "naming": "line 1"},
    ],
)
def test_another_refusal_is_rejected(tmp_path, refusal):
    with pytest.raises(AssertionError), refused(**refusal):
        _repeated_key(tmp_path)


def test_another_kind_of_error_and_none_are_rejected(tmp_path):
    with pytest.raises(OSError, match=r"keys\.yaml"), refused(by=read_yaml):
        read_yaml(tmp_path / "keys.yaml")
    with pytest.raises(pytest.fail.Exception), refused(by=read_yaml):
        pass
    with pytest.raises(AssertionError), refused():
        _repeated_key(tmp_path)


def test_a_message_is_a_line_and_faults_below_it():
    def fail(message):
        raise InputError(message)

    with refused(naming=("config.yaml", "users", "seed")):
        fail("config.yaml: 2 errors\n  users: 0\n  seed: -1")
    with pytest.raises(AssertionError), refused(naming="config.yaml"):
        fail("config.yaml: 2 errors\nusers: 0")


def test_a_row_is_refused_by_whatever_reports_it():
    with refused(by=batched, naming=("mail.jsonl line 1", "'user'")):
        list(batched(iter([(1, {"user": "", "text": "x"})]), "mail.jsonl", "line", Columns(), BadRows()))


def test_what_a_section_refuses_is_known_by_its_validator(monkeypatch):
    class Place(Section):
        folder: ExpandedPath

    monkeypatch.delenv("NOWHERE", raising=False)
    for function in (checked, "_expanded"):
        with refused(by=function, naming=("folder", "$NOWHERE/x")):
            checked(Place, {"folder": "$NOWHERE/x"}, "a test")


def test_two_refusals_of_the_same_data_are_told_apart_by_the_statements(tmp_path):
    caught = []
    for text in ("a: 1", "b: 1", "b: 1"):
        with refused(naming=("keys.yaml", "line 2"), by=read_yaml) as error:
            (tmp_path / "keys.yaml").write_text(f"{text}\n{text}\n", encoding="utf-8")
            read_yaml(tmp_path / "keys.yaml")
        caught.append(error)
    assert not raised_apart(*caught)
    (tmp_path / "keys.yaml").write_bytes(b"\xff")
    with refused(naming="keys.yaml", by=read_yaml) as error:
        read_yaml(tmp_path / "keys.yaml")
    assert raised_apart(caught[0], error)


def test_data_are_named_as_a_whole():
    line = "m.csv line 12: delta 1e-05 is not above 1,000 of 2.5, in split.audit_fraction or --delta [0, 1]"
    assert lacks(line, "m.csv", "line 12", "1e-05", 2.5, "1,000", "--delta", "[0, 1]", "audit_fraction") == []
    parts = ["line 1", "05", "5", "000", "audit", "elta"]
    assert lacks(line, *parts) == parts
    assert names(line, "m.csv")
    with pytest.raises(AssertionError):
        names(line, "m.csv", "line 13")
    with pytest.raises(AssertionError):
        names(line)


def test_a_command_is_refused_by_a_function_with_data(call, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("ann: 1\nann: 2\n", encoding="utf-8")
    code, _, _ = call("run", path, "--check")
    assert code == 2
    assert call.refused(by=read_yaml, naming=("keys.yaml", "line 2", "'ann'"))
    for refusal in ({"by": batched}, {"naming": "line 22"}, {"by": read_yaml, "code": 5}):
        with pytest.raises(AssertionError):
            call.refused(**refusal)
    # An option that no command has is refused by the library that parses options.
    assert call("run", path, "--chek")[0] == 2
    assert call.refused(naming="--chek")
    assert call("--version")[0] == 0
    with pytest.raises(AssertionError):
        call.refused(naming="heldin", code=0)


def test_checks_of_a_function_are_told_apart_group_by_group():
    def count(value):
        return lambda: check_count("steps", value)

    refused_apart(check_count, [count(0), count(-1)], [count(10**12)])
    for groups in ([[count(0), count(10**12)]], [[count(0)], [count(-1)]], [[count(1)]]):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            refused_apart(check_count, *groups)
