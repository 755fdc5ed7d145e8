"""One window a text: offsets by a key, texts that are too short, and suffixes that stand in other people's texts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from heldin.attacks import windows
from heldin.attacks.extraction import ExtractionConfig
from heldin.attacks.windows import found_in, found_in_others, hashes_of_runs
from tests.documents import by_user
from tests.oracles.continuations import contains, stands_in_others
from tests.refusals import refused

KEY = bytes(range(32))
ASKED = ExtractionConfig(prefix=2, suffix=3)


class Words:
    """A tokenizer of numbers: one token a word."""

    is_fast = False

    def __call__(self, texts, **_):
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def text(tokens):
    return " ".join(map(str, tokens))


def windows_of(texts, *rest):
    return windows.windows_of(by_user(texts), *rest)


def require_a_window(texts, *rest):
    windows.require_a_window(by_user(texts), *rest)


def tokens_of(found):
    return {(found.users[row], tuple(its)) for row, its in zip(found.rows, found.tokens.tolist(), strict=True)}


def test_a_window_depends_on_key_user_and_text_alone():
    texts = {f"user {i}": [text(range(100 * i + j, 100 * i + j + 30)) for j in range(3)] for i in range(6)}
    found = tokens_of(windows_of(texts, Words(), ASKED, KEY))
    turned = {user: its[::-1] for user, its in reversed(texts.items())}
    assert tokens_of(windows_of(turned, Words(), ASKED, KEY)) == found
    some = {user: texts[user] for user in ("user 4", "user 1")}
    assert tokens_of(windows_of(some, Words(), ASKED, KEY)) == {its for its in found if its[0] in some}
    assert tokens_of(windows_of(texts, Words(), ASKED, bytes(32))) != found


def test_offsets_are_uniform_over_the_places_within_what_training_sees():
    texts = {f"user {i}": [text(range(40))] for i in range(3000)}
    every = windows_of(texts, Words(), ASKED, KEY)
    for found, places in ((every, 36), (windows_of(texts, Words(), ASKED, KEY, 20), 16)):
        starts = np.bincount(found.tokens[:, 0], minlength=places)
        assert len(starts) == places
        assert stats.chisquare(starts).pvalue > 1e-6
        np.testing.assert_array_equal(found.tokens - found.tokens[:, :1], np.tile(np.arange(5), (3000, 1)))
    shorter = windows_of(texts, Words(), ASKED.model_copy(update={"first_tokens": 6}), KEY, 20)
    assert shorter.tokens.max() == 5


def test_texts_that_are_too_short_have_no_window_and_are_not_dropped():
    texts = {"a": [text(range(4)), text(range(5))], "b": [""], "c": [text(range(9))]}
    found = windows_of(texts, Words(), ASKED, KEY)
    assert (list(found.users), found.rows.tolist()) == (["a", "a", "b", "c"], [1, 3])
    np.testing.assert_array_equal(found.spread(np.array([-1.5, -2.5])), [np.nan, -1.5, np.nan, -2.5])
    assert found.marked(np.array([True, False])).tolist() == [False, True, False, False]


def test_windows_longer_than_every_text_are_one_clear_line():
    texts = {"a": [text(range(4))], "b": [text(range(3)), ""]}
    for look in (lambda: windows_of(texts, Words(), ASKED, KEY), lambda: require_a_window(texts, Words(), ASKED)):
        with refused(by=windows.windows_of, naming=("3", "5", "measures.extraction.prefix")):
            look()
    long = {"a": [text(range(50))]}
    require_a_window(long, Words(), ASKED)
    with refused(by=windows.windows_of, naming=("extraction.prefix", "4")):
        require_a_window(long, Words(), ASKED, 4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_suffixes_are_found_where_a_search_through_everything_finds_them(data):
    few = st.lists(st.integers(0, 2), max_size=12)
    texts = data.draw(st.dictionaries(st.sampled_from("abcd"), st.lists(few, min_size=1, max_size=3), min_size=1))
    training = data.draw(st.lists(st.tuples(st.sets(st.sampled_from("abcde"), min_size=1), few), max_size=8))
    if not any(len(its) >= 5 for of in texts.values() for its in of):
        return
    found = windows_of({user: [text(its) for its in of] for user, of in texts.items()}, Words(), ASKED, KEY)
    windows = [(found.users[row], its) for row, its in zip(found.rows, found.tokens.tolist(), strict=True)]
    owned = [(owners, text(its)) for owners, its in training]
    assert found_in_others(found, owned, Words(), ASKED).tolist() == stands_in_others(windows, 2, training)
    plain = [its for _, its in training]
    anywhere = [any(contains(other, its[2:]) for other in plain) for _, its in windows]
    assert found_in(found, map(text, plain), Words(), ASKED).tolist() == anywhere


def test_a_text_of_ones_own_is_nobody_elses():
    shared, own = list(range(20)), list(range(50, 70))
    found = windows_of({"a": [text(shared), text(own)], "b": [text(shared)]}, Words(), ASKED, KEY)
    training = [({"a"}, text(shared)), ({"a"}, text(own)), ({"b"}, "7 " + text(shared)), ({"a"}, text(own))]
    assert found_in_others(found, training, Words(), ASKED).tolist() == [True, False, True]
    assert found_in_others(found, training[:2], Words(), ASKED).tolist() == [False, False, True]


def test_hashes_are_equal_where_runs_are():
    ids = np.random.default_rng(1).integers(0, 3, 4000).astype(np.int32)
    runs = [tuple(ids[i : i + 7]) for i in range(len(ids) - 6)]
    hashes = hashes_of_runs(ids, 7)
    assert len(hashes) == len(runs)
    assert len(set(hashes.tolist())) == len(set(runs)) == len(set(zip(runs, hashes.tolist(), strict=True)))
    assert hashes_of_runs(ids[:6], 7).size == 0


@pytest.mark.parametrize(
    ("changed", "by", "naming"),
    [
        ({"queries": []}, None, "queries"),
        ({"queries": [5, 1]}, "ExtractionConfig._can_be_asked", ("queries", "[5, 1]")),
        ({"queries": [0, 1]}, "ExtractionConfig._can_be_asked", ("queries", "[0, 1]")),
        ({"first_tokens": 99}, "ExtractionConfig._can_be_asked", ("first_tokens", "99", "100")),
        ({"temperature": 0}, None, ("temperature", "0")),
        ({"probability": 1}, None, ("probability", "1")),
        ({"top_k": 0}, None, ("top_k", "1")),
    ],
)
def test_what_cannot_be_asked_is_refused(changed, by, naming):
    with refused(by=by, naming=naming, kind=ValueError):
        ExtractionConfig(**changed)
