"""The base classes of configs and records: a name that is no field is never ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import heldin.commands.sweep as sweep_command
from heldin.base.section import CheckedNames, Facts, Section
from heldin.defenses.choices import Choice
from heldin.record.document import Record
from heldin.record.sweep import VariantResult
from tests.contracts.test_limits import all_sections, below


class _Part(Facts):
    a: int = 1
    b: int = 2

    @property
    def both(self) -> int:
        return self.a + self.b


@pytest.mark.parametrize("name", ["c", "both", "A", ""])
def test_a_name_that_is_no_field_is_refused(name):
    part = _Part()
    for call in (
        lambda: part.model_dump(include={"a", name}),
        lambda: part.model_dump(exclude={name}),
        lambda: part.model_dump(include={name: True}),
        lambda: part.model_dump_json(include={name}),
        lambda: part.model_dump_json(exclude={name, "b"}),
        lambda: part.model_copy(update={"a": 3, name: 4}),
    ):
        with pytest.raises(TypeError, match="_Part"):
            call()


@given(st.sets(st.sampled_from(["a", "b"])))
def test_names_of_fields_do_what_they_did(chosen):
    part = _Part()
    assert part.model_dump(include=chosen).keys() == chosen
    assert part.model_dump(exclude=chosen).keys() == {"a", "b"} - chosen
    assert part.model_copy(update=dict.fromkeys(chosen, 7)).model_dump() == {
        name: 7 if name in chosen else {"a": 1, "b": 2}[name] for name in ("a", "b")
    }


def test_every_model_of_heldin_refuses_unknown_names():
    all_sections()  # imports every module
    ours = {kind for kind in below(BaseModel) if kind.__module__.partition(".")[0] == "heldin"}
    assert {Facts, Section, Choice, Record} < ours
    assert {kind for kind in ours if not issubclass(kind, CheckedNames)} == set()


def test_lists_of_fields_name_fields():
    assert VariantResult.model_fields.keys() >= sweep_command.LISTS
