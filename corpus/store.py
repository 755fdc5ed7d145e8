"""The corpus on disk: a memory-mapped Arrow file sorted by user, and an index from user to rows.

A store is built once per content: its folder's name is a hash of the source's content and of every option, it is
written under a temporary name and renamed, and a later build of the same content opens it. Reading k records costs
O(k), however large the corpus.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpus.errors import InputError
from corpus.files import text_sha256, whole_directory
from corpus.sources import SCHEMA, BadRows, Source

FORMAT_VERSION = "2"
ROWS_PER_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class Record:
    """One text of one user."""

    row: int
    user: str
    id: str
    text: str
    date: str | None


@dataclass(frozen=True)
class BuildReport:
    """What a build found: rows skipped as bad, and the first of them."""

    skipped: int
    first_skipped: str
    reused: bool


class CorpusStore:
    """Read access to a built store. Rows are numbered 0..len-1, all rows of one user next to each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        self.fingerprint: str = meta["fingerprint"]
        self.report = BuildReport(meta["skipped"], meta["first_skipped"], reused=True)
        table = pa.ipc.open_file(pa.memory_map(str(folder / "records.arrow"))).read_all()
        self._columns = {name: table.column(name) for name in SCHEMA.names}
        index = pa.ipc.open_file(pa.memory_map(str(folder / "users.arrow"))).read_all()
        self.users: list[str] = index.column("user").to_pylist()
        self.starts = index.column("start").to_numpy()
        self.counts = index.column("count").to_numpy()
        self._position = {user: i for i, user in enumerate(self.users)}

    def __len__(self) -> int:
        return int(self.counts.sum())

    def count(self, user: str) -> int:
        """Number of records of ``user``."""
        return int(self.counts[self._position[user]])

    def rows(self, user: str) -> range:
        """Row numbers of ``user``, in the source's order."""
        i = self._position[user]
        return range(int(self.starts[i]), int(self.starts[i] + self.counts[i]))

    def record(self, row: int) -> Record:
        """The record at ``row``."""
        user, text, id_, date = (self._columns[name][row].as_py() for name in ("user", "text", "id", "date"))
        return Record(row, user, id_, text, date)

    def text(self, row: int) -> str:
        """The text at ``row``."""
        text: str = self._columns["text"][row].as_py()
        return text

    def id(self, row: int) -> str:
        """The record id at ``row``."""
        id_: str = self._columns["id"][row].as_py()
        return id_

    def texts(self) -> Iterator[str]:
        """All texts in row order, a chunk in memory at a time."""
        for chunk in self._columns["text"].chunks:
            yield from chunk.to_pylist()

    def sample(self, users: int, records: int, generator: np.random.Generator) -> list[list[Record]]:
        """``records`` random records (fewer where a user has fewer) of each of ``users`` random users.

        Costs O(records returned). Raises InputError if there are fewer users than asked for.
        """
        if users > len(self.users):
            raise InputError(f"cannot sample {users} users: the corpus has {len(self.users)}")
        chosen = generator.choice(len(self.users), size=users, replace=False, shuffle=False)
        sampled = []
        for i in chosen:
            count = int(self.counts[i])
            picks = generator.choice(count, size=min(records, count), replace=False, shuffle=False)
            sampled.append([self.record(int(self.starts[i]) + int(pick)) for pick in picks])
        return sampled


def build_store(
    source: Source,
    cache: Path,
    *,
    aliases: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
) -> CorpusStore:
    """Build the store of ``source`` under ``cache``/corpora, or open it if this content was built before.

    Sorting holds the corpus in memory about three times over.

    Raises:
        InputError: the source cannot be used, holds no record, or one record id stands more than once.
    """
    alias_of = dict(aliases or {})
    fingerprint = text_sha256(
        FORMAT_VERSION, source.fingerprint(), json.dumps(alias_of, sort_keys=True), str(skip_bad_rows)
    )
    folder = cache / "corpora" / fingerprint[:24]
    if (folder / "meta.json").is_file():
        return CorpusStore(folder)
    bad = BadRows(skip=skip_bad_rows)
    batches = list(source.batches(bad))
    if not batches:
        raise InputError(f"no usable record in the corpus ({bad.skipped} skipped; first: {bad.first or 'none'})")
    table = _with_aliases(pa.Table.from_batches(batches, schema=SCHEMA), alias_of)
    _refuse_repeated_ids(table)
    table = table.take(pc.sort_indices(table, sort_keys=[("user", "ascending")]))  # a stable sort: keeps source order
    with whole_directory(folder) as temporary:
        _write(table, temporary / "records.arrow")
        _write(_user_index(table), temporary / "users.arrow")
        meta = {"fingerprint": fingerprint, "skipped": bad.skipped, "first_skipped": bad.first}
        (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    store = CorpusStore(folder)
    store.report = BuildReport(bad.skipped, bad.first, reused=False)
    return store


def _with_aliases(table: pa.Table, alias_of: Mapping[str, str]) -> pa.Table:
    if not alias_of:
        return table
    users = table.column("user").combine_chunks().dictionary_encode()
    merged = pa.array([alias_of.get(name, name) for name in users.dictionary.to_pylist()], pa.string())
    return table.set_column(0, "user", merged.take(users.indices))


def _refuse_repeated_ids(table: pa.Table) -> None:
    counts = pc.value_counts(table.column("id"))
    repeated = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    if len(repeated):
        name, times = repeated[0]["values"].as_py(), repeated[0]["counts"].as_py()
        raise InputError(
            f"{len(repeated)} record ids stand more than once, such as '{name}' ({times} times): ids must be unique,"
            " because no record may be on both sides; name another id column, or none to number the records"
        )


def _user_index(table: pa.Table) -> pa.Table:
    runs = pc.run_end_encode(table.column("user").combine_chunks())
    ends = np.asarray(runs.run_ends, dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    return pa.table({"user": runs.values, "start": pa.array(starts), "count": pa.array(ends - starts)})


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=ROWS_PER_BATCH)


def texts_of(store: CorpusStore, rows: Sequence[int]) -> list[str]:
    """The texts at ``rows``."""
    return [store.text(row) for row in rows]
