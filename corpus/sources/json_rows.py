"""JSON files as sources: objects on separate lines or in sequence, an array of objects, or an object with an array.

No file is read as a whole. Python's decoder reads an array value by value. A streaming parser would not detect a
repeated key, and could not continue after a row with a repeated key.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.rows import TO_NAME, Columns, Source, batched, require_columns
from heldin.corpus.sources.text_files import (
    BROKEN,
    TextFormat,
    corrupt,
    first_line,
    how_read,
    name_of_encoding,
    not_decoded,
    open_text,
    remedy_of_encoding,
)
from heldin.words.rows import FileText, RowFault
from heldin.words.statement import Statement

PIECE = 2**20  # characters that are read at once
_NEAR = 16  # characters before the end within which a value that is cut there seems broken
_BLANKS = " \t\r\n"


@dataclass(frozen=True)
class Json(Source):
    """A JSON file of objects, one per line or in one array, plain or compressed (.gz, .zst)."""

    path: Path
    columns: Columns = field(default_factory=Columns)
    form: TextFormat = field(default_factory=TextFormat)

    def fingerprint(self) -> str:
        """Hash of the file's bytes, the column names and the format."""
        return text_sha256("json", file_sha256(existing(self.path)), repr(self.columns), repr(self.form))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's records. Reports broken JSON and undecodable bytes with the line."""
        unit = "line" if is_lines(self.path, self.form) else "item"
        rows = json_rows(self.path, self.form, bad)
        return batched(rows, self.path.name, unit, self.columns, bad)

    def look(self) -> list[Statement]:
        """Read the first row, and return notes on how the file is read. Raises InputError if a column is missing."""
        notes = list(how_read(self.path, self.form))
        lines, first = is_lines(self.path, self.form), self._first()
        if first is not None and isinstance(first[1], dict):
            row = first[1]
            where = f"{self.path.name} {'line' if lines else 'item'} {first[0]}"
            inside = _key_of_rows(row, self.columns)
            hint = f"the rows seem to be in the list '{inside}': give --field {inside} (in a config, format.field)"
            self._refuse_columns(row)
            require_columns(self.columns, row, where, to_name=hint if inside else TO_NAME)
        return notes if lines or self.form.field else [*notes, FileText.VALUES(file=self.path.name)]

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row if it is an object, else None."""
        first = self._first()
        return first[1] if first is not None and isinstance(first[1], dict) else None

    def _first(self) -> tuple[int, Any] | None:
        # Bad rows are reported when the file is read.
        return next(json_rows(self.path, self.form, BadRows(OnBadRows.SKIP)), None)

    def _refuse_columns(self, row: dict[str, Any]) -> None:
        """Raise InputError for an object that maps each column to all of its rows, as pandas writes by default."""
        values = [row.get(self.columns.user), row.get(self.columns.text)]
        if all(isinstance(value, dict) and "0" in value for value in values):
            raise InputError(
                f"{self.path.name}: the table is written column by column, as pandas does by default. Write the"
                " table with to_json(..., orient='records', lines=True)"
            )


def json_rows(path: Path, form: TextFormat, bad: BadRows) -> Iterator[tuple[int, Any]]:
    """Yield the values of a file, each with its line, or with its number in the file's array.

    Raises:
        InputError: the rule does not allow skipping an unreadable line, an array is broken, or there is no such array.
    """
    return _lines(path, form, bad) if is_lines(path, form) else _items(path, form, bad)


def is_lines(path: Path, form: TextFormat) -> bool:
    """Return whether a file has one object per line, and neither an array nor objects over several lines."""
    if form.field is not None:
        return False
    existing(path)
    try:
        with open_text(path, form, newline="\n") as stream:
            values = _Values(stream)
            if values.peek() == "[":
                return False
            # An object over several lines, as jq prints them; a list of rows in it is asked for with --field.
            return values.first_is_one_line() or _list_in(path, form) is not None or not values.is_whole()
    except (*BROKEN, UnicodeError):
        return True  # the reader of lines says what is wrong with it


class _Decoder:
    """Python's decoder, which also reports a repeated key. Without this class, Python would use the last of the
    values."""

    def __init__(self) -> None:
        self.twice: str | None = None
        # Made once: ``json.loads`` makes one for each line.
        self.json = json.JSONDecoder(object_pairs_hook=self._object)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            names = [name for name, _ in pairs]
            self.twice = next(name for name in names if names.count(name) > 1)
        return row

    def fault(self) -> Statement | None:
        """Return the fault of the last value, and forget the fault."""
        twice, self.twice = self.twice, None
        return None if twice is None else RowFault.KEY_TWICE(key=twice)


def _lines(path: Path, form: TextFormat, bad: BadRows) -> Iterator[tuple[int, Any]]:
    decoder, number, wide = _Decoder(), 0, False
    try:
        with open_text(path, form, newline="\n") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{path.name} line {number}"
                if place := not_decoded(line):
                    fault = RowFault.NOT_DECODED(encoding=name_of_encoding(form), character=place)
                    bad.report(where, fault, remedy=remedy_of_encoding(line, form, mixed=wide))
                    continue
                wide = wide or not line.isascii()
                try:
                    row = decoder.json.decode(line)
                except json.JSONDecodeError as error:
                    if number == 1 and (key := _list_in(path, form)):
                        raise InputError(
                            f"{path.name}: the file is one JSON object, and the rows seem to be in the list"
                            f" '{key}'. Give --field {key} (in a config, format.field)"
                        ) from error
                    reason = error.msg.removesuffix(" at")
                    bad.report(where, RowFault.BROKEN_JSON(reason=reason, column=error.colno))
                # Last, because the decoding errors above are ValueErrors too.
                except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
                    bad.report(where, RowFault.UNREADABLE_JSON(reason=first_line(error)[:80]))
                else:
                    if twice := decoder.fault():
                        bad.report(where, twice)
                    else:
                        yield number, row
    except UnicodeError as error:
        raise _not_in(path, form, f"line {number}") from error
    except BROKEN as error:
        raise corrupt(path, f"line {number}", error) from error


def _items(path: Path, form: TextFormat, bad: BadRows) -> Iterator[tuple[int, Any]]:
    number = 0
    existing(path)
    try:
        with open_text(path, form, newline="") as stream:
            values = _Values(stream)
            for key in form.field.split(".") if form.field is not None else ():
                values.enter(key)
            in_list = form.field is not None or values.peek() == "["
            for number, row in enumerate(values.items() if in_list else values.each(), start=1):
                where = f"{path.name} item {number}"
                if twice := values.decoder.fault():
                    bad.report(where, twice)
                elif not values.decoded:
                    fault = RowFault.NOT_DECODED(encoding=name_of_encoding(form), character=1)
                    bad.report(where, fault, remedy=remedy_of_encoding(values.last, form))
                else:
                    yield number, row
            # What follows a list within an object is of no use, but a second array would be lost in silence.
            if form.field is None and values.peek():
                raise ValueError("more text after the end of the array")
    except UnicodeError as error:
        raise _not_in(path, form, f"item {number}") from error
    except _NoListError as error:
        named = f"there is no list '{form.field}'" if form.field else "not one JSON array"
        keys = f": the keys before it ends are {', '.join(error.keys)}" if error.keys else ""
        raise InputError(f"{path.name}: {named}{keys}; name the list of rows with --field") from error
    except InputError:  # a ValueError too
        raise
    # A fault within an array leaves no place at which the next row begins.
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.name} after item {number}: broken JSON ({first_line(error)[:80]}), so heldin cannot find the"
            " rows after this item. Fetch the file again"
        ) from error
    except BROKEN as error:
        raise corrupt(path, f"item {number}", error) from error


def _not_in(path: Path, form: TextFormat, last: str) -> InputError:
    return InputError(f"{path.name} after {last}: not {name_of_encoding(form)} text. Give another --encoding")


class _NoListError(Exception):
    """The JSON value is not a list; ``keys`` are the keys that heldin found instead."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(keys)
        self.keys = keys


