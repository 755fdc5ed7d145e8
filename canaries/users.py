"""Canary users: users planted by the auditor, each with records and a coin of its own.

There are three families: users made from nothing for one-run audits (Steinke, Nasr, Jagielski 2023 require only that
each is included by an independent fair coin), real users changed by Algorithm 1 of Kandpal et al. (2024), and users
made of real rows, which a text filter cannot single out.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heldin.base.coins import keyed_digest, seed_key
from heldin.corpus.document import Document, Spans


@dataclass(frozen=True)
class Canary:
    """One canary user. Secret if ``source`` or ``mark`` come from a real user: it stays in the ledger's folder.

    Attributes:
        user: its name among the users of the run.
        kind: the kind of its section in the config.
        length: tokens of the substring that all its records share; None for the other kinds.
        documents: how many of its records training may see at most; None: all that are not set aside.
        source: the real user that it replaces; None for a made-up one.
        mark: what its records share: signature, prefix, phrase or substring; "" for real rows, which share nothing.
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
        id: unique id.
        document: the text, and what of it counts.
        date: of the real record; None if there is none.
        position: where the mark was inserted, in characters; None if it was not inserted.
        lent: row of the corpus that lends its form, or is the record itself; None where it has a form of its own.
    """

    id: str
    document: Document
    date: str | None = None
    position: int | None = None
    lent: int | None = None

    @property
    def text(self) -> str:
        """Return all of the text."""
        return self.document.text

    @property
    def spans(self) -> Spans | None:
        """Return what counts, as a store keeps it: None for all of the text."""
        return None if self.document.is_plain else self.document.spans

    @property
    def layout(self) -> dict[str, Any] | None:
        """Return the places of the turns, as a store keeps them; None for a text that is no row of turns."""
        return None if self.document.layout is None else asdict(self.document.layout)


@dataclass(frozen=True)
class CanaryUser:
    """A canary with its records, set-asides included."""

    canary: Canary
    records: tuple[CanaryRecord, ...]

    @property
    def has_form(self) -> bool:
        """Whether its records are rows of the corpus, or copies of a real user's: they need not look like others'."""
        return self.canary.source is not None or all(record.lent is not None for record in self.records)


def made_user(
    name: str,
    kind: str,
    documents: int | None,
    mark: str,
    texts: Iterable[str],
    positions: Sequence[int] | None = None,
) -> CanaryUser:
    """A canary user who writes these texts.

    Args:
        kind: see ``Canary``.
        documents: see ``Canary``.
        mark: what the texts share.
        texts: in order.
        positions: of the mark in each text, in characters; None if it was not inserted.
    """
    records = tuple(
        CanaryRecord(f"{name}/{i:05d}", Document.of(text), position=positions[i] if positions else None)
        for i, text in enumerate(texts)
    )
    return CanaryUser(Canary(name, kind, None, documents, None, mark), records)


def public_dice(seed: int, purpose: str, identity: str) -> random.Random:
    """Random draws for one purpose and one identity, from a public seed; they do not depend on other identities."""
    # Public, unlike the coins: how a canary user is made may be known to all, whether it was held in may not
    # (docs/theory.md#conditions-of-one-run).
    return keyed_dice(seed_key(seed), purpose, identity)


def keyed_dice(key: bytes, purpose: str, identity: str) -> random.Random:
    """Random draws for one purpose and one identity under a key; they do not depend on other identities."""
    return random.Random(int.from_bytes(keyed_digest(key, purpose, identity), "big"))
