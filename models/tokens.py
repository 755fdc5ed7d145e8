"""Texts as token ids without special tokens, and which of the tokens belong to counted parts."""

import contextlib
import hashlib
import itertools
import json
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from heldin.models.loading import LanguageModel
    from heldin.models.objective import Objective

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
    """Tokenize on all cores in this block, if there are many texts and the user has not set the parallelism."""
    if _CHOSEN is not None or texts < MANY or not _may_thread:
        yield
        return
    os.environ[_THREADS] = "true"
    try:
        yield
    finally:
        os.environ[_THREADS] = "false"


def token_lists(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text. Many texts are tokenized on all cores.

    Args:
        tokenizer: the tokenizer; one that is based on the tokenizers library is called directly, which saves a quarter
            of the time.
    """
    if not texts:
        return []
    if tokenizer.is_fast:
        backend = _backend(tokenizer)
        with _all_cores(len(texts)):
            return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)[
        "input_ids"
    ]
    return ids


def _backend(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """Return the underlying tokenizer of the tokenizers library, without truncation or padding."""
    backend = tokenizer.backend_tokenizer
    # One that was saved with them would.
    backend.no_truncation()
    backend.no_padding()
    return backend


class TokenMemo:
    """Token ids of recent texts. heldin thus tokenizes each text once for all models with equal tokenizers.

    Attributes:
        most: maximum number of tokens to keep; the least recently used texts are dropped first.
    """

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[str, bytes], NDArray[np.int32]] = OrderedDict()
        self._tokens = 0
        # Texts are tokenized ahead by a thread of its own.
        self._lock = threading.Lock()

    def ids(self, tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the token ids of each text."""
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


def _name(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a name that all tokenizers with equal rules share; a unique name for other kinds of tokenizer."""
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


_TEXTS = 1000  # whose offsets are held at once


class Framed(str):
    """A text that a chat template wrote, with its own first and last token. No start token precedes it.

    A model reads the first token, which has no score.
    """

    __slots__ = ()


def started(text: str, ids: "Ids", start: int) -> tuple[int, "Ids"]:
    """Return the token that precedes a text, and the tokens that are scored."""
    return (int(ids[0]), ids[1:]) if isinstance(text, Framed) and len(ids) else (start, ids)


IGNORED = -100  # the target of a position at which no token is asked for; torch's own mark
Ids = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens of one record, and which of them count.

    Attributes:
        ids: n token ids.
        counted: mask of the tokens that count in the loss and are scored, shape (n,); None: all tokens count.
    """

    ids: Ids
    counted: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bearing(self) -> int:
        """Number of counted tokens."""
        return len(self.ids) if self.counted is None else int(self.counted.sum())

    @property
    def counted_ids(self) -> Ids:
        """Ids of the counted tokens."""
        return self.ids if self.counted is None else np.asarray(self.ids)[self.counted]

    @property
    def predicted(self) -> int:
        """Number of predicted tokens, counted or not; the first token is only read."""
        return max(0, len(self.ids) - 1)

    def part(self, begin: int, end: int | None) -> "Tokens":
        """Return the tokens from ``begin`` to before ``end``; None: to the last token."""
        return Tokens(self.ids[begin:end], None if self.counted is None else self.counted[begin:end])

    def rows(self) -> "tuple[Tokens, ...]":
        """Return the rows that a model reads: only the record itself."""
        return (self,)

    def shortest(self) -> "Tokens":
        """Return the shortest record of this kind, for a pass that must run but contributes nothing."""
        return self.part(0, 2)

    def inputs_and_targets(self) -> tuple[Ids, Ids]:
        """Return the tokens that a causal model reads, and for each the next token as target. A target that does not
        count is ``IGNORED``."""
        targets = self.ids[1:]
        if self.counted is None:
            return self.ids[:-1], targets
        # Of a signed type: ids on disk are not.
        return self.ids[:-1], np.where(self.counted[1:], np.asarray(targets, dtype=np.int64), IGNORED)


@dataclass(frozen=True, slots=True, eq=False)
class Pair(Tokens):
    """Two answers to one prompt as one record: the tokens of the chosen answer, then the tokens of the rejected answer.

    Each answer begins with the prompt.

    Attributes:
        second: number of tokens of the chosen answer.
        reference: log-probability, in nats, of each answer's counted tokens under the model before training.
        objective: objective that compares the answers; None: not chosen yet.
    """

    second: int = 0
    reference: tuple[float, float] = (0.0, 0.0)
    objective: "Objective | None" = None

    @classmethod
    def of(cls, chosen: Tokens, rejected: Tokens) -> "Pair":
        """Return the pair of two answers."""
        both = joined((chosen, rejected))
        return cls(both.ids, both.counted, len(chosen))

    @property
    def predicted(self) -> int:
        """Number of predicted tokens, counted or not."""
        return sum(row.predicted for row in self.rows())

    def rows(self) -> tuple[Tokens, ...]:
        """Return the rows that a model reads: the chosen answer and the rejected answer."""
        return self.part(0, self.second), self.part(self.second, None)

    def shortest(self) -> "Pair":
        """Return the shortest pair with the same objective."""
        rows = [row.part(0, 2) for row in self.rows()]
        return replace(Pair.of(*rows), objective=self.objective)


def joined(parts: Sequence[Tokens]) -> Tokens:
    """Return the tokens of all parts, one part after the other."""
    ids = [token for part in parts for token in part.ids]
    if all(part.counted is None for part in parts):
        return Tokens(ids)
    counted = [np.ones(len(part), dtype=np.bool_) if part.counted is None else part.counted for part in parts]
    return Tokens(ids, np.concatenate(counted))


class Parted(Protocol):
    """A text and its counted parts, such as ``corpus.document.Document``."""

    @property
    def text(self) -> str:
        """The whole text."""
        ...

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """The counted parts, each as the index of its first character and the index after its last."""
        ...

    @property
    def is_plain(self) -> bool:
        """Return whether the whole text counts."""
        ...

    @property
    def framed(self) -> bool:
        """Return whether the text has its own first and last token."""
        ...

    @property
    def is_pair(self) -> bool:
        """Return whether the text has two answers to one prompt."""
        ...

    def branches(self) -> "Sequence[Parted]":
        """Return the texts that a model reads: the document itself, or for a pair, the prompt with each answer."""
        ...


def as_read(document: Parted) -> str:
    """Return the text of a document as a model reads it for scoring."""
    return Framed(document.text) if document.framed else document.text


def tokens_of(tokenizer: "PreTrainedTokenizerBase", documents: Iterable[Parted]) -> Iterator[Tokens]:
    """Yield the tokens of each document, without special tokens. A token counts if it overlaps a counted part.

    Trainers count the loss on the same tokens. TRL's mask of a completion begins with the first token that is not a
    token of the prompt alone. transformers' mask of an assistant's turn begins with the token of the turn's first
    character.

    Raises:
        InputError: only parts of a text count, and the tokenizer does not report the positions of its tokens.
    """
    every = iter(documents)
    while block := list(itertools.islice(every, _TEXTS)):
        plain = [document.text for document in block if document.is_plain]
        of_plain = map(Tokens, token_lists(tokenizer, plain))
        parted = [document for document in block if not document.is_plain]
        of_parted = _of_parted(tokenizer, parted) if parted else iter(())
        yield from (next(of_plain if document.is_plain else of_parted) for document in block)


def scored_tokens_of(tokenizer: "PreTrainedTokenizerBase", documents: Iterable[Parted]) -> Iterator[Tokens]:
    """Yield the tokens of each document that are scored; see ``tokens_of``."""
    ours, theirs = itertools.tee(documents)
    for document, tokens in zip(ours, tokens_of(tokenizer, theirs), strict=True):
        yield tokens.part(1, None) if document.framed else tokens


def _of_parted(tokenizer: "PreTrainedTokenizerBase", documents: Sequence[Parted]) -> Iterator[Tokens]:
    if not tokenizer.is_fast:
        raise InputError(
            "parts of texts need a fast tokenizer, because only a fast tokenizer reports the positions of tokens:"
            " give a fast tokenizer, or score whole texts"
        )
    texts = [document.text for document in documents]
    with _all_cores(len(texts)):
        encoded = _backend(tokenizer).encode_batch(texts, add_special_tokens=False)
    for encoding, document in zip(encoded, documents, strict=True):
        ids, offsets = encoding.ids, encoding.offsets
        begins, ends = token_places(offsets)
        counted = np.zeros(len(ends), dtype=np.bool_)
        for begin, end in document.spans:
            counted |= (begins < end) & (ends > begin)
        yield Tokens(ids, counted)


def tokens_within(tokenizer: "PreTrainedTokenizerBase", text: str, ends: Sequence[int], most: int) -> int:
    """Return the largest number of tokens, at most ``most``, that lie before one of ``ends``; 0 if there is none.

    Args:
        tokenizer: tokenizer that reports the positions of its tokens.
        text: the text.
        ends: character positions at which tokens may end; a token that crosses a position is excluded.
        most: maximum number of tokens.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    _, stops = token_places(encoded["offset_mapping"])
    counts = np.searchsorted(stops, ends, side="right")
    fitting = counts[counts <= most]
    return int(fitting.max(initial=0))


def token_places(offsets: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the begin and end of each token in characters. A token begins at the end of the previous token, so it
    includes the blanks between them."""
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    # Some tokenizers leave a token's blank out of its offsets, and a character of several bytes has several tokens.
    ends = np.maximum.accumulate(places[:, 1])
    return np.minimum(places[:, 0], np.concatenate([[0], ends[:-1]])[: len(ends)]), ends


def start_token(tokenizer: "PreTrainedTokenizerBase", name: str) -> int:
    """Return the beginning-of-text token, or else the end-of-text token. GPT-style models saw the end-of-text token in
    training."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise InputError(
        f"the tokenizer of '{name}' has neither a beginning-of-text nor an end-of-text token: add one of the two"
    )


def same_tokens(a: "PreTrainedTokenizerBase | None", b: "PreTrainedTokenizerBase | None") -> bool:
    """Return whether two tokenizers split every text into the same tokens, so means over tokens are comparable.

    None is an unknown tokenizer. It differs from every other tokenizer.
    """
    return a is not None and b is not None and a.get_vocab() == b.get_vocab() and cuts(a) == cuts(b)


def cuts(tokenizer: "PreTrainedTokenizerBase") -> object:
    """Return the settings that determine a fast tokenizer's tokens. Return None for other tokenizers; heldin then
    compares only vocabularies."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    # Not the whole of it: truncation and padding, which training sets, change no score. Equal vocabularies with other
    # merges cut a text otherwise.
    parts = json.loads(backend.to_str())
    return [parts[name] for name in ("normalizer", "pre_tokenizer", "model")]


def require_context(lm: "LanguageModel", tokens: int) -> None:
    """Raise InputError if windows of this many tokens, after a start token, exceed the model's context."""
    # The last token is predicted and not read, so that the start token has its place.
    if tokens > lm.context:
        raise InputError(
            f"extraction's prefix and suffix have {tokens} tokens, but the context of '{lm.name}' has only"
            f" {lm.context}: lower measures.extraction.prefix or suffix"
        )
