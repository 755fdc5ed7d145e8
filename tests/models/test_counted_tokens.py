"""Which tokens count where only parts of a text do."""

import numpy as np
import pytest

from heldin.corpus.document import Document
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import Tokens, joined, token_lists, tokens_of
from tests.refusals import refused


class _Tokenizer:
    """Tokens where a test says, and the tokenizers library's part of itself."""

    is_fast = True

    def __init__(self, offsets):
        self.offsets, self.ids = offsets, list(range(len(offsets)))

    @property
    def backend_tokenizer(self):
        return self

    def no_truncation(self):
        pass

    no_padding = no_truncation

    def encode_batch(self, texts, **_):
        return [self for _ in texts]

    def __call__(self, texts, **_):
        return {"input_ids": [self.ids for _ in texts]}


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
    (found,) = tokens_of(_Tokenizer(offsets), [Document("abcdef", tuple(parts))])
    assert found.counted.tolist() == [bool(its) for its in scored]
    assert list(found.ids) == list(range(len(offsets)))


def test_the_parts_that_make_up_a_text_have_all_its_tokens_also_of_several_bytes(make_lm):
    tokenizer = make_lm().tokenizer
    texts = ["two words", "a  b\n\nc", "äß 语言 🙂 end", " begins and ends with a blank "]
    plain = list(tokens_of(tokenizer, [Document.of(text) for text in texts]))
    parted = list(tokens_of(tokenizer, [Document(text, ((0, 1), (1, len(text)))) for text in texts]))
    assert all(tokens.counted is None for tokens in plain)
    assert all(tokens.counted.all() for tokens in parted)
    assert [list(tokens.ids) for tokens in plain] == [list(tokens.ids) for tokens in parted]
    assert [list(tokens.ids) for tokens in plain] == token_lists(tokenizer, texts)


@pytest.mark.parametrize("text", ["one two three four", "äß 语言 🙂 end of it", "x  y\n z"])
def test_two_parts_have_all_tokens_and_share_at_most_one(text, make_lm):
    tokenizer = make_lm().tokenizer
    for place in range(1, len(text)):
        halves = [Document(text, ((0, place),)), Document(text, ((place, len(text)),))]
        first, second = (tokens.counted for tokens in tokens_of(tokenizer, halves))
        assert (first | second).all()
        assert (first & second).sum() <= 4  # the bytes of one character
        assert first.any()
        assert second.any()


def test_plain_and_parted_texts_come_in_the_order_given(make_lm):
    tokenizer = make_lm().tokenizer
    documents = [Document(f"text {i}", ((0, 4),)) if i % 3 else Document.of(f"text {i}") for i in range(2500)]
    found = list(tokens_of(tokenizer, documents))
    assert [list(tokens.ids) for tokens in found] == token_lists(tokenizer, [its.text for its in documents])
    assert [tokens.counted is None for tokens in found] == [its.is_plain for its in documents]


def test_a_tokenizer_that_does_not_say_where_tokens_stand_is_refused_for_parts_alone(make_lm):
    slow = _Tokenizer([])
    slow.is_fast = False
    with refused(by="_of_parted"):
        list(tokens_of(slow, [Document("text", ((0, 2),))]))
    assert [list(tokens.ids) for tokens in tokens_of(slow, [Document.of("text")])] == [[]]


def test_what_is_asked_for_are_the_next_tokens_that_count():
    record = Tokens([7, 8, 9, 10], np.array([True, False, True, True]))
    inputs, targets = record.inputs_and_targets()
    assert (list(inputs), list(targets)) == ([7, 8, 9], [-100, 9, 10])
    assert (record.bearing, record.predicted, list(record.counted_ids)) == (3, 3, [7, 9, 10])
    plain = Tokens([7, 8, 9])
    assert [list(its) for its in plain.inputs_and_targets()] == [[7, 8], [8, 9]]
    together = joined([plain, record.part(1, 3)])
    assert (list(together.ids), together.counted.tolist()) == ([7, 8, 9, 8, 9], [True, True, True, False, True])
    assert joined([plain, plain]).counted is None


def test_scores_at_some_tokens_keep_their_moments():
    scores = TokenScores(*(np.arange(3, dtype=np.float32) + i for i in range(3)))
    found = scores.at(np.array([True, False, True]))
    assert (found.logprobs.tolist(), found.means.tolist(), found.deviations.tolist()) == ([0, 2], [1, 3], [2, 4])
    assert TokenScores(scores.logprobs).at(np.array([False, True, False])).means is None
