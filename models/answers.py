"""What models answer to the beginning of a text: sampled continuations, or the likeliest next tokens.

Answers are kept on disk by model, request and number, so that nothing is generated or paid for twice.
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
        text: as a model reads it.
        framed: whether a chat template wrote it, so that no start token is put before it.
        turns: role and words of each turn of a chat before the place where it was cut; empty for other texts. A turn
            that was cut is the last of them, up to the place.
        begun: whether the last turn was cut.
    """

    text: str
    framed: bool = False
    turns: tuple[tuple[str, str], ...] = ()
    begun: bool = False


@dataclass(frozen=True)
class AnswerRequest:
    """What is asked after every prefix.

    Attributes:
        samples: number of continuations.
        tokens: tokens of a continuation.
        temperature: of the sampling.
        likeliest: number of next tokens whose log-probabilities are listed.
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
    """A model that is not loaded here and continues texts."""

    @property
    def goes_on(self) -> bool:
        """Whether it goes on with an answer that is begun; else a chat is cut before its turns alone."""
        ...

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of everything known that affects the answers."""
        ...

    def samples(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: "AnswerStore", advance: Advance | None = None
    ) -> list[tuple[str, ...]]:
        """Return the continuations of each prefix. Raises InputError if the model gives none."""
        ...

    def next_tokens(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: "AnswerStore", advance: Advance | None = None
    ) -> list[Listed]:
        """Return the likeliest next tokens after each prefix. Raises InputError if the model gives none."""
        ...


def next_logprob(listed: Listed, continuation: str) -> float:
    """Return the log-probability that the next token begins the continuation, nats, or an upper bound of it.

    It is that of all listed tokens with which the continuation may begin. Where there is none, no token that is not
    listed is likelier than the last that is, or than all that is left.
    """
    wanted = [value for token, value in listed if token and continuation.startswith(token)]
    if wanted:
        return math.log(math.fsum(map(math.exp, wanted)))
    left = 1.0 - math.fsum(math.exp(value) for _, value in listed)
    least = min((value for _, value in listed), default=0.0)
    return min(least, math.log(max(left, 1e-9)))


class AnswerStore:
    """Answers by model, request and number; a killed audit loses at most those that were in flight."""

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
        """Release the file."""
        self._database.close()

    def kept(self, model: str, request: bytes) -> dict[int, Any]:
        """Return the answers to a request, by number."""
        with self._problems():
            rows = self._database.execute(
                "SELECT number, answer FROM answers WHERE model = ? AND request = ?", (_RULE + model, request)
            )
            return {number: json.loads(answer) for number, answer in rows}

    def keep(self, model: str, answers: Iterable[tuple[bytes, int, Any]]) -> None:
        """Keep answers: request, number and what JSON can hold."""
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
    """Return a hash of what is asked; nobody's text can be read from it.

    Args:
        kind: samples, or next tokens.
        without: what of ``asked`` does not change an answer.
    """
    settings = {name: value for name, value in asdict(asked).items() if name not in without}
    asked_for = json.dumps([prefix.text, prefix.framed, prefix.turns, prefix.begun, kind, settings])
    return hashlib.blake2b(asked_for.encode(), digest_size=16).digest()
