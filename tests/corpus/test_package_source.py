"""The source of a package is held to what every source gives, and another version of its code is another source."""

from dataclasses import dataclass

import pyarrow as pa
import pytest

from heldin.base.kinds import Origin
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.package import OfPackage
from heldin.corpus.sources.rows import SCHEMA, SPANS, Source
from tests.refusals import refused

ROWS = {"user": ["ann"], "text": ["hello"], "id": [None], "date": [None]}
BATCH = pa.RecordBatch.from_pydict(ROWS, schema=SCHEMA)


@dataclass(frozen=True)
class Given(Source):
    """A source that gives these batches, and then raises, if it is to."""

    gives: tuple[pa.RecordBatch, ...] = ()
    raises: Exception | None = None

    def fingerprint(self):
        self._raise()
        return "of the content"

    def look(self):
        self._raise()
        return []

    def batches(self, bad):
        yield from self.gives
        self._raise()

    def _raise(self):
        if self.raises is not None:
            raise self.raises


def of_package(source, sha256="a" * 64):
    origin = Origin(family="sources", kind="forum", package="heldin-forum", version="1.0", sha256=sha256)
    return OfPackage(source, origin)


def test_its_batches_are_given_as_they_are():
    with_spans = BATCH.append_column(SPANS.name, pa.array([[[0, 5]]], SPANS.type))
    given = of_package(Given((BATCH, with_spans)))
    assert list(given.batches(BadRows())) == [BATCH, with_spans]
    assert given.look() == []


@pytest.mark.parametrize(
    "read",
    [OfPackage.fingerprint, OfPackage.look, lambda source: list(source.batches(BadRows()))],
    ids=["fingerprint", "look", "batches"],
)
def test_what_it_raises_is_one_line(read):
    source = of_package(Given((BATCH,), ValueError("no thread\nis there")))
    with refused(by="in_one_line", naming=("'forum'", "ValueError", "no thread is there")) as caught:
        read(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [
        BATCH.select(["user", "text"]),
        BATCH.select(["text", "user", "id", "date"]),
        BATCH.append_column("likes", pa.array([3])),
        pa.RecordBatch.from_pydict({**ROWS, "id": [1]}),
    ],
    ids=["fewer", "other order", "more", "other type"],
)
def test_wrong_columns_are_refused(batch):
    batches = of_package(Given((BATCH, batch))).batches(BadRows())
    assert next(batches) == BATCH
    with refused(by="OfPackage.batches", naming=("'forum'", *batch.schema.names)):
        next(batches)


def test_the_fingerprint_follows_content_and_code():
    @dataclass(frozen=True)
    class Other(Given):
        def fingerprint(self):
            return "of other content"

    same, other_code, other = of_package(Given()), of_package(Given(), "b" * 64), of_package(Other())
    assert same.fingerprint() == of_package(Given()).fingerprint()
    assert len({same.fingerprint(), other_code.fingerprint(), other.fingerprint()}) == 3
