"""One window of each text, chosen with a key, and whether its words also occur in other people's texts.

The offset depends only on the key, the user's name and the text, so it does not depend on a coin.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.extraction import ExtractionConfig
from heldin.base.coins import keyed_uniform
from heldin.base.errors import InputError
from heldin.corpus.document import Document
from heldin.models.tokens import Tokens, tokens_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))

Rows = NDArray[np.int32]  # of token ids
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of the n texts that are long enough, out of m texts.

    Attributes:
        users: the author of each text, m names.
        rows: indices of the texts that have a window, ascending, shape (n,).
        tokens: windows of the texts, shape (n, prefix + suffix).
    """

    users: Sequence[str]
    rows: NDArray[np.intp]
    tokens: Rows

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Spread the values of the n windows over the m texts, shape (m,); NaN for texts without a window."""
        spread = np.full(len(self.users), np.nan)
        spread[self.rows] = values
        return spread

    def marked(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Spread the marks of the n windows over the m texts, shape (m,); False for texts without a window."""
        marked = np.zeros(len(self.users), dtype=np.bool_)
        marked[self.rows] = values
        return marked


def windows_of(
    texts: Mapping[str, Sequence[Document]],
    tokenizer: "PreTrainedTokenizerBase",
    asked: ExtractionConfig,
    key: bytes,
    visible: int | None = None,
) -> Windows:
    """Return one window of every text with enough tokens, at an offset that is uniform under the key.

    Every token of the suffix counts. The prefix may contain parts that do not count, such as a prompt.

    Args:
        asked: lengths of prefix and suffix, and ``first_tokens``.
        key: key that decides the offsets.
        visible: the window is within this number of leading tokens, unless ``first_tokens`` sets the number; None: all
            tokens.

    Raises:
        InputError: no text has enough tokens.
    """
    most = asked.first_tokens or visible
    users, rows, windows = [], [], []
    for row, ((user, document), tokens) in enumerate(_encoded(_with_users(texts), tokenizer)):
        users.append(user)
        places = _places(tokens, most, asked)
        if len(places):
            # Below 1, and so never beyond the last place.
            drawn = int(keyed_uniform(key, "extraction window", f"{user}\n{document.text}") * len(places))
            at = places[drawn]
            rows.append(row)
            windows.append(np.array(tokens.ids[at : at + asked.length], dtype=np.int32))
    if not windows:
        raise InputError(
            f"extraction needs prefix + suffix = {asked.length} tokens, but none of {len(users)} texts has so"
            f" many{'' if most is None else f' among its first {most}'}. Lower measures.extraction.prefix or suffix"
        )
    return Windows(users, np.array(rows, dtype=np.intp), np.stack(windows))


def require_a_window(
    texts: Mapping[str, Sequence[Document]],
    tokenizer: "PreTrainedTokenizerBase",
    asked: ExtractionConfig,
    visible: int | None = None,
) -> None:
    """Raise the error of ``windows_of`` if no text has enough tokens.

    The function reads texts only until one is long enough.

    Args:
        asked: lengths of prefix and suffix.
        visible: as in ``windows_of``.
    """
    most = asked.first_tokens or visible
    if not any(len(_places(tokens, most, asked)) for _, tokens in _encoded(_with_users(texts), tokenizer)):
        windows_of(texts, tokenizer, asked, b"", visible)


def _places(tokens: Tokens, most: int | None, asked: ExtractionConfig) -> Sequence[int]:
    """Return the offsets that a window may have.

    The window is within the first ``most`` tokens, and every token of its suffix counts.
    """
    seen = tokens.part(0, most)
    places = range(max(0, len(seen) - asked.length + 1))
    if seen.counted is None:
        return places
    # Uncounted tokens up to each place: a suffix has none if their number does not grow over it.
    before = np.concatenate([[0], np.cumsum(~seen.counted)])
    return [at for at in places if before[at + asked.length] == before[at + asked.prefix]]


def found_in_others(
    windows: Windows,
    training: Iterable[tuple[Collection[str], str]],
    tokenizer: "PreTrainedTokenizerBase",
    asked: ExtractionConfig,
) -> NDArray[np.bool_]:
    """Mark the windows whose suffix also occurs in another person's training text, shape (n,).

    Args:
        training: pairs (names of the authors, training text), which are read only once.
    """
    suffixes, suffix_of = _different(windows, asked)
    # Of each suffix those whose are all the texts in which it stands: for anybody else it stands in another's.
    common: list[set[str] | None] = [None] * len(suffixes)
    for owners, hits in _hits(suffixes, training, tokenizer):
        for suffix in hits:
            before = common[suffix]
            common[suffix] = set(owners) if before is None else before.intersection(owners)
    users = (windows.users[row] for row in windows.rows)
    of_window = ((user, common[suffix]) for user, suffix in zip(users, suffix_of.tolist(), strict=True))
    return np.array([whose is not None and user not in whose for user, whose in of_window], dtype=np.bool_)


