"""Deduplication and caps: against brute force, what they remove, what they look at, and that they compose."""

import pytest
from pydantic import TypeAdapter, ValidationError

from heldin.corpus.document import Document
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.cap import Cap
from heldin.defenses.data_side.contract import DataDefense, TrainingRecord
from heldin.defenses.data_side.deduplicate import Deduplicate, shingles

WORDS = [f"word{i}" for i in range(40)]


def _records():
    """Three users; ann and bob share a text, ann has an exact copy and a near copy of her own."""
    texts = {
        "ann": [WORDS[:20], WORDS[20:], WORDS[:20], [*WORDS[:19], "other"], WORDS[5:15]],
        "bob": [WORDS[20:], WORDS[3:30]],
        "cy": [[f"cy{i} {word}" for word in WORDS[: 8 + i]] for i in range(7)],
    }
    found = []
    for user, its in texts.items():
        for words in its:
            found.append(TrainingRecord(10 + len(found), user, f"id{len(found)}", Document.of(" ".join(words))))
    return found


def _lengths(documents):
    return [len(document.text.split()) for document in documents]


def _losses(documents):
    return [float(len(document.text) % 7) for document in documents]


def _left(*defenses, seed=0):
    left, removals = apply_defenses(defenses, _records(), lengths=_lengths, losses=_losses, seed=seed)
    return [r.row for r in left], removals


def test_exact_copies_go_within_a_user_or_across_users_and_the_first_stays():
    rows, removals = _left(Deduplicate())
    assert set(range(10, 24)) - set(rows) == {12}
    assert (removals[0].before, removals[0].removed, removals[0].users) == (14, 1, 1)
    rows, removals = _left(Deduplicate(scope="corpus"))
    assert set(range(10, 24)) - set(rows) == {12, 15}
    assert removals[0].users == 2


def _jaccard(a, b, ngram):
    a, b = set(shingles(a, ngram)), set(shingles(b, ngram))
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("scope", ["user", "corpus"])
def test_near_copies_are_those_of_the_jaccard_similarity(scope):
    """The first of every set that is alike stays, by brute force; no pair is near the threshold."""
    kept, similarities = [], []
    for record in _records():
        others = [k for k in kept if scope == "corpus" or k.user == record.user]
        similarities += [_jaccard(record.text, k.text, 3) for k in others]
        if not any(_jaccard(record.text, k.text, 3) >= 0.7 for k in others):
            kept.append(record)
    assert not [s for s in similarities if 0.55 < s < 0.85]
    rows, _ = _left(Deduplicate(scope=scope, threshold=0.7, ngram=3))
    assert rows == [k.row for k in kept]
    assert len(rows) == (12 if scope == "user" else 11)


def test_a_short_text_is_one_shingle():
    assert shingles("one two", 5) == ["one two"]
    assert shingles("one two three", 2) == ["one two", "two three"]


@pytest.mark.parametrize("selection", ["random", "longest", "shortest", "highest_perplexity", "lowest_perplexity"])
def test_a_cap_keeps_so_many_by_its_rule(selection):
    rows, removals = _left(Cap(records=2, selection=selection))
    of = {r.row: r for r in _records()}
    by_user = {}
    for row in rows:
        by_user.setdefault(of[row].user, []).append(of[row].document)
    assert {u: len(t) for u, t in by_user.items()} == {"ann": 2, "bob": 2, "cy": 2}
    assert removals[0].removed == 8
    cy = [r.document for r in _records() if r.user == "cy"]
    value = _lengths if selection in ("longest", "shortest") else _losses
    ranked = sorted(value(cy), reverse=selection in ("longest", "highest_perplexity"))[:2]
    if selection != "random":
        assert sorted(value(by_user["cy"])) == sorted(ranked)
    else:
        assert len({tuple(_left(Cap(records=2), seed=s)[0]) for s in range(8)}) > 1


def test_a_users_cap_and_copies_within_depend_on_nobody_else():
    records = _records()
    for defense in (Cap(records=2), Deduplicate(threshold=0.7, ngram=3)):
        whole, _ = apply_defenses([defense], records, lengths=_lengths, losses=_losses, seed=3)
        alone, _ = apply_defenses([defense], records[:5], lengths=_lengths, losses=_losses, seed=3)
        assert [r.row for r in whole if r.user == "ann"] == [r.row for r in alone]
        assert defense.declared().user_local
        assert not defense.declared().record_local
    assert not Deduplicate(scope="corpus").declared().user_local


def test_steps_compose_in_their_order():
    first, removals = _left(Deduplicate(threshold=0.7, ngram=3), Cap(records=3))
    other, _ = _left(Cap(records=3), Deduplicate(threshold=0.7, ngram=3))
    assert [r.before for r in removals] == [14, 12]
    assert len(first) == 3 + 2 + 3
    assert len(other) <= len(first)


@pytest.mark.parametrize(
    "bad",
    [{"kind": "cap", "records": 0}, {"kind": "deduplicate", "threshold": 0}, {"kind": "deduplicate", "threshold": 1.1}],
)
def test_a_cap_of_nothing_and_thresholds_outside_are_refused(bad):
    with pytest.raises(ValidationError, match="greater than|less than"):
        TypeAdapter(DataDefense).validate_python(bad)
