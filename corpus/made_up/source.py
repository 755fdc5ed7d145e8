"""The built-in corpus of made-up people's mail as a source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pydantic import PrivateAttr

from heldin.base.files import text_sha256
from heldin.corpus.made_up.chats import chat_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.contract import SourceConfig, SourceSize
from heldin.corpus.sources.rows import Columns, Source, batched

_COLUMNS = Columns(id="id", date="date")


@dataclass(frozen=True)
class Synthetic(Source):
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)
    columns: Columns = _COLUMNS

    def fingerprint(self) -> str:
        """Hash of the generator's parameters, and of how chats are read."""
        chats = () if self.columns == _COLUMNS else (repr(self.columns),)
        return text_sha256("synthetic", repr(self.spec), *chats)

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        mails = ({"user": r.user, "text": r.text, "id": r.id, "date": r.date} for r in generate(self.spec))
        rows = mails if self.columns == _COLUMNS else chat_rows(self.spec)
        return batched(enumerate(rows, start=1), "synthetic", "row", self.columns, bad)


class SyntheticCorpusConfig(SourceConfig):
    """The built-in corpus."""

    _columns: Columns = PrivateAttr(_COLUMNS)
    kind: Literal["synthetic"]
    parameters: SyntheticCorpus = SyntheticCorpus()
    """How many users write, and how much they differ."""
    chats: bool = False
    """Each mail as a chat of two turns: a request, and the mail as the assistant's answer."""

    def source(self) -> Source:
        """The source that generates it."""
        return Synthetic(self.parameters, self._columns)

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first chat; None for mails."""
        return next(chat_rows(self.parameters), None) if self.chats else None

    def named_columns(self) -> Columns:
        """Return the generator's own."""
        return _COLUMNS

    def reading(self, columns: Columns) -> SourceConfig:
        """Return the same corpus, whose chats are read by these columns. Raises InputError if it has mails."""
        if not self.chats:
            return super().reading(columns)
        read = self.model_copy()
        read._columns = columns
        return read

    def size(self) -> SourceSize:
        """The number of records to expect."""
        return SourceSize(records=int(self.parameters.users * self.parameters.mean_records))

    def most_users(self) -> int:
        """The number of made-up users."""
        return self.parameters.users
