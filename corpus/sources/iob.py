"""CoNLL files as sources: one token with its columns per line, blank lines between sentences, ``-DOCSTART-`` lines.

``-DOCSTART-`` begins a document. A document is a user, and a sentence is a record. The tags, in the last column, are
IOB1, IOB2 or IOBES.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import Columns, Source, batched
from heldin.corpus.sources.text_files import BROKEN, corrupt, open_binary

DOCUMENT = "-DOCSTART-"
BOM = b"\xef\xbb\xbf"


@dataclass
class Sentence:
    """A sentence of a file.

    Attributes:
        file: name of the file, without the ending for compression.
        line: number of the sentence's first line.
        document: number of the sentence's document, from 1.
        number: number of the sentence in its document, from 1.
        tokens: the tokens, in order.
        tags: tag of each token, such as "B-PER" or "O".
    """

    file: str
    line: int
    document: int
    number: int
    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Record id: file, document and sentence, so several files can be one corpus."""
        return f"{self.file} {self.document}-{self.number}"

    @property
    def user(self) -> str:
        """Name of the document, which is the user."""
        return f"{self.file} document {self.document}"

    @property
    def text(self) -> str:
        """The tokens, separated by blanks."""
        return " ".join(self.tokens)


@dataclass(frozen=True)
class Iob(Source):
    """A CoNLL file, plain or compressed (.gz, .zst)."""

    path: Path

    def fingerprint(self) -> str:
        """Hash of the file's bytes."""
        return text_sha256("iob", file_sha256(existing(self.path)))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield a record for each sentence. Its user is the document."""
        rows = (
            (sentence.line, {"user": sentence.user, "text": sentence.text, "id": sentence.id})
            for sentence in sentences(self.path)
        )
        return batched(rows, self.path.name, "line", Columns(id="id"), bad)


def sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL file, in order.

    Raises:
        InputError: a line has more or fewer columns than the lines before it, a tag is malformed, or the file cannot be
            read. The message has file and line.
    """
    document, number, columns, line_number = 0, 0, 0, 0
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    current: Sentence | None = None
    try:
        with open_binary(path) as stream:
            for line_number, line in enumerate(stream, start=1):
                where = f"{path.name} line {line_number}"
                try:
                    parts = line.decode("utf-8-sig" if line_number == 1 else "utf-8").split()
                except UnicodeDecodeError as error:
                    raise InputError(f"{where}: invalid UTF-8 at byte {error.start}. Save the file as UTF-8") from error
                if not parts or parts[0] == DOCUMENT:
                    if current is not None:
                        yield current
                    current = None
                    if parts:
                        document, number = document + 1, 0
                    continue
                columns = columns or len(parts)
                if len(parts) != columns or columns < 2:
                    raise InputError(
                        f"{where}: the line has {len(parts)} columns instead of {max(columns, 2)}. Write the token"
                        " first and its IOB tag last, separated by blanks"
                    )
                if parts[-1] != "O" and not (parts[-1][1:2] == "-" and parts[-1][0] in "BIESLU" and parts[-1][2:]):
                    raise InputError(
                        f"{where}: the last column is not an IOB tag. Write a tag such as O, B-PER or I-PER"
                    )
                if current is None:
                    number += 1
                    current = Sentence(name, line_number, document, number)
                current.tokens.append(parts[0])
                current.tags.append(parts[-1])
    except BROKEN as error:
        raise corrupt(path, f"line {line_number}", error) from error
    if current is not None:
        yield current


def is_iob(path: Path) -> bool:
    """Return whether the first line of a file begins a CoNLL document."""
    try:
        with open_binary(path) as stream:
            return stream.read(len(DOCUMENT) + len(BOM)).removeprefix(BOM).startswith(DOCUMENT.encode())
    except BROKEN:
        return False  # its reader says what is wrong with it
