"""Greedy caps on the number of a user's records, and on the number of records that name an entity.

The slot of a record decides whether heldin keeps the record: its author, the entities that it names, and its place in a
keyed order. The texts have no influence (docs/theory.md#caps-and-fixed-incidence).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_digest, seed_key
from heldin.base.errors import InputError
from heldin.corpus.entities.incidence import incidence
from heldin.corpus.entities.mentions import Mentions
from heldin.corpus.entities.spans import CATEGORIES, Category


@dataclass(frozen=True)
class CapsOutcome:
    """The part of a corpus that would remain under caps.

    Attributes:
        group_size: G, maximum number of a user's records.
        entity_cap: k, maximum number of records that name an entity.
        kept: number of records that both caps keep, in one keyed order; another order keeps about as many.
        kept_by_group_size: number of records that the cap on users alone keeps.
    """

    group_size: int
    entity_cap: int
    kept: int
    kept_by_group_size: int


def caps_outcome(
    mentions: Mentions,
    *,
    group_size: int,
    entity_cap: int,
    categories: Sequence[Category] = CATEGORIES,
    aliases: Mapping[str, str] | None = None,
) -> CapsOutcome:
    """Apply caps to the mentions in a corpus, in the order of public seed 0.

    Raises:
        InputError: a cap is below 1.
    """
    store = mentions.store
    named = incidence(mentions, categories=categories, aliases=aliases)
    order = slot_order(seed_key(0), (id_ for id_, _ in store.ids_and_texts()), len(store))
    authors = np.repeat(np.arange(len(store.users)), store.counts)
    kept = kept_under_caps(order, authors, named.starts, named.entities, group_size=group_size, entity_cap=entity_cap)
    return CapsOutcome(group_size, entity_cap, int(kept.sum()), int(np.minimum(store.counts, group_size).sum()))


def slot_order(key: bytes, ids: Iterable[str], records: int) -> npt.NDArray[np.int64]:
    """Return the places of records in a keyed order, which does not depend on their input order.

    Args:
        key: public or secret key; anyone with the key knows the order.
        ids: unique id of each record.
        records: number of records.
    """
    # As numbers of 64 bits: 16 bytes a record, where sorting digests as objects takes some 80.
    halves = np.empty((records, 2), dtype=np.uint64)
    for at, name in enumerate(ids):
        halves[at] = np.frombuffer(keyed_digest(key, "caps", name)[:16], dtype=">u8")
    return np.lexsort((halves[:, 1], halves[:, 0]))


def kept_under_caps(
    order: npt.NDArray[np.int64],
    authors: npt.NDArray[np.integer],
    starts: npt.NDArray[np.int64],
    entities: npt.NDArray[np.int64],
    *,
    group_size: int,
    entity_cap: int,
) -> npt.NDArray[np.bool_]:
    """Mark the records to keep.

    In order, the function keeps a record if its author and every entity that it names are below the caps.

    In the result, no user has more than ``group_size`` records, and at most ``entity_cap`` records name an entity.

    Args:
        order: places of the records, shape (records,), in order of precedence.
        authors: number of each record's user, shape (records,).
        starts: offsets, shape (records + 1,); the entities of record i are ``entities[starts[i]:starts[i + 1]]``.
        entities: numbers of the entities, each at most once per record.

    Raises:
        InputError: a cap is below 1.
    """
    for name, cap in (("group size", group_size), ("entity cap", entity_cap)):
        if cap < 1:
            raise InputError(f"{name} is {cap}: give at least 1")
    # Lists: one by one, their elements are read several times faster than those of arrays.
    room = [group_size] * (int(authors.max(initial=-1)) + 1)
    places = [entity_cap] * (int(entities.max(initial=-1)) + 1)
    kept = np.zeros(authors.size, dtype=np.bool_)
    for record in order.tolist():
        author = int(authors[record])
        if not room[author]:
            continue
        named = entities[starts[record] : starts[record + 1]].tolist()
        if all(places[entity] for entity in named):
            kept[record] = True
            room[author] -= 1
            for entity in named:
                places[entity] -= 1
    return kept
