"""Token scores on disk by (model, text), so that scoring again costs nothing and a killed run can continue.

One SQLite file; each chunk of texts is one transaction, so a killed run loses at most one chunk.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heldin.base.errors import InputError
from heldin.base.files import private_directory
from heldin.models.endpoint import EndpointModel, score_endpoint_texts
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.token_scores import TokenScores

CHUNK = 512
RULE_VERSION = "1"  # increase it when models.logprobs scores anything else: old scores are then ignored
# Bits of the key's column "moments": what a row holds beside log-probabilities. Ranks came later; rows from before are
# read as what they are, and texts are scored again where ranks are asked for.
MOMENTS, RANKS = 1, 2

ScoredModel = LanguageModel | EndpointModel


class ScoreCache:
    """Token scores by model fingerprint and text."""

    def __init__(self, folder: Path) -> None:
        path = private_directory(folder) / "scores.sqlite"
        try:
            # Seconds to wait for another process that is writing.
            self._database = sqlite3.connect(path, timeout=60)
            with self._database:
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS scores (model TEXT, text BLOB, moments INTEGER, scores BLOB,"
                    " PRIMARY KEY (model, text, moments)) WITHOUT ROWID"
                )
        except sqlite3.DatabaseError as error:
            raise InputError(f"the score cache '{path}' cannot be used ({error}): remove it") from error

    def close(self) -> None:
        """Release the file."""
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
        """Scores of ``texts`` under ``lm``, in order; only texts without saved scores are run through the model.

        Args:
            lm: the model; its fingerprint is part of the cache's key.
            texts: any number.
            moments: also mean and deviation over the vocabulary (see ``TokenScores``).
            ranks: also ranks; texts whose scores were saved without them are scored again.
            advance: called with the number of texts done.

        Raises:
            InputError: for the reasons of ``score_texts``, or if moments or ranks are asked of a model behind an
                endpoint.
        """
        # Equal texts have one key and are scored once; every one of them gets the result.
        keys = [_key(text) for text in texts]
        found = {key: self._read(lm.fingerprint, key, moments=moments, ranks=ranks) for key in set(keys)}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if found[key] is None}
        if advance:
            advance(len(texts) - len(missing))
        # Sorting by length keeps padding low inside every chunk. An endpoint gets the longest texts first, so that one
        # that is too long is reported before the others are paid for.
        todo = sorted(missing, key=lambda key: len(missing[key]), reverse=isinstance(lm, EndpointModel))
        size = lm.chunk if isinstance(lm, EndpointModel) else CHUNK
        for start in range(0, len(todo), size):
            chunk = todo[start : start + size]
            scored = _scored(lm, [missing[key] for key in chunk], moments, ranks)
            with self._database:
                self._database.executemany(
                    # Two processes may have scored the same text: the later scores replace the earlier.
                    "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)",
                    [
                        (self._model_key(lm.fingerprint), k, _kind(s), _pack(s))
                        for k, s in zip(chunk, scored, strict=True)
                    ],
                )
            found.update(zip(chunk, scored, strict=True))
            if advance:
                advance(len(chunk))
        return [s for key in keys if (s := found[key]) is not None]

    def missing(self, lm: ScoredModel, texts: Sequence[str]) -> list[str]:
        """Those of ``texts`` without saved plain scores, each once."""
        return [t for t in dict.fromkeys(texts) if self._read(lm.fingerprint, _key(t)) is None]

    def _read(self, fingerprint: str, key: bytes, *, moments: bool = False, ranks: bool = False) -> TokenScores | None:
        """The saved scores that hold what is asked, if any."""
        needed = MOMENTS * moments | RANKS * ranks
        # The least that will do, so that texts scored before there were ranks keep the numbers they had.
        row = self._database.execute(
            "SELECT moments, scores FROM scores WHERE model = ? AND text = ? AND moments & ? = ? ORDER BY moments",
            (self._model_key(fingerprint), key, needed, needed),
        ).fetchone()
        return None if row is None else _unpack(row[1], row[0])

    def _model_key(self, fingerprint: str) -> str:
        return f"{RULE_VERSION}:{fingerprint}"


def _key(text: str) -> bytes:
    # A hash, so that this file holds nobody's text; 16 bytes are enough that no two texts meet by chance.
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _scored(lm: ScoredModel, texts: Sequence[str], moments: bool, ranks: bool) -> list[TokenScores]:
    if not isinstance(lm, EndpointModel):
        # Ranks unasked too: they cost next to nothing here, and a whole pass later.
        return score_texts(lm, texts, moments=moments, ranks=True)
    if moments:
        raise InputError(
            f"endpoint model '{lm.name}' gives no mean and deviation over the vocabulary: leave out min-k++"
        )
    if ranks:
        raise InputError(f"endpoint model '{lm.name}' gives no ranks of tokens: leave out ez")
    return score_endpoint_texts(lm, texts)


def _kind(scores: TokenScores) -> int:
    return MOMENTS * (scores.means is not None) | RANKS * (scores.ranks is not None)


def _pack(scores: TokenScores) -> bytes:
    rows = [scores.logprobs, scores.means, scores.deviations]
    # Bare float32 without a shape: the key says which rows there are. Ranks are the last row, int32 and as long.
    values = np.stack([row for row in rows if row is not None]).astype(np.float32).tobytes()
    return values if scores.ranks is None else values + scores.ranks.astype(np.int32).tobytes()


def _unpack(blob: bytes, kind: int) -> TokenScores:
    floats = 3 if kind & MOMENTS else 1
    rows = np.frombuffer(blob, dtype=np.float32).reshape(floats + bool(kind & RANKS), -1)
    means, deviations = (rows[1], rows[2]) if kind & MOMENTS else (None, None)
    return TokenScores(rows[0], means, deviations, rows[-1].view(np.int32) if kind & RANKS else None)
