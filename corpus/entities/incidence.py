"""The people and things that each record names, as arrays: the slots of docs/theory.md#caps-and-fixed-incidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from heldin.corpus.entities.exposure import people_of
from heldin.corpus.entities.mentions import Mentions
from heldin.corpus.entities.spans import CATEGORIES, Category


@dataclass(frozen=True)
class Incidence:
    """The distinct entities that each record names, as compressed rows.

    Attributes:
        starts: offsets, shape (records + 1,); the entities of record i are ``entities[starts[i]:starts[i + 1]]``.
        entities: numbers of entities, each below ``count``.
        names: canonical name of each entity, shape (count,).
        users: map from the name of each user whom a record names to the number of the user's entity.
    """

    starts: npt.NDArray[np.int64]
    entities: npt.NDArray[np.int64]
    count: int
    names: Sequence[str] = ()
    users: Mapping[str, int] = field(default_factory=dict)

    def parts(self) -> Iterator[str]:
        """Yield all of the content as text, for a hash."""
        yield from (self.starts.tobytes().hex(), self.entities.tobytes().hex(), *self.names)

    def of(self, record: int) -> list[int]:
        """Return the numbers of the entities that a record names."""
        numbers: list[int] = self.entities[self.starts[record] : self.starts[record + 1]].tolist()
        return numbers

    def of_records(self, records: Sequence[int] | npt.NDArray[np.integer]) -> "Incidence":
        """Return the incidence of only these records, renumbered in the given order.

        The numbers of entities do not change.
        """
        chosen = np.asarray(records, dtype=np.int64)
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        # The places of each record's entities: from its own start on, one after the other.
        places = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        return replace(self, starts=starts, entities=self.entities[places])

    def with_records_that_name_nobody(self, number: int) -> "Incidence":
        """Return the incidence with ``number`` further records at the end that name no entity."""
        return replace(self, starts=np.concatenate([self.starts, np.full(number, self.starts[-1])]))

    def records_of(self) -> npt.NDArray[np.int64]:
        """Return the number of records that name each entity, shape (count,)."""
        return np.bincount(self.entities, minlength=self.count)


def incidence(
    mentions: Mentions, *, categories: Sequence[Category] = CATEGORIES, aliases: Mapping[str, str] | None = None
) -> Incidence:
    """Return the incidence of the mentions."""
    with people_of(mentions, categories, aliases or {}) as database:
        # Numbered by name, so that equal findings have equal numbers.
        database.execute(
            "CREATE TABLE numbered AS SELECT person, row_number() OVER (ORDER BY person) - 1 AS number"
            " FROM (SELECT DISTINCT person FROM named)"
        )
        pairs = database.execute(
            "SELECT DISTINCT row, number FROM named JOIN numbered USING (person) ORDER BY row, number"
        ).fetchnumpy()
        names = [name for (name,) in database.execute("SELECT person FROM numbered ORDER BY number").fetchall()]
        users = database.execute("SELECT name, numbered.number FROM users JOIN numbered ON name = person").fetchall()
    rows = np.asarray(pairs["row"], dtype=np.int64)
    starts = np.searchsorted(rows, np.arange(mentions.rows + 1))
    return Incidence(
        starts.astype(np.int64), np.asarray(pairs["number"], dtype=np.int64), len(names), names, dict(users)
    )
