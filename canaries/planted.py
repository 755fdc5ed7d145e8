"""The corpus that a run sees: the canary users, and the real users who are not replaced, with a store's interface.

heldin saves canary users once, in the folder of the run's ledger (owner-only), before any coin is drawn. A resumed run
loads them.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.artefacts import artefact_folder, origin_of
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.canaries.users import Canary, CanaryUser
from heldin.corpus.sources.rows import PARTS, SCHEMA
from heldin.corpus.store import Corpus, CorpusStore

_RECORDS = pa.schema(
    {"user": pa.string(), "id": pa.string(), "text": pa.large_string(), "date": pa.string(), "position": pa.int64()}
)
_RECORDS = pa.schema([*_RECORDS, pa.field("lent", pa.int64()), *PARTS])
_ABOUT: dict[str, pa.DataType] = {"user": pa.string(), "kind": pa.string(), "length": pa.int64()}
_ABOUT |= {"documents": pa.int64(), "source": pa.string(), "mark": pa.large_string()}
_USERS = pa.schema(_ABOUT)


class PlantedStore(Corpus):
    """A corpus with canary users. Rows of ``base`` keep their numbers, and canary records follow.

    Replaced users are left out.

    Attributes:
        canaries: recipe of each canary user.
        lent: for each row of a canary user, the row of ``base`` with the form that the record copies, or the record
            itself.
    """

    def __init__(self, base: CorpusStore, canaries: Sequence[Canary], records: pa.Table, fingerprint: str) -> None:
        self.canaries = {canary.user: canary for canary in canaries}
        # The real user and its copy in one run would be one person under two names, which epsilon counts as a group of
        # two (docs/theory.md#keys-and-coins). Of a user who was replaced every question is a KeyError.
        replaced = {canary.source for canary in canaries if canary.source is not None}
        kept = [i for i, user in enumerate(base.users) if user not in replaced]
        planted = _rows_by_user(records.column("user").to_pylist(), len(base))
        lent = records.column("lent").to_pylist()
        self.lent = {len(base) + i: row for i, row in enumerate(lent) if row is not None}
        users = [*(base.users[i] for i in kept), *planted]
        starts, counts = [rows.start for rows in planted.values()], [len(rows) for rows in planted.values()]
        order = sorted(range(len(users)), key=users.__getitem__)
        super().__init__(
            fingerprint,
            pa.concat_tables([base.table, _columns_of_a_store(records).combine_chunks()], promote_options="default"),
            [users[i] for i in order],
            np.concatenate([base.starts[kept], np.array(starts, dtype=np.int64)])[order],
            np.concatenate([base.counts[kept], np.array(counts, dtype=np.int64)])[order],
        )
        self._base = base

    @functools.cached_property
    def of_real_rows(self) -> frozenset[str]:
        """Canary users who have only exact rows of ``base`` as records, so no text filter can single them out."""
        return frozenset(user for user in self.canaries if all(map(self._is_row, self.rows(user))))

    def _is_row(self, row: int) -> bool:
        lent = self.lent.get(row)
        return lent is not None and self._base.document(lent) == self.document(row)


def save_canaries(users: Sequence[CanaryUser], folder: Path, *, origin: str) -> None:
    """Write canary users and their records to ``folder``, owner-only. Writes the folder completely or not at all.

    ``origin`` identifies the corpus, base model and configuration of the canary users.
    """
    facts = [u.canary for u in users]
    rows = [(u.canary.user, record) for u in users for record in u.records]
    with artefact_folder(folder, made_from=origin) as temporary:
        about = {name: [getattr(c, name) for c in facts] for name in _USERS.names}
        texts = {"user": [user for user, _ in rows]}
        texts |= {name: [getattr(record, name) for _, record in rows] for name in _RECORDS.names if name != "user"}
        for name, columns, schema in (("users", about, _USERS), ("records", texts, _RECORDS)):
            pq.write_table(pa.table(columns, schema=schema), temporary / f"{name}.parquet")


def load_canaries(base: CorpusStore, folder: Path, *, origin: str) -> PlantedStore | None:
    """Return ``base`` with the canary users that were saved in ``folder``; None if no canary users were saved.

    Raises InputError if the folder is damaged, or the canary users were saved with another ``origin``.
    """
    if not folder.is_dir():
        return None
    # Used all the same, canaries of another base model or seed would be trained on under a plan that does not name
    # them.
    if origin_of(folder, "start a new run folder") != origin:
        raise InputError(
            f"'{folder}' contains canary users for another corpus, base model or configuration: use a new run folder"
        )
    try:
        users = pq.read_table(folder / "users.parquet", schema=_USERS).to_pylist()
        records = pq.read_table(folder / "records.parquet", schema=_RECORDS)
        canaries = [Canary(**row) for row in users]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(f"the files of the canary users in '{folder}' are damaged: start a new run folder") from error
    # The planted corpus is another one than the base: its fingerprint covers every canary user and text.
    files = [file_sha256(folder / f"{name}.parquet") for name in ("users", "records")]
    return PlantedStore(base, canaries, records, text_sha256("planted", base.fingerprint, *files))


def _columns_of_a_store(records: pa.Table) -> pa.Table:
    """Return the columns of a store; the columns of parts only if a record has parts."""
    parts = [part.name for part in PARTS if records.column(part.name).null_count < len(records)]
    return records.select([*SCHEMA.names, *parts])


def _rows_by_user(users: list[str], first: int) -> dict[str, range]:
    """Return the rows of each canary user; the records of a user are adjacent."""
    starts = [i for i, user in enumerate(users) if i == 0 or user != users[i - 1]]
    ends = [*starts[1:], len(users)]
    return {users[start]: range(first + start, first + end) for start, end in zip(starts, ends, strict=True)}
