"""Sort records by user out of core, in DuckDB on disk: read records, make ids, check ids, and write in order."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heldin.base.errors import InputError
from heldin.base.machine import main_memory
from heldin.base.wording import counted
from heldin.corpus.sources.rows import PARTS, SCHEMA
from heldin.corpus.store import CorpusStore

ROWS_PER_BATCH = 65_536
LEAST_MEMORY = 768 * 2**20  # bytes for DuckDB; Python, Arrow and the batches come on top
SHARE = 16  # or this part of main memory, if it is more
MEMORY_A_THREAD = 384 * 2**20  # each holds batches of its own
STAGED = pa.schema([*SCHEMA, *PARTS, pa.field("made", pa.bool_()), pa.field("place", pa.int64())])


@contextmanager
def sorting_database(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an empty database in bounded memory, in a new folder that is removed at the end."""
    scratch.mkdir(mode=0o700)
    memory = max(LEAST_MEMORY, main_memory() // SHARE)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": str(scratch),
        "threads": str(max(1, min(os.cpu_count() or 1, memory // MEMORY_A_THREAD))),
    }
    with full_disk_said(), duckdb.connect(str(scratch / "records.duckdb"), config=settings) as database:
        # The order comes from the column ``place``; keeping DuckDB's own would cost memory.
        database.execute("SET preserve_insertion_order = false")
        yield database
    # Not in a ``finally``: after an error the caller removes the folder in which this one lies.
    shutil.rmtree(scratch)


@contextmanager
def sorting_table(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with an empty table ``records``, in a folder that is removed at the end."""
    with sorting_database(scratch) as database:
        make_table(database, STAGED)
        yield database


def make_table(database: duckdb.DuckDBPyConnection, schema: pa.Schema) -> None:
    """Make an empty table ``records``, which replaces any existing table."""
    database.register("empty", schema.empty_table())
    database.execute("CREATE OR REPLACE TABLE records AS SELECT * FROM empty")
    database.unregister("empty")


def take_in(database: duckdb.DuckDBPyConnection, batches: Iterator[pa.RecordBatch], schema: pa.Schema = STAGED) -> None:
    """Stream the batches into the table ``records``. An error of the batches' source passes through unchanged."""
    raised: list[BaseException] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:  # Arrow and DuckDB would turn it into an error of their own
            raised.append(error)
            raise

    try:
        database.register("incoming", pa.RecordBatchReader.from_batches(schema, watched()))
        database.execute("INSERT INTO records SELECT * FROM incoming")
        database.unregister("incoming")
    except Exception:
        if raised:
            raise raised[0] from None
        raise


def add_store(
    database: duckdb.DuckDBPyConnection, store: CorpusStore, place: int, rows: tuple[int, int] | None = None
) -> None:
    """Add records of a store, in the store's order.

    Args:
        database: a database of ``sorting_table``.
        store: store with the records.
        place: place of the first record; the places of the other records follow.
        rows: rows [first, last) of the store; None: all rows.
    """
    first, last = rows or (0, len(store))
    places = pa.array(np.arange(place, place + last - first))
    database.register("kept", store.table.slice(first, last - first).append_column("place", places))
    made = store.ids == "made"
    # Made ids lose their numbers: copies of a text in several stores are numbered together afterwards.
    name = "left(id, 32)" if made else "id"
    parts = ", ".join(part.name if part.name in store.table.schema.names else "NULL" for part in PARTS)
    database.execute(f'INSERT INTO records SELECT "user", text, {name}, date, {parts}, {made}, place FROM kept')
    database.unregister("kept")


def write_records(database: duckdb.DuckDBPyConnection, path: Path) -> tuple[pa.Table, str]:
    """Number the made ids and write the records, sorted by user and place.

    Returns the index of users and the kind of ids: "given", "made", "mixed", or "none" if there is no record.
    """
    kinds = {made for (made,) in database.sql("SELECT DISTINCT made FROM records").fetchall()}
    if True in kinds:
        number_copies(database)
    # Columns that a plain corpus does not have: it is neither larger nor slower for them.
    counts = database.sql(f"SELECT {', '.join(f'count({part.name})' for part in PARTS)} FROM records").fetchall()[0]
    schema = pa.schema([*SCHEMA, *(part for part, count in zip(PARTS, counts, strict=True) if count)])
    # No two records have the same place, so that the order is total and does not depend on DuckDB's threads.
    names = ", ".join(f'"{name}"' for name in schema.names)
    ordered = database.sql(f'SELECT {names} FROM records ORDER BY "user", place')
    users = write_sorted(ordered.to_arrow_reader(ROWS_PER_BATCH), path, schema)
    return users, "mixed" if len(kinds) > 1 else {True: "made", False: "given"}[kinds.pop()] if kinds else "none"


def number_copies(database: duckdb.DuckDBPyConnection) -> None:
    """Append a number to each made id: the place of the record among records with this id, in the source's order."""
    database.execute(
        # Partitioned by ``made`` too: an id that a source gives may look like a made one.
        "CREATE TABLE numbered AS SELECT * EXCLUDE (id, made), CASE WHEN made THEN id || '-' ||"
        " row_number() OVER (PARTITION BY id, made ORDER BY place) ELSE id END AS id FROM records"
    )
    database.execute("DROP TABLE records")
    database.execute("ALTER TABLE numbered RENAME TO records")


def refuse_repeated_ids(database: duckdb.DuckDBPyConnection) -> None:
    """Raise InputError if an id occurs more than once."""
    repeated = database.sql("SELECT max(place), count(*) AS times FROM records GROUP BY id HAVING times > 1").fetchall()
    if repeated:
        # A group-by returns rows in any order, and the message should be the same each time.
        last, times = min(repeated)
        raise say_repeated(len(repeated), times, f", the last in record {last + 1} of the source")


def say_repeated(number: int, times: int, where: str = "") -> InputError:
    """Return the error for ``number`` repeated ids, one of which occurs ``times`` times."""
    return InputError(
        f"{counted(number, 'record id')} given more than once, one of them {times} times{where}. No record may be"
        " in both groups, so ids must be unique: name another id column, or give none, and heldin numbers the"
        " records"
    )


def write_sorted(reader: pa.RecordBatchReader, path: Path, schema: pa.Schema) -> pa.Table:
    """Write batches to an Arrow file as they arrive, and return the index of their users."""

    def runs() -> Iterator[tuple[str, int]]:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in reader:
                # DuckDB returns its own string types and may split a batch into chunks.
                fitting = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
                for part in fitting:
                    writer.write_batch(part)
                    yield from runs_of(part)

    # The index is made while the file is written; the file is closed when the last run has been taken.
    return user_index(runs())


def user_index(runs: Iterator[tuple[str, int]]) -> pa.Table:
    """Return the index of users from pairs (user, number of records) in row order. A user's pairs are adjacent."""
    users: list[str] = []
    counts: list[int] = []
    for user, count in runs:
        if users and users[-1] == user:  # a user whose records span two batches
            counts[-1] += count
        else:
            users.append(user)
            counts.append(count)
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - np.asarray(counts, dtype=np.int64)
    return pa.table({"user": pa.array(users, pa.string()), "start": starts, "count": pa.array(counts, pa.int64())})


def runs_of(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Yield a pair (user, number of records) for each run of rows by one user in a batch."""
    # A run per user and not a Python string per record.
    encoded = pc.run_end_encode(batch.column("user"))
    before = 0
    for user, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield user, end - before
        before = end


def write_table(table: pa.Table, path: Path) -> None:
    """Write an Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=ROWS_PER_BATCH)


@contextmanager
def full_disk_said() -> Iterator[None]:
    """Turn DuckDB's error for a full disk into the operating system's error."""
    try:
        yield
    except duckdb.Error as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
