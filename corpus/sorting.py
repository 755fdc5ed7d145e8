"""Records sorted by user out of core, in DuckDB on disk: taken in, named, checked, and written in order."""

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
from heldin.corpus.sources.rows import SCHEMA
from heldin.corpus.store import CorpusStore

ROWS_PER_BATCH = 65_536
MEMORY = "768MB"  # DuckDB's share; Python, Arrow and the batches come on top
STAGED = SCHEMA.append(pa.field("made", pa.bool_())).append(pa.field("place", pa.int64()))


@contextmanager
def sorting_table(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with an empty table ``records`` in a folder of its own, which goes when it is done."""
    scratch.mkdir()
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch),
        "threads": "2",
    }
    with full_disk_said(), duckdb.connect(str(scratch / "records.duckdb"), config=settings) as database:
        database.execute("SET preserve_insertion_order = false")
        database.register("empty", STAGED.empty_table())
        database.execute("CREATE TABLE records AS SELECT * FROM empty")
        database.unregister("empty")
        yield database
    shutil.rmtree(scratch)


def take_in(database: duckdb.DuckDBPyConnection, batches: Iterator[pa.RecordBatch]) -> None:
    """Stream the batches into the table ``records``; what goes wrong in their source is raised as it is."""
    raised: list[BaseException] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:  # Arrow and DuckDB would turn it into an error of their own
            raised.append(error)
            raise

    try:
        database.register("incoming", pa.RecordBatchReader.from_batches(STAGED, watched()))
        database.execute("INSERT INTO records SELECT * FROM incoming")
        database.unregister("incoming")
    except Exception:
        if raised:
            raise raised[0] from None
        raise


def add_store(
    database: duckdb.DuckDBPyConnection, store: CorpusStore, place: int, rows: tuple[int, int] | None = None
) -> None:
    """Add rows [first, last) of a store (None: all), in its order, from ``place`` on.

    Made ids lose their numbers, to be numbered again.
    """
    first, last = rows or (0, len(store))
    places = pa.array(np.arange(place, place + last - first))
    database.register("kept", store.table.slice(first, last - first).append_column("place", places))
    made = store.ids == "made"
    name = "left(id, 32)" if made else "id"
    database.execute(f'INSERT INTO records SELECT "user", text, {name}, date, {made}, place FROM kept')
    database.unregister("kept")


def write_records(database: duckdb.DuckDBPyConnection, path: Path) -> tuple[pa.Table, str]:
    """Number the made ids and write the records, sorted by user and place; returns users' index and whose the ids are.

    Ids are "given", "made", "mixed", or "none" where there is no record.
    """
    kinds = {made for (made,) in database.sql("SELECT DISTINCT made FROM records").fetchall()}
    if True in kinds:
        number_copies(database)
    ordered = database.sql('SELECT "user", text, id, date FROM records ORDER BY "user", place')
    users = write_sorted(ordered.to_arrow_reader(ROWS_PER_BATCH), path)
    return users, "mixed" if len(kinds) > 1 else {True: "made", False: "given"}[kinds.pop()] if kinds else "none"


def number_copies(database: duckdb.DuckDBPyConnection) -> None:
    """Made ids get their number among equal ones, in the source's order."""
    database.execute(
        "CREATE TABLE numbered AS SELECT * EXCLUDE (id, made), CASE WHEN made THEN id || '-' ||"
        " row_number() OVER (PARTITION BY id, made ORDER BY place) ELSE id END AS id FROM records"
    )
    database.execute("DROP TABLE records")
    database.execute("ALTER TABLE numbered RENAME TO records")


def refuse_repeated_ids(database: duckdb.DuckDBPyConnection) -> None:
    """Raises InputError where an id stands more than once."""
    repeated = database.sql("SELECT id, count(*) AS times FROM records GROUP BY id HAVING times > 1").fetchall()
    if repeated:
        raise say_repeated(len(repeated), *min(repeated))


def say_repeated(number: int, name: str, times: int) -> InputError:
    """What is said where ``number`` ids stand more than once, one of them ``times`` times."""
    return InputError(
        f"{number} record ids stand more than once, such as '{name}' ({times} times): ids must be unique, because no"
        " record may be on both sides; name another id column, or none to number the records"
    )


def write_sorted(reader: pa.RecordBatchReader, path: Path) -> pa.Table:
    """Write batches to an Arrow file as they come; returns the index of their users."""

    def runs() -> Iterator[tuple[str, int]]:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in reader:
                fitting = pa.Table.from_batches([batch]).cast(SCHEMA).combine_chunks().to_batches()
                for part in fitting:
                    writer.write_batch(part)
                    yield from runs_of(part)

    return user_index(runs())


def user_index(runs: Iterator[tuple[str, int]]) -> pa.Table:
    """The index of users from runs of (user, records), in the order of the records; a user's runs follow each other."""
    users: list[str] = []
    counts: list[int] = []
    for user, count in runs:
        if users and users[-1] == user:
            counts[-1] += count
        else:
            users.append(user)
            counts.append(count)
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - np.asarray(counts, dtype=np.int64)
    return pa.table({"user": pa.array(users, pa.string()), "start": starts, "count": pa.array(counts, pa.int64())})


def runs_of(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Runs of one user in a batch."""
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
    """DuckDB's error for a full disk becomes the operating system's."""
    try:
        yield
    except duckdb.Error as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
