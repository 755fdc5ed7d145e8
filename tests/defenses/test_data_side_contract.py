"""Every kind of data-side defense does what it declares: tested by leaving out users, records and texts."""

import pytest

from heldin.corpus.document import Document
from heldin.corpus.entities.spans import Span
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.cap import Cap
from heldin.defenses.data_side.contract import DataSideDefense, TrainingRecord
from heldin.defenses.data_side.deduplicate import Deduplicate
from heldin.defenses.data_side.deidentify import DeIdentify
from heldin.defenses.data_side.kinds import DATA_DEFENSES
from heldin.words.data_steps import DataStepText

TEXTS = ("Ann met Bob", "a b c d e f", "Ann met Bob", "one two", "a b c d e f g", "Bob", "one two")


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


def records(texts=TEXTS, users="aaabbcc"):
    rows = enumerate(zip(texts, users, strict=True))
    return [TrainingRecord(row, user, f"{user}{row}", Document.of(text)) for row, (text, user) in rows]


def lengths(documents):
    return [len(document.text) for document in documents]


def left(defense, given):
    kept, _ = apply_defenses([defense], given, lengths=lengths, losses=lengths, seed=1)
    return {record.row: record.document for record in kept}


def undeclared(defense: DataSideDefense) -> list[str]:
    """Return which declarations a defense breaks on the records above."""
    step, whole, broken = defense.declared(), records(), []
    everything = left(defense, whole)
    for user in "abc":
        without = left(defense, [record for record in whole if record.user != user])
        others = {row: text for row, text in everything.items() if whole[row].user != user}
        if step.user_local and without != others:
            broken.append("user_local")
    for gone in whole:
        without = left(defense, [record for record in whole if record is not gone])
        if step.record_local and without != {row: text for row, text in everything.items() if row != gone.row}:
            broken.append("record_local")
    if step.slots_only:
        other = left(defense, records(tuple(reversed(TEXTS))))
        broken += ["slots_only"] * (other.keys() != everything.keys())
    # It removes records, or it changes texts.
    if defense.rewrites == (len(everything) < len(whole)):
        broken.append("rewrites")
    counts = [sum(whole[row].user == user for row in everything) for user in "abc"]
    if defense.most_records and max(counts) > defense.most_records:
        broken.append("most_records")
    return sorted(set(broken))


def test_every_kind_does_what_it_declares(kinds):
    registered = set(DATA_DEFENSES.ours)
    assert registered == kinds.keys()
    found = {(kind, i): undeclared(d) for kind, made in kinds.items() for i, d in enumerate(made)}
    assert {place: broken for place, broken in found.items() if broken} == {}


@pytest.mark.parametrize("change", ["user_local", "record_local", "slots_only"])
def test_a_false_declaration_is_found(kinds, change):
    liar = {
        "user_local": (kinds["deduplicate"][1], {"user_local": True, "record_local": False, "slots_only": False}),
        "record_local": (kinds["cap"][1], {"user_local": True, "record_local": True, "slots_only": False}),
        "slots_only": (kinds["cap"][1], {"user_local": True, "record_local": False, "slots_only": True}),
    }
    defense, claims = liar[change]
    assert undeclared(_claiming(defense, **claims)) == [change]


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
