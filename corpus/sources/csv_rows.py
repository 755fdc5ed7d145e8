"""CSV files as sources: a header line, and fields between commas, semicolons, tabs or bars (|)."""

import csv
import io
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.rows import Columns, Source, batched, require_columns, require_once
from heldin.corpus.sources.text_files import (
    BROKEN,
    TextFormat,
    corrupt,
    how_read,
    is_unicode,
    name_of_encoding,
    not_decoded,
    open_text,
    remedy_of_encoding,
)
from heldin.words.rows import FileText, RowFault
from heldin.words.statement import Statement

csv.field_size_limit(sys.maxsize)  # texts may be longer than the default of 128 KiB; it holds for the whole process

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|"}
_STATED = "sep="  # Excel's own first line, which names the delimiter


@dataclass(frozen=True)
class Csv(Source):
    """A table with a header line, plain or compressed (.gz, .zst)."""

    path: Path
    columns: Columns = field(default_factory=Columns)
    form: TextFormat = field(default_factory=TextFormat)

    def fingerprint(self) -> str:
        """Hash of the file's bytes, the column names and the format."""
        return text_sha256("csv", file_sha256(existing(self.path)), repr(self.columns), repr(self.form))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows. A bad row is reported with the line on which its last field ends."""
        self._header()
        rows = csv_rows(self.path, self.form, list(self.columns.named().values()), bad)
        return batched(rows, self.path.name, "line", self.columns, bad, untyped=True)

    def look(self) -> list[Statement]:
        """Read the header, and return notes on how the file is read. Raises InputError if a column is missing."""
        header = self._header()
        notes = list(how_read(self.path, self.form))
        if header.delimiter != "," and self.form.delimiter is None:
            notes.append(FileText.DELIMITER(file=self.path.name, delimiter=header.signs))
        return notes

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row."""
        rows = csv_rows(self.path, self.form, list(self.columns.named().values()), BadRows(OnBadRows.SKIP))
        return next((row for _, row in rows), None)

    def _header(self) -> "CsvHeader":
        header = csv_header(self.path, self.form, list(self.columns.named().values()))
        also = "" if header.delimiter == "," else f" (fields are separated by {header.signs})"
        hint = "name another field separator with --delimiter" if len(header.names) == 1 else ""
        require_columns(self.columns, dict.fromkeys(header.names, ""), f"{self.path.name} header{also}", hint=hint)
        return header


@dataclass(frozen=True)
class CsvHeader:
    """The header of a CSV file.

    Attributes:
        names: names of the columns, in order.
        delimiter: the character between two fields.
        stated: whether a line with the delimiter, as Excel writes it, precedes the header.
        blanks: whether a blank that is not part of the field follows each delimiter.
    """

    names: tuple[str, ...]
    delimiter: str
    stated: bool
    blanks: bool

    @property
    def signs(self) -> str:
        """The name of the delimiter, such as "semicolons"."""
        return _DELIMITERS.get(self.delimiter, self.delimiter)


def csv_header(path: Path, form: TextFormat, wanted: Sequence[str]) -> CsvHeader:
    """Return the header. heldin uses the delimiter that gives the wanted columns.

    Args:
        wanted: names of columns. If no delimiter gives any of them, heldin uses the delimiter that gives most columns.

    Raises:
        InputError: the file is empty or damaged, or a name is given twice.
    """
    lines = _first_lines(path, form)
    stated = lines[0].lower().startswith(_STATED) and len(lines[0].rstrip("\r\n")) == len(_STATED) + 1
    if stated:
        signs = lines[0][len(_STATED)]
        lines = lines[1:]
    else:
        signs = "".join(_DELIMITERS)
    names, blanks = _columns_by_sign(path, lines, form.delimiter or signs)
    # The first of equals, so that a comma is preferred.
    sign = max(names, key=lambda s: (all(name in names[s] for name in wanted), len(names[s])))
    text = "".join(names[sign])
    if not is_unicode(text):
        remedy = remedy_of_encoding(text, form)
        advice = f"; {remedy}" if remedy else ""
        raise InputError(f"{path.name}: the header line is not {name_of_encoding(form)} text{advice}")
    require_once(names[sign], path, "the header")
    return CsvHeader(names[sign], sign, stated, sign in blanks)


