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
    """Check that a source gives records as every source does.

    Its batches have the columns of every source. Reading twice gives the same records under the same fingerprint. Every
    record has a user and a text; ids, if there are any, are unique. ``build_store`` can build a corpus store from the
    source. ``looks`` finds no fault, and ``paths`` exist.

    Args:
        config: section of a config that opens the source.
        other: section of a source with other content, which must have another fingerprint; None: not tested.

    Raises:
        AssertionError: lists all faults, one per line. A line begins with the name of the check: opened, looks, paths,
            read, again, columns, empty, whole, ids, fingerprint, store or content.
    """
    problems: list[str] = []
    source = tried(config.source, "opened: opening it", problems)
    if source is not None:
        for look in tried(lambda: list(config.looks("corpus.source")), "looks: looking at it", problems) or []:
            tried(look, "looks: looking at it", problems)
        problems += [f"paths: it names '{path}' among its paths, which is not there" for path in _absent(config)]
        batches = tried(lambda: list(source.batches(BadRows())), "read: reading it", problems) or []
        again = tried(lambda: list(source.batches(BadRows())), "again: reading it again", problems) or []
        problems += _records(batches, again)
        first, second = (tried(source.fingerprint, "fingerprint: its fingerprint", problems) for _ in range(2))
        if first != second:
            problems.append("fingerprint: the second time it differs, though nothing was changed")
        if not problems:
            with tempfile.TemporaryDirectory() as folder:
                tried(lambda: build_store(source, Path(folder)), "store: making a store of it", problems)
    if other is not None and source is not None:
        changed = tried(lambda: other.source().fingerprint(), "content: the fingerprint of the other one", problems)
        if changed == tried(source.fingerprint, "fingerprint: its fingerprint", problems):
            problems.append("content: another content has the same fingerprint, so an old store would be taken for it")
    require(problems, f"source '{config.kind}'")


def _absent(config: SourceConfig) -> list[Path]:
    return [path for path in config.paths() if not path.exists()]


def _records(batches: list[Any], again: list[Any]) -> list[str]:
    problems = []
    if not all(is_of_a_source(batch.schema) for batch in batches):
        return [f"columns: its batches have other columns than {', '.join(SCHEMA.names)} (large text, and texts)"]
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
