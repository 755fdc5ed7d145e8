"""Documents: parts of a text that count, from the rows of a source to the store and what is made of it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.corpus.build import build_store
from heldin.corpus.config import CorpusConfig
from heldin.corpus.document import Document
from heldin.corpus.sources.bad_rows import BadRowError, OnBadRows
from heldin.corpus.sources.open import Several, open_source
from heldin.corpus.sources.rows import SCHEMA, SPANS, Columns
from heldin.corpus.statistics import corpus_statistics
from heldin.corpus.store import write_corpus
from tests.refusals import refused

COLUMNS = Columns(spans="spans")
ROWS = [
    {"user": "b", "text": "asked: answered", "spans": [[7, 15]]},
    {"user": "a", "text": "all of it"},
    {"user": "a", "text": "one two three", "spans": [[0, 3], [8, 13]]},
    {"user": "b", "text": "nothing of it", "spans": []},
    {"user": "a", "text": "all of it", "spans": None},
]


def _lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _document(row):
    spans = row.get("spans")
    return Document.of(row["text"]) if spans is None else Document(row["text"], tuple(map(tuple, spans)))


@st.composite
def documents(draw):
    """Any text with any parts of it."""
    text = draw(st.text(alphabet="ab c\nä🙂", max_size=30))
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return Document(text, tuple(zip(places[::2], places[1::2], strict=False)))


@pytest.mark.parametrize("spans", [((2, 1),), ((0, 3), (2, 4)), ((0, 5),), ((-1, 2),), ((3, 4), (0, 1))])
def test_parts_outside_of_the_text_or_out_of_order_are_no_document(spans):
    with pytest.raises(ValueError, match="part"):
        Document("four", spans)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(documents(), st.integers(0, 35))
def test_a_cut_document_has_what_counts_of_the_characters_that_are_left(document, most):
    counts = {i for begin, end in document.spans for i in range(begin, end)}
    assert document.counted == "".join(document.text[i] for i in sorted(counts))
    cut = document.cut(most)
    assert cut.text == document.text[:most]
    assert {i for begin, end in cut.spans for i in range(begin, end)} == {i for i in counts if i < most}
    assert Document.of(document.text).cut(most) == Document.of(document.text[:most])


def test_a_store_has_the_parts_of_every_row_and_a_plain_one_no_column_for_them(tmp_path):
    path = _lines(tmp_path / "rows.jsonl", ROWS)
    store = build_store(open_source(path, COLUMNS), tmp_path / "cache")
    expected = {(row["user"], _document(row)) for row in ROWS}
    assert store.has_spans
    assert {(store.record(row).user, store.document(row)) for row in range(5)} == expected
    rows = np.array([4, 0, 2])
    assert store.documents_at(rows) == [store.document(row) for row in rows.tolist()]
    assert [store.text(row) for row in range(5)] == [store.record(row).text for row in range(5)]
    assert list(store.counted_texts()) == [store.document(row).counted for row in range(5)]
    assert corpus_statistics(store).duplicates_within_users == 1
    # Without any part the same columns make the store of a plain corpus, byte for byte.
    plain = [{"user": row["user"], "text": row["text"], "spans": None} for row in ROWS]
    one = build_store(open_source(_lines(tmp_path / "plain.jsonl", plain), COLUMNS), tmp_path / "one")
    two = build_store(open_source(tmp_path / "plain.jsonl", Columns()), tmp_path / "two")
    assert one.table.schema == two.table.schema == SCHEMA
    assert not one.has_spans
    assert (one.folder / "records.arrow").read_bytes() == (two.folder / "records.arrow").read_bytes()
    assert one.document(0) == Document.of(one.text(0))


@pytest.mark.parametrize("first", ["plain", "parted"])
def test_stores_with_and_without_parts_are_joined(first, tmp_path):
    plain = open_source(_lines(tmp_path / "plain.jsonl", [{"user": "a", "text": "old"}]), Columns())
    parted = open_source(_lines(tmp_path / "rows.jsonl", ROWS), COLUMNS)
    both = (plain, parted) if first == "plain" else (parted, plain)
    build_store(both[0], tmp_path / "cache")
    appended = build_store(Several(both), tmp_path / "cache")
    afresh = build_store(Several(both), tmp_path / "another")
    found = [(appended.record(row).user, appended.document(row)) for row in range(6)]
    assert sorted(found, key=str) == sorted(
        [*((r["user"], _document(r)) for r in ROWS), ("a", Document.of("old"))], key=str
    )
    assert afresh.table.equals(appended.table)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_written_corpus_is_read_again_with_its_parts(ending, tmp_path):
    store = build_store(open_source(_lines(tmp_path / "rows.jsonl", ROWS), COLUMNS), tmp_path / "cache")
    write_corpus(store, tmp_path / f"out.{ending}")
    again = build_store(
        open_source(tmp_path / f"out.{ending}", Columns(id="id", date="date", spans="spans")), tmp_path / "again"
    )
    assert again.table.equals(store.table)


@pytest.mark.parametrize(
    "spans",
    ["[[0, 2]]", [0, 2], [[0]], [[0, 1.5]], [[0, "2"]], [[2, 1]], [[0, 99]], [[0, 3], [2, 4]], [[True, 2]], {}, 3],
)
def test_a_row_whose_parts_are_none_is_named_or_skipped(spans, tmp_path):
    path = _lines(tmp_path / "rows.jsonl", [*ROWS[:2], {"user": "c", "text": "four", "spans": spans}])
    with pytest.raises(BadRowError) as caught:
        build_store(open_source(path, COLUMNS), tmp_path / "cache")
    assert all(part in str(caught.value) for part in ("rows.jsonl", "line 3", "'spans'", "4", "[[0, 12]]"))
    store = build_store(open_source(path, COLUMNS), tmp_path / "cache", on_bad=OnBadRows.SKIP)
    assert (len(store), store.report.skipped.unusable) == (2, 1)


def test_a_column_of_parts_that_is_not_there_is_named(tmp_path):
    table = pa.table({"user": ["a"], "text": ["x"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with refused(by="require_columns", naming=("'spans'", "rows.parquet")):
        build_store(open_source(tmp_path / "rows.parquet", COLUMNS), tmp_path / "cache")


def test_sentences_are_not_cut_from_texts_of_which_parts_count(tmp_path):
    source = {"kind": "jsonl", "path": str(tmp_path / "x.jsonl"), "columns": {"spans": "spans"}}
    CorpusConfig.model_validate({"source": source})
    with pytest.raises(ValueError, match=r"text_unit: sentence.*columns\.spans"):
        CorpusConfig.model_validate({"source": source, "text_unit": "sentence"})


def test_the_schema_of_batches_says_whether_parts_are_named():
    assert Columns().schema == SCHEMA
    assert COLUMNS.schema == SCHEMA.append(SPANS)
