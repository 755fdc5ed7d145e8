"""A training set as somebody else's trainer reads it: its rows with all columns, and another one in the same form."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.corpus.sorting import ROWS_PER_BATCH, make_table, sorting_database, take_in
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.rows import BATCH_ROWS, BadRows, Columns, first_line, usable_record
from heldin.corpus.sources.text_files import rows_of_file
from heldin.jobs.planted.config import PlantConfig, is_dataset

Row = dict[str, Any]
_LINES = pa.schema([("line", pa.large_string())])
_PLACE = pa.field("heldin place", pa.large_binary())
_PACKED = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class TrainingSet:
    """A file of JSON lines or Parquet, or a folder of ``save_to_disk``.

    Attributes:
        path: the file or folder.
        columns: which column holds what.
        split: of a folder with several.
    """

    path: Path
    columns: Columns
    split: str | None = None

    @property
    def schema(self) -> pa.Schema | None:
        """Its columns; None for JSON lines, of which each row has its own."""
        if is_dataset(self.path):
            return self._dataset().features.arrow_schema
        return pq.read_schema(self.path) if self.path.suffix == ".parquet" else None

    def rows(self) -> Iterator[tuple[str, str | None, Row]]:
        """User, id (None without such a column) and all columns of every row that can be used, in order."""
        roles = self.columns.named()
        for row in self._all():
            record, wrong = usable_record(row, roles) if isinstance(row, dict) else ({}, "no object")
            # The corpus was built of the same rows, so that the others have been told or counted.
            if not wrong:
                yield str(record["user"]), record["id"], row

    def write(self, rows: Iterable[tuple[bytes, Row]], folder: Path, scratch: Path) -> Path:
        """Write rows in the order of their keys, in the same form and under the same name.

        Args:
            rows: key and columns of each row, in any order.
            folder: where to write; it exists.
            scratch: a folder to be made for sorting, removed at the end.

        Returns:
            The file or folder that was written.

        Raises:
            InputError: a row does not fit the columns.
        """
        own, to = self.schema, folder / self.path.name
        schema = own or _LINES
        with sorting_database(scratch) as database:
            keyed = pa.schema([_PLACE, *schema])
            make_table(database, keyed)
            take_in(database, _batches(rows, schema), keyed)
            ordered = database.sql(f'SELECT * EXCLUDE ("{_PLACE.name}") FROM records ORDER BY "{_PLACE.name}"')
            batches = ordered.to_arrow_reader(ROWS_PER_BATCH)
            if own is None:
                _write_lines(batches, to)
            elif not is_dataset(self.path):
                _write_parquet(batches, own, to)
            else:
                _write_parquet(batches, own, scratch / "rows.parquet")
                self._save_dataset(scratch / "rows.parquet", to, scratch)
        return to

    def _all(self) -> Iterator[Any]:
        if is_dataset(self.path):
            for table in self._dataset().with_format("arrow").iter(BATCH_ROWS):
                yield from table.to_pylist()
            return
        schema = self.schema
        yield from (row for _, row in rows_of_file(self.path, schema.names if schema else (), BadRows(skip=True)))

    def _dataset(self) -> Any:
        return HuggingFace(str(self.path), self.split, columns=self.columns).load()

    def _save_dataset(self, rows: Path, to: Path, scratch: Path) -> None:
        import datasets

        datasets.disable_progress_bars()  # heldin shows its own
        written = datasets.Dataset.from_parquet(
            str(rows), features=self._dataset().features, cache_dir=str(scratch / "cache"), keep_in_memory=False
        )
        whole = datasets.load_from_disk(str(self.path))
        if isinstance(whole, datasets.DatasetDict):
            written = datasets.DatasetDict({**whole, str(self.split): written})
        written.save_to_disk(str(to))


def training_set(config: PlantConfig) -> TrainingSet:
    """The training set that a config names."""
    return TrainingSet(config.training, config.columns, config.dataset_split)


def content_sha256(path: Path) -> str:
    """Hash of a file, or of the names and contents of a folder's files."""
    if path.is_file():
        return file_sha256(path)
    files = sorted(its for its in path.rglob("*") if its.is_file())
    return text_sha256(*(part for its in files for part in (str(its.relative_to(path)), file_sha256(its))))


def _batches(rows: Iterable[tuple[bytes, Row]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    lines = schema is _LINES
    keys: list[bytes] = []
    content: list[Row] = []
    for key, row in rows:
        keys.append(key)
        content.append({"line": json.dumps(row, ensure_ascii=False)} if lines else row)
        if len(keys) == BATCH_ROWS:
            yield _batch(keys, content, schema)
            keys, content = [], []
    if keys:
        yield _batch(keys, content, schema)


def _batch(keys: list[bytes], rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    try:
        filled = pa.RecordBatch.from_pylist(rows, schema=schema)
    except pa.ArrowException as error:
        raise InputError(f"a row of the training set does not fit its own columns ({first_line(error)})") from error
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, _PLACE.type), *filled.columns], schema=pa.schema([_PLACE, *schema])
    )


def _write_lines(ordered: Iterator[pa.RecordBatch], to: Path) -> None:
    with pa.output_stream(str(to), compression=_PACKED.get(to.suffix)) as stream:
        for batch in ordered:
            stream.write("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())


def _write_parquet(ordered: Iterator[pa.RecordBatch], schema: pa.Schema, to: Path) -> None:
    with pq.ParquetWriter(to, schema) as writer:
        for batch in ordered:
            # DuckDB returns its own string types; metadata, such as a dataset's features, are the schema's.
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))
