"""Tokens of many texts at once are those of each; a text is tokenized once for tokenizers that cut alike."""

import copy

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
    memo = TokenMemo(most=5 * size)
    memo.ids(tokenizer, texts[:3])
    memo.ids(tokenizer, texts[:1])
    memo.ids(tokenizer, texts[3:6])
    assert sum(ids.size for ids in memo._kept.values()) == memo._tokens <= 5 * size
    asked = []
    monkeypatch.setattr(tokens, "token_lists", lambda its, some: asked.append(some) or token_lists(its, some))
    memo.ids(tokenizer, [texts[0], texts[1]])
    assert asked == [[texts[1]]]
