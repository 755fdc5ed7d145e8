"""The purpose of each row of each user, as arrays. For 100 million records, the arrays take half a gigabyte on disk.

Only one user's rows at a time become Python objects. heldin chooses the rows for the attacker, for validation and for
testing in batches, without any coin.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from heldin.base.artefacts import artefact_folder, origin_of
from heldin.base.coins import keyed_digests, seed_key
from heldin.base.errors import InputError
from heldin.corpus.split import Part, set_aside_sizes
from heldin.corpus.store import Corpus
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT

Parts = Mapping[Part, tuple[int, ...]]
PARTS = tuple(Part)
_FILES = ("rows.npy", "ends.npy", "users.parquet")
ROWS_A_BATCH = 2**18


class RowParts(Mapping[str, Parts]):
    """Rows of each user, by purpose. A mapping from a user's name to ``Parts``.

    Attributes:
        rows: rows of all parts of all users, shape (rows,), sorted by user, and within a user in the order of
            ``PARTS``.
        ends: end of each part of each user in ``rows``, shape (users, parts).
    """

    def __init__(self, names: Sequence[str], rows: NDArray[np.integer], ends: NDArray[np.int64]) -> None:
        self.names, self.rows, self.ends = tuple(names), rows, ends.reshape(len(names), len(PARTS))
        self._number = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def of(cls, parts: Mapping[str, Parts]) -> "RowParts":
        """Return the parts as arrays. A part that is missing in the mapping has no rows."""
        lists = [rows_of_user.get(part, ()) for rows_of_user in parts.values() for part in PARTS]
        rows = np.fromiter(itertools.chain.from_iterable(lists), dtype=np.int64)
        return cls(tuple(parts), rows, np.cumsum([len(rows_of_user) for rows_of_user in lists], dtype=np.int64))

    @classmethod
    def training(cls, rows: Mapping[str, range]) -> "RowParts":
        """Return these users with every row in the training part."""
        sizes = np.zeros((len(rows), len(PARTS)), dtype=np.int64)
        sizes[:, PARTS.index(Part.TRAIN)] = [len(rows_of_user) for rows_of_user in rows.values()]
        every = [np.arange(rows_of_user.start, rows_of_user.stop) for rows_of_user in rows.values()]
        return cls(tuple(rows), np.concatenate([*every, np.arange(0)]), np.cumsum(sizes.ravel()))

    def __getitem__(self, name: str) -> Parts:
        number = self._number[name]
        ends = self.ends[number].tolist()
        begin = int(self.ends[number - 1, -1]) if number else 0
        return {
            part: tuple(self.rows[first:last].tolist())
            for part, first, last in zip(PARTS, [begin, *ends], ends, strict=False)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowParts)
            and self.names == other.names
            and np.array_equal(self.ends, other.ends)
            and np.array_equal(self.rows, other.rows)
        )

    __hash__ = None  # type: ignore[assignment]

    def joined(self, others: "RowParts") -> "RowParts":
        """Return the rows of these users and of ``others``, whose names must differ."""
        if not len(others):
            return self
        return RowParts(
            (*self.names, *others.names),
            np.concatenate([self.rows, others.rows]),
            np.concatenate([self.ends, others.ends + len(self.rows)]),
        )

    def first(self, users: int) -> "RowParts":
        """Return the rows of the first ``users`` users."""
        if users == len(self):
            return self
        rows = int(self.ends[users - 1, -1]) if users else 0
        return RowParts(self.names[:users], self.rows[:rows], self.ends[:users])

    def sizes(self, part: Part) -> NDArray[np.int64]:
        """Return the number of each user's rows in a part, shape (users,)."""
        return np.diff(self.ends.ravel(), prepend=0).reshape(self.ends.shape)[:, PARTS.index(part)]

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each of these users. Raises KeyError for an unknown name."""
        return np.array([self._number[name] for name in names], dtype=np.int64)

    def rows_of(self, part: Part, names: Sequence[str] | None = None) -> NDArray[np.integer]:
        """Return a copy of the rows of a part, for these users (None: all users), in the order of ``self.names``."""
        numbers = np.arange(len(self)) if names is None else np.unique(self.numbers(names))
        last = self.ends.ravel()[numbers * len(PARTS) + PARTS.index(part)]
        sizes = self.sizes(part)[numbers]
        rows = np.empty(int(sizes.sum()), dtype=self.rows.dtype)
        # One user's after the other: a mask of all rows would take as much memory again.
        for begin, size, end in zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), last.tolist(), strict=True):
            rows[begin : begin + size] = self.rows[end - size : end]
        return rows

    def uses(self, size: int) -> NDArray[np.int8]:
        """Return, for each row below ``size``, 1 + the index of its part in ``PARTS``, shape (size,).

        Rows of no user have 0.
        """
        use = np.zeros(size, dtype=np.int8)
        codes = np.tile(np.arange(1, len(PARTS) + 1, dtype=np.int8), len(self.names))
        code = np.repeat(codes, np.diff(self.ends.ravel(), prepend=0))
        within = self.rows < size
        use[self.rows[within]] = code[within]
        return use

    def save(self, folder: Path, *, origin: str) -> None:
        """Write the arrays to ``folder``, which only its owner can read. Writes the folder completely or not at all.

        Args:
            folder: target folder; an existing folder is replaced.
            origin: name of the inputs of the arrays.
        """
        with artefact_folder(folder, made_from=origin) as temporary:
            for name, array in zip(_FILES, (self.rows, self.ends), strict=False):
                np.save(temporary / name, array, allow_pickle=False)
            pq.write_table(pa.table({"user": pa.array(self.names, pa.string())}), temporary / _FILES[-1])


def saved_parts(folder: Path) -> tuple[str, RowParts]:
    """Return the origin and the arrays that ``RowParts.save`` wrote. The arrays are mapped into memory from disk.

    Raises InputError if a file is missing or was changed.
    """
    origin = origin_of(folder, "start a new run folder")
    rows, ends = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in _FILES[:2])
    names = pq.read_table(folder / _FILES[-1]).column("user").to_pylist()
    return origin, RowParts(names, rows, np.array(ends))


def set_asides(
    store: Corpus,
    users: Sequence[str],
    *,
    attacker_fraction: float,
    evaluation_fraction: float,
    seed: int,
    advance: Callable[[int], object] | None = None,
) -> RowParts:
    """Divide every user's rows into training, attacker, validation and test parts. No part is empty.

    Args:
        users: users to divide, each with at least ``MIN_RECORDS_TO_SPLIT`` records.
        attacker_fraction: share of a user's records for the attacker, rounded, at least one record.
        evaluation_fraction: share for validation and test together, rounded, at least one record each.
        seed: public seed of the pseudo-random order, which depends on the record ids only, never on membership.
        advance: called with the number of finished rows.

    Raises:
        InputError: a user has too few records.
    """
    ranges = [store.rows(user) for user in users]
    counts = np.array([len(rows) for rows in ranges], dtype=np.int64)
    if counts.size and counts.min() < MIN_RECORDS_TO_SPLIT:
        raise InputError(
            f"a user with {counts.min()} records cannot be split: give at least {MIN_RECORDS_TO_SPLIT} records"
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
    """Return the order of a batch's rows, sorted by user and then by part."""
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
    """Return the number of rows in each part, shape (users, parts)."""
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
    """Yield first and last user of batches of about ``ROWS_A_BATCH`` rows. A user is never split."""
    number = (np.cumsum(counts) - 1) // ROWS_A_BATCH
    cuts = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), counts.size]
    yield from itertools.pairwise(cuts)


def _narrowest(rows: int) -> np.dtype[np.integer]:
    return np.dtype(np.int32 if rows < 2**31 else np.int64)
