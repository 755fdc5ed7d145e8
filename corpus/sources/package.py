"""A source that an installed package adds. Another version of the package's code counts as another source."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.kinds import Origin, in_one_line
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import SCHEMA, Source, is_of_a_source
from heldin.words.statement import Statement


@dataclass(frozen=True)
class OfPackage(Source):
    """The records of a package's source. heldin checks them against the rules for every source.

    Attributes:
        source: the source of the package.
        origin: the code of the source.
    """

    source: Source
    origin: Origin

    def fingerprint(self) -> str:
        """Hash of the source's fingerprint and of the code, so a store of another code version is not reused."""
        with self._in_one_line():
            return text_sha256("package", self.origin.sha256, self.source.fingerprint())

    def look(self) -> list[Statement]:
        """Check the source."""
        with self._in_one_line():
            return self.source.look()

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the source's batches. Raises InputError for a batch without the columns that every source has."""
        batches = iter(self.source.batches(bad))
        while True:
            with self._in_one_line():
                batch = next(batches, None)
            if batch is None:
                return
            if not is_of_a_source(batch.schema):
                raise InputError(
                    f"corpus source '{self.origin.kind}' gives the columns {', '.join(map(str, batch.schema))}: give"
                    f" {', '.join(map(str, SCHEMA))}, with heldin.corpus.sources.rows.batched"
                )
            yield batch

    def _in_one_line(self) -> AbstractContextManager[None]:
        return in_one_line(f"corpus source '{self.origin.kind}'", ours=False)
