"""Token scores on disk by model and text. Repeated scoring costs nothing, and a killed run can continue.

The cache is one SQLite file. Each chunk of texts is one transaction, so a killed run loses at most one chunk.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import keep_in_use
from heldin.models.devices import copies_on_other_gpus, kind_of
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import MEMO, Framed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts that are scored, kept and written together. A GPU has nothing to do between two chunks; the first are smaller,
# since nothing is scored before the first is tokenized.
CHUNK = {"cpu": 512, "cuda": 4096}
FIRST = 256
CHARACTERS = 2**23  # of a chunk at most, unless one text has more: scores take some 2 bytes for each
RULE_VERSION = "1"  # increase it when scores are made or kept otherwise: old ones are then ignored
# Bits of the column "kind": what a row holds beside log-probabilities.
MOMENTS, RANKS = 1, 2
_CHECK = 8  # bytes at the end of a row's scores: a digest of them, since SQLite notices no changed byte
_READ = 2**15  # texts that one query asks for


class ServedModel(Protocol):
    """A model on a server that returns log-probabilities of a text's own tokens, for example ``EndpointModel``."""

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of every known setting that affects the numbers."""
        ...

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """Tokenizer of the model; None if unknown."""
        ...

    @property
    def chunk(self) -> int:
        """Number of texts to score before their scores are saved."""
        ...

    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Score every text. Raises InputError for a text that cannot be scored."""
        ...


ScoredModel = LanguageModel | ServedModel


