"""The purpose of each row of each user, as arrays: for 100 million records half a gigabyte, mapped from disk.

Only the rows of one user at a time become Python objects.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from heldin.base.artefacts import artefact_folder, origin_of
from heldin.corpus.split import Part

Parts = Mapping[Part, tuple[int, ...]]
PARTS = tuple(Part)
_FILES = ("rows.npy", "ends.npy", "users.parquet")


class RowParts(Mapping[str, Parts]):
    """Rows of each user, by what they are used for; a mapping from a user's name to ``Parts``.

    Attributes:
        names: of the users.
        rows: rows of all parts of all users, shape (rows,): user by user and, within a user, in the order of ``PARTS``.
        ends: where each part of each user ends in ``rows``, shape (users, parts).
    """

    def __init__(self, names: Sequence[str], rows: NDArray[np.integer], ends: NDArray[np.int64]) -> None:
        self.names, self.rows, self.ends = tuple(names), rows, ends.reshape(len(names), len(PARTS))
        self._number = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def of(cls, parts: Mapping[str, Parts]) -> "RowParts":
        """The same as arrays; a part that is not named has no row."""
        lists = [rows_of_user.get(part, ()) for rows_of_user in parts.values() for part in PARTS]
        rows = np.fromiter(itertools.chain.from_iterable(lists), dtype=np.int64)
        return cls(tuple(parts), rows, np.cumsum([len(rows_of_user) for rows_of_user in lists], dtype=np.int64))

    @classmethod
    def training(cls, rows: Mapping[str, range]) -> "RowParts":
        """Every row of these users for training."""
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
        """These and others, of other names."""
        if not len(others):
            return self
        return RowParts(
            (*self.names, *others.names),
            np.concatenate([self.rows, others.rows]),
            np.concatenate([self.ends, others.ends + len(self.rows)]),
        )

    def first(self, users: int) -> "RowParts":
        """Those of the first so many users."""
        if users == len(self):
            return self
        rows = int(self.ends[users - 1, -1]) if users else 0
        return RowParts(self.names[:users], self.rows[:rows], self.ends[:users])

    def sizes(self, part: Part) -> NDArray[np.int64]:
        """Rows of a part of each user, shape (users,)."""
        return np.diff(self.ends.ravel(), prepend=0).reshape(self.ends.shape)[:, PARTS.index(part)]

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The number of each of these users; raises KeyError for a name that is none."""
        return np.array([self._number[name] for name in names], dtype=np.int64)

    def rows_of(self, part: Part, names: Sequence[str] | None = None) -> NDArray[np.integer]:
        """Rows of a part of these users (None: of all), user by user in the order of ``self.names``; a copy."""
        numbers = np.arange(len(self)) if names is None else np.unique(self.numbers(names))
        last = self.ends.ravel()[numbers * len(PARTS) + PARTS.index(part)]
        sizes = self.sizes(part)[numbers]
        rows = np.empty(int(sizes.sum()), dtype=self.rows.dtype)
        # One user's after the other: a mask of all rows would take as much memory again.
        for begin, size, end in zip((np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), last.tolist(), strict=True):
            rows[begin : begin + size] = self.rows[end - size : end]
        return rows

    def uses(self, size: int) -> NDArray[np.int8]:
        """1 + the place in ``PARTS`` of each row below ``size``, shape (size,); 0 for rows of nobody."""
        use = np.zeros(size, dtype=np.int8)
        codes = np.tile(np.arange(1, len(PARTS) + 1, dtype=np.int8), len(self.names))
        code = np.repeat(codes, np.diff(self.ends.ravel(), prepend=0))
        within = self.rows < size
        use[self.rows[within]] = code[within]
        return use

    def save(self, folder: Path, *, origin: str) -> None:
        """Write the arrays to ``folder``, which only its owner can read, whole or not at all.

        Args:
            folder: replaced if it is there.
            origin: names what they follow from.
        """
        with artefact_folder(folder, made_from=origin) as temporary:
            for name, array in zip(_FILES, (self.rows, self.ends), strict=False):
                np.save(temporary / name, array, allow_pickle=False)
            pq.write_table(pa.table({"user": pa.array(self.names, pa.string())}), temporary / _FILES[-1])


def saved_parts(folder: Path) -> tuple[str, RowParts]:
    """Return what ``RowParts.save`` was given: what they follow from, and the arrays, mapped from disk.

    Raises InputError if a file is missing or was changed.
    """
    origin = origin_of(folder, "start a new run folder")
    rows, ends = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in _FILES[:2])
    names = pq.read_table(folder / _FILES[-1]).column("user").to_pylist()
    return origin, RowParts(names, rows, np.array(ends))
