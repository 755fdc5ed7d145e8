"""Open a source by its path. Each format is a small class with the protocol ``corpus.sources.rows.Source``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, text_sha256
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.csv_rows import Csv, csv_rows
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.iob import Iob, is_iob
from heldin.corpus.sources.json_rows import Json, json_rows
from heldin.corpus.sources.mail import Maildir, Mbox, is_maildir
from heldin.corpus.sources.parquet_rows import Parquet, parquet_rows
from heldin.corpus.sources.rows import Columns, Source
from heldin.corpus.sources.text_files import TextFormat
from heldin.words.statement import Statement


@dataclass(frozen=True)
class Several(Source):
    """Several sources in sequence, such as the records of last year and of this year."""

    sources: tuple[Source, ...]

    def fingerprint(self) -> str:
        """Hash of the sources' fingerprints, in order."""
        return text_sha256("several", *(source.fingerprint() for source in self.sources))

    def look(self) -> list[Statement]:
        """Check each source."""
        return [how for source in self.sources for how in source.look()]

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row of the first source that has rows."""
        return next((row for source in self.sources if (row := source.first_row()) is not None), None)

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the records of each source in turn."""
        # One after the other with one count of bad rows: ``first`` is the first of all sources.
        for source in self.sources:
            yield from source.batches(bad)


def require_named_once(source: Source) -> None:
    """Raise InputError if two of several sources have the same records."""
    by_content: dict[str, Source] = {}
    for part in parts_of(source):
        fingerprint = part.fingerprint()
        other = by_content.get(fingerprint)
        by_content[fingerprint] = part
        # Parts without a record, as some programs write them, are alike too.
        if other is not None and any(batch.num_rows for batch in part.batches(BadRows(OnBadRows.SKIP))):
            # Ids that are made from user and text would number its records anew, as texts that were written twice.
            raise InputError(
                f"{source_name(other)} and {source_name(part)} have the same content, so each record would count"
                " twice: name only one of the two"
            )


def parts_of(source: Source) -> tuple[Source, ...]:
    """Return the parts of a source in order; the source itself if it has no parts."""
    # Sentences are cut from another source.
    read = getattr(source, "source", source)
    return read.sources if isinstance(read, Several) else (read,)


def source_name(source: Source) -> str:
    """Return the names of a source's files in quotes, for error messages."""
    # A dataset of a hub has a name and no path.
    where = getattr(source, "name", None) or getattr(source, "path", type(source).__name__)
    return f"'{where}'"


def _iob(path: Path, _columns: Columns, _form: TextFormat) -> Source:
    return Iob(path)


def _mbox(path: Path, _columns: Columns, _form: TextFormat) -> Source:
    # Messages say themselves who wrote them and when.
    return Mbox(path)


def _parquet(path: Path, columns: Columns, _form: TextFormat) -> Source:
    return Parquet(path, columns)


@dataclass(frozen=True)
class FileFormat:
    """A format of files.

    Attributes:
        kind: name of the format as ``corpus.source.kind``.
        endings: endings of the names of files in this format.
        packed: whether a file may be compressed; its name then ends in .gz or .zst.
        holds: description of such a file.
        people: description of the places of users and texts in such a file.
        opened: function that makes the source of a file.
    """

    kind: str
    endings: tuple[str, ...]
    packed: bool
    holds: str
    people: str
    opened: Callable[[Path, Columns, TextFormat], Source]

    def known(self) -> tuple[str, ...]:
        """Return all endings, including those of compressed files."""
        return tuple(
            f"{end}{packed}" for end in self.endings for packed in (("", ".gz", ".zst") if self.packed else ("",))
        )


_NAMED = "columns that you name"
ROWS = """A row has one of these formats, and the first row shows which:
text              a column of text (default: text)
messages          a list of messages with role and content
conversations     a list of turns with from and value (ShareGPT)
prompt-completion the columns prompt and completion, of text or messages
preference        the columns chosen and rejected, and a prompt if there is one
The model's chat template writes messages. JSON and Parquet hold lists; CSV holds
them as JSON."""
FORMATS = (
    FileFormat(
        "jsonl",
        (".jsonl", ".json", ".ndjson"),
        True,
        "JSON lines, an array of objects, or an object with one (--field)",
        _NAMED,
        Json,
    ),
    FileFormat("csv", (".csv", ".tsv", ".tab", ".txt"), True, "a header, and fields between , ; tab or |", _NAMED, Csv),
    FileFormat("parquet", (".parquet",), False, "Parquet", _NAMED, _parquet),
    FileFormat("mbox", (".mbox",), False, "mails in one file", "sender's address, plain-text body", _mbox),
    FileFormat(
        "iob",
        (".conll", ".iob"),
        True,
        "CoNLL: a token and its IOB tag per line; any file from -DOCSTART- on",
        "a document is a user, and a sentence is a record",
        _iob,
    ),
)  # fmt: skip
FOLDERS = (
    ("maildir", "a folder with one file per mail below ACCOUNT/FOLDER", "sender, or the account's name"),
    ("huggingface", "a folder that save_to_disk of Hugging Face datasets wrote", _NAMED),
)
_ENDINGS = ", ".join(end for form in FORMATS for end in form.endings)
# What people have instead, and what to do with it.
_SHEET = "save the sheet as CSV or Parquet"
_DUMP = (
    "export the table as CSV, a file for each group, such as with sqlite3 -header -csv, psql \\copy ... csv header, or"
    " DuckDB"
)
_ADVICE = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), _SHEET),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db", ".sql", ".duckdb", ".dump"), _DUMP),
    **dict.fromkeys(
        (".pkl", ".pickle", ".pt", ".joblib"),
        "a pickle can run code, so heldin does not open pickles: if you trust it, write the data as Parquet",
    ),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2", ".xz"), "unpack it first"),
    **dict.fromkeys(
        (".feather", ".arrow", ".avro", ".orc", ".xml", ".html", ".docx", ".pdf"), "write it as Parquet or CSV"
    ),
}


