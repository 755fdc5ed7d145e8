"""Tokens of many texts at once are those of each; a text is tokenized once for tokenizers that cut alike."""

import copy
import os

import pytest

from heldin.models import tokens
from heldin.models.tiny import train_tokenizer
from heldin.models.tokens import TokenMemo, token_lists

TEXTS = ["The river opens the letter on day 7.", "Hi  there\n x ", "", "\u00e9 \u4e2d x" * 40]


@pytest.fixture
def tokenizer(english):
    return train_tokenizer(english, 300)


def test_they_are_those_of_the_tokenizers_own_call(tokenizer):
    expected = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    # As somebody may have saved it.
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    assert token_lists(tokenizer, TEXTS) == expected
    assert token_lists(tokenizer, []) == []


def test_equal_tokenizers_tokenize_a_text_once_and_others_for_themselves(tokenizer, english, monkeypatch):
    asked = []
    monkeypatch.setattr(tokens, "token_lists", lambda its, texts: asked.append(texts) or token_lists(its, texts))
    memo, same, other = TokenMemo(), copy.deepcopy(tokenizer), train_tokenizer(english[:30], 280)
    first = [ids.tolist() for ids in memo.ids(tokenizer, [*TEXTS, TEXTS[0]])]
    assert first == token_lists(tokenizer, [*TEXTS, TEXTS[0]])
    assert [ids.tolist() for ids in memo.ids(same, TEXTS[:2])] == first[:2]
    assert asked == [TEXTS, []]
    assert [ids.tolist() for ids in memo.ids(other, TEXTS)] == token_lists(other, TEXTS)
    assert asked[2] == TEXTS


def test_it_keeps_no_more_than_it_may_and_forgets_what_was_asked_for_longest_ago(tokenizer, monkeypatch):
    texts = [f"The river opens on day {i}." for i in range(20)]
    size = max(map(len, token_lists(tokenizer, texts)))
    memo = TokenMemo(most=5 * (size + tokens.A_TEXT))
    memo.ids(tokenizer, texts[:3])
    memo.ids(tokenizer, texts[:1])
    memo.ids(tokenizer, texts[3:6])
    kept = sum(ids.size + tokens.A_TEXT for ids in memo._kept.values())
    assert kept == memo._tokens <= memo.most
    asked = []
    monkeypatch.setattr(tokens, "token_lists", lambda its, some: asked.append(some) or token_lists(its, some))
    memo.ids(tokenizer, [texts[0], texts[1]])
    assert asked == [[texts[1]]]


class _OfWords:
    """A tokenizer that is not of the tokenizers library."""

    is_fast = False

    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, texts, **_):
        return {"input_ids": [[self.first + i for i in range(len(text.split()))] for text in texts]}


def test_a_tokenizer_at_the_address_of_one_that_is_gone_has_tokens_of_its_own():
    memo = TokenMemo()
    for first in range(0, 5000, 100):
        # The last one is gone by now, and its address free.
        (ids,) = memo.ids(_OfWords(first), ["three little words"])
        assert ids.tolist() == [first, first + 1, first + 2]


def test_many_texts_are_tokenized_on_all_cores_unless_the_user_chose_or_this_is_a_fork(tokenizer, monkeypatch):
    seen = []

    class Watching:
        is_fast = True

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        @property
        def backend_tokenizer(self):
            seen.append(None)
            return self

        def encode_batch_fast(self, texts, **how):
            seen[-1] = os.environ["TOKENIZERS_PARALLELISM"]
            return tokenizer.backend_tokenizer.encode_batch_fast(texts, **how)

        def no_truncation(self):
            pass

        def no_padding(self):
            pass

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    for chosen, may, count in ((None, True, 300), (None, True, 3), ("false", True, 300), (None, False, 300)):
        monkeypatch.setattr(tokens, "_CHOSEN", chosen)
        monkeypatch.setattr(tokens, "_may_thread", may)
        assert len(token_lists(Watching(), ["The river runs."] * count)) == count
    assert seen == ["true", "false", "false", "false"]
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
