"""The corpus on disk: memory-mapped Arrow files sorted by user, and an index from user to rows.

``corpus.build`` writes the store. Reading k records costs O(k) for a corpus of any size. A store can be written as one
file of rows, for example as a training set for ``heldin plant``.
"""

import bisect
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from heldin.base.errors import InputError
from heldin.base.files import whole_file
from heldin.corpus.document import Document, Turn, TurnLayout
from heldin.corpus.sources.bad_rows import Skipped
from heldin.corpus.sources.rows import LAYOUT, PARTS, SCHEMA, SPANS

SKIPPED_USERS = "skipped.arrow"  # names of users with a row that was left out


@dataclass(frozen=True, slots=True)
class CorpusRecord:
    """One text of one user.

    Attributes:
        row: row number in the store.
        user: the user to whom the text belongs.
        id: unique id of the record.
        document: the text, with the parts that count.
        date: date in the source's format; None if there is none.
    """

    row: int
    user: str
    id: str
    document: Document
    date: str | None

    @property
    def text(self) -> str:
        """The whole text."""
        return self.document.text


@dataclass(frozen=True)
class BuildReport:
    """The result of a build.

    Attributes:
        skipped: the skipped rows.
        reused: whether the store had been built before.
    """

    skipped: Skipped
    reused: bool


class Corpus:
    """Read access to records in any storage. Rows are numbered from 0, and the rows of a user are adjacent.

    Attributes:
        fingerprint: hash of the exact content.
        table: the records in row order. The table includes the records of users who are left out
            (``canaries.planted``).
        users: the names of the users, sorted.
        starts: first row of each user, shape (users,).
        counts: number of records of each user, shape (users,).
        has_spans: whether some texts have parts that do not count.
    """

    def __init__(
        self, fingerprint: str, table: pa.Table, users: list[str], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        self.fingerprint, self.table = fingerprint, table
        self.users, self.starts, self.counts = users, starts, counts
        self._position = {user: i for i, user in enumerate(users)}
        self._parts = [part.name for part in PARTS if part.name in table.schema.names]
        self.has_spans = SPANS.name in self._parts
        self._chunks = {name: table.column(name).chunks for name in (*SCHEMA.names, *self._parts)}
        # Row number at which each chunk ends, for the search in ``_value``.
        self._ends = list(itertools.accumulate(map(len, self._chunks["id"])))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def count(self, user: str) -> int:
        """Return the number of records of ``user``."""
        return int(self.counts[self._position[user]])

    def rows(self, user: str) -> range:
        """Return the row numbers of ``user``, in the source's order."""
        i = self._position[user]
        return range(int(self.starts[i]), int(self.starts[i] + self.counts[i]))

    def record(self, row: int) -> CorpusRecord:
        """Return the record at ``row``."""
        user, id_, date = (self._value(name, row) for name in ("user", "id", "date"))
        return CorpusRecord(row, user, id_, self.document(row), date)

    def document(self, row: int) -> Document:
        """Return the text at ``row``, with the parts that count."""
        (document,) = _documents([self.text(row)], {name: [self._value(name, row)] for name in self._parts})
        return document

    def text(self, row: int) -> str:
        """Return the text at ``row``."""
        text: str = self._value("text", row)
        return text

    def id(self, row: int) -> str:
        """Return the record id at ``row``."""
        id_: str = self._value("id", row)
        return id_

    def ids_at(self, rows: NDArray[np.integer]) -> list[str]:
        """Return the record ids at these rows, in the given order."""
        return self._at("id", rows)

    def texts_at(self, rows: NDArray[np.integer]) -> list[str]:
        """Return the texts at these rows, in the given order."""
        return self._at("text", rows)

    def documents_at(self, rows: NDArray[np.integer]) -> list[Document]:
        """Return the texts at these rows with the parts that count, in the given order."""
        return _documents(self.texts_at(rows), {name: self._at(name, rows) for name in self._parts})

    def _at(self, column: str, rows: NDArray[np.integer]) -> list[Any]:
        # Runs of one chunk at once: a search for each row in a chunked column would cost more than the values.
        numbers = np.searchsorted(self._ends, rows, side="right")
        values: list[Any] = []
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers)) + 1):
            if run.size:
                number = int(numbers[run[0]])
                chunk = self._chunks[column][number]
                values += chunk.take(pa.array(rows[run] - (self._ends[number] - len(chunk)))).to_pylist()
        return values

    def _value(self, column: str, row: int) -> Any:
        number = bisect.bisect_right(self._ends, row)  # a chunked array searches its chunks linearly for every row
        chunk = self._chunks[column][number]
        return chunk[row - self._ends[number] + len(chunk)].as_py()

    @property
    def has_turns(self) -> bool:
        """Whether the store has the places of turns."""
        return LAYOUT.name in self._parts

    def document_chunks(self) -> Iterator[tuple[int, list[Document]]]:
        """Yield all rows in order, in chunks: the chunk's first row, and its texts with the parts that count."""
        for number, (end, texts) in enumerate(zip(self._ends, self._chunks["text"], strict=True)):
            parts = {name: self._chunks[name][number].to_pylist() for name in self._parts}
            yield end - len(texts), _documents(texts.to_pylist(), parts)

    def counted_chunks(self) -> Iterator[tuple[int, pa.Array]]:
        """Yield all rows in order, in chunks: the chunk's first row, and the counted parts of its texts."""
        for number, (end, texts) in enumerate(zip(self._ends, self._chunks["text"], strict=True)):
            if self.has_spans:
                spans = {SPANS.name: self._chunks[SPANS.name][number].to_pylist()}
                documents = _documents(texts.to_pylist(), spans)
                yield end - len(texts), pa.array([document.counted for document in documents], pa.large_string())
            else:
                yield end - len(texts), texts


