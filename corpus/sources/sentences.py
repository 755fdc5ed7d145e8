"""Sentences as records: a wrapper around any source. Later steps do not change."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import SCHEMA, Source
from heldin.words.statement import Statement

_PARAGRAPHS = re.compile(r"\n\s*\n")
_LONGEST = 900_000  # characters that spaCy takes at once; a paragraph beyond it is cut


@dataclass(frozen=True)
class Sentences(Source):
    """The sentences of another source's records, found by spaCy's rules for English punctuation (no language model)."""

    source: Source

    def fingerprint(self) -> str:
        """Hash of the source and of spaCy's version."""
        from importlib.metadata import version

        _splitter()  # says what is missing, before its version is asked for
        return text_sha256("sentences", version("spacy"), self.source.fingerprint())

    def look(self) -> list[Statement]:
        """Check the source of the records."""
        return self.source.look()

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row of the source of the records."""
        return self.source.first_row()

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield a record for each sentence. If the record has an id, the id of a sentence ends with its number: ID#1,
        ID#2."""
        split = _splitter()
        for batch in self.source.batches(bad):
            rows = []
            for record in batch.to_pylist():
                for number, sentence in enumerate(_sentences(split, record["text"]), start=1):
                    id_ = None if record["id"] is None else f"{record['id']}#{number}"
                    rows.append({**record, "text": sentence, "id": id_})
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _sentences(split: Any, text: str) -> Iterator[str]:
    for paragraph in _PARAGRAPHS.split(text):
        for start in range(0, len(paragraph), _LONGEST):
            for sentence in split(paragraph[start : start + _LONGEST]).sents:
                if stripped := sentence.text.strip():
                    yield stripped


def _splitter() -> Any:
    try:
        import spacy
    except ImportError as error:
        raise InputError(
            "heldin finds sentences with spaCy, but spaCy is not installed: pip install '.[entities]' in a clone"
            " of heldin"
        ) from error
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    return pipeline