def found_in(
    windows: Windows, texts: Iterable[str], tokenizer: "PreTrainedTokenizerBase", asked: ExtractionConfig
) -> NDArray[np.bool_]:
    """Mark the windows whose suffix occurs in any of the texts, shape (n,).

    Args:
        texts: texts to search, which are read only once.
    """
    suffixes, suffix_of = _different(windows, asked)
    present = np.zeros(len(suffixes), dtype=np.bool_)
    for _, hits in _hits(suffixes, ((None, text) for text in texts), tokenizer):
        present[list(hits)] = True
    return present[suffix_of]


def _different(windows: Windows, asked: ExtractionConfig) -> tuple[Rows, NDArray[np.intp]]:
    """Return the distinct suffixes, and the index of each window's suffix among them."""
    suffixes, suffix_of = np.unique(windows.tokens[:, asked.prefix :], axis=0, return_inverse=True)
    return suffixes, suffix_of.reshape(-1)


def _hits(
    suffixes: Rows, texts: Iterable[tuple[_T, str]], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[_T, set[int]]]:
    """Yield each text's partner object, and the indices of the suffixes in the text.

    The time grows with the number of tokens.

    Args:
        suffixes: the distinct suffixes, shape (n, k).
        texts: pairs (partner object, text).
    """
    size = suffixes.shape[1]
    hashes = np.array([hashes_of_runs(suffix)[0] for suffix in suffixes], dtype=np.uint64)
    order = np.argsort(hashes)
    ordered = hashes[order]
    for beside, tokens in _encoded(((beside, Document.of(text)) for beside, text in texts), tokenizer):
        ids = np.array(tokens.ids, dtype=np.int32)
        here = hashes_of_runs(ids, size)
        at = np.minimum(np.searchsorted(ordered, here), len(ordered) - 1)
        places = np.flatnonzero(ordered[at] == here)
        # Hashes find, tokens decide: a suffix counts only where its very tokens stand.
        candidates = zip(places.tolist(), order[at[places]].tolist(), strict=True)
        yield (
            beside,
            {number for place, number in candidates if np.array_equal(ids[place : place + size], suffixes[number])},
        )


def hashes_of_runs(ids: Rows, size: int | None = None) -> NDArray[np.uint64]:
    """Return a hash of each run of ``size`` tokens, shape (max(0, n - size + 1),); None hashes the whole row.

    The hash is a polynomial modulo 2^64, computed for all runs at once.
    """
    size = ids.size if size is None else size
    if ids.size < size:
        return np.empty(0, dtype=np.uint64)
    # Sums of v_i b^i up to each place; a run's is the difference of two of them, divided by b^start.
    powers, inverses = (np.cumprod(np.full(ids.size, by)) for by in (_BASE, _INVERSE))
    sums: NDArray[np.uint64] = np.cumsum(_mixed(ids) * powers)
    runs = sums[size - 1 :].copy()
    runs[1:] -= sums[:-size]
    # Both powers begin with the exponent 1 in place of 0, so that a run at i is divided by b^(i + 1).
    return np.multiply(runs, inverses[: runs.size])


def _mixed(ids: Rows) -> NDArray[np.uint64]:
    """Return the token ids spread over 64 bits (the finaliser of splitmix64)."""
    mixed = ids.astype(np.uint64) + _BASE
    for shift, by in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(by)
    return mixed ^ (mixed >> np.uint64(31))


def _with_users(texts: Mapping[str, Sequence[Document]]) -> Iterator[tuple[tuple[str, Document], Document]]:
    # Of a pair the chosen answer: training makes the other one less likely.
    read = ((user, document.branches()[0]) for user, written in texts.items() for document in written)
    return ((item, item[1]) for item in read)


def _encoded(texts: Iterable[tuple[_T, Document]], tokenizer: "PreTrainedTokenizerBase") -> Iterator[tuple[_T, Tokens]]:
    """Yield each document's partner object, and the document's tokens."""
    ours, theirs = tee(texts)
    # Read ahead by a block at most, which ``tokens_of`` tokenizes together.
    tokens = tokens_of(tokenizer, (document for _, document in ours))
    return ((beside, of_document) for (beside, _), of_document in zip(theirs, tokens, strict=True))
