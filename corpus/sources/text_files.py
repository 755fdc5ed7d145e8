"""Files of rows as sources: JSON lines, CSV, Parquet; plain, gzip or Zstandard."""

import csv
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.corpus.sources.rows import (
    BATCH_ROWS,
    BadRows,
    Columns,
    batched,
    existing,
    first_line,
    is_unicode,
    require_columns,
    whole_rows,
)

csv.field_size_limit(sys.maxsize)  # texts may be longer than the default of 128 KiB; it holds for the whole process


@dataclass(frozen=True)
class JsonLines:
    """One JSON object per line, plain or compressed (.gz, .zst)."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("jsonl", file_sha256(existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's records; broken JSON and invalid UTF-8 are reported with their line."""
        return batched(_json_rows(self.path, bad), self.path.name, "line", self.columns, bad)


@dataclass(frozen=True)
class Csv:
    """Comma-separated values with a header line, plain or compressed (.gz, .zst)."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("csv", file_sha256(existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows; a bad row is reported with the line on which its last field ends."""
        return batched(_csv_rows(self.path, bad), self.path.name, "line", self.columns, bad)


@dataclass(frozen=True)
class Parquet:
    """A Parquet file."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("parquet", file_sha256(existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows, reading part of a row group at a time."""
        existing(self.path)
        file, present = _parquet_file(self.path)
        require_columns(self.columns, present, self.path.name)
        names = list(self.columns.named().values())
        return batched(_parquet_rows(file, names, self.path.name), self.path.name, "row", self.columns, bad)


def rows_of_file(path: Path, columns: Sequence[str], bad: BadRows) -> Iterator[tuple[int, Any]]:
    """Rows of a file with their line or row number; the name tells the format: Parquet, CSV, else JSON lines.

    Args:
        path: plain, .gz, .bz2 or .zst.
        columns: columns to read from a Parquet file, if present; rows of other formats are read whole.
        bad: what to do with lines that cannot be read.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    existing(path)
    if path.suffix == ".parquet":
        file, present = _parquet_file(path)
        # Without any of the columns one other is read, so that there is a row at which to say what is missing.
        return _parquet_rows(file, [name for name in columns if name in present] or present[:1], path.name)
    return _csv_rows(path, bad) if ".csv" in path.suffixes else _json_rows(path, bad)


class _KeyTwiceError(Exception):
    """A JSON object repeats a key; the parser would silently keep the last value."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _KeyTwiceError(next(name for name in names if names.count(name) > 1))
    return row


_ROWS = json.JSONDecoder(object_pairs_hook=_unique_keys)  # made once: ``json.loads`` makes one for each line


def _json_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with open_binary(path) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    # Some editors begin a UTF-8 file with a byte order mark.
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield number, _ROWS.decode(text)
                except UnicodeDecodeError as error:
                    bad.report(f"{path.name} line {number}", f"invalid UTF-8 at byte {error.start}")
                except _KeyTwiceError as error:
                    bad.report(f"{path.name} line {number}", f"key '{error}' is given twice, so its value is ambiguous")
                except json.JSONDecodeError as error:
                    bad.report(
                        f"{path.name} line {number}",
                        f"broken JSON ({error.msg.removesuffix(' at')} at column {error.colno})",
                    )
                # Last, because the decoding errors above are ValueErrors too.
                except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
                    bad.report(f"{path.name} line {number}", f"JSON that cannot be read ({first_line(error)[:80]})")
    except BROKEN as error:
        raise corrupt(path, f"line {number}", error) from error


def _parquet_file(path: Path) -> tuple[pq.ParquetFile, list[str]]:
    """The file and its columns. Raises InputError for a damaged footer, or a column name given twice."""
    try:
        # Read through a buffer: by default Arrow keeps every row group that it has read until the file is closed.
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
        names = list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name}: not a readable Parquet file ({first_line(error)})") from error
    _require_once(names, path, "the schema")
    return file, names


