"""What is particular to a format: where its damage is."""

import gzip
import random

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.base.errors import InputError
from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.csv_rows import Csv
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.parquet_rows import Parquet
from tests.refusals import names, refused

GOOD = b'{"user": "ann", "text": "hello"}\n'


def _users(source, bad=None):
    return [row["user"] for batch in source.batches(bad or BadRows()) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("line", "by", "naming"),
    [
        (b'{"user": "ann", "text": \n', "_lines", ("mail.jsonl", "line 2", "JSON")),
        (b'{"user": "ann", "text": "caf\xe9"}\n', "_lines", ("mail.jsonl", "line 2", "UTF-8")),
        (b'["ann", "hello"]\n', "batched", ("mail.jsonl", "line 2", "JSON", "list")),
        (b'{"user": "ann", "text": 5}\n', "batched", ("mail.jsonl", "line 2", "'text'", "number")),
        (b'{"user": null, "text": "x"}\n', "batched", ("mail.jsonl", "line 2", "'user'")),
        (b'{"user": "ann", "text": "\\ud800"}\n', "batched", ("mail.jsonl", "line 2", "'text'")),
    ],
    ids=["broken", "latin-1", "list", "number", "null user", "surrogate"],
)
def test_a_bad_line_is_told_by_file_and_line_or_skipped(tmp_path, line, by, naming):
    path = tmp_path / "mail.jsonl"
    path.write_bytes(GOOD + line + GOOD)
    with refused(by=by, naming=naming):
        _users(Json(path))
    bad = BadRows(OnBadRows.SKIP)
    assert _users(Json(path), bad) == ["ann", "ann"]
    assert bad.skipped == 1


def test_blank_lines_and_a_byte_order_mark_are_not_errors(tmp_path):
    path = tmp_path / "mail.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\n" + GOOD)
    assert _users(Json(path)) == ["ann", "ann"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:40] + b"\x00" * 20 + b[60:]], ids=["cut", "hit"]
)
@pytest.mark.parametrize(
    ("source", "name", "by"),
    [(Json, "m.jsonl.gz", "_lines"), (Csv, "m.csv.gz", "_first_lines")],
    ids=["jsonl", "csv"],
)
def test_a_corrupt_gzip_is_told_and_never_skipped(tmp_path, source, name, by, damage):
    path = tmp_path / name
    content = b"user,text\n" + b"ann,hello there\n" * 9999 if source is Csv else GOOD * 9999
    path.write_bytes(damage(gzip.compress(content)))
    with refused(by=by, naming=(name, "gzip")):
        _users(source(path), BadRows(OnBadRows.SKIP))


