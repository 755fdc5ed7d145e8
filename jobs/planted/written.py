"""The rows of a planted training set under other names and ids, each with a key that places it."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_digest
from heldin.canaries.kinds import Kind
from heldin.corpus.sources.rows import BadRows
from heldin.jobs.planted.plant_data import canary_forms
from heldin.jobs.planted.row_text import Row
from heldin.jobs.planted.training_set import TrainingSet
from heldin.stages.sides.data import RunData


def planted_rows(source: TrainingSet, data: RunData, *, numbered: frozenset[str]) -> Iterator[tuple[bytes, Row]]:
    """Key and columns of every row to be trained on: real ones as they were but for names, and canary users'.

    Names of users and ids are replaced for all, and rows sorted by a keyed hash, so that neither tells a canary user.
    What is written of a row depends on no coin: only whether it is written does (docs/theory.md#conditions-of-one-run).

    Args:
        numbered: columns of users and ids in which all values are whole numbers, and are numbers again.
    """
    corpus = data.corpus.store
    names = _Names(data, source, numbered)
    real = int(corpus.counts.sum())
    rows = data.training_rows
    of_canaries = rows[rows >= real].tolist()
    trained = np.zeros(real, dtype=np.bool_)
    trained[rows[rows < real]] = True
    forms = canary_forms(data)
    # A few thousand at most: rows of which canary rows take the other columns.
    wanted, copied = {forms[row] for row in of_canaries}, dict[int, Row]()
    seen: dict[str, int] = {}
    for row_names, content in source.rows(BadRows(skip=True)):
        user = str(row_names["user"])
        number = seen.get(user, 0)
        seen[user] = number + 1
        row = corpus.rows(user)[number]
        if row in wanted:
            copied[row] = content
        if trained[row]:
            id_ = corpus.id(row)
            yield names.key(id_), names.given(content, row, user, id_)
    for row in of_canaries:
        record = data.store.record(row)
        content = copied[forms[row]]
        if data.canaries[record.user].kind is not Kind.REAL_ROWS:
            content = source.text.put(content, record.text)
        yield names.key(record.id), names.given(content, row, record.user, record.id)


@dataclass(frozen=True)
class _Names:
    """Names and ids that are written: keyed hashes, or numbers where the column has nothing but numbers.

    Attributes:
        data: users and the key of the coins.
        numbered: see ``planted_rows``.
    """

    data: RunData
    source: TrainingSet
    numbered: frozenset[str]

    def key(self, record: str) -> bytes:
        """Return the place of a row, from the row's id."""
        return self._digest("order of rows", record)

    def given(self, content: Row, row: int, user: str, record: str) -> Row:
        """Return the content of a row under another user and id."""
        columns = self.source.columns
        new: Row = {**content} if columns.user is None else {**content, columns.user: self._users[user]}
        if columns.id is not None and columns.id in self.numbered:
            rows, places = self._places
            new[columns.id] = int(places[np.searchsorted(rows, row)]) + 1
        elif columns.id is not None:
            new[columns.id] = self._digest("written id", record).hex()[:24]
        return new

    @functools.cached_property
    def _users(self) -> dict[str, str | int]:
        hashed = {user: self._digest("written user", user).hex()[:16] for user in self.data.store.users}
        if self.source.columns.user not in self.numbered:
            return dict(hashed)
        return {user: number for number, user in enumerate(sorted(hashed, key=lambda user: hashed[user]), start=1)}

    @functools.cached_property
    def _places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return all rows, sorted, and the place of each among all, so that no id depends on who else is held in."""
        store = self.data.store
        rows = np.array(sorted(row for user in store.users for row in store.rows(user)), dtype=np.int64)
        keys = [int.from_bytes(self.key(store.id(row))[:8], "big") for row in rows.tolist()]
        return rows, np.argsort(np.argsort(np.array(keys, dtype=np.uint64)))

    def _digest(self, purpose: str, identity: str) -> bytes:
        return keyed_digest(self.data.ledger.coins_key, purpose, identity)
