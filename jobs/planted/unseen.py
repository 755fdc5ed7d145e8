"""Rows that no training uses, such as a test set: next to them the audit sees what the model learned of other rows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_digest, write_text
from heldin.corpus.sources.rows import BadRows
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.control import MOST_ROWS
from heldin.jobs.planted.training_set import TrainingSet
from heldin.models.tokens import Spans

_FILE = "unseen.json"
_FIRST = 20 * MOST_ROWS  # rows from which the sample is drawn


def unseen_rows(config: PlantConfig, source: TrainingSet) -> Iterator[tuple[str, Spans]]:
    """Yield text and scored parts of a sample of the plan's ``unseen`` rows; none if it names none.

    Raises InputError if the file cannot be read, or none of its rows can be used.
    """
    if config.unseen is None:
        return
    rows: dict[str, tuple[str, Spans]] = {}
    for record, content in replace(source, path=config.unseen, unparted=None, split=None).rows(BadRows(skip=True)):
        text = str(record["text"])
        spans = source.text.scored(content) if source.in_parts else ((0, len(text)),)
        if not source.in_parts or source.is_visible(text, spans):
            rows[text_digest(text)] = text, spans
        if len(rows) == _FIRST:
            break
    if not rows:
        raise InputError(f"unseen: '{config.unseen}' has no row that can be used: name rows with the same columns")
    for digest in keyed_order(seed_key(config.seed), "unseen rows", list(rows))[:MOST_ROWS]:
        yield rows[digest]


def write_unseen(texts: list[str], ledger: Path) -> str:
    """Keep the texts in the folder of secrets, and return the file's hash."""
    write_text(ledger / _FILE, json.dumps(texts), private=True)
    return file_sha256(ledger / _FILE)


def read_unseen(ledger: Path, sha256: str | None) -> list[str]:
    """Return the texts that ``write_unseen`` kept. Raises InputError if they are gone or were changed."""
    if sha256 is None:
        return []
    path = ledger / _FILE
    if not path.is_file() or file_sha256(path) != sha256:
        raise InputError(f"'{path}' is gone or was changed after it was written: restore it, or plant again")
    texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return texts
