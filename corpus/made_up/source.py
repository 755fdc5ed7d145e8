"""The built-in corpus of made-up people's mail, as a source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pydantic import PrivateAttr

from heldin.base.files import text_sha256
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.contract import SourceConfig, SourceSize
from heldin.corpus.sources.rows import Columns, Source, batched

_COLUMNS = Columns(id="id", date="date")
_TURNS = "2"  # of what chats and pairs are made of; raised if that changes, or a cached corpus would be read


@dataclass(frozen=True)
class Synthetic(Source):
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)
    columns: Columns = _COLUMNS
    rows: MadeUpRows = MadeUpRows.MAILS

    def fingerprint(self) -> str:
        """Hash of the generator's parameters, and of the reading of turns."""
        turns = (repr(self.columns), self.rows, _TURNS) if self.rows.have_turns else ()
        return text_sha256("synthetic", repr(self.spec), *turns)

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records, which are never bad rows."""
        rows = made_up_rows(self.spec, self.rows)
        return batched(enumerate(rows, start=1), "synthetic", "row", self.columns, bad)


class SyntheticCorpusConfig(SourceConfig):
    """The built-in corpus."""

    _columns: Columns = PrivateAttr(_COLUMNS)
    kind: Literal["synthetic"]
    parameters: SyntheticCorpus = SyntheticCorpus()
    """Settings of the made-up users and their texts."""
    rows: MadeUpRows = MadeUpRows.MAILS
    """Content of the rows. mails: texts of mails. chats: chats in which the assistant answers a request with a mail.
    pairs: preference pairs of a mail and a draft.
    """

    def source(self) -> Source:
        """Return the source that generates the corpus."""
        return Synthetic(self.parameters, self._columns, self.rows)

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row; None for mails."""
        return next(made_up_rows(self.parameters, self.rows), None) if self.rows.have_turns else None

    def named_columns(self) -> Columns:
        """Return the generator's columns."""
        return _COLUMNS

    def reading(self, columns: Columns) -> SourceConfig:
        """Return this corpus with its turns read by these columns. Raises InputError if it has mails."""
        if not self.rows.have_turns:
            return super().reading(columns)
        read = self.model_copy()
        read._columns = columns
        return read

    def size(self) -> SourceSize:
        """Return the expected number of records."""
        return SourceSize(records=int(self.parameters.users * self.parameters.mean_records))

    def most_users(self) -> int:
        """Return the number of made-up users."""
        return self.parameters.users
