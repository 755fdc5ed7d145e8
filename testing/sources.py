"""Checks of a source of a corpus."""

import tempfile
from pathlib import Path
from typing import Any

from heldin.corpus.build import build_store
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.rows import SCHEMA, is_of_a_source
from heldin.testing.problems import require, tried


def check_source(config: SourceConfig, other: SourceConfig | None = None) -> None:
    """Check that a source gives records in the same way as every source.

    Its batches have the columns that every source has. Reading twice gives the same records and the same fingerprint.
    Every record has a user and a text. Ids, if there are any, are unique. ``build_store`` can build a corpus store from
    the source. ``looks`` finds no fault, and all ``paths`` exist.

    Args:
        config: config section that opens the source.
        other: config section of a source with other content; its fingerprint must differ. None: do not test this.

    Raises:
        AssertionError: lists all faults, one per line. Each line begins with the name of the failed check: opened,
            looks, paths, read, again, columns, empty, whole, ids, fingerprint, store or content.
    """
    problems: list[str] = []
    source = tried(config.source, "opened: opening it", problems)
    if source is not None:
        for look in tried(lambda: list(config.looks("corpus.source")), "looks: looking at it", problems) or []:
            tried(look, "looks: looking at it", problems)
        problems += [f"paths: its path '{path}' does not exist" for path in _absent(config)]
        batches = tried(lambda: list(source.batches(BadRows())), "read: reading it", problems) or []
        again = tried(lambda: list(source.batches(BadRows())), "again: reading it again", problems) or []
        problems += _records(batches, again)
        first, second = (tried(source.fingerprint, "fingerprint: its fingerprint", problems) for _ in range(2))
        if first != second:
            problems.append("fingerprint: it differs the second time, though nothing was changed")
        if not problems:
            with tempfile.TemporaryDirectory() as folder:
                tried(lambda: build_store(source, Path(folder)), "store: making a store of it", problems)
    if other is not None and source is not None:
        changed = tried(lambda: other.source().fingerprint(), "content: the fingerprint of the other source", problems)
        if changed == tried(source.fingerprint, "fingerprint: its fingerprint", problems):
            problems.append("content: other content has the same fingerprint, so heldin would use an old store for it")
    require(problems, f"source '{config.kind}'")


def _absent(config: SourceConfig) -> list[Path]:
    return [path for path in config.paths() if not path.exists()]


def _records(batches: list[Any], again: list[Any]) -> list[str]:
    problems = []
    if not all(is_of_a_source(batch.schema) for batch in batches):
        return [f"columns: the columns of its batches differ from {', '.join(SCHEMA.names)} (large text, and texts)"]
    rows = [row for batch in batches for row in batch.to_pylist()]
    if not rows:
        problems.append("empty: the source has no record")
    if rows != [row for batch in again for row in batch.to_pylist()]:
        problems.append("again: a second reading gives other records")
    if any(not (row["user"] or "").strip() or not (row["text"] or "").strip() for row in rows):
        problems.append("whole: a record has no user or no text. Give bad rows to heldin.corpus.sources.rows.batched")
    ids = [row["id"] for row in rows if row["id"] is not None]
    if len(set(ids)) < len(ids):
        problems.append("ids: two records have the same id")
    if ids and len(ids) < len(rows):
        problems.append("ids: some records have ids, and others have none")
    return problems