class ScoreCache:
    """Token scores by model fingerprint and text."""

    def __init__(self, folder: Path) -> None:
        self._path = path = keep_in_use(folder) / "scores.sqlite"
        path.touch(mode=0o600)
        self._opened = path.stat()
        with self._problems_said():
            # Seconds to wait for another process that is writing. Scores are written by a thread of its own.
            self._database = sqlite3.connect(path, timeout=60, check_same_thread=False)
            _prepare(self._database)

    def close(self) -> None:
        """Close the database file."""
        self._database.close()

    def scores(
        self,
        lm: ScoredModel,
        texts: Sequence[str],
        *,
        moments: bool = False,
        ranks: bool = False,
        advance: Callable[[int], object] | None = None,
    ) -> list[TokenScores]:
        """Return the scores of ``texts`` under ``lm``, in order. The model scores only texts without saved scores.

        Args:
            lm: the model; its fingerprint is part of the cache's key.
            moments: whether to return mean and deviation over the vocabulary (see ``TokenScores``).
            ranks: whether to return ranks; a text whose saved scores lack ranks is scored again.

        Raises:
            InputError: ``score_texts`` raises, or a model behind an endpoint is asked for moments or ranks.
        """
        # Equal texts have one key and are scored once; every one of them gets the result.
        keys = [_key(text) for text in texts]
        model = self._number_of(lm.fingerprint)
        by_key = self._read(model, list(dict.fromkeys(keys)), MOMENTS * moments | RANKS * ranks)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in by_key}
        if advance:
            advance(len(texts) - len(missing))
        # Sorting by length keeps padding low inside every chunk. An endpoint gets the longest texts first, so that one
        # that is too long is reported before the others are paid for.
        todo = sorted(missing, key=lambda key: len(missing[key]), reverse=not isinstance(lm, LanguageModel))
        size = CHUNK["cuda" if kind_of(lm.device) == "cuda" else "cpu"] if isinstance(lm, LanguageModel) else lm.chunk
        chunks = list(in_chunks(todo, [len(missing[key]) for key in todo], size))
        for chunk, scored in _scored_chunks(lm, chunks, missing, moments, ranks, self._writer(model)):
            by_key.update(zip(chunk, scored, strict=True))
            if advance:
                advance(len(chunk))
        return [by_key[key] for key in keys]

    def missing(self, lm: ScoredModel, texts: Sequence[str]) -> list[str]:
        """Return the ``texts`` without saved plain scores, each once."""
        by_key = {_key(text): text for text in texts}
        saved = self._read(self._number_of(lm.fingerprint), list(by_key), 0)
        return [text for key, text in by_key.items() if key not in saved]

    def _read(self, model: int, keys: Sequence[bytes], needed: int) -> dict[bytes, TokenScores]:
        """Return the saved scores that have the needed values, by text."""
        saved: dict[bytes, tuple[int, bytes]] = {}
        for start in range(0, len(keys), _READ):
            with self._problems_said():
                with self._database:
                    self._database.execute("DELETE FROM wanted")
                    wanted = [(key,) for key in keys[start : start + _READ]]
                    self._database.executemany("INSERT INTO wanted VALUES (?)", wanted)
                rows = self._database.execute(
                    # Text by text: else all rows of the model are read.
                    "SELECT wanted.text, kind, scores FROM wanted CROSS JOIN token_scores AS s"
                    " ON s.model = ? AND s.text = wanted.text WHERE kind & ? = ?",
                    (model, needed, needed),
                )
                for key, kind, blob in rows:
                    scores = _checked(blob, model, key, kind)
                    # The least that will do, so that texts scored without ranks keep the numbers they had.
                    if scores is not None and (key not in saved or kind < saved[key][0]):
                        saved[key] = kind, scores
        return {key: _unpack(scores, kind) for key, (kind, scores) in saved.items()}

    @contextlib.contextmanager
    def _problems_said(self) -> Iterator[None]:
        """Raise InputError for a damaged file, and ResumableError for a missing file, a full disk or a busy
        database."""
        try:
            yield
        except sqlite3.OperationalError as error:
            why = (
                f"cannot be used now ({error}): free disk space, or wait for other processes that write to this"
                " file, and"
            )
            # By hand: heldin cache --clear leaves a cache alone that a process uses.
            if not (self._path.exists() and os.path.samestat(self._path.stat(), self._opened)):
                why = "was removed while this command used it:"
            raise ResumableError(f"the score cache '{self._path}' {why} run the same command again") from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"the score cache '{self._path}' is damaged ({error}): remove this file") from error

    def _writer(self, model: int) -> Callable[[Sequence[bytes], Sequence[TokenScores]], None]:
        def write(keys: Sequence[bytes], scored: Sequence[TokenScores]) -> None:
            with self._problems_said(), self._database:
                self._database.executemany(
                    # Two processes may have scored the same text: the later scores replace the earlier.
                    "INSERT OR REPLACE INTO token_scores (model, text, kind, scores) VALUES (?, ?, ?, ?)",
                    [
                        (model, key, _kind(token_scores), _with_check(token_scores, model, key))
                        for key, token_scores in zip(keys, scored, strict=True)
                    ],
                )

        return write

    def _number_of(self, fingerprint: str) -> int:
        name = f"{RULE_VERSION}:{fingerprint}"
        with self._problems_said(), self._database:
            self._database.execute("INSERT OR IGNORE INTO models (name) VALUES (?)", (name,))
            (number,) = self._database.execute("SELECT number FROM models WHERE name = ?", (name,)).fetchone()
        return int(number)


def _prepare(database: sqlite3.Connection) -> None:
    """Make the tables."""
    # A crash of the machine may cost the last transactions, and nothing else: they are scored again.
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA cache_size = -65536")  # KiB
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS models (number INTEGER PRIMARY KEY, name TEXT UNIQUE)")
        # Rows stand in the order in which they come; only the short index is written here and there.
        database.execute(
            "CREATE TABLE IF NOT EXISTS token_scores (model INTEGER, text BLOB, kind INTEGER, scores BLOB)"
        )
        database.execute("CREATE UNIQUE INDEX IF NOT EXISTS of_texts ON token_scores (model, text, kind)")
    database.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (text BLOB PRIMARY KEY) WITHOUT ROWID")


def _key(text: str) -> bytes:
    # A hash, so that this file holds nobody's text; 16 bytes are enough that no two texts meet by chance.
    person = b"framed" if isinstance(text, Framed) else b""  # it is read after another token, and has other scores
    return hashlib.blake2b(text.encode(), digest_size=16, person=person).digest()


