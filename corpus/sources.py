"""Sources of records: where people's texts come from, one small class per format behind one protocol.

A source yields Arrow batches with the columns of ``SCHEMA``. Every row has been checked: a user, a text that is not
blank, an id. What is wrong with a row is said with its file and line, or counted and skipped on request.
"""

import csv
import gzip
import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from corpus.errors import InputError
from corpus.files import file_sha256, text_sha256
from corpus.synthetic import SyntheticCorpus, generate

SCHEMA = pa.schema([("user", pa.string()), ("text", pa.large_string()), ("id", pa.string()), ("date", pa.string())])
BATCH_ROWS = 8192

csv.field_size_limit(sys.maxsize)


@dataclass(frozen=True)
class Columns:
    """Which column holds what.

    Without an ``id`` column a record is named by its user, its text, and how many times that user wrote that text
    before: never by its place in the file, which would make one user's records move another's (accounting.md 7).
    """

    user: str = "user"
    text: str = "text"
    id: str | None = None
    date: str | None = None

    def named(self) -> dict[str, str]:
        """Role to column name, for the roles that have one."""
        roles = {"user": self.user, "text": self.text, "id": self.id, "date": self.date}
        return {role: name for role, name in roles.items() if name is not None}


@dataclass
class BadRows:
    """What to do with a row that cannot be used: raise at the first one, or count them and go on."""

    skip: bool = False
    skipped: int = 0
    first: str = ""

    def report(self, where: str, what: str) -> None:
        """Note one bad row. Raises InputError unless bad rows are skipped."""
        if not self.skip:
            raise InputError(f"{where}: {what}; mend the row or pass --skip-bad-lines to count and skip such rows")
        self.skipped += 1
        self.first = self.first or f"{where}: {what}"


class Source(Protocol):
    """Anything that yields records. ``fingerprint`` changes whenever the records could."""

    def fingerprint(self) -> str:
        """Hash of the content and of every option that shapes the records."""
        ...

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``SCHEMA``, in the source's order. Raises InputError on input that cannot be used."""
        ...


@dataclass(frozen=True)
class JsonLines:
    """One JSON object a line, plain or gzip-compressed."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("jsonl", file_sha256(_existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's records; broken JSON and invalid UTF-8 are said with their line."""
        return _batched(_json_rows(self.path, bad), self.path.name, "line", self.columns, bad)


@dataclass(frozen=True)
class Csv:
    """Comma-separated values with a header line, plain or gzip-compressed."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("csv", file_sha256(_existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows; the line told for a bad row is the one its last field ends on."""
        return _batched(_csv_rows(self.path, bad), self.path.name, "line", self.columns, bad)


@dataclass(frozen=True)
class Parquet:
    """A Parquet file."""

    path: Path
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the file's bytes and the column names."""
        return text_sha256("parquet", file_sha256(_existing(self.path)), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows, read a row group's slice at a time."""
        _existing(self.path)
        try:
            file = pq.ParquetFile(self.path)
        except pa.ArrowException as error:
            raise InputError(f"{self.path.name}: not a readable Parquet file ({_first_line(error)})") from error
        _require_columns(self.columns, file.schema_arrow.names, self.path.name)
        names = list(self.columns.named().values())
        return _batched(_parquet_rows(file, names, self.path.name), self.path.name, "row", self.columns, bad)


@dataclass(frozen=True)
class HuggingFace:
    """A Hugging Face dataset: a name on the hub, or a folder that ``save_to_disk`` wrote."""

    name: str
    split: str | None = None
    revision: str | None = None
    columns: Columns = field(default_factory=Columns)

    def fingerprint(self) -> str:
        """Hash of the dataset's own fingerprint and the column names."""
        return text_sha256("huggingface", str(self._load()._fingerprint), repr(self.columns))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the dataset's rows."""
        data = self._load()
        _require_columns(self.columns, data.column_names, self.name)
        tables = data.select_columns(list(self.columns.named().values())).with_format("arrow").iter(BATCH_ROWS)
        rows = (row for table in tables for row in table.to_pylist())
        return _batched(enumerate(rows, start=1), Path(self.name).name, "row", self.columns, bad)

    def _load(self) -> Any:
        import datasets  # slow to import, and most corpora are files

        try:
            if Path(self.name).is_dir():
                data = datasets.load_from_disk(self.name)
            else:
                data = datasets.load_dataset(self.name, revision=self.revision)
        except Exception as error:  # the library raises many kinds for "not there", "no network", "not a dataset"
            raise InputError(f"cannot load dataset '{self.name}': {_first_line(error)}") from error
        if isinstance(data, datasets.DatasetDict):
            if self.split not in data:
                raise InputError(f"dataset '{self.name}' has no split '{self.split}': choose one of {', '.join(data)}")
            return data[self.split]
        return data


@dataclass(frozen=True)
class Synthetic:
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)

    def fingerprint(self) -> str:
        """Hash of the generator's parameters."""
        return text_sha256("synthetic", repr(self.spec))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        rows = ({"user": r.user, "text": r.text, "id": r.id, "date": r.date} for r in generate(self.spec))
        return _batched(enumerate(rows, start=1), "synthetic", "row", Columns(id="id", date="date"), bad)