def _parquet_rows(file: pq.ParquetFile, names: list[str], where: str) -> Iterator[tuple[int, Any]]:
    batches = file.iter_batches(BATCH_ROWS, columns=names)
    number = 0
    for number, row in whole_rows(batches, where):
        yield number, row
    # A row group whose footer states fewer rows than it has is read without an error.
    if number != file.metadata.num_rows:
        raise InputError(
            f"{where}: its footer states {file.metadata.num_rows:,} rows, and {number:,} can be read: it is damaged;"
            " fetch the file again"
        )


def csv_header(path: Path) -> list[str]:
    """Names of the columns of a CSV file. Raises InputError for an empty or damaged file, or a name given twice."""
    try:
        with _text(path) as stream:
            return _named_once(csv.DictReader(stream, strict=True), path)
    except csv.Error as error:
        raise InputError(f"{path.name}: broken CSV in the header line ({error})") from error
    except BROKEN as error:
        raise corrupt(path, "the header line", error) from error


def _named_once(reader: "csv.DictReader[str]", path: Path) -> list[str]:
    if reader.fieldnames is None:
        raise InputError(f"{path.name}: empty file, not even a header line")
    names = list(reader.fieldnames)
    if not is_unicode("".join(names)):
        raise InputError(f"{path.name}: invalid UTF-8 in the header line")
    _require_once(names, path, "the header")
    return names


def _require_once(names: Sequence[str], path: Path, where: str) -> None:
    """Raises InputError for a column name given twice, of which a reader would silently keep the last."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path.name}: column '{twice[0]}' appears twice in {where}: rename one")


def _csv_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with _text(path) as stream:
            # Strict: a quote that is never closed would else swallow the rest of the file as one text.
            reader = csv.DictReader(stream, strict=True)
            names = _named_once(reader, path)
            for row in reader:
                # Lines and not rows: a quoted text may run over several.
                number = reader.line_num
                # DictReader puts extra fields under the key None, and None for missing ones.
                if None in row or None in row.values():
                    _require_commas(names, path)
                    bad.report(f"{path.name} line {number}", f"not {len(names)} fields as in the header")
                elif not is_unicode("".join(row.values())):
                    bad.report(f"{path.name} line {number}", "invalid UTF-8")
                else:
                    yield number, row
    except csv.Error as error:
        raise InputError(f"{path.name} after line {number}: broken CSV ({error})") from error
    except BROKEN as error:
        raise corrupt(path, f"line {number}", error) from error


def _require_commas(names: Sequence[str], path: Path) -> None:
    """Raises InputError where the header, one field with another sign in it, shows how fields are separated."""
    sign = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    if sign is not None:
        separator = "tabs" if sign == "\t" else f"'{sign}'"
        raise InputError(f"{path.name}: fields are separated by {separator}, as its header shows: save it with commas")


_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# What a truncated or damaged file raises, by format and by library.
BROKEN = (EOFError, zlib.error, pa.ArrowException, OSError)


def open_binary(path: Path) -> BufferedReader:
    """The file's bytes, decompressed if its name ends in .gz, .bz2 or .zst. Raises InputError if there is none."""
    existing(path)
    stream = pa.input_stream(str(path), compression=_COMPRESSIONS.get(path.suffix), buffer_size=2**20)
    # Arrow's stream decompresses, but cannot read lines; the buffer above it can.
    return BufferedReader(cast(Any, stream), 2**20)


def _text(path: Path) -> TextIOWrapper:
    # Bad bytes pass as surrogates, so that their row can be reported or skipped; without ``newline=""`` line breaks
    # within quotes would be changed.
    return TextIOWrapper(open_binary(path), encoding="utf-8-sig", errors="surrogateescape", newline="")


def corrupt(path: Path, last: str, error: BaseException) -> InputError:
    """The error for a file that cannot be decompressed or read past ``last``, such as "line 7" ("line 0": at all)."""
    if "too much memory" in str(error):  # Zstandard archives with a longer window than Arrow accepts
        return InputError(f"{path.name}: packed with a long window: unpack it first ('zstd -d --long=31 {path.name}')")
    kind = f"{_COMPRESSIONS[path.suffix]} " if path.suffix in _COMPRESSIONS else ""
    after = "" if last.endswith(" 0") else f" after {last}"
    return InputError(f"{path.name}: corrupt {kind}data{after} ({first_line(error)}); fetch the file again")
