"""The mentions in a corpus, as a table on disk next to the store. Later searches reuse the table.

The table has one row for each mention. The key of the table is the store's content and the source's fingerprint. heldin
applies categories and aliases when it reads the table. The table never becomes Python objects in memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heldin.base.artefacts import artefact_file, is_whole
from heldin.base.files import private_directory, text_sha256
from heldin.base.progress import Advance, Reporter
from heldin.corpus.entities.spans import CATEGORIES, EntitySource, Text, canonical, without_overlaps
from heldin.corpus.store import CorpusStore

FORMAT_VERSION = "1"
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # of the store
        ("author", pa.int32()),  # number of the record's user in the store
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("category", pa.int8()),  # place in CATEGORIES
        ("entity", pa.large_string()),  # canonical
        ("longest", pa.bool_()),  # whether it is kept where mentions overlap
    ]
)
_BATCH = 65_536  # mentions
_NOBODY = -1  # author of a record beyond the store


@dataclass(frozen=True)
class Mentions:
    """The mentions of a store.

    Attributes:
        path: Arrow file of SCHEMA, sorted by row and start.
        source: fingerprint of the source that found the mentions.
        beyond: table of SCHEMA for rows after the store's rows, such as canary users' records; None: there are no such
            rows.
        rows: row numbers that mentions may have, from 0.
    """

    store: CorpusStore
    path: Path
    source: str
    rows: int
    beyond: pa.Table | None = None

    def table(self) -> pa.Table:
        """Return all mentions. The store's mentions are mapped into memory."""
        kept = pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()
        return kept if self.beyond is None else pa.concat_tables([kept, self.beyond])


def with_rows_beyond(mentions: Mentions, records: Mapping[int, Text], source: EntitySource) -> Mentions:
    """Add the mentions that the source finds in further records.

    ``records`` maps row numbers after the store's to texts.
    """
    rows = sorted(records)
    texts = [records[row] for row in rows]
    batches = _found(texts, [text.text for text in texts], rows, [_NOBODY] * len(rows), source, lambda _: None)
    return replace(mentions, rows=rows[-1] + 1, beyond=pa.Table.from_batches(batches, SCHEMA))


def find_mentions(store: CorpusStore, source: EntitySource, reporter: Reporter) -> Mentions:
    """Search every record of a store, or open the result of an earlier search of this content with this source.

    The table has all mentions. The table marks the longest of overlapping mentions.

    Raises:
        InputError: the source cannot be used.
    """
    known = source.fingerprint()
    name = text_sha256(FORMAT_VERSION, store.fingerprint, known)[:24]
    # In the store's folder, so that clearing corpora clears what was found in them too.
    path = store.folder / "entities" / f"{name}.arrow"
    if not is_whole(path, say=reporter.say):
        private_directory(path.parent)
        with (
            artefact_file(path) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, SCHEMA) as writer,
            reporter.track("entities: searching", len(store), "records") as advance,
        ):
            texts = (Text(*pair) for pair in store.ids_and_texts())
            authors = np.repeat(np.arange(len(store.users), dtype=np.int32), store.counts)
            # The texts again beside their spans: a source takes an iterable and need not keep what it has seen.
            for batch in _found(texts, store.texts(), range(len(store)), authors, source, advance):
                writer.write_batch(batch)
    return Mentions(store, path, known, len(store))


def _found(
    texts: Iterable[Text],
    again: Iterable[str],
    rows: Sequence[int],
    authors: Sequence[int] | npt.NDArray[np.int32],
    source: EntitySource,
    advance: Advance,
) -> Iterator[pa.RecordBatch]:
    columns: list[list[Any]] = [[] for _ in SCHEMA.names]
    for at, (spans, text) in enumerate(zip(source.spans(texts), again, strict=True)):
        kept = set(without_overlaps(spans))
        for span in sorted(set(spans)):
            entity = canonical(text[span.start : span.end])
            if entity:  # a span of marks alone names nobody
                place = CATEGORIES.index(span.category)
                values = (rows[at], int(authors[at]), span.start, span.end, place, entity, span in kept)
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
        advance(1)
        if len(columns[0]) >= _BATCH:
            yield _batch(columns)
            columns = [[] for _ in SCHEMA.names]
    yield _batch(columns)


def _batch(columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
