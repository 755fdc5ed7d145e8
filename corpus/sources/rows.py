"""Rows of a source: the checks of a row, the faults of rows, and batches of records.

heldin checks every record. A record has a user, a text that is not blank, and an id if the source has ids.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Protocol
from uuid import UUID

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION
from heldin.corpus.document import Document
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.text_files import first_line, is_unicode
from heldin.words.rows import RowFault, RowRemedy
from heldin.words.statement import Statement

# Large strings have offsets of 64 bits: with 32 a chunk could hold no more than 2 GiB of text.
SCHEMA = pa.schema([("user", pa.string()), ("text", pa.large_string()), ("id", pa.string()), ("date", pa.string())])
# Of a source that names the parts of a text that count: pairs of characters, or null where all of it does.
SPANS = pa.field("spans", pa.list_(pa.list_(pa.int32())))
# Of a source whose rows are turns: the place of each in the text (``corpus.document.TurnLayout``).
_TURN = pa.struct([("role", pa.string()), ("begin", pa.int32()), ("end", pa.int32())])
_PLACES = [("turns", pa.list_(_TURN)), ("completion", pa.int32()), ("framed", pa.bool_()), ("second", pa.int32())]
LAYOUT = pa.field("layout", pa.struct(_PLACES))
PARTS = (SPANS, LAYOUT)  # columns that a corpus of plain texts does not have


def is_of_a_source(schema: pa.Schema) -> bool:
    """Return whether these columns are valid for a batch of a source."""
    return schema in (SCHEMA, SCHEMA.append(SPANS), pa.schema([*SCHEMA, *PARTS]))


BATCH_ROWS = 8192
LARGEST_EXACT = 2**53  # below it, every whole number is a float of its own


Record = dict[str, Any]  # by role: strings or None, and ``spans`` where the source names a column of them


@dataclass(frozen=True)
class Columns:
    """The name of the column for each role. A name with dots, such as author.id, is a key within an object.

    Without an ``id`` column, a record's id is made from its user, its text, and the number of earlier records of that
    user with that text. The id never depends on the place of the record in the file (docs/theory.md#rules-of-the-data).
    """

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    user: str = "user"
    """Column with user names."""
    text: str = "text"
    """Column with texts."""
    id: str | None = None
    """Column with unique record ids; null: heldin makes ids from user and text."""
    date: str | None = None
    """Column with dates; null: no dates."""
    spans: str | None = None
    """Column with the parts of the text to train on and to score, as pairs of character positions (start, end) such as
    [[0, 12], [40, 55]]. null, or a row without a value: the whole text.
    """

    def named(self) -> dict[str, str]:
        """Return a map from role to column name, for the roles that have a column."""
        # The text before its spans, which are checked against it.
        roles = {"user": self.user, "text": self.text, "id": self.id, "date": self.date, "spans": self.spans}
        return {role: name for role, name in roles.items() if name is not None}

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the batches of a source with these columns."""
        return SCHEMA if self.spans is None else SCHEMA.append(SPANS)

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of further columns, which heldin reads if a table has these columns."""
        return ()

    def record(self, row: dict[str, Any], *, untyped: bool = False) -> tuple[Record, Statement | None]:
        """Return a row as a record of ``schema``; see ``usable_record``."""
        return usable_record(row, self.named(), untyped=untyped)


class Source(Protocol):
    """Any object that yields records. ``fingerprint`` changes whenever the records may have changed."""

    def fingerprint(self) -> str:
        """Hash of the content and of every option that affects the records."""
        ...

    def look(self) -> list[Statement]:
        """Read only enough to check the columns, before any slow work.

        Returns:
            Notes on how heldin reads the files, if the names of the files do not show this.

        Raises:
            InputError: a column is missing, or a file cannot be read.
        """
        return []

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row, which shows the format of all rows; None for a source with only one format."""
        return None

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``SCHEMA``, perhaps with ``SPANS`` or ``PARTS``, in the source's order; ids may be null.

        Raises InputError if the source cannot be used.
        """
        ...


def batched(
    rows: Iterator[tuple[int, Any]],
    name: str,
    unit: str,
    columns: Columns,
    bad: BadRows,
    *,
    untyped: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Check rows and collect them into batches of ``columns.schema``.

    Args:
        rows: pairs (number, row) in order. A row that is not a mapping is a bad row.
        name: name of the source, for errors.
        unit: unit of the numbers, such as "line", for errors.
        bad: the rule for rows that cannot be used, which also counts them.
        untyped: whether all values are text, as in CSV, where 1.0 may mean the number 1.

    Raises:
        InputError: the rule does not allow skipping a bad row, or the first row lacks a column.
    """
    batch: list[Record] = []
    checked_columns = False
    for number, row in rows:
        where = f"{name} {unit} {number}"
        if not isinstance(row, dict):
            bad.report(where, RowFault.NOT_AN_OBJECT(kind=kind_of(row)))
            continue
        # A wrong column name shows in the first row; later rows of JSON lines may lack a key, and are bad rows one by
        # one.
        if not checked_columns:
            require_columns(columns, row, where)
            checked_columns = True
        record, wrong = columns.record(row, untyped=untyped)
        if wrong:
            bad.report(where, wrong, user=record.get("user"), remedy=_remedy(wrong))
            continue
        batch.append(record)
        if len(batch) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=columns.schema)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=columns.schema)


