"""Made-up corpora as sources."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from heldin.base.files import text_sha256
from heldin.corpus.made_up.markov import MarkovCorpus
from heldin.corpus.made_up.markov import generate as generate_markov
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.sources.rows import BadRows, Columns, batched


@dataclass(frozen=True)
class Synthetic:
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)

    def fingerprint(self) -> str:
        """Hash of the generator's parameters."""
        return text_sha256("synthetic", repr(self.spec))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        rows = ({"user": r.user, "text": r.text, "id": r.id, "date": r.date} for r in generate(self.spec))
        return batched(enumerate(rows, start=1), "synthetic", "row", Columns(id="id", date="date"), bad)


@dataclass(frozen=True)
class Markov:
    """Sequences of users' Markov chains as text: a corpus in which every probability is known."""

    spec: MarkovCorpus = field(default_factory=MarkovCorpus)

    def fingerprint(self) -> str:
        """Hash of the generator's parameters."""
        return text_sha256("markov", repr(self.spec))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        rows = ({"user": r.user, "text": r.text, "id": r.id} for r in generate_markov(self.spec))
        return batched(enumerate(rows, start=1), "markov", "row", Columns(id="id"), bad)