def test_a_csv_row_with_too_many_or_too_few_fields(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("user,text\nann,hello\nbob\ncid,a,b\n", encoding="utf-8")
    with refused(by="csv_rows", naming=("m.csv", "line 3", "2")):
        _users(Csv(path))
    bad = BadRows(OnBadRows.SKIP)
    assert _users(Csv(path), bad) == ["ann"]
    assert bad.skipped == 2


def test_a_csv_in_latin_1_and_an_empty_one(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes("user,text\nann,plain\nbob,café\ncid,plain\n".encode("latin-1"))
    with refused(by="csv_rows", naming=("m.csv", "line 3", "UTF-8")):
        _users(Csv(path))
    assert _users(Csv(path), BadRows(OnBadRows.SKIP)) == ["ann", "cid"]
    path.write_bytes(b"")
    with refused(by="_first_lines", naming="m.csv"):
        _users(Csv(path))


def test_a_parquet_file_that_is_none(tmp_path):
    path = tmp_path / "m.parquet"
    path.write_bytes(b"PAR1 but no more")
    with refused(by="_open", naming="m.parquet"):
        _users(Parquet(path))


def test_a_parquet_file_with_a_damaged_page(tmp_path):
    path = tmp_path / "m.parquet"
    rows = {"user": [f"u{i}" for i in range(5000)], "text": [f"text number {i * 7919}" for i in range(5000)]}
    pq.write_table(pa.table(rows), path)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(255 for _ in range(396))
    path.write_bytes(bytes(content))
    with refused(by="whole_rows", naming=("m.parquet", "row 0")):
        _users(Parquet(path))


def _table(rows=200):
    columns = {"user": [f"u{i % 7}" for i in range(rows)], "text": [f"text number {i}" for i in range(rows)]}
    return pa.table({**columns, "more": pa.array(range(rows))})


def test_a_parquet_file_with_a_damaged_footer_is_one_line_and_never_other_rows(tmp_path):
    path, rng = tmp_path / "m.parquet", random.Random(0)
    pq.write_table(_table(), path, row_group_size=64)
    whole = path.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    truth, refused = _users(Parquet(path)), 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(3):
            content[rng.randrange(begin, len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
        try:
            assert _users(Parquet(path)) == truth
        except InputError as error:
            refused += 1
            line = str(error)
        assert refused == 0 or ("\n" not in line and "m.parquet" in line)
    assert 100 < refused < 300


def test_a_parquet_file_of_which_rows_are_lost_is_refused(tmp_path, monkeypatch):
    """As one whose footer states other numbers of values: Arrow reads what it states."""
    path = tmp_path / "m.parquet"
    pq.write_table(_table(), path, row_group_size=64)
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, *_, **__: iter(self.read().slice(0, 150).to_batches())
    )
    with refused(by="_rows", naming=("m.parquet", "200", "150")):
        _users(Parquet(path))


@pytest.mark.parametrize("twice", ["text", "other"])
def test_a_parquet_file_with_a_column_name_twice_is_refused(call, tmp_path, twice):
    path = tmp_path / "m.parquet"
    columns = ["user", "text", "other", twice]
    pq.write_table(pa.table([["ann"], ["first"], ["x"], ["second"]], names=columns), path)
    code, _, err = call("corpus", "build", path)
    assert (code, len(err.splitlines())) == (2, 1)
    assert names(err, "m.parquet", f"'{twice}'")


def test_a_saved_dataset_with_damaged_files_is_one_line_or_the_same_rows(tmp_path):
    folder, rng = tmp_path / "saved", random.Random(0)
    datasets.Dataset(_table()).save_to_disk(str(folder))
    truth, refused = _users(HuggingFace(str(folder))), 0
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for _ in range(20):
            content = bytearray(whole)
            for _ in range(3):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(bytes(content[: rng.choice([len(content), len(content) // 2])]))
            try:
                _users(HuggingFace(str(folder)))
            except InputError as error:
                refused += 1
                line = str(error)
            assert refused == 0 or ("\n" not in line and "saved" in line)
        file.write_bytes(whole)
    assert refused > 10
    assert _users(HuggingFace(str(folder))) == truth


def test_the_synthetic_source_yields_the_generators_records():
    spec = SyntheticCorpus(users=3, mean_records=12, min_records=12, seed=5)
    assert len(set(_users(Synthetic(spec)))) == 3
    assert Synthetic(spec).fingerprint() != Synthetic(SyntheticCorpus(users=3, seed=6)).fingerprint()


def test_parquet_is_read_in_memory_that_does_not_grow_with_the_file(tmp_path):
    path, users = tmp_path / "m.parquet", [f"u{i % 7}" for i in range(4096)]
    # Incompressible, so that what is kept of the file weighs as much as the file.
    noise = np.random.default_rng(0).integers(0, 256, (40, 4096, 100), dtype=np.uint8)
    schema = pa.schema({"user": pa.string(), "text": pa.string()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for group in noise:
            writer.write_table(pa.table([users, [row.tobytes().hex() for row in group]], schema=schema))
    before, most = pa.total_allocated_bytes(), 0
    for _ in Parquet(path).batches(BadRows()):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < path.stat().st_size / 3