def _remedy(fault: Statement) -> Statement | None:
    if fault.states(RowFault.NOT_TEXT):
        return RowRemedy.NAME_COLUMN(role="text")
    if fault.states(RowFault.NO_VALUE) or fault.states(RowFault.NOT_WHOLE):
        return RowRemedy.NAME_COLUMN(role=fault.values["role"])
    return None


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a dotted name within objects; None if there is no value."""
    if name in row:  # first, because a column may have a dot in its name
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head) if dot else None
    return value_at(inner, rest) if isinstance(inner, Mapping) else None


def usable_record(
    row: dict[str, Any], roles: dict[str, str], *, untyped: bool = False
) -> tuple[Record, Statement | None]:
    """Return the row as a record of ``Columns.schema``, and its fault (None if there is none).

    Args:
        row: the row, by column name.
        roles: map from role to column name, from ``Columns.named``.
        untyped: see ``batched``.

    Raises:
        InputError: the text column contains chats.
    """
    record: Record = {"id": None, "date": None}
    for role, column in roles.items():
        value = row[column] if column in row else value_at(row, column)
        # First, because such a text can neither be hashed nor stored as UTF-8.
        if not is_unicode(value if isinstance(value, str) else str(value)):
            return record, RowFault.SURROGATE(column=column)
        if isinstance(value, _NUMBERS) and math.isnan(value):
            value = None
        if role == "spans":
            if not are_spans(value, record["text"]):
                return record, RowFault.NO_SPANS(column=column, characters=len(record["text"]))
            record["spans"] = value
        elif role == "date":
            record["date"] = None if value is None else str(value)
        elif role == "text":
            if value is None or (isinstance(value, str) and not value.strip()):
                return record, RowFault.NO_TEXT(column=column)
            if not isinstance(value, str):
                _refuse_chat(value, column)
                return record, RowFault.NOT_TEXT(column=column, kind=kind_of(value))
            record["text"] = value
        elif isinstance(value, str) and not untyped and value.strip():
            record[role] = value
        else:
            record[role], wrong = _name_of(value, role, column, untyped=untyped)
            if wrong:
                return record, wrong
    return record, None


def are_spans(value: Any, text: str) -> bool:
    """Return whether a value is None or a valid list of a text's counted parts."""
    if value is None:
        return True
    if not isinstance(value, list):
        return False
    for part in value:
        whole = isinstance(part, list) and len(part) == 2 and all(type(place) is int for place in part)
        if not whole:
            return False
    try:
        Document(text, tuple((begin, end) for begin, end in value))
    except ValueError:
        return False
    return True


_NUMBERS = (float, Decimal)  # those that may be no whole number
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")


def _name_of(value: Any, role: str, column: str, *, untyped: bool) -> tuple[str | None, Statement | None]:
    """Return the user or record name in a value, and the value's fault (None if there is none)."""
    if isinstance(value, str):
        # pandas makes floats of whole numbers if one is missing: the user 1 of one file is 1.0 in another.
        whole = _WHOLE.fullmatch(value) if untyped and value.endswith("0") else None
        if whole and abs(int(whole[1])) < LARGEST_EXACT:
            return str(int(whole[1])), None
        return (value, None) if value.strip() else (None, RowFault.NO_VALUE(role=role, column=column, kind="blanks"))
    if isinstance(value, _NUMBERS):
        exact = isinstance(value, Decimal) or abs(value) < LARGEST_EXACT
        if math.isfinite(value) and exact and value == int(value):
            return str(int(value)), None
        return None, RowFault.NOT_WHOLE(role=role, column=column)
    # Python counts True as an int, but it is not a name.
    if isinstance(value, bool) or not isinstance(value, int | UUID):
        return None, RowFault.NO_VALUE(role=role, column=column, kind=kind_of(value))
    return str(value), None