class _Values:
    """A JSON document, read value by value.

    Attributes:
        last: the characters of the last value.
        decoded: whether all bytes of the last value were valid in the encoding.
    """

    def __init__(self, stream: TextIOWrapper) -> None:
        self.decoder, self.last, self.decoded = _Decoder(), "", True
        self._stream, self._text, self._at = stream, "", 0

    def peek(self) -> str:
        """Return the next character that is not blank; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANKS:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def first_is_one_line(self) -> bool:
        """Return whether the first line that is not blank is more than the beginning of an object."""
        while (end := self._text.find("\n", self._at)) < 0 and self._more():
            pass
        line = self._text[self._at :] if end < 0 else self._text[self._at : end]
        return line.strip() != "{" and not line.rstrip().endswith((",", "[", "{"))

    def is_whole(self) -> bool:
        """Return whether the next value is valid JSON."""
        try:
            self.value()
        except (ValueError, RecursionError):
            return False
        return True

    def enter(self, key: str) -> None:
        """Go to the value of an object's key, past the values before it.

        Raises _NoListError if there is no such key.
        """
        seen: list[str] = []
        for name in self.each_key():
            if name == key:
                return
            seen.append(name)
            self.value()
        raise _NoListError(seen)

    def each_key(self) -> Iterator[str]:
        """Yield the keys of an object. After each key, the caller must read its value."""
        if self.peek() != "{":
            raise _NoListError([])
        sign = "{"
        while self.peek() == sign:
            self._at += 1
            if self.peek() == "}":
                break
            name = self.value()
            if not isinstance(name, str) or self.peek() != ":":
                raise ValueError("expected a key and a colon")
            self._at += 1
            yield name
            sign = ","
        if self.peek() != "}":
            raise ValueError("Expecting ',' delimiter or '}'")
        self._at += 1

    def items(self) -> Iterator[Any]:
        """Yield the values of an array. Raises _NoListError if there is no array, ValueError for broken JSON."""
        if self.peek() != "[":
            raise _NoListError([])
        self._at += 1
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            sign = self.peek()
            self._at += 1
            if sign == "]":
                return
            if sign != ",":
                raise ValueError("Expecting ',' delimiter or ']'")

    def each(self) -> Iterator[Any]:
        """Yield all values up to the end. Raises ValueError for broken JSON."""
        while self.peek():
            yield self.value()

    def value(self) -> Any:
        """Return the next value. Raises ValueError for broken JSON."""
        self.peek()
        while True:
            try:
                value, end = self.decoder.json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR
                if not (cut and self._more()):
                    raise
                continue
            finally:
                # Of an attempt that is made again.
                twice, self.decoder.twice = self.decoder.twice, None
            # A number may go on in the next piece.
            whole = not isinstance(value, int | float) or end < len(self._text) - _NEAR
            if whole or not self._more():
                self.decoder.twice = twice
                self.last = self._text[self._at : end] if self._text else ""
                self.decoded = not_decoded(self.last) is None
                self._at = end
                return value

    def _more(self) -> bool:
        """Read the next piece, and drop text that was read before it. Returns False at the end."""
        rest = self._text[self._at :]
        # As much again as is kept, so that a long value is not decoded again and again.
        piece = self._stream.read(max(PIECE, len(rest)))
        self._text, self._at = rest + piece, 0
        return bool(piece)


def _list_in(path: Path, form: TextFormat) -> str | None:
    """Return the first key with an array, in the object at the beginning of a file; None if there is no such key."""
    try:
        with open_text(path, form, newline="") as stream:
            values = _Values(stream)
            for key in values.each_key():
                if values.peek() == "[":
                    return key
                values.value()
    except (_NoListError, ValueError, RecursionError, *BROKEN):
        return None
    return None


def _key_of_rows(row: dict[str, Any], columns: Columns) -> str | None:
    """Return a key with a list of objects as its value, if the row has none of the columns."""
    if columns.text in row or columns.user in row:
        return None
    return next(
        (key for key, value in row.items() if isinstance(value, list) and value and isinstance(value[0], dict)), None
    )
