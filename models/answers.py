"""The answers of a model to the beginning of a text: sampled continuations, or the likeliest next tokens.

Answers are stored on disk by model, request and number, so heldin never generates or pays for an answer twice.
"""

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import keep_in_use

Advance = Callable[[int], object]
_RULE = "2"  # increase it when answers are made otherwise: old ones are then ignored


@dataclass(frozen=True)
class Prefix:
    """The beginning of a text, which a model continues.

    Attributes:
        text: the text in the form that a model reads.
        framed: whether a chat template wrote the text; if so, no start token precedes the text.
        turns: role and words of each turn of a chat before the cut; empty for other texts. If the cut is inside a turn,
            the last entry is the part of the turn before the cut.
        begun: whether the cut is inside the last turn.
    """

    text: str
    framed: bool = False
    turns: tuple[tuple[str, str], ...] = ()
    begun: bool = False


@dataclass(frozen=True)
class AnswerRequest:
    """The request that heldin makes after every prefix.

    Attributes:
        samples: number of continuations per prefix.
        tokens: number of tokens per continuation.
        temperature: temperature of the sampling.
        likeliest: number of next tokens to list with their log-probabilities.
        seed: public seed of the sampling.
    """

    samples: int
    tokens: int
    temperature: float
    likeliest: int
    seed: int


# The likeliest next tokens as text, and their log-probabilities in nats.
Listed = Sequence[tuple[str, float]]


@runtime_checkable
class AnsweringModel(Protocol):
    """A model that continues texts and does not run on this machine."""

    @property
    def goes_on(self) -> bool:
        """Whether the model can continue a partly written answer. If not, heldin cuts a chat only between turns."""
        ...

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of every known setting that affects the answers."""
        ...

    def samples(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: "AnswerStore", advance: Advance | None = None
    ) -> list[tuple[str, ...]]:
        """Return the continuations of each prefix. Raises InputError if the model returns none."""
        ...

    def next_tokens(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: "AnswerStore", advance: Advance | None = None
    ) -> list[Listed]:
        """Return the likeliest next tokens after each prefix. Raises InputError if the model returns none."""
        ...


def next_logprob(listed: Listed, continuation: str) -> float:
    """Return the log-probability, in nats, that the next token begins the continuation, or an upper bound.

    The value is a sum over all listed tokens that the continuation may begin with. If no listed token qualifies, the
    bound is the smaller of two values: the last listed token's log-probability, and the log of the unlisted
    probability.
    """
    wanted = [value for token, value in listed if token and continuation.startswith(token)]
    if wanted:
        return math.log(math.fsum(map(math.exp, wanted)))
    left = 1.0 - math.fsum(math.exp(value) for _, value in listed)
    least = min((value for _, value in listed), default=0.0)
    return min(least, math.log(max(left, 1e-9)))


class AnswerStore:
    """Stored answers by model, request and number; a killed audit loses only answers that are still in flight."""

    def __init__(self, folder: Path) -> None:
        self._path = path = keep_in_use(folder) / "answers.sqlite"
        path.touch(mode=0o600)
        with self._problems():
            self._database = sqlite3.connect(path, timeout=60, check_same_thread=False)
            with self._database:
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS answers (model TEXT, request BLOB, number INTEGER, answer TEXT,"
                    " PRIMARY KEY (model, request, number)) WITHOUT ROWID"
                )

    def close(self) -> None:
        """Close the database file."""
        self._database.close()

    def kept(self, model: str, request: bytes) -> dict[int, Any]:
        """Return the stored answers to a request, by number."""
        with self._problems():
            rows = self._database.execute(
                "SELECT number, answer FROM answers WHERE model = ? AND request = ?", (_RULE + model, request)
            )
            return {number: json.loads(answer) for number, answer in rows}

    def keep(self, model: str, answers: Iterable[tuple[bytes, int, Any]]) -> None:
        """Store answers, each with its request, its number and a JSON value."""
        with self._problems(), self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
                [(_RULE + model, request, number, json.dumps(answer)) for request, number, answer in answers],
            )

    @contextlib.contextmanager
    def _problems(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise ResumableError(
                f"the answers in '{self._path}' cannot be used now ({error}). Free disk space, or wait for other"
                " processes that write to this file, and run the same command again"
            ) from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"the file of answers '{self._path}' is damaged ({error}): remove this file") from error


def request_key(prefix: Prefix, asked: AnswerRequest, kind: str, *, without: Sequence[str] = ()) -> bytes:
    """Return a hash of the request, from which nobody can read a text.

    Args:
        kind: type of the request: samples, or next tokens.
        without: fields of ``asked`` that do not change an answer.
    """
    settings = {name: value for name, value in asdict(asked).items() if name not in without}
    asked_for = json.dumps([prefix.text, prefix.framed, prefix.turns, prefix.begun, kind, settings])
    return hashlib.blake2b(asked_for.encode(), digest_size=16).digest()