def _first_lines(path: Path, form: TextFormat) -> list[str]:
    """Return the lines that contain the header. Raises InputError if the file is empty or damaged."""
    try:
        with open_text(path, form, newline="") as stream:
            # A header may have line breaks within quotes.
            lines = list(itertools.islice(stream, 100))
    except UnicodeError as error:
        raise InputError(f"'{path.name}' is not {name_of_encoding(form)} text: give another --encoding") from error
    except BROKEN as error:
        raise corrupt(path, "the header line", error) from error
    if not "".join(lines).strip():
        raise InputError(f"{path.name}: the file is empty, without even a header line. Write a header line and rows")
    return lines


def _columns_by_sign(path: Path, lines: Sequence[str], signs: str) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return the columns for each delimiter, and the delimiters that a blank follows.

    Raises InputError if no delimiter can read the header.
    """
    read = {sign: _names(lines, sign) for sign in signs}
    names = {sign: names for sign, names in read.items() if isinstance(names, tuple)}
    if not names:
        raise InputError(f"{path.name}: broken CSV in the header line ({next(iter(read.values()))}). Correct this line")
    # As people write by hand: user, text.
    blanks = {sign for sign, read in names.items() if read[1:] and all(name.startswith(" ") for name in read[1:])}
    bare = {sign: tuple(name.lstrip() for name in read) if sign in blanks else read for sign, read in names.items()}
    return bare, blanks


def _names(lines: Sequence[str], sign: str) -> tuple[str, ...] | csv.Error:
    try:
        return tuple(next(csv.reader(io.StringIO("".join(lines), newline=""), delimiter=sign, strict=True)))
    except csv.Error as error:
        return error
    except StopIteration:
        return ()


def csv_rows(path: Path, form: TextFormat, wanted: Sequence[str], bad: BadRows) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file as dicts, each with the line on which the row ends.

    Args:
        wanted: see ``csv_header``.

    Raises:
        InputError: the rule does not allow skipping an unusable row, or the file is damaged.
    """
    header, number, wide = csv_header(path, form, wanted), 0, False
    fields = len(header.names)
    try:
        with open_text(path, form, newline="") as stream:
            # Strict: a quote that is never closed would else swallow the rest of the file as one text.
            if header.stated:
                stream.readline()
            reader = csv.DictReader(stream, delimiter=header.delimiter, strict=True, skipinitialspace=header.blanks)
            for row in reader:
                # Lines and not rows: a quoted text may run over several.
                number = reader.line_num + header.stated
                where = f"{path.name} line {number}"
                # Before the number of fields: a character of another encoding may look like a delimiter.
                # DictReader puts extra fields under the key None, and None for missing ones.
                whole = None not in row and None not in row.values()
                text = "".join(row.values() if whole else map(str, row.values()))
                if place := not_decoded(text):
                    fault = RowFault.NOT_DECODED(encoding=name_of_encoding(form), character=place)
                    bad.report(where, fault, remedy=remedy_of_encoding(text, form, mixed=wide))
                elif not whole:
                    bad.report(where, RowFault.OTHER_FIELDS(fields=fields))
                else:
                    wide = wide or not text.isascii()
                    yield number, row
    except csv.Error as error:
        reason = "a quotation mark is never closed" if "end of data" in str(error) else str(error)
        raise InputError(f"{path.name} after line {max(number, 1)}: broken CSV ({reason}). Correct the file") from error
    except UnicodeError as error:
        raise InputError(
            f"{path.name} after line {number}: not {name_of_encoding(form)} text. Give another --encoding"
        ) from error
    except BROKEN as error:
        raise corrupt(path, f"line {number}", error) from error
