"""Canary users: users whom the auditor plants, each with records and a coin.

There are three families. Made-up users are for one-run audits (Steinke, Nasr, Jagielski 2023 require only that an
independent fair coin includes each user). Real users are changed by Algorithm 1 of Kandpal et al. (2024). Users made of
real rows cannot be singled out by a text filter.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heldin.base.coins import keyed_digest, seed_key
from heldin.corpus.document import Document, Spans


@dataclass(frozen=True)
class Canary:
    """One canary user.

    If ``source`` or ``mark`` comes from a real user, the object is secret and stays in the ledger's folder.

    Attributes:
        user: the canary user's name among the users of the run.
        kind: kind of the config section.
        length: number of tokens of the substring that all records share; None for other kinds.
        documents: maximum number of records that training may see; None: all records that are not set aside.
        source: the real user whom the canary user replaces; None for a made-up user.
        mark: text that the records share: signature, prefix, phrase or substring; "" for real rows, which share
            nothing.
    """

    user: str
    kind: str
    length: int | None
    documents: int | None
    source: str | None
    mark: str


@dataclass(frozen=True, slots=True)
class CanaryRecord:
    """One text of a canary user.

    Attributes:
        id: unique id of the record.
        document: the text, and the parts that count.
        date: date of the real record; None if there is none.
        position: position of the mark, in characters; None without an inserted mark.
        lent: row of the corpus with the form that the record copies, or the record itself; None if the record has its
            own form.
    """

    id: str
    document: Document
    date: str | None = None
    position: int | None = None
    lent: int | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return self.document.text

    @property
    def spans(self) -> Spans | None:
        """The parts that count, in the format of a store; None for the whole text."""
        return None if self.document.is_plain else self.document.spans

    @property
    def layout(self) -> dict[str, Any] | None:
        """The places of the turns, in the format of a store; None for a text that is not a row of turns."""
        return None if self.document.layout is None else asdict(self.document.layout)


@dataclass(frozen=True)
class CanaryUser:
    """A canary user with its records, set-aside records included."""

    canary: Canary
    records: tuple[CanaryRecord, ...]

    @property
    def has_form(self) -> bool:
        """Whether the records are rows of the corpus, or copies of a real user's records."""
        return self.canary.source is not None or all(record.lent is not None for record in self.records)


def made_user(
    name: str,
    kind: str,
    documents: int | None,
    mark: str,
    texts: Iterable[str],
    positions: Sequence[int] | None = None,
) -> CanaryUser:
    """Return a canary user who writes these texts.

    Args:
        kind: see ``Canary``.
        documents: see ``Canary``.
        mark: text that the records share.
        texts: texts of the records, in order.
        positions: position of the mark in each text, in characters; None without an inserted mark.
    """
    records = tuple(
        CanaryRecord(f"{name}/{i:05d}", Document.of(text), position=positions[i] if positions else None)
        for i, text in enumerate(texts)
    )
    return CanaryUser(Canary(name, kind, None, documents, None, mark), records)


def public_dice(seed: int, purpose: str, identity: str) -> random.Random:
    """Return random draws for one purpose and one identity, from a public seed, independent of other identities."""
    # Public, unlike the coins: how a canary user is made may be known to all, whether it was held in may not
    # (docs/theory.md#conditions-of-one-run).
    return keyed_dice(seed_key(seed), purpose, identity)


def keyed_dice(key: bytes, purpose: str, identity: str) -> random.Random:
    """Return random draws for one purpose and one identity, under a key, independent of other identities."""
    return random.Random(int.from_bytes(keyed_digest(key, purpose, identity), "big"))
