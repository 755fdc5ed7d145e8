"""The built-in corpus of made-up people's mail as a source."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from heldin.base.files import text_sha256
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.contract import SourceConfig, SourceSize
from heldin.corpus.sources.rows import Columns, Source, batched


@dataclass(frozen=True)
class Synthetic(Source):
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)

    def fingerprint(self) -> str:
        """Hash of the generator's parameters."""
        return text_sha256("synthetic", repr(self.spec))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        rows = ({"user": r.user, "text": r.text, "id": r.id, "date": r.date} for r in generate(self.spec))
        return batched(enumerate(rows, start=1), "synthetic", "row", Columns(id="id", date="date"), bad)


class SyntheticCorpusConfig(SourceConfig):
    """The built-in corpus."""

    kind: Literal["synthetic"]
    parameters: SyntheticCorpus = SyntheticCorpus()
    """How many users write, and how much they differ."""

    def source(self) -> Source:
        """The source that generates it."""
        return Synthetic(self.parameters)

    def size(self) -> SourceSize:
        """The number of records to expect."""
        return SourceSize(records=int(self.parameters.users * self.parameters.mean_records))

    def most_users(self) -> int:
        """The number of made-up users."""
        return self.parameters.users