FORMATS: Mapping[str, Callable[[Path, Columns], Source]] = {
    ".jsonl": JsonLines,
    ".jsonl.gz": JsonLines,
    ".json": JsonLines,
    ".ndjson": JsonLines,
    ".csv": Csv,
    ".csv.gz": Csv,
    ".parquet": Parquet,
}


def open_source(path: Path, columns: Columns) -> Source:
    """The source for a file or folder, told by its ending. Raises InputError for an ending that no source reads."""
    if path.is_dir():
        return HuggingFace(str(path), columns=columns)
    for ending, source in FORMATS.items():
        if path.name.endswith(ending):
            return source(path, columns)
    raise InputError(f"'{path}': cannot tell the format by its name; known endings are {', '.join(FORMATS)}")


def _json_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with _binary(path) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except UnicodeDecodeError as error:
                    bad.report(f"{path.name} line {number}", f"invalid UTF-8 at byte {error.start}")
                except json.JSONDecodeError as error:
                    bad.report(f"{path.name} line {number}", f"broken JSON ({error.msg} at column {error.colno})")
                except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
                    bad.report(f"{path.name} line {number}", f"JSON that cannot be read ({_first_line(error)[:80]})")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path.name}: corrupt gzip data after line {number} ({error}); fetch the file again"
        ) from error


def _parquet_rows(file: pq.ParquetFile, names: list[str], where: str) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{where}: damaged after row {number} ({_first_line(error)}); fetch the file again") from error


def _csv_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with _text(path) as stream:
            reader = csv.DictReader(stream, strict=True)
            if reader.fieldnames is None:
                raise InputError(f"{path.name}: empty file, not even a header line")
            for row in reader:
                number = reader.line_num
                if None in row or None in row.values():
                    bad.report(f"{path.name} line {number}", f"not {len(reader.fieldnames)} fields as in the header")
                elif not _is_unicode("".join(row.values())):
                    bad.report(f"{path.name} line {number}", "invalid UTF-8")
                else:
                    yield number, row
    except csv.Error as error:
        raise InputError(f"{path.name} after line {number}: broken CSV ({error})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path.name}: corrupt gzip data after line {number} ({error}); fetch the file again"
        ) from error


def _batched(
    rows: Iterator[tuple[int, Any]], name: str, unit: str, columns: Columns, bad: BadRows
) -> Iterator[pa.RecordBatch]:
    """Check rows and gather them into batches of ``SCHEMA``."""
    roles = columns.named()
    batch: list[dict[str, str | None]] = []
    copies: Counter[bytes] = Counter()
    checked_columns = False
    for number, row in rows:
        where = f"{name} {unit} {number}"
        if not isinstance(row, dict):
            bad.report(where, f"a JSON object was expected, found {type(row).__name__}")
            continue
        if not checked_columns:
            _require_columns(columns, list(row), where)
            checked_columns = True
        record, wrong = _record(row, roles)
        if wrong:
            bad.report(where, wrong)
            continue
        if columns.id is None:
            record["id"] = _made_id(str(record["user"]), str(record["text"]), copies)
        batch.append(record)
        if len(batch) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)


def _made_id(user: str, text: str, copies: Counter[bytes]) -> str:
    digest = hashlib.blake2b(text_sha256(user, text).encode(), digest_size=16).digest()
    copies[digest] += 1
    return f"{digest.hex()}-{copies[digest]}"


def _record(row: dict[str, Any], roles: dict[str, str]) -> tuple[dict[str, str | None], str]:
    """The row as a record of ``SCHEMA``, and what is wrong with it ("" if nothing)."""
    record: dict[str, str | None] = {"id": None, "date": None}
    for role, column in roles.items():
        value = row.get(column)
        if role == "date":
            record["date"] = None if value is None else str(value)
        elif role == "text":
            if not isinstance(value, str):
                return record, f"column '{column}' holds {type(value).__name__}, not text"
            if not value.strip():
                return record, f"empty text in column '{column}'"
            if not _is_unicode(value):
                return record, f"column '{column}' holds a lone surrogate, which is not Unicode text"
            record["text"] = value
        else:
            if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
                return record, f"no {role} in column '{column}' (found {value!r})"
            record[role] = str(value)
    return record, ""


def _is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8: no lone surrogate, which is also what an undecodable byte becomes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _require_columns(columns: Columns, present: list[str], where: str) -> None:
    missing = [name for name in columns.named().values() if name not in present]
    if missing:
        raise InputError(
            f"{where}: no column {', '.join(map(repr, missing))}; the columns here are {', '.join(present)}"
        )


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"no such file: '{path}'")
    return path


def _binary(path: Path) -> Any:
    _existing(path)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _text(path: Path) -> TextIO:
    _existing(path)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    stream: TextIO = opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return stream


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
