"""Ids and writers of rows of a corpus, as a trainer asks for them: without a Python object for each row."""

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from heldin.corpus.store import Corpus
from heldin.finetune.sampled_units import Writers


class RecordIds(Sequence[str]):
    """The ids of these rows, read when they are asked for."""

    def __init__(self, store: Corpus, rows: npt.NDArray[np.int64]) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return self._store.ids_at(self._rows[number])
        return self._store.id(int(self._rows[number]))


def writers(store: Corpus, rows: npt.NDArray[np.int64]) -> Writers:
    """Who wrote each of these rows."""
    ranges = [store.rows(user) for user in store.users]
    starts = np.array([its.start for its in ranges], dtype=np.int64)
    # A user's rows are adjacent; users are sorted by name, and not always by row.
    by_row = np.argsort(starts, kind="stable")
    return Writers(store.users, by_row[np.searchsorted(starts[by_row], rows, side="right") - 1].astype(np.int32))
