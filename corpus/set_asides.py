"""The rows of every user that are set aside: for the attacker, for validation and for testing, without any coin.

In batches of rows, so that a corpus of 100 million records takes no more memory than its result.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from heldin.base.coins import keyed_digests, seed_key
from heldin.base.errors import InputError
from heldin.corpus.row_parts import PARTS, RowParts
from heldin.corpus.split import Part, set_aside_sizes
from heldin.corpus.store import Corpus
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT

ROWS_A_BATCH = 2**18


def set_asides(
    store: Corpus,
    users: Sequence[str],
    *,
    attacker_fraction: float,
    evaluation_fraction: float,
    seed: int,
    advance: Callable[[int], object] | None = None,
) -> RowParts:
    """Divide every user's rows into training, attacker, validation and test parts; no part is empty.

    Args:
        users: whose rows; each has at least ``MIN_RECORDS_TO_SPLIT``.
        attacker_fraction: share of a user's records for the attacker, rounded, at least one record.
        evaluation_fraction: share for validation and test together, rounded, at least one record each.
        seed: public seed of the pseudo-random order, which depends on the record ids only, never on membership.
        advance: called with the number of rows done.

    Raises:
        InputError: a user has too few records.
    """
    ranges = [store.rows(user) for user in users]
    counts = np.array([len(rows) for rows in ranges], dtype=np.int64)
    if counts.size and counts.min() < MIN_RECORDS_TO_SPLIT:
        raise InputError(
            f"a user with {counts.min()} records cannot be split: at least {MIN_RECORDS_TO_SPLIT} are needed"
        )
    sizes = _sizes(counts, attacker_fraction, evaluation_fraction)  # (users, parts)
    rows = np.empty(int(counts.sum()), dtype=_narrowest(max((rows_of_user.stop for rows_of_user in ranges), default=0)))
    done = 0
    for first, last in _batches(counts):
        batch = ranges[first:last]
        numbers = np.concatenate([np.arange(rows_of_user.start, rows_of_user.stop) for rows_of_user in batch])
        ids = store.ids_at(numbers)
        rows[done : done + numbers.size] = numbers[_in_parts(ids, counts[first:last], sizes[first:last], seed)]
        done += numbers.size
        if advance:
            advance(numbers.size)
    return RowParts(users, rows, np.cumsum(sizes.ravel()))


def _in_parts(ids: Sequence[str], counts: NDArray[np.int64], sizes: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The order of a batch's rows: user by user, part by part."""
    # By record id and public seed, before any coin is drawn: condition 4 of docs/theory.md#conditions-of-one-run asks
    # for one rule that knows no coin.
    digests = np.frombuffer(keyed_digests(seed_key(seed), "set aside", ids), dtype=">u8").reshape(-1, 4)
    user = np.repeat(np.arange(counts.size), counts)
    within = np.arange(user.size) - np.repeat(np.cumsum(counts) - counts, counts)
    # By all 32 bytes, user by user.
    order = np.lexsort((*digests.T[::-1], user))
    place = np.empty_like(within)
    place[order] = within
    # The attacker's come first in that order, and what is trained on last.
    ends = np.cumsum(np.roll(sizes, -1, axis=1), axis=1)[:, :-1]
    part = (place[:, None] >= ends[user]).sum(axis=1) + 1
    part[part == len(PARTS)] = PARTS.index(Part.TRAIN)
    # Training rows in the corpus's order again: drawn was what is set aside, not in which order the rest is read.
    return np.lexsort((np.where(part == PARTS.index(Part.TRAIN), within, place), part, user))


def _sizes(counts: NDArray[np.int64], attacker_fraction: float, evaluation_fraction: float) -> NDArray[np.int64]:
    """Rows of each part, shape (users, parts)."""
    different, which = np.unique(counts, return_inverse=True)
    table = np.zeros((different.size, len(PARTS)), dtype=np.int64)
    for number, count in enumerate(different.tolist()):
        attacker, evaluation = set_aside_sizes(
            count, attacker_fraction=attacker_fraction, evaluation_fraction=evaluation_fraction
        )
        validation = (evaluation + 1) // 2
        table[number] = count - attacker - evaluation, attacker, validation, evaluation - validation
    return table[which]


def _batches(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last user of batches of about ``ROWS_A_BATCH`` rows; a user is never cut."""
    number = (np.cumsum(counts) - 1) // ROWS_A_BATCH
    cuts = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), counts.size]
    yield from itertools.pairwise(cuts)


def _narrowest(rows: int) -> np.dtype[np.integer]:
    return np.dtype(np.int32 if rows < 2**31 else np.int64)
