"""Parquet files as sources."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import (
    BATCH_ROWS,
    Columns,
    Source,
    batched,
    columns_of,
    require_columns,
    require_once,
    top_columns,
    whole_rows,
)
from heldin.corpus.sources.text_files import first_line
from heldin.words.statement import Statement


@dataclass(frozen=True)
class Parquet(Source):
    """A Parquet file."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("parquet", file_sha256(existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows, reading part of a row group at a time."""
        file = self._file()
        names = top_columns(self.columns, file.schema_arrow.names)
        return batched(_rows(file, names, self.path.name), self.path.name, "row", self.columns, bad)

    def look(self) -> list[Statement]:
        """Read the schema. Raises InputError if a column is missing."""
        self._file()
        return []

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row."""
        file = _open(self.path)
        return next((row for batch in file.iter_batches(1) for row in batch.to_pylist()), None)

    def _file(self) -> pq.ParquetFile:
        file = _open(self.path)
        require_columns(self.columns, columns_of(file.schema_arrow), self.path.name)
        return file


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yield pairs (number, row) of a file.

    Args:
        columns: names of the columns to read; the function ignores missing columns.

    Raises:
        InputError: the file is damaged.
    """
    file = _open(path)
    present = file.schema_arrow.names
    # Without any of the columns one other is read, so that there is a row at which to say what is missing.
    yield from _rows(file, [name for name in columns if name in present] or present[:1], path.name)


def _open(path: Path) -> pq.ParquetFile:
    """Open the file. Raises InputError for a damaged footer, or a repeated column name."""
    existing(path)
    try:
        # Read through a buffer: by default Arrow keeps every row group that it has read until the file is closed.
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
        names = list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"'{path.name}' is not a readable Parquet file ({first_line(error)}): fetch or write the file again"
        ) from error
    require_once(names, path, "the schema")
    return file


def _rows(file: pq.ParquetFile, names: list[str], where: str) -> Iterator[tuple[int, Any]]:
    batches = file.iter_batches(BATCH_ROWS, columns=names)
    number = 0
    for number, row in whole_rows(batches, where):
        yield number, row
    # A row group whose footer states fewer rows than it has is read without an error.
    if number != file.metadata.num_rows:
        raise InputError(
            f"{where}: the footer states {file.metadata.num_rows:,} rows, but only {number:,} can be read, so"
            " the file is damaged. Fetch the file again"
        )
