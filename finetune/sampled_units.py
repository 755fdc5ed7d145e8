"""The units that a mechanism samples, as arrays. If the units are records, 100 million units take less than a gigabyte.

Only the units that a step draws become Python objects.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.tokens import Tokens

_T = TypeVar("_T", covariant=True)


class MadeSequence(Sequence[_T]):
    """A sequence that makes items on request, one by one or as a slice, and stores no item."""

    @abstractmethod
    def one(self, number: int) -> _T:
        """Return the item with this number, from 0."""

    def some(self, numbers: range) -> list[_T]:
        """Return the items with these numbers."""
        return [self.one(number) for number in numbers]

    @overload
    def __getitem__(self, number: int) -> _T: ...
    @overload
    def __getitem__(self, number: slice) -> list[_T]: ...
    def __getitem__(self, number: int | slice) -> _T | list[_T]:
        if isinstance(number, slice):
            return self.some(range(*number.indices(len(self))))
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return self.one(number % len(self))


NAMES_A_BATCH = 2**16


@dataclass(frozen=True)
class SampledUnit:
    """A unit that the sampler draws.

    Attributes:
        name: stable, unique name.
        rows: rows of the records that the unit may contribute.
        canary: number of the gradient canary; None if the unit has records.
    """

    name: str
    rows: tuple[int, ...]
    canary: int | None = None


class Units(MadeSequence[SampledUnit]):
    """Units of records, in the order of their numbers.

    Attributes:
        names: unique names of the units.
        rows: rows of all units, one unit after another.
        ends: for each unit, the end of its rows in ``rows``, shape (units,).
    """

    def __init__(self, names: Sequence[str], rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self.names, self.rows, self.ends = names, rows, ends

    @classmethod
    def of(cls, units: Sequence[SampledUnit]) -> "Units":
        """Make arrays from units. The result has no numbers of gradient canaries."""
        rows = [row for unit in units for row in unit.rows]
        ends = np.cumsum([len(unit.rows) for unit in units], dtype=np.int64)
        return cls([unit.name for unit in units], np.array(rows, dtype=np.int64), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def one(self, number: int) -> SampledUnit:
        """Return the unit with this number."""
        begin = int(self.ends[number - 1]) if number else 0
        return SampledUnit(self.names[number], tuple(self.rows[begin : int(self.ends[number])].tolist()))

    def digest(self) -> str:
        """Return a hash of names and rows."""
        hashed = hashlib.sha256(self.ends.tobytes() + self.rows.tobytes())
        for first in range(0, len(self), NAMES_A_BATCH):
            hashed.update(text_sha256(*self.names[first : first + NAMES_A_BATCH]).encode())
        return hashed.hexdigest()


class Copies(MadeSequence[str]):
    """Names of units with one record each. A name is made from the record's id and the number of the copy."""

    def __init__(self, ids: Sequence[str], rows: npt.NDArray[np.int64], copies: npt.NDArray[np.int64]) -> None:
        self._ids, self._rows, self._copies = ids, rows, copies

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, number: int) -> str:
        """Return the name of the unit with this number."""
        # A name, and so a coin, of its own for every copy: the theorem's Binom(G, p) counts independent coins.
        return f"{self._ids[int(self._rows[number])]} copy {int(self._copies[number])}"


class Writers(MadeSequence[str]):
    """The author of each record, by record number.

    Attributes:
        names: the users, sorted.
        places: index in ``names`` of each record's user, shape (records,).
    """

    def __init__(self, names: Sequence[str], places: npt.NDArray[np.int32]) -> None:
        self.names, self.places = names, places

    @classmethod
    def of_names(cls, users: Sequence[str]) -> "Writers":
        """Make the object from the name of each record's author."""
        if isinstance(users, Writers):
            return users
        names = sorted(set(users))
        number = {name: i for i, name in enumerate(names)}
        return cls(names, np.fromiter((number[user] for user in users), dtype=np.int32, count=len(users)))

    def __len__(self) -> int:
        return len(self.places)

    def one(self, number: int) -> str:
        """Return the author of the record with this number."""
        return self.names[int(self.places[number])]

    def some(self, numbers: range) -> list[str]:
        """Return the authors of the records with these numbers."""
        return [self.names[i] for i in self.places[np.array(numbers, dtype=np.int64)].tolist()]

    def units(self) -> Units:
        """Return one unit for each user who has records, with all the user's records."""
        order = np.argsort(self.places, kind="stable")
        present, counts = np.unique(self.places, return_counts=True)
        return Units([self.names[i] for i in present.tolist()], order, np.cumsum(counts))


def require_unique(names: Sequence[str]) -> None:
    """Raise InputError if a record id occurs twice. The check takes 8 bytes per id, and no Python objects."""
    digests = np.empty(len(names), dtype=np.uint64)
    for first in range(0, len(names), NAMES_A_BATCH):
        batch = names[first : first + NAMES_A_BATCH]
        joined = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in batch)
        digests[first : first + len(batch)] = np.frombuffer(joined, dtype=np.uint64)
    order = np.argsort(digests, kind="stable")
    alike = np.flatnonzero(np.diff(digests[order]) == 0)
    # Equal hashes of 64 bits are not yet equal ids.
    for place in alike.tolist():
        run = order[digests[order] == digests[order[place]]].tolist()
        if len({names[i] for i in run}) < len(run):
            raise InputError("a record id occurs twice among the training records: give each record its own id")


@dataclass(frozen=True)
class LocalWork:
    """The local training of one drawn user.

    Attributes:
        sequences: tokens of the records, in training order.
        weights: weight of each record.
        weight: factor of the clipped difference, at most 1.
    """

    sequences: Sequence[Tokens]
    weights: Sequence[float]
    weight: float = 1.0
