"""Which tokens of a text are scored, where only parts of it are: a completion, or the turns of one role."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError

Spans = Sequence[tuple[int, int]]  # parts of a text: first character, and the one after the last
_TEXTS = 1000  # whose offsets are held at once


def scored_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], parts: Sequence[Spans]
) -> Iterator[NDArray[np.bool_]]:
    """By text, whether each of its tokens is scored, shape (tokens,): those that share a character with a part are.

    Trainers count the loss on the same tokens: TRL's mask of a completion begins with the first token that the prompt
    alone does not have, and transformers' mask of an assistant's turn with the token of its first character.

    Args:
        tokenizer: of the model that scores; tokenized as ``models.logprobs`` does.
        parts: of each text.

    Raises:
        InputError: the tokenizer does not say where its tokens stand.
    """
    if not tokenizer.is_fast:
        raise InputError("parts of texts need a tokenizer that says where tokens stand (a fast one): score whole texts")
    for first in range(0, len(texts), _TEXTS):
        block = list(texts[first : first + _TEXTS])
        encoded = tokenizer(
            block,
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for offsets, spans in zip(encoded["offset_mapping"], parts[first : first + _TEXTS], strict=True):
            begins, ends = token_places(offsets)
            touched = np.zeros(len(ends), dtype=np.bool_)
            for begin, end in spans:
                touched |= (begins < end) & (ends > begin)
            yield touched


def token_places(offsets: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First character of each token and the one after its last, blanks included: each begins where the last ended."""
    # Some tokenizers leave a token's blank out of its offsets, and a character of several bytes has several tokens.
    ends = list(accumulate((end for _, end in offsets), max))
    begins = [min(begin, before) for (begin, _), before in zip(offsets, [0, *ends], strict=False)]
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