def in_chunks(keys: Sequence[bytes], lengths: Sequence[int], size: int) -> Iterator[list[bytes]]:
    """Yield chunks of at most ``size`` texts and ``CHARACTERS`` characters, in order. If ``size`` is large, the first
    chunks are smaller."""
    chunk: list[bytes] = []
    characters, most = 0, size if size < 4 * FIRST else FIRST
    for key, length in zip(keys, lengths, strict=True):
        if chunk and (len(chunk) == most or characters + length > CHARACTERS):
            yield chunk
            chunk, characters, most = [], 0, min(size, 2 * most)
        chunk.append(key)
        characters += length
    if chunk:
        yield chunk


def _scored_chunks(
    lm: ScoredModel,
    chunks: Sequence[Sequence[bytes]],
    texts: Mapping[bytes, str],
    moments: bool,
    ranks: bool,
    write: Callable[[Sequence[bytes], Sequence[TokenScores]], None],
) -> Iterator[tuple[Sequence[bytes], list[TokenScores]]]:
    """Yield each chunk with its scores after they are written. While the model scores a chunk, the previous chunk is
    written and the next chunk is tokenized."""
    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
        pending = None
        for number, chunk in enumerate(chunks):
            if isinstance(lm, LanguageModel):
                for later in chunks[number + 1 : number + 2]:
                    ahead.submit(MEMO.ids, lm.tokenizer, [texts[key] for key in later])
            try:
                scored = _scored(lm, [texts[key] for key in chunk], moments, ranks)
            finally:
                # Also where scoring ends in an error: what was done is kept.
                if pending is not None:
                    pending[0].result()
            if pending is not None:
                yield pending[1:]
            pending = behind.submit(write, chunk, scored), chunk, scored
        if pending is not None:
            pending[0].result()
            yield pending[1:]


def _scored(lm: ScoredModel, texts: Sequence[str], moments: bool, ranks: bool) -> list[TokenScores]:
    if isinstance(lm, LanguageModel):
        # Ranks unasked too: they cost next to nothing here, and a whole pass later.
        return score_texts(lm, texts, moments=moments, ranks=True, copies=copies_on_other_gpus(lm.model))
    if moments:
        raise InputError(
            f"endpoint model '{lm.name}' gives no mean and deviation over the vocabulary: leave min-k++ out"
        )
    if ranks:
        raise InputError(f"endpoint model '{lm.name}' gives no ranks of tokens: leave ez out")
    return lm.score(texts)


def _kind(scores: TokenScores) -> int:
    return MOMENTS * (scores.means is not None) | RANKS * (scores.ranks is not None)


def _pack(scores: TokenScores) -> bytes:
    rows = [scores.logprobs, scores.means, scores.deviations]
    # Bare float32 without a shape: the key says which rows there are. Ranks are the last row, int32 and as long.
    values = np.stack([row for row in rows if row is not None]).astype(np.float32).tobytes()
    return values if scores.ranks is None else values + scores.ranks.astype(np.int32).tobytes()


def _with_check(scores: TokenScores, model: int, key: bytes) -> bytes:
    packed = _pack(scores)
    return packed + _check(packed, model, key, _kind(scores))


def _checked(blob: bytes, model: int, key: bytes, kind: int) -> bytes | None:
    """Return the packed scores of a row; None if somebody changed the scores on disk. heldin then scores the text
    again."""
    packed = blob[:-_CHECK]
    return packed if blob[-_CHECK:] == _check(packed, model, key, kind) else None


def _check(packed: bytes, model: int, key: bytes, kind: int) -> bytes:
    row = model.to_bytes(8, "big") + kind.to_bytes(8, "big")
    return hashlib.blake2b(packed, key=key, person=row, digest_size=_CHECK).digest()


def _unpack(blob: bytes, kind: int) -> TokenScores:
    floats = 3 if kind & MOMENTS else 1
    rows = np.frombuffer(blob, dtype=np.float32).reshape(floats + bool(kind & RANKS), -1)
    means, deviations = (rows[1], rows[2]) if kind & MOMENTS else (None, None)
    return TokenScores(rows[0], means, deviations, rows[-1].view(np.int32) if kind & RANKS else None)
