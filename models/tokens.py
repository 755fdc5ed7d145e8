"""Texts as token ids: the text itself, without special tokens; and which of them stand for parts of the text."""

import contextlib
import hashlib
import itertools
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError

KEPT = 2**26  # tokens that are kept of texts, 4 bytes each
A_TEXT = 80  # tokens that a kept text counts as, besides its own: for its key and its array's head
MANY = 256  # texts for which several threads are worth starting
_THREADS = "TOKENIZERS_PARALLELISM"
_CHOSEN = os.environ.get(_THREADS)
# Tokenizers warn on stderr where a process forks after their threads ran: off, but for large batches of ours.
os.environ.setdefault(_THREADS, "false")
_may_thread = True  # a fork has none of the threads that its parent started, and would wait for them


def _forked() -> None:
    global _may_thread
    _may_thread = False


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def _all_cores(texts: int) -> Iterator[None]:
    """Tokenize on all cores, if there are many texts and the user has chosen nothing else."""
    if _CHOSEN is not None or texts < MANY or not _may_thread:
        yield
        return
    os.environ[_THREADS] = "true"
    try:
        yield
    finally:
        os.environ[_THREADS] = "false"


def token_lists(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text; many texts at once are tokenized on all cores.

    Args:
        tokenizer: one of the tokenizers library is asked directly, which saves a quarter of the time.
    """
    if not texts:
        return []
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        # A tokenizer that was saved with them would cut or pad.
        backend.no_truncation()
        backend.no_padding()
        with _all_cores(len(texts)):
            return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)[
        "input_ids"
    ]
    return ids


class TokenMemo:
    """Token ids of texts that were asked for before, so that models with equal tokenizers tokenize a text once.

    Attributes:
        most: tokens that are kept; the texts that were asked for longest ago go first.
    """

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[str, bytes], NDArray[np.int32]] = OrderedDict()
        self._tokens = 0
        # Texts are tokenized ahead by a thread of its own.
        self._lock = threading.Lock()

    def ids(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Token ids of each text."""
        name = _name(tokenizer)
        keys = [(name, hashlib.blake2b(text.encode(), digest_size=16).digest()) for text in texts]
        with self._lock:
            ids_of = {key: self._kept[key] for key in keys if key in self._kept}
            for key in ids_of:
                self._kept.move_to_end(key)
        wanting = {key: text for key, text in zip(keys, texts, strict=True) if key not in ids_of}
        for key, ids in zip(wanting, token_lists(tokenizer, list(wanting.values())), strict=True):
            ids_of[key] = np.array(ids, dtype=np.int32)
        with self._lock:
            for key in wanting:
                if key not in self._kept:
                    self._tokens += ids_of[key].size + A_TEXT
                self._kept[key] = ids_of[key]
            while self._tokens > self.most:
                self._tokens -= self._kept.popitem(last=False)[1].size + A_TEXT
        return [ids_of[key] for key in keys]


MEMO = TokenMemo()
_NUMBERS = itertools.count()
_NAMES: "weakref.WeakKeyDictionary[PreTrainedTokenizerBase, str]" = weakref.WeakKeyDictionary()


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    """The same for tokenizers that cut every text alike; of its own for one that is not of the tokenizers library."""
    if tokenizer not in _NAMES:
        if tokenizer.is_fast:
            # Truncation and padding are off, special tokens are not added: what is left decides.
            stated = json.loads(tokenizer.backend_tokenizer.to_str())
            parts = [stated[part] for part in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
            _NAMES[tokenizer] = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        else:
            # Not its address, which the next tokenizer may have once this one is gone.
            _NAMES[tokenizer] = f"number {next(_NUMBERS)}"
    return _NAMES[tokenizer]


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
