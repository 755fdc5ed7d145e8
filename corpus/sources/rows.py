"""Rows of a source: what a record must have, what happens to rows that lack it, and batches of records.

Every record has been checked: a user, a text that is not blank, an id if the source has ids. A bad row is reported with
its file and place, or counted and skipped on request.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION

# Large strings have offsets of 64 bits: with 32 a chunk could hold no more than 2 GiB of text.
SCHEMA = pa.schema([("user", pa.string()), ("text", pa.large_string()), ("id", pa.string()), ("date", pa.string())])
BATCH_ROWS = 8192


@dataclass(frozen=True)
class Columns:
    """The columns by their role.

    Without an ``id`` column, a record's id is made from its user, its text, and how often that user wrote that text
    before, never from its place in the file (docs/theory.md#rules-of-the-data).
    """

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    user: str = "user"
    """Column that names the user."""
    text: str = "text"
    """Column that holds the text."""
    id: str | None = None
    """Column with unique record ids; null: made from user and text."""
    date: str | None = None
    """Column with dates; null: none."""

    def named(self) -> dict[str, str]:
        """Role to column name, for the roles that have one."""
        roles = {"user": self.user, "text": self.text, "id": self.id, "date": self.date}
        return {role: name for role, name in roles.items() if name is not None}


class BadRowError(InputError):
    """The first row that cannot be used.

    Attributes:
        fault: place of the row, and what is wrong with it.
        remedy: what a person can do.
    """

    def __init__(self, where: str, fault: str, remedy: str) -> None:
        super().__init__(where, fault, remedy)  # all of them: an exception is pickled by its arguments
        self.fault = f"{where}: {fault}"
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.fault}; {self.remedy}"


@dataclass
class BadRows:
    """The treatment of rows that cannot be used: raise at the first one, or count them and go on.

    Attributes:
        skip: count bad rows instead of raising.
        to_skip: how a person asks for that.
        skipped: bad rows so far.
        first: place and reason of the first of them, or "".
    """

    skip: bool = False
    to_skip: str = "to skip it, set skip_bad_lines: true (heldin corpus: --skip-bad-lines)"
    skipped: int = 0
    first: str = ""

    def report(self, where: str, fault: str) -> None:
        """Note one bad row. Raises InputError unless bad rows are skipped."""
        if not self.skip:
            raise BadRowError(where, fault, f"correct the row or {self.to_skip} to count and skip such rows")
        self.skipped += 1
        self.first = self.first or f"{where}: {fault}"


class Source(Protocol):
    """Anything that yields records. ``fingerprint`` changes whenever the records may have changed."""

    def fingerprint(self) -> str:
        """Hash of the content and of every option that affects the records."""
        ...

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``SCHEMA``, in the source's order; ids are null where the source has none.

        Raises InputError for input that cannot be used.
        """
        ...


def batched(
    rows: Iterator[tuple[int, Any]], name: str, unit: str, columns: Columns, bad: BadRows
) -> Iterator[pa.RecordBatch]:
    """Check rows and collect them into batches of ``SCHEMA``.

    Args:
        rows: (number, row) in order; a row that is not a mapping is a bad row.
        name: of the source, for errors.
        unit: what the numbers count, such as "line", for errors.
        bad: what to do with rows that cannot be used.

    Raises:
        InputError: a bad row that is not to be skipped, or a column that the first row lacks.
    """
    roles = columns.named()
    batch: list[dict[str, str | None]] = []
    checked_columns = False
    for number, row in rows:
        where = f"{name} {unit} {number}"
        if not isinstance(row, dict):
            bad.report(where, f"a JSON object was expected, found {type(row).__name__}")
            continue
        # A wrong column name shows in the first row; later rows of JSON lines may lack a key, and are bad rows one by
        # one.
        if not checked_columns:
            require_columns(columns, list(row), where)
            checked_columns = True
        record, wrong = usable_record(row, roles)
        if wrong:
            bad.report(where, wrong)
            continue
        batch.append(record)
        if len(batch) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)


def usable_record(row: dict[str, Any], roles: dict[str, str]) -> tuple[dict[str, str | None], str]:
    """The row as a record of ``SCHEMA``, and what is wrong with it ("" if nothing).

    Args:
        row: by column name.
        roles: what each column holds, from ``Columns.named``.
    """
    record: dict[str, str | None] = {"id": None, "date": None}
    for role, column in roles.items():
        value = row.get(column)
        # First, because such a text can neither be hashed nor stored as UTF-8.
        if not is_unicode(str(value)):
            return record, f"column '{column}' holds a lone surrogate, which is not Unicode text"
        if role == "date":
            record["date"] = None if value is None else str(value)
        elif role == "text":
            if not isinstance(value, str):
                kind = "nothing" if value is None else type(value).__name__
                return record, f"column '{column}' holds {kind}, not text"
            if not value.strip():
                return record, f"empty text in column '{column}'"
            record["text"] = value
        else:
            # Python counts True as an int, but it is not a name. Floats are refused too: NaN in place of a missing name
            # would make all rows without a user one person.
            if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
                kind = "nothing" if value is None else "blanks" if isinstance(value, str) else type(value).__name__
                return record, f"no {role} in column '{column}' (found {kind})"
            record[role] = str(value)
    return record, ""


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8, that is, has no lone surrogate."""
    if text.isascii():  # known of every string, so that most are not encoded to find out
        return True
    # With ``errors="surrogateescape"`` a byte that is not UTF-8 becomes a lone surrogate too.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_LONGEST_NAME = 40  # characters
TO_NAME = "name yours (--user, --text, or 'columns' in a config)"


def require_columns(columns: Columns, present: list[str], where: str, *, to_name: str = TO_NAME) -> None:
    """Check that all named columns are there.

    Args:
        where: place in the source, for the error.
        to_name: how a person names columns, for the error.

    Raises:
        InputError: a named column is not among those present.
    """
    missing = [name for name in columns.named().values() if name not in present]
    if missing:
        # A file without a header has its first person and text in place of names of columns.
        like_data = any("@" in name or len(name) > _LONGEST_NAME for name in present)
        here = f"{len(present)} that look like data: is the header missing?" if like_data else ", ".join(present)
        raise InputError(f"{where}: no column {', '.join(map(repr, missing))}; the columns here are {here}: {to_name}")


def whole_rows(tables: Iterator[Any], where: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of Arrow tables or batches with their number, from 1.

    Args:
        tables: read from a file while they are asked for.
        where: names the file.

    Raises:
        InputError: the file is damaged, or has a value that Python has no form for.
    """
    number = 0
    try:
        for table in tables:
            # What is mapped into memory is taken as it stands: a damaged offset would end the process.
            table.validate(full=True)
            for row in table.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: damaged after row {number} ({first_line(error)}); fetch the file again") from error
    except (ValueError, OverflowError) as error:  # such as a date after the year 9999
        raise InputError(f"{where}: a value after row {number} cannot be read ({first_line(error)})") from error


def existing(path: Path) -> Path:
    """The path itself. Raises InputError if there is no such file."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the current folder, '{Path.cwd()}'"
        raise InputError(f"no such file: '{path}'{where}")
    return path


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