def kind_of(value: Any) -> str:
    """Return a word for the type of a value, for messages."""
    return "nothing" if value is None else _KINDS.get(type(value).__name__, type(value).__name__)


_KINDS = {
    **dict.fromkeys(("int", "float", "Decimal"), "a number"),
    "dict": "an object",
    "list": "a list",
    "str": "text",
    "bool": "true or false",
}
_TURNS = ({"role", "content"}, {"from", "value"})  # keys of a message of a chat


def _refuse_chat(value: Any, column: str) -> None:
    """Raise InputError for a list of messages in a column of texts."""
    # Not a bad row: each row of the column is one, and to skip them would leave nothing.
    if isinstance(value, list) and any(
        isinstance(turn, dict) and keys <= turn.keys() for turn in value for keys in _TURNS
    ):
        raise InputError(
            f"column '{column}' contains chats, but this command reads one text per row. Use a command that reads"
            " chats ('heldin run', 'sweep', 'audit') without 'format: text', or write each message as a row with its"
            " user and text"
        )


_LONGEST_NAME = 40  # characters
_MOST_NAMES = 30  # of columns that an error lists
TO_NAME = "name your columns (--user, --text, or 'columns' in a config)"


def require_columns(
    columns: Columns, present: Mapping[str, Any], where: str, *, to_name: str = TO_NAME, hint: str = ""
) -> None:
    """Check that all named columns exist.

    Args:
        present: a row, or a table's columns by name; the value of a column of objects is a mapping of their keys.
        where: place in the source, for the error message.
        to_name: how a person names columns, for the error message.
        hint: further advice, for the error message.

    Raises:
        InputError: a named column is not in ``present``, or contains objects.
    """
    for name in columns.named().values():
        if isinstance(inner := value_at(present, name), Mapping) and inner:
            raise InputError(
                f"{where}: column '{name}' contains an object. Name a key in this object, such as"
                f" {name}.{next(_names_in(inner))}"
            )
    missing = [name for name in columns.named().values() if not _reaches(present, name)]
    if missing:
        names = list(_names_in(present))
        # A file without a header has its first person and text in place of names of columns.
        like_data = any("@" in n or len(n) > _LONGEST_NAME or n.isdigit() or not n.strip() for n in names)
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        here = (
            f"{len(names)} that look like data: is the header missing?"
            if like_data
            else (", ".join(names[:_MOST_NAMES]) or "none") + more
        )
        also = f"; {hint}" if hint else ""
        raise InputError(
            f"{where}: no column {', '.join(map(repr, missing))} among the columns {here}: {to_name}{also}"
        )


def _reaches(present: Mapping[str, Any], name: str) -> bool:
    if name in present:
        return True
    head, dot, rest = name.partition(".")
    if not dot or head not in present:
        return False
    inner = present[head]
    # An object may be null in one row and there in the next.
    return inner is None or (isinstance(inner, Mapping) and _reaches(inner, rest))


def _names_in(present: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in present.items():
        if isinstance(inner, Mapping) and inner:
            yield from _names_in(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def columns_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of an Arrow schema, as an argument for ``require_columns``."""
    return {column.name: _keys_of(column.type) for column in schema}


def _keys_of(type_: pa.DataType) -> Any:
    if not pa.types.is_struct(type_):
        return ""
    return {type_.field(i).name: _keys_of(type_.field(i).type) for i in range(type_.num_fields)}


def top_columns(columns: Columns, present: Sequence[str]) -> list[str]:
    """Return the table columns that contain the named columns, such as author for author.id."""
    heads = (name if name in present else name.partition(".")[0] for name in columns.named().values())
    return list(dict.fromkeys([*heads, *(name for name in columns.beside if name in present)]))


def whole_rows(tables: Iterator[Any], where: str) -> Iterator[tuple[int, Any]]:
    """Yield pairs (number, row) from Arrow tables or batches; numbers start at 1.

    Args:
        tables: tables or batches that are read from a file lazily.
        where: name of the file.

    Raises:
        InputError: the file is damaged, or has a value that Python cannot represent.
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
        raise InputError(f"{where}: damaged after row {number} ({first_line(error)}): fetch the file again") from error
    except (ValueError, OverflowError) as error:  # such as a date after the year 9999
        raise InputError(
            f"{where}: a value after row {number} cannot be read ({first_line(error)}). Correct this value"
        ) from error


def require_once(names: Sequence[str], path: Path, where: str) -> None:
    """Raise InputError for a repeated column name. Otherwise a reader would silently use the last such column."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path.name}: column '{twice[0]}' appears twice in {where}: rename one")
