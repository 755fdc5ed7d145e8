"""Algorithm 1: l tokens that come back, in every document, at a place drawn uniformly; one user at a time."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from heldin.canaries.substring import canary_name, canary_of_user, has_document_of, insert_at_random, sample_substring
from heldin.corpus.document import Document
from heldin.corpus.store import CorpusRecord


@pytest.fixture(scope="module")
def tokenizer(make_lm):
    return make_lm().tokenizer


def _ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _records(english, user="ann", count=12):
    texts = [" ".join(english[i * 5 : i * 5 + 10]) for i in range(count)]
    return [
        CorpusRecord(i, user, f"{user}-{i}", Document.of(text), f"2020-01-{i + 1:02d}") for i, text in enumerate(texts)
    ]


def _canary(tokenizer, records, length=6, **changes):
    options = {"documents": None, "visible_tokens": 200, "visible_characters": 4000, "seed": 0, **changes}
    return canary_of_user(tokenizer, records, length=length, **options)


def _contains(ids, window):
    return any(ids[i : i + len(window)] == window for i in range(len(ids) - len(window) + 1))


@pytest.mark.parametrize("length", [1, 2, 5, 20, 40])
def test_every_document_has_the_same_tokens_of_one_of_them_and_is_otherwise_unchanged(tokenizer, english, length):
    records = _records(english)
    user = _canary(tokenizer, records, length)
    assert (user.canary.source, user.canary.length) == ("ann", length)
    shared = user.canary.mark
    assert any(shared in record.text for record in records)
    window = next(ids for ids in [_ids(tokenizer, "so" + shared)[len(_ids(tokenizer, "so")) :]])
    assert len(window) == length
    assert len(user.records) == len(records)
    for before, after in zip(records, user.records, strict=True):
        place = after.position
        assert after.text[place : place + len(shared)] == shared
        assert after.text[:place] + after.text[place + len(shared) :] == before.text
        assert _contains(_ids(tokenizer, after.text), window)
        assert (after.date, after.id) == (before.date, f"{user.canary.user}/{before.id}")


def test_the_substring_is_drawn_over_all_documents_and_places(tokenizer, english):
    texts = [record.text for record in _records(english)]
    drawn = [sample_substring(tokenizer, texts, 3, random.Random(i)) for i in range(400)]
    of = Counter(next(i for i, text in enumerate(texts) if s.text in text) for s in drawn)
    assert len(of) >= len(texts) // 2  # a substring of several documents counts for the first
    assert len({s.text for s in drawn}) > 50


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1, max_size=60).filter(str.strip), seed=st.integers(0, 9), within=st.integers(-5, 80))
def test_insertion_adds_the_substring_and_nothing_else_whatever_the_text(text, seed, within):
    changed, place = insert_at_random(text, " X Y", random.Random(seed), within=within)
    assert changed == text[:place] + " X Y" + text[place:]
    assert insert_at_random(text, " X Y", random.Random(seed), within=within) == (changed, place)


def _boundaries(text, within):
    """The slow twin: every place at the end of a word that is not past ``within``."""
    ends = [i for i in range(1, len(text) + 1) if not text[i - 1].isspace() and (text[i:] == "" or text[i].isspace())]
    return [i for i in ends if i <= within]


TEXT = "a bb ccc dddd eeeee ffffff ggggggg hhhhhhhh"


@pytest.mark.parametrize("within", [43, 20])
def test_the_place_is_uniform_over_the_ends_of_words(within):
    places = Counter(insert_at_random(TEXT, " X", random.Random(i), within=within)[1] for i in range(4000))
    wanted = _boundaries(TEXT, within)
    assert set(places) == set(wanted)
    assert stats.chisquare([places[p] for p in wanted]).pvalue > 1e-6
    skipping = Counter(TEXT.find(" ", random.Random(i).randrange(35)) for i in range(4000))  # favours long words
    assert stats.chisquare([skipping[p] for p in _boundaries(TEXT, 34)]).pvalue < 1e-6


def test_the_place_is_where_training_looks(tokenizer, english):
    """In documents that are cut to 60 tokens for training, every substring is inside the cut."""
    records = _records(english)
    longest = max(len(_ids(tokenizer, record.text)) for record in records)
    assert longest > 65
    user = _canary(tokenizer, records, 10, visible_tokens=60)
    ends = [len(_ids(tokenizer, record.text[: record.position + len(user.canary.mark)])) for record in user.records]
    assert max(ends) <= 60
    free = _canary(tokenizer, records, 10)
    assert max(len(_ids(tokenizer, r.text[: r.position + len(free.canary.mark)])) for r in free.records) > 60


def test_a_substring_that_fills_what_is_seen_still_goes_between_two_words(tokenizer, english):
    """One token is left of what training sees: no end of a word is in it, and the next one is taken."""
    records = _records(english)
    user = _canary(tokenizer, records, 58, visible_tokens=59)
    assert [r.position for r in user.records] == [len(record.text.split()[0]) for record in records]


def test_no_document_that_long_is_none_and_is_told_apart_without_a_guess(tokenizer, english):
    records = _records(english)
    texts = [record.text for record in records]
    longest = max(len(_ids(tokenizer, text)) for text in texts)
    for length in (1, longest // 2, longest, longest + 1, 5 * longest):
        fits = any(len(_ids(tokenizer, text)) >= length for text in texts)
        assert has_document_of(tokenizer, texts, length) is fits
        assert (_canary(tokenizer, records, length, visible_tokens=10**4) is not None) is fits


def test_what_becomes_of_a_user_depends_on_nobody_else_and_the_name_hides_whose_it_was(tokenizer, english):
    ann, bob = _records(english), _records(english, "bob")
    one, again, other = _canary(tokenizer, ann), _canary(tokenizer, ann), _canary(tokenizer, bob)
    assert one == again
    assert one.canary.user != other.canary.user
    assert "ann" not in one.canary.user.split("/")
    assert one.canary.user == canary_name(0, "ann") != canary_name(1, "ann")
    assert [r.position for r in one.records] != [r.position for r in other.records]


def test_scripts_without_spaces_get_the_substring_too():
    text = "今日は天気がいいから散歩しましょう" * 8
    places = {insert_at_random(text, "X", random.Random(i), within=60)[1] for i in range(50)}
    assert len(places) > 20
    assert max(places) <= 60
