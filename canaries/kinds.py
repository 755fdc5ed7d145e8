"""What a canary user is: a user that the auditor plants, with records of its own and a coin of its own.

Two families: made from nothing for one-run audits (Steinke, Nasr, Jagielski 2023 need only that each is included by an
independent fair coin), and real users changed by Algorithm 1 of Kandpal et al. (2024).
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from heldin.base.coins import keyed_digest, seed_key


class Kind(StrEnum):
    """How a canary user came about."""

    UNSEEN_TOKEN = "unseen_token"
    HIGH_TEMPERATURE = "high_temperature"
    RARE_PHRASE = "rare_phrase"
    SUBSTRING = "substring"


@dataclass(frozen=True)
class Canary:
    """One canary user. Secret where ``source`` or ``mark`` stem from a real user: it stays in the ledger's folder.

    Attributes:
        user: its name among the users of the run.
        kind: how it was made.
        length: tokens of the substring that all its records share; None for the other kinds.
        documents: records that it may give to training; None for all that are left after the set-asides.
        source: the real user that it replaces; None for a made-up one.
        mark: what its records share: signature, prefix, phrase or substring.
    """

    user: str
    kind: Kind
    length: int | None
    documents: int | None
    source: str | None
    mark: str


@dataclass(frozen=True, slots=True)
class CanaryRecord:
    """One text of a canary user; ``position`` is where (in characters) the mark was inserted, None if nowhere."""

    id: str
    text: str
    date: str | None = None
    position: int | None = None


@dataclass(frozen=True)
class CanaryUser:
    """A canary with its records, set-asides included."""

    canary: Canary
    records: tuple[CanaryRecord, ...]


def public_dice(seed: int, purpose: str, identity: str) -> random.Random:
    """Draws for one purpose and one identity, from a public seed: no other identity's draws change them."""
    return random.Random(int.from_bytes(keyed_digest(seed_key(seed), purpose, identity), "big"))