class CorpusStore(Corpus):
    """A built store. Every row belongs to a user, and users are in the order of their rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        self.ids: str = meta["ids"]  # "given", "made" from user and text, or "mixed"
        self.report = BuildReport(Skipped.model_validate(meta["skipped"]), reused=True)
        # Sorted, because file names number the ranges of users of a store that was built on a cluster.
        files = sorted(folder.glob("records*.arrow"))
        # Mapped and not read: the operating system loads the pages that are asked for, and may drop them again.
        parts = (pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files)
        # Of a store that was built on a cluster some files may have no spans.
        table = pa.concat_tables(parts, promote_options="default")
        index = pa.ipc.open_file(pa.memory_map(str(folder / "users.arrow"))).read_all()
        users, starts, counts = (index.column(name) for name in ("user", "start", "count"))
        super().__init__(meta["fingerprint"], table, users.to_pylist(), starts.to_numpy(), counts.to_numpy())

    def users_with_skipped(self) -> list[str]:
        """Return the names of users with a skipped row, sorted."""
        file = self.folder / SKIPPED_USERS
        if not file.is_file():
            return []
        names: list[str] = pa.ipc.open_file(pa.memory_map(str(file))).read_all().column("user").to_pylist()
        return names

    def texts(self) -> Iterator[str]:
        """Yield all texts in row order, with one chunk in memory at a time."""
        for chunk in self._chunks["text"]:
            yield from chunk.to_pylist()

    def counted_texts(self) -> Iterator[str]:
        """Yield the counted parts of every text, in row order, with one chunk in memory at a time."""
        for _, texts in self.counted_chunks():
            yield from texts.to_pylist()

    def ids_and_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the id and text of every record in row order, with one chunk in memory at a time."""
        for ids, texts in zip(self._chunks["id"], self._chunks["text"], strict=True):
            yield from zip(ids.to_pylist(), texts.to_pylist(), strict=True)

    def sample(self, users: int, records: int, generator: np.random.Generator) -> list[list[CorpusRecord]]:
        """Return ``records`` random records of each of ``users`` random users, or all records if a user has fewer.

        The cost is proportional to the number of returned records. Raises InputError if there are fewer than ``users``
        users.
        """
        if users > len(self.users):
            raise InputError(
                f"cannot sample {users} users, because the corpus has only {len(self.users)}: sample fewer users"
            )
        chosen = generator.choice(len(self.users), size=users, replace=False, shuffle=False)
        sampled = []
        for i in chosen:
            count = int(self.counts[i])
            # Row numbers first, then these rows: what is not picked is never read.
            picks = generator.choice(count, size=min(records, count), replace=False, shuffle=False)
            sampled.append([self.record(int(self.starts[i]) + int(pick)) for pick in picks])
        return sampled


def texts_of(store: Corpus, rows: Sequence[int]) -> list[str]:
    """Return the texts at ``rows``."""
    return [store.text(row) for row in rows]


def documents_of(store: Corpus, rows: Sequence[int]) -> list[Document]:
    """Return the texts at ``rows``, with the parts that count."""
    return [store.document(row) for row in rows]


def documents_in(batch: pa.RecordBatch) -> list[Document]:
    """Return the texts of a source's batch, with the parts that count."""
    parts = {part.name: batch.column(part.name).to_pylist() for part in PARTS if part.name in batch.schema.names}
    return _documents(batch.column("text").to_pylist(), parts)


def _documents(texts: Sequence[str], parts: Mapping[str, Sequence[Any]]) -> list[Document]:
    """Return the documents of these texts. ``parts`` maps column names to the columns with the texts' parts, if any."""
    none = [None] * len(texts)
    return list(map(document_of, texts, parts.get(SPANS.name, none), parts.get(LAYOUT.name, none)))


def document_of(text: str, spans: list[list[int]] | None, layout: dict[str, Any] | None) -> Document:
    """Return a document from its text and the store's two columns with the document's parts."""
    counted = ((0, len(text)),) if spans is None else tuple((begin, end) for begin, end in spans)
    if layout is None:
        return Document(text, counted)
    turns = tuple(Turn(**turn) for turn in layout["turns"])
    return Document(text, counted, TurnLayout(turns, layout["completion"], layout["framed"], layout["second"]))


ENDINGS = (".parquet", ".jsonl")


def require_writable(to: Path) -> None:
    """Raise InputError if the name has no known format, or the file exists."""
    if to.suffix not in ENDINGS:
        raise InputError(f"--out '{to}': name a file that ends in {' or '.join(ENDINGS)}")
    if to.exists():
        raise InputError(f"--out '{to}' exists already: name a new file")


def write_corpus(store: CorpusStore, to: Path) -> None:
    """Write every record with user, text, id and date, in the store's order. The file is complete or not written.

    Args:
        to: a new file that ends in .parquet or .jsonl.

    Raises:
        InputError: for the reasons of ``require_writable``.
    """
    require_writable(to)
    with whole_file(to) as temporary:
        if to.suffix == ".parquet":
            with pq.ParquetWriter(temporary, store.table.schema) as writer:
                for batch in store.table.to_batches():
                    writer.write_batch(batch)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(_lines(store.table))


def _lines(table: pa.Table) -> Iterator[str]:
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield json.dumps(row, ensure_ascii=False) + "\n"
