"""Text files: decompression, decoding, and messages about damage and other encodings."""

import codecs
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.base.section import DATACLASS_SECTION
from heldin.words.rows import FileText, RowRemedy
from heldin.words.statement import Statement

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# What a truncated or damaged file raises, by format and by library.
BROKEN = (EOFError, zlib.error, pa.ArrowException, OSError)
# Longer marks first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# How files of other formats begin, the endings that such files may have here, and what to do.
_BEGINNINGS = (
    (b"PK\x03\x04", "", "an Excel workbook or a zip archive: save the sheet as CSV or Parquet, or unpack the archive"),
    (b"\xd0\xcf\x11\xe0", "", "an Excel workbook: save the sheet as CSV or Parquet"),
    (b"SQLite format 3", "", "a database: export the table as CSV, a file for each group"),
    (b"PAR1", "", "Parquet: let its name end in .parquet"),
    (b"\x1f\x8b", ".gz", "gzip data: let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", ".zst", "Zstandard data: let its name end in .zst"),
)
_FEW_LETTERS = 0.3  # share of letters outside of ASCII in a text of Western Europe, at most


@dataclass(frozen=True)
class TextFormat:
    """Properties of JSON and CSV files that a file does not show itself."""

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    encoding: str | None = None
    """Character encoding, such as cp1252. null: the encoding of the byte order mark, or UTF-8 if the file has no such
    mark.
    """
    delimiter: str | None = None
    """Character between the fields of a CSV file. null: heldin detects a comma, semicolon, tab or | in the header."""
    field: str | None = None
    """Key of the list of rows, for a JSON file that is a single object. Use dots for nested objects, as in data.rows.
    """

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise InputError(f"--delimiter {self.delimiter!r}: give one character, such as ';'")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError as error:
                raise InputError(
                    f"--encoding {self.encoding}: Python does not know this encoding. Give one such as utf-8 or cp1252"
                ) from error


def open_binary(path: Path) -> BufferedReader:
    """Open a file's bytes, decompressed if its name ends in .gz, .bz2 or .zst.

    Raises InputError if the file does not exist, or if its first bytes show another format.
    """
    _require_what_the_name_says(existing(path))
    stream = pa.input_stream(str(path), compression=_COMPRESSIONS.get(path.suffix), buffer_size=2**20)
    # Arrow's stream decompresses, but cannot read lines; the buffer above it can.
    return BufferedReader(cast(Any, stream), 2**20)


def _require_what_the_name_says(path: Path) -> None:
    with path.open("rb") as stream:
        first = stream.read(16)
    for begins, ending, advice in _BEGINNINGS:
        if first.startswith(begins) and path.suffix != ending:
            raise InputError(f"'{path}' is {advice}")
        if first and ending and path.suffix == ending and not first.startswith(begins):
            raise InputError(
                f"'{path}' is not compressed, or is damaged at the beginning: remove {ending} from the file name,"
                " or fetch the file again"
            )


def open_text(path: Path, form: TextFormat, *, newline: str) -> TextIOWrapper:
    """Open a file's characters. Bytes that are invalid in the encoding become lone surrogates.

    Args:
        newline: end of a line, as in ``open``.
    """
    stream = open_binary(path)
    encoding = form.encoding or stated_encoding(stream) or "utf-8"
    if form.encoding and is_utf8(path):
        encoding = "utf-8"  # one option is about several files, and what the bytes show goes first
    # A byte order mark at the beginning is no part of the text.
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    return TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline=newline)


def stated_encoding(stream: BufferedReader) -> str | None:
    """Return the encoding, other than UTF-8, of a byte order mark at the beginning; None without such a mark."""
    first = stream.peek(4)[:4]
    return next((encoding for mark, encoding in _MARKS.items() if first.startswith(mark)), None)


def is_utf8(path: Path) -> bool:
    """Return whether a file has non-ASCII characters, all of them in UTF-8."""
    stat = path.stat()
    return _is_utf8(path, stat.st_size, stat.st_mtime_ns)


@cache
def _is_utf8(path: Path, _size: int, _changed: int) -> bool:
    decoder, ascii_only = codecs.getincrementaldecoder("utf-8")(), True
    try:
        with open_binary(path) as stream:
            while piece := stream.read(2**20):
                decoder.decode(piece)
                ascii_only = ascii_only and piece.isascii()
        decoder.decode(b"", final=True)
    except (UnicodeDecodeError, *BROKEN):
        return False
    return not ascii_only


def how_read(path: Path, form: TextFormat) -> Iterator[Statement]:
    """Yield a note if the first bytes state the encoding, or if the bytes are UTF-8 but the user gave another
    encoding."""
    try:
        with open_binary(path) as stream:
            stated = None if form.encoding else stated_encoding(stream)
    except BROKEN as error:
        raise corrupt(path, "line 0", error) from error
    if stated:
        yield FileText.ENCODING(file=path.name, encoding=stated.upper())
    if form.encoding and codecs.lookup(form.encoding).name != "utf-8" and is_utf8(path):
        yield FileText.UTF_8(file=path.name, encoding=form.encoding)


def name_of_encoding(form: TextFormat) -> str:
    """Return the name of a file's encoding, for error messages."""
    return form.encoding or "UTF-8"


def not_decoded(text: str) -> int | None:
    """Return the place, from 1, of the first character whose bytes could not be decoded; None if there is none."""
    if is_unicode(text):
        return None
    return next(number for number, sign in enumerate(text, start=1) if "\ud800" <= sign <= "\udfff")


def remedy_of_encoding(text: str, form: TextFormat, *, mixed: bool = False) -> Statement | None:
    """Return the advice for a text with undecodable bytes; None if an encoding was given.

    Args:
        mixed: whether earlier rows have non-ASCII characters in UTF-8.
    """
    if form.encoding:
        return None
    if mixed:
        return RowRemedy.MIXED()
    raw = text.encode("utf-8", errors="surrogateescape")
    try:
        western = raw.decode("cp1252")
    except UnicodeDecodeError:
        return RowRemedy.SOME_ENCODING()
    letters = [sign for sign in western if sign.isalpha()]
    # Greek, Cyrillic and others have most of their letters there, and Asian ones pairs of odd signs.
    foreign = sum(not sign.isascii() for sign in letters)
    if foreign == 0 or foreign > _FEW_LETTERS * len(letters):
        return RowRemedy.SOME_ENCODING()
    return RowRemedy.ENCODING(name="Windows-1252", encoding="cp1252")


def corrupt(path: Path, last: str, error: BaseException) -> InputError:
    """Return the error for a file that cannot be read after ``last``, such as "line 7" ("line 0": not at all)."""
    if "too much memory" in str(error):  # Zstandard archives with a longer window than Arrow accepts
        return InputError(
            f"{path.name} is packed with a long window: unpack it first ('zstd -d --long=31 {path.name}')"
        )
    kind = f"{_COMPRESSIONS[path.suffix]} " if path.suffix in _COMPRESSIONS else ""
    after = "" if last.endswith(" 0") else f" after {last}"
    return InputError(f"{path.name}: corrupt {kind}data{after} ({first_line(error)}): fetch the file again")


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8: it has no lone surrogate."""
    if text.isascii():  # known of every string, so that most are not encoded to find out
        return True
    # With ``errors="surrogateescape"`` a byte that is not UTF-8 becomes a lone surrogate too.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's class if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
