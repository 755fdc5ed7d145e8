"""Hugging Face datasets as sources: a hub name, streamed or not, or a folder that ``save_to_disk`` wrote."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import (
    BATCH_ROWS,
    Columns,
    Source,
    batched,
    columns_of,
    require_columns,
    top_columns,
    whole_rows,
)
from heldin.corpus.sources.text_files import first_line
from heldin.words.statement import Statement


@dataclass(frozen=True)
class HuggingFace(Source):
    """A Hugging Face dataset.

    Attributes:
        name: hub name, or a folder. The folder is one that ``save_to_disk`` wrote, or (streaming) one with data files.
        split: name of the split; required if there are several.
        revision: commit, tag or branch on the hub.
        columns: the columns by role.
        streaming: whether records are read as they arrive, without a copy of the dataset; a hub name then needs a
            revision.
    """

    name: str
    split: str | None = None
    revision: str | None = None
    columns: Columns = field(default_factory=Columns)
    streaming: bool = False

    def __post_init__(self) -> None:
        # The fingerprint of a stream is its name and revision: without a revision, changed content would go unnoticed.
        if self.streaming and self.revision is None and not Path(self.name).is_dir():
            raise InputError(f"dataset '{self.name}' is streamed without a revision: give its revision (a commit)")

    def fingerprint(self) -> str:
        """Hash of the dataset's own fingerprint (streaming: of name, revision and data files) and the column names."""
        if not self.streaming:
            return text_sha256("huggingface", str(self.load()._fingerprint), repr(self.columns))
        folder = Path(self.name)
        files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
        # Size and time, because to hash the content would be to read the whole stream before it is read.
        stats = [(str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
        return text_sha256("stream", self.name, str(self.split), str(self.revision), repr(stats), repr(self.columns))

    def look(self) -> list[Statement]:
        """Read the columns. A stream is not checked, because its first row may have to be fetched."""
        if not self.streaming:
            require_columns(self.columns, columns_of(self.load().features.arrow_schema), self.name)
        return []

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the dataset's rows."""
        data = self.load()
        if self.streaming:
            # A stream may not know its columns before its first row, which ``batched`` checks.
            return batched(self._streamed(data), Path(self.name).name, "row", self.columns, bad)
        require_columns(self.columns, columns_of(data.features.arrow_schema), self.name)
        # As Arrow tables, without the features' decoding and without the columns that nobody asked for.
        tables = data.select_columns(top_columns(self.columns, data.column_names)).with_format("arrow").iter(BATCH_ROWS)
        where = Path(self.name).name
        return batched(whole_rows(tables, where), where, "row", self.columns, bad)

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row; None for a stream, because its first row may have to be fetched."""
        if self.streaming:
            return None
        data = self.load()
        first: Mapping[str, Any] | None = data.with_format("arrow")[:1].to_pylist()[0] if len(data) else None
        return first

    def _streamed(self, data: Any) -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for row in data:
                number += 1
                yield number, row
        except Exception as error:  # of the library, for what is damaged, has another format, or cannot be reached
            raise InputError(
                f"dataset '{self.name}' cannot be read after row {number} ({first_line(error)}): fetch the dataset"
                " again"
            ) from error

    def load(self) -> Any:
        """Return the dataset, or its split. Raises InputError if it cannot be loaded, or has no such split."""
        import datasets  # slow to import, and most corpora are files

        try:
            if Path(self.name).is_dir() and not self.streaming:
                data = datasets.load_from_disk(self.name)
            else:
                data = datasets.load_dataset(self.name, revision=self.revision, streaming=self.streaming)
        except Exception as error:  # the library raises many classes for "not there", "no network", "not a dataset"
            raise InputError(
                f"cannot load dataset '{self.name}' ({first_line(error)}): correct the name, or fetch the dataset again"
            ) from error
        if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
            if self.split is None:
                raise InputError(f"dataset '{self.name}' has several splits: choose from {', '.join(data)}")
            if self.split not in data:
                raise InputError(f"dataset '{self.name}' has no split '{self.split}': choose from {', '.join(data)}")
            return data[self.split]
        return data
