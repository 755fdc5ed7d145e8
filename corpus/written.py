"""A store as one file of rows, such as a training set that ``heldin plant`` takes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import whole_file
from heldin.corpus.store import CorpusStore

ENDINGS = (".parquet", ".jsonl")


def require_writable(to: Path) -> None:
    """Raises InputError for a name that says no format, or one that is taken."""
    if to.suffix not in ENDINGS:
        raise InputError(f"--to '{to}': name a file that ends in {' or '.join(ENDINGS)}")
    if to.exists():
        raise InputError(f"--to '{to}': there is one already; name another")


def write_corpus(store: CorpusStore, to: Path) -> None:
    """Write every record with user, text, id and date, in the store's order; whole or not at all.

    Args:
        to: a new file that ends in .parquet or .jsonl.

    Raises:
        InputError: see ``require_writable``.
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
