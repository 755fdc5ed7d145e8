"""Which tokens are scored where only parts of a text are."""

import numpy as np
import pytest

from heldin.models.token_scores import TokenScores
from heldin.models.tokens import scored_tokens
from tests.refusals import refused


class _Tokenizer:
    """Tokens where a test says."""

    is_fast = True

    def __init__(self, offsets):
        self._offsets = offsets

    def __call__(self, texts, **_):
        return {"offset_mapping": [self._offsets for _ in texts]}


@pytest.mark.parametrize(
    ("offsets", "parts", "scored"),
    [
        ([(0, 2), (2, 4), (4, 6)], [(2, 4)], [0, 1, 0]),
        ([(0, 2), (2, 4), (4, 6)], [(3, 5)], [0, 1, 1]),
        ([(0, 2), (2, 4), (4, 6)], [(0, 1), (5, 6)], [1, 0, 1]),
        ([(0, 2), (2, 4), (4, 6)], [(6, 6)], [0, 0, 0]),
        # " b" whose blank is left out of its offsets, and a blank that has no offsets at all
        ([(0, 1), (2, 3), (4, 5)], [(1, 2)], [0, 1, 0]),
        ([(0, 1), (2, 2), (3, 4)], [(1, 2)], [0, 1, 0]),
        # three tokens of one character
        ([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(1, 2)], [0, 1, 1, 1, 0]),
    ],
)
def test_a_token_is_scored_that_shares_a_character_with_a_part(offsets, parts, scored):
    (found,) = scored_tokens(_Tokenizer(offsets), ["abcdef"], [parts])
    assert found.tolist() == [bool(its) for its in scored]


def test_the_whole_text_has_all_tokens_also_of_several_bytes(make_lm):
    tokenizer = make_lm().tokenizer
    texts = ["two words", "a  b\n\nc", "äß 语言 🙂 end", " begins and ends with a blank "]
    lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    found = list(scored_tokens(tokenizer, texts, [[(0, len(text))] for text in texts]))
    assert [len(its) for its in found] == lengths
    assert all(its.all() for its in found)


@pytest.mark.parametrize("text", ["one two three four", "äß 语言 🙂 end of it", "x  y\n z"])
def test_two_parts_have_all_tokens_and_share_at_most_one(text, make_lm):
    tokenizer = make_lm().tokenizer
    for place in range(1, len(text)):
        first, second = scored_tokens(tokenizer, [text, text], [[(0, place)], [(place, len(text))]])
        assert (first | second).all()
        assert (first & second).sum() <= 4  # the bytes of one character
        assert first.any()
        assert second.any()


def test_a_tokenizer_that_does_not_say_where_tokens_stand_is_refused(make_lm):
    slow = _Tokenizer([])
    slow.is_fast = False
    with refused(by=scored_tokens):
        list(scored_tokens(slow, ["text"], [[(0, 4)]]))


def test_scores_at_some_tokens_keep_their_moments():
    scores = TokenScores(*(np.arange(3, dtype=np.float32) + i for i in range(3)))
    found = scores.at(np.array([True, False, True]))
    assert (found.logprobs.tolist(), found.means.tolist(), found.deviations.tolist()) == ([0, 2], [1, 3], [2, 4])
    assert TokenScores(scores.logprobs).at(np.array([False, True, False])).means is None