def format_named(kind: str) -> FileFormat:
    """Return the file format with this name."""
    return next(form for form in FORMATS if form.kind == kind)


def format_of(path: Path) -> FileFormat | None:
    """Return the format for the ending of a file's name; None for an unknown ending."""
    return next((form for form in FORMATS if path.name.lower().endswith(form.known())), None)


def formats_dict() -> list[dict[str, Any]]:
    """Return all formats as dictionaries, for JSON."""
    files = [(f.kind, list(f.known()), f.holds, f.people) for f in FORMATS]
    folders = [(kind, list[str](), holds, people) for kind, holds, people in FOLDERS]
    return [dict(zip(("kind", "endings", "holds", "people"), row, strict=True)) for row in (*files, *folders)]


def formats_table() -> str:
    """Return all formats as plain text for a terminal."""
    lines = []
    for form in FORMATS:
        packed = ", also .gz or .zst" if form.packed else ""
        lines += [
            (form.kind, f"{' '.join(form.endings)}{packed}"),
            ("", form.holds),
            ("", f"user and text: {form.people}"),
        ]
    for kind, holds, people in FOLDERS:
        lines += [(kind, holds), ("", f"user and text: {people}")]
    table = "\n".join(f"{kind:<12} {text}" for kind, text in lines)
    return (
        f"{table}\n\n{ROWS}\n\nNames of columns reach into objects: author.id. Text is UTF-8 unless --encoding\n"
        "names another."
    )


def rows_of_file(
    path: Path, columns: Sequence[str], bad: BadRows, form: TextFormat | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield a file's rows, each with its line or row number. The ending of the name decides: Parquet, CSV, else JSON.

    Args:
        path: the file, plain, .gz, .bz2 or .zst.
        columns: columns to read from a Parquet file, if present. In a CSV file, they identify the header. Rows of other
            formats are read as a whole.
        bad: the rule for rows that cannot be read, which also counts them.
        form: encoding and layout of the file.

    Raises:
        InputError: the file does not exist, or it is damaged.
    """
    existing(path)
    form = form or TextFormat()
    if path.suffix == ".parquet":
        return parquet_rows(path, columns)
    return csv_rows(path, form, columns, bad) if is_table(path) else json_rows(path, form, bad)


def is_table(path: Path) -> bool:
    """Return whether a file's name has a CSV ending, plain or compressed."""
    return bool({suffix.lower() for suffix in path.suffixes} & {*format_named("csv").endings})


_SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")  # save_to_disk writes at least one of them


def open_source(path: Path, columns: Columns, form: TextFormat | None = None) -> Source:
    """Return the source for a folder, or for a file by its ending. Raises InputError if no source reads it."""
    form = form or TextFormat()
    if path.is_dir():
        return _open_folder(path, columns)
    known, advice = format_of(path), _ADVICE.get(path.suffix.lower())
    # Files of this format have names such as eng.train, or any that says text.
    if advice is None and path.is_file() and known in (None, format_named("csv")) and is_iob(path):
        return _iob(path, columns, form)
    if known is not None:
        return known.opened(path, columns, form)
    advice = advice or f"known endings are {_ENDINGS} ('heldin corpus formats' has details)"
    raise InputError(f"'{path}': heldin does not read this format: {advice}")


def _open_folder(path: Path, columns: Columns) -> Source:
    if is_maildir(path):
        return Maildir(path)
    if not any((path / name).is_file() for name in _SAVED):
        raise InputError(
            f"'{path}' is a folder without readable data: name a file in this folder ({_ENDINGS}), a maildir, or a"
            " folder that save_to_disk wrote"
        )
    return HuggingFace(str(path), columns=columns)


def open_sources(paths: Sequence[Path], columns: Columns, form: TextFormat | None = None) -> Source:
    """Return one source for one or more paths. Raises InputError like ``open_source``."""
    sources = [open_source(path, columns, form) for path in paths]
    return sources[0] if len(sources) == 1 else Several(tuple(sources))
