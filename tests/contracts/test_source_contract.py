"""What every source of records must do, whatever its format."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.corpus.build import build_store
from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.csv_rows import Csv
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.parquet_rows import Parquet
from heldin.corpus.sources.rows import SCHEMA, Columns, Source

ROWS = [
    {"who": "ann", "body": "Good morning, Bob.", "key": "r1", "when": "2001-01-02"},
    {"who": "bob", "body": 'She said "yes",\nthen left.', "key": "r2", "when": "2001-01-03"},
    {"who": "ann", "body": "Ünïcode — 日本語 🎉", "key": "r3", "when": "2001-01-04"},
]
COLUMNS = Columns(user="who", text="body", id="key", date="when")
Rows = list[dict[str, str]]


def _jsonl(folder: Path, rows: Rows) -> Path:
    path = folder / "mail.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def _jsonl_gz(folder: Path, rows: Rows) -> Path:
    path = folder / "mail.jsonl.gz"
    path.write_bytes(gzip.compress(_jsonl(folder, rows).read_bytes()))
    return path


def _jsonl_zst(folder: Path, rows: Rows) -> Path:
    path = folder / "mail.jsonl.zst"
    path.write_bytes(pa.Codec("zstd").compress(_jsonl(folder, rows).read_bytes(), asbytes=True))
    return path


def _csv(folder: Path, rows: Rows) -> Path:
    path = folder / "mail.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _parquet(folder: Path, rows: Rows) -> Path:
    path = folder / "mail.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _huggingface(folder: Path, rows: Rows) -> Path:
    path = folder / "saved"
    datasets.Dataset.from_list(rows).save_to_disk(str(path))
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "jsonl": _jsonl,
    "jsonl.gz": _jsonl_gz,
    "jsonl.zst": _jsonl_zst,
    "csv": _csv,
    "parquet": _parquet,
    "huggingface": _huggingface,
}
every_source = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


def _read(source: Source, bad: BadRows | None = None) -> list[dict[str, str]]:
    return [row for batch in source.batches(bad or BadRows()) for row in batch.to_pylist()]


@every_source
def test_yields_every_record_in_order_with_the_schema(write, tmp_path):
    source = open_source(write(tmp_path, ROWS), COLUMNS)
    assert all(batch.schema == SCHEMA for batch in source.batches(BadRows()))
    assert _read(source) == [{"user": r["who"], "text": r["body"], "id": r["key"], "date": r["when"]} for r in ROWS]


@every_source
def test_reading_twice_gives_the_same_and_the_fingerprint_follows_content_and_columns(write, tmp_path):
    path = write(tmp_path, ROWS)
    source = open_source(path, COLUMNS)
    assert _read(source) == _read(source)
    assert source.fingerprint() == open_source(path, COLUMNS).fingerprint()
    without_dates = Columns(user="who", text="body", id="key")
    assert source.fingerprint() != open_source(path, without_dates).fingerprint()
    other = tmp_path / "other"
    other.mkdir()
    changed = [*ROWS[:2], {**ROWS[2], "body": "changed"}]
    assert source.fingerprint() != open_source(write(other, changed), COLUMNS).fingerprint()


def _ids(store):
    return {record.id: record.user for record in map(store.record, range(len(store)))}


@every_source
def test_a_made_id_depends_on_the_users_own_records_only(write, tmp_path):
    """Were records named by their place, removing one user would move the set-asides of all others."""
    columns = Columns(user="who", text="body")
    rows = [*ROWS, {**ROWS[0], "key": "again"}]
    source = open_source(write(tmp_path, rows), columns)
    assert {row["id"] for row in _read(source)} == {None}
    whole = build_store(source, tmp_path)
    (tmp_path / "less").mkdir()
    rest = build_store(open_source(write(tmp_path / "less", [r for r in rows if r["who"] != "bob"]), columns), tmp_path)
    assert _ids(rest) == {name: user for name, user in _ids(whole).items() if user != "bob"}
    assert len(_ids(whole)) == len(rows)


@every_source
def test_a_missing_column_names_those_that_exist(write, tmp_path):
    source = open_source(write(tmp_path, ROWS), Columns(user="sender", text="body"))
    with pytest.raises(InputError, match=r"no column 'sender' among the columns who, body, key, when"):
        _read(source)


@every_source
@pytest.mark.parametrize(
    ("change", "message"),
    [({"body": "  \n "}, "no text in column 'body'"), ({"who": ""}, "no user in column 'who'")],
    ids=["blank text", "no user"],
)
def test_an_unusable_row_is_named_by_place_or_counted_and_skipped(write, tmp_path, change, message):
    rows = [ROWS[0], {**ROWS[1], **change}, ROWS[2]]
    source = open_source(write(tmp_path, rows), COLUMNS)
    option = "leave --strict out" if "body" in change else "--skip-bad-rows"
    with pytest.raises(InputError, match=rf"(line|row) \d+: .*{message}.*{option}"):
        _read(source, BadRows(OnBadRows.STRICT))
    bad = BadRows(OnBadRows.SKIP)
    assert [r["id"] for r in _read(source, bad)] == ["r1", "r3"]
    assert bad.skipped == 1
    assert message in str(bad.first)
    # Rows without text are skipped unless told otherwise, and no others.
    if "body" in change:
        assert [r["id"] for r in _read(source)] == ["r1", "r3"]
    else:
        with pytest.raises(InputError, match=message):
            _read(source)


@every_source
def test_users_may_be_numbers(write, tmp_path):
    rows = [{**r, "who": i} for i, r in enumerate(ROWS)]
    assert [r["user"] for r in _read(open_source(write(tmp_path, rows), COLUMNS))] == ["0", "1", "2"]


def test_a_made_corpus_yields_the_schema_and_follows_its_parameters(tmp_path):
    source, spec = Synthetic, SyntheticCorpus
    made = source(spec(users=3, seed=1))
    assert all(batch.schema == SCHEMA for batch in made.batches(BadRows()))
    rows = _read(made)
    assert rows == _read(source(spec(users=3, seed=1)))
    assert len({row["id"] for row in rows}) == len(rows) == len(build_store(made, tmp_path))
    assert len({row["user"] for row in rows}) == 3
    assert made.fingerprint() == source(spec(users=3, seed=1)).fingerprint()
    assert made.fingerprint() != source(spec(users=3, seed=2)).fingerprint()
    assert {row["text"] for row in rows}.isdisjoint(row["text"] for row in _read(source(spec(users=3, seed=2))))


@pytest.mark.parametrize("source", [Json, Csv, Parquet])
def test_a_missing_file_is_named(source, tmp_path):
    with pytest.raises(
        InputError, match=f"no such file: 'gone' in the current folder, '{Path.cwd()}'. Correct the path$"
    ):
        existing(Path("gone"))
    with pytest.raises(InputError, match=r"no such file: '.*gone'\. Correct the path$"):
        source(tmp_path / "gone", COLUMNS).fingerprint()


def test_a_dataset_that_cannot_be_loaded_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot load dataset 'no/such-dataset' \([^\n]+$"):
        HuggingFace("no/such-dataset", columns=COLUMNS).fingerprint()


def test_a_dataset_with_splits_asks_which(tmp_path):
    folder = tmp_path / "splits"
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(folder))
    with pytest.raises(InputError, match="has several splits: choose from train, test"):
        HuggingFace(str(folder), columns=COLUMNS).fingerprint()
    assert len(_read(HuggingFace(str(folder), split="test", columns=COLUMNS))) == 3


def test_an_unknown_ending_names_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"does not read this format: known endings are \.jsonl, "):
        open_source(tmp_path / "mail.wat", COLUMNS)


@pytest.mark.parametrize("role", ["who", "body", "key", "when"])
def test_a_lone_surrogate_in_any_column_is_one_clear_line(tmp_path, role):
    rows = [ROWS[0], {**ROWS[1], role: "\ud800x"}]
    path = tmp_path / "mail.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    with pytest.raises(InputError, match=rf"mail.jsonl line 2: column '{role}' holds a lone surrogate"):
        build_store(open_source(path, COLUMNS), tmp_path)
    assert len(build_store(open_source(path, COLUMNS), tmp_path, on_bad=OnBadRows.SKIP)) == 1


def test_parquet_bytes_that_are_no_text_are_one_clear_line(tmp_path):
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"user": ["ann"], "text": text}), tmp_path / "mail.parquet")
    with pytest.raises(InputError, match="mail.parquet: damaged after row 0"):
        build_store(open_source(tmp_path / "mail.parquet", Columns()), tmp_path)


def test_a_row_that_names_a_key_twice_is_a_bad_row(tmp_path):
    path = tmp_path / "mail.jsonl"
    good = json.dumps({"user": "ann", "text": "hello"})
    path.write_text(f'{good}\n{{"user": "ann", "user": "bob", "text": "x"}}\n', encoding="utf-8")
    with pytest.raises(InputError, match="mail.jsonl line 2: key 'user' is given twice, so its value is ambiguous"):
        _read(open_source(path, Columns()))
    bad = BadRows(OnBadRows.SKIP)
    assert [row["user"] for row in _read(open_source(path, Columns()), bad)] == ["ann"]
    assert bad.skipped == 1
    (tmp_path / "mail.csv").write_text("user,text,user\nann,hello,bob\n", encoding="utf-8")
    with pytest.raises(InputError, match="mail.csv: column 'user' appears twice in the header: rename one"):
        _read(open_source(tmp_path / "mail.csv", Columns()))


def test_a_folder_without_data_says_what_can_be_named(tmp_path):
    with pytest.raises(InputError, match="is a folder without readable data: name a file in this folder"):
        open_source(tmp_path, Columns())
