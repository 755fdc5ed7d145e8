"""Ids and writers of rows of a corpus, as a trainer asks for them: without a Python object for each row."""

import hashlib

import numpy as np
import numpy.typing as npt

from heldin.corpus.store import Corpus
from heldin.finetune.sampled_units import MadeSequence, Writers

ROWS_A_BATCH = 2**20


class RecordIds(MadeSequence[str]):
    """The ids of these rows, read when they are asked for."""

    def __init__(self, store: Corpus, rows: npt.NDArray[np.integer]) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, number: int) -> str:
        """The id of the row of this number."""
        return self._store.id(int(self._rows[number]))

    def some(self, numbers: range) -> list[str]:
        """The ids of the rows of these numbers."""
        return self._store.ids_at(self._rows[np.array(numbers, dtype=np.int64)])


def writers(store: Corpus, rows: npt.NDArray[np.integer]) -> Writers:
    """Who wrote each of these rows."""
    ranges = [store.rows(user) for user in store.users]
    starts = np.array([rows.start for rows in ranges], dtype=np.int64)
    # A user's rows are adjacent; users are sorted by name, and not always by row.
    there = np.flatnonzero([len(rows) > 0 for rows in ranges])
    by_row = there[np.argsort(starts[there], kind="stable")]
    return Writers(store.users, by_row[np.searchsorted(starts[by_row], rows, side="right") - 1].astype(np.int32))


def rows_digest(rows: npt.NDArray[np.integer]) -> str:
    """Hash of row numbers, whatever their type."""
    hashed = hashlib.sha256()
    for first in range(0, rows.size, ROWS_A_BATCH):
        hashed.update(rows[first : first + ROWS_A_BATCH].astype(np.int64).tobytes())
    return hashed.hexdigest()
