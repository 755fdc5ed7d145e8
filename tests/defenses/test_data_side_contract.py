"""Every kind of data-side defense does what it declares: tested by leaving out users, records and texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heldin.corpus.document import Document
from heldin.corpus.entities.spans import Span
from heldin.defenses.data_side.cap import Cap
from heldin.defenses.data_side.contract import DATA_DEFENSES, DataSideDefense
from heldin.defenses.data_side.deduplicate import Deduplicate
from heldin.defenses.data_side.deidentify import DeIdentify
from heldin.testing.defenses import broken_declarations, check_defense
from heldin.words.data_steps import DataStepText


class Names:
    """Finds the words Ann and Bob."""

    def spans(self, texts):
        for text in texts:
            words = ("Ann", "Bob")
            yield [Span(at, at + 3, "person") for word in words if (at := text.text.find(word)) >= 0]


@pytest.fixture
def kinds():
    return {
        "deduplicate": [Deduplicate(), Deduplicate(scope="corpus"), Deduplicate(threshold=0.5, ngram=2)],
        "cap": [Cap(records=2, selection=s) for s in ("random", "longest", "shortest", "highest_perplexity")],
        "deidentify": [_deidentify()],
    }


def _deidentify():
    entities = type("Made", (), {"kind": "made", "source": lambda self: Names()})()
    return DeIdentify.model_construct(entities=entities, categories=("person",))


def test_every_kind_does_what_it_declares(kinds):
    registered = set(DATA_DEFENSES.ours)
    assert registered == kinds.keys()
    found = {(kind, i): broken_declarations(d) for kind, made in kinds.items() for i, d in enumerate(made)}
    assert {place: broken for place, broken in found.items() if broken} == {}


@pytest.mark.parametrize("change", ["user_local", "record_local", "slots_only"])
def test_a_false_declaration_is_found(kinds, change):
    liar = {
        "user_local": (kinds["deduplicate"][1], {"user_local": True, "record_local": False, "slots_only": False}),
        "record_local": (kinds["cap"][1], {"user_local": True, "record_local": True, "slots_only": False}),
        "slots_only": (kinds["cap"][1], {"user_local": True, "record_local": False, "slots_only": True}),
    }
    defense, claims = liar[change]
    (broken,) = broken_declarations(_claiming(defense, **claims))
    assert broken.startswith(f"{change}: ")


def _claiming(defense, **claims):
    step = defense.declared().model_copy(update={"name": DataStepText.MINIMUM(), **claims})
    return _Liar(defense, step)


class _Liar:
    """A defense with another declaration."""

    def __init__(self, defense, step):
        self._defense, self._step = defense, step

    def declared(self):
        return self._step

    def __getattr__(self, name):
        return getattr(self._defense, name)


class Outsider(DataSideDefense):
    """Leaves all records as they are; a package's, as far as anybody can tell."""

    user_local = record_local = True

    def name(self):
        return DataStepText.OF_PACKAGE(kind=self.kind, package="outside", version="1", code="0")

    def apply(self, records, given):
        return list(records)


class Rolling(Outsider):
    def apply(self, records, given):
        return [record for record in records if RNG.random() < 0.5]


class FirstOfAll(Outsider):
    def apply(self, records, given):
        return list(records)[:1]


class Unsaid(FirstOfAll):
    user_local = record_local = None


class Reading(Outsider):
    def apply(self, records, given):
        return [record for record in records if Path("/etc/hostname").read_bytes()]


class Doubling(Outsider):
    def apply(self, records, given):
        return [*records, *records]


class Renaming(Outsider):
    def apply(self, records, given):
        return [replace(record, user="ann") for record in records]


class Rewriting(Outsider):
    def apply(self, records, given):
        return [replace(record, document=Document.of("x")) for record in records]


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Rolling, "determinism"),
        (FirstOfAll, "user_local"),
        (Reading, "files"),
        (Doubling, "applied"),
        (Renaming, "applied"),
        (Rewriting, "applied"),
    ],
)
def test_a_liar_of_a_package_is_found(kind, said):
    check_defense(Outsider(kind="outside:Outsider"))
    with pytest.raises(AssertionError, match=f"- {said}: "):
        check_defense(kind(kind="outside:Other"))


def test_what_declares_nothing_is_not_local():
    step = Unsaid(kind="outside:Unsaid").declared()
    assert (step.user_local, step.record_local, step.slots_only) == (False, False, False)
    check_defense(Unsaid(kind="outside:Unsaid"))
