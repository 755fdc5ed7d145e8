"""Training sets that cannot be planted are refused in one line, before any coin; odd ones keep what they hold."""

import datetime as dt
import json
from decimal import Decimal

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.planting.plant import plant
from tests.planted_sets import COLUMNS, base, plan, read_lines, rows, write_lines
from tests.refusals import refused

__all__ = ["base", "rows"]  # fixtures

NESTED = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])
QUIET = LineReporter(lambda line: None)


def _plain(rows):
    return pa.Table.from_pylist([{name: row[name] for name in COLUMNS.values()} for row in rows])


def test_columns_of_many_types_keep_their_values(rows, base, tmp_path):
    count = len(rows)
    more = {
        "when": pa.array([1234567890123456789 + i for i in range(count)], pa.timestamp("ns")),
        "zone": pa.array(range(count), pa.timestamp("us", tz="Europe/Rome")),
        "price": pa.array([Decimal(i) / 4 for i in range(count)], pa.decimal128(20, 2)),
        "day": pa.array([dt.date(2001, 1, 1) + dt.timedelta(i) for i in range(count)]),
        "kind": pa.array([f"k{i % 3}" for i in range(count)]).dictionary_encode(),
        "nested": pa.array([{"a": [i, None], "b": None} for i in range(count)], NESTED),
        "some": pa.array([[("x", i)] for i in range(count)], pa.map_(pa.string(), pa.int32())),
        "bytes": pa.array([bytes([i % 256]) for i in range(count)]),
        "large": pa.array([2**64 - 1 - i for i in range(count)], pa.uint64()),
        "nothing": pa.nulls(count),
    }
    table = _plain(rows)
    for name, its in more.items():
        table = table.append_column(name, its)
    pq.write_table(table, tmp_path / "mine.parquet")
    plant(plan(tmp_path / "mine.parquet", base, canaries=[]), tmp_path / "out", QUIET)
    written = pq.read_table(tmp_path / "out" / "training" / "mine.parquet")
    place = {text: i for i, text in enumerate(table["body"].to_pylist())}
    before = table.take([place[text] for text in written["body"].to_pylist()])
    assert len(written) > 100
    for name in (*more, "sent"):
        # By value: Parquet numbers the entries of a dictionary anew.
        values = [(its.cast(pa.string()) if name == "kind" else its) for its in (written[name], before[name])]
        assert values[0].combine_chunks().equals(values[1].combine_chunks()), name


@pytest.mark.parametrize(
    ("column", "naming"),
    [
        (pa.array([dt.timedelta(seconds=1)] * 480), "'odd'"),
        (pa.array([1.5] * 480, pa.float32()).cast(pa.float16()), "'odd'"),
        (pa.array([Decimal(1)] * 480, pa.decimal256(50, 2)), ("'odd'", "decimal256")),
    ],
)
def test_a_column_that_cannot_be_sorted_is_named_before_any_coin(column, naming, rows, base, tmp_path):
    pq.write_table(_plain(rows).append_column("odd", column), tmp_path / "mine.parquet")
    with refused(by="TrainingSet.check", naming=naming):
        plant(plan(tmp_path / "mine.parquet", base), tmp_path / "out", QUIET)
    assert not (tmp_path / "out" / "ledger" / "ledger.json").exists()


def test_two_columns_of_one_name_and_a_damaged_file_are_refused(rows, base, tmp_path):
    pq.write_table(_plain(rows).append_column("BODY", pa.nulls(480)), tmp_path / "mine.parquet")
    with refused(by="TrainingSet.check", naming="'body'"):
        plant(plan(tmp_path / "mine.parquet", base), tmp_path / "out", QUIET)
    data = (tmp_path / "mine.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(data[: len(data) // 2])
    with refused(naming="half.parquet"):
        plant(plan(tmp_path / "half.parquet", base), tmp_path / "new", QUIET)
    (tmp_path / "folder").mkdir()
    with refused(by="HuggingFace.load", naming=("folder", "`DatasetDict`")):
        plant(plan(tmp_path / "folder", base), tmp_path / "other", QUIET)


@pytest.mark.parametrize(
    ("name", "column", "by", "naming"),
    [
        ("odd", pa.array([dt.time(1)] * 480, pa.time64("ns")), "TrainingSet.check", ("'odd'", "time64")),
        ("odd", pa.array([[dt.time(1)]] * 480, pa.list_(pa.time64("ns"))), "TrainingSet.check", "'odd'"),
        ("", pa.array([1] * 480), "TrainingSet.check", "mine.parquet"),
        ("odd", pa.array([10**18] * 480, pa.timestamp("us")), "whole_rows", ("mine.parquet", "row 0")),
        ("author", pa.array([i % 40 for i in range(480)], pa.int8()), "TrainingSet._check_names", "int8"),
    ],
)
def test_columns_that_would_be_changed_are_refused(name, column, by, naming, rows, base, tmp_path):
    table = _plain(rows)
    table = table.drop_columns([name]) if name in table.column_names else table
    pq.write_table(table.append_column(name, column), tmp_path / "mine.parquet")
    with refused(by=by, naming=naming):
        plant(plan(tmp_path / "mine.parquet", base), tmp_path / "out", QUIET)
    assert not (tmp_path / "out" / "ledger" / "ledger.json").exists()


def test_names_that_go_with_the_data_are_refused(rows, base, tmp_path):
    plain = _plain(rows)
    saved = datasets.Dataset(plain).class_encode_column("author")
    saved.save_to_disk(str(tmp_path / "saved"))
    saved.to_parquet(str(tmp_path / "mine.parquet"))
    for name in ("saved", "mine.parquet"):
        with refused(by="TrainingSet._check_names", naming=("'author'", "ClassLabel")):
            plant(plan(tmp_path / name, base), tmp_path / "out", QUIET)
    with refused(by="PlantConfig._run_can_be_done", naming="save_to_disk"):
        plan(tmp_path / "mine.parquet", base, dataset_split="train")


def test_a_lone_surrogate_in_another_column_is_written_as_it_was(rows, base, tmp_path):
    lines = write_lines([{**row, "tags": ["\ud800"]} for row in rows], tmp_path / "mine.jsonl")
    plant(plan(lines, base, canaries=[]), tmp_path / "out", QUIET)
    assert all(row["tags"] == ["\ud800"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"canaries": [{"kind": "substring", "lengths": [40], "users": 3}]}, "sequence_length"),
        ({"looks": 100, "decision": {"auroc_level": 1e-3, "tpr_level": 1e-3, "redraws": 999}}, None),
    ],
)
def test_what_a_run_refuses_is_refused_before_anything_is_read(changes, said, rows, base, tmp_path):
    lines = write_lines(rows, tmp_path / "mine.jsonl")
    if said is None:
        # As many redraws as the shares of that many looks need.
        assert plan(lines, base, **changes).run_config(lines).decision.redraws >= 99_999
        return
    with pytest.raises(InputError, match=said):
        plan(lines, base, **changes)


def test_what_is_wrong_with_a_training_set_is_said_in_the_words_of_its_config(rows, base, tmp_path, call):
    def ended(content, **changes):
        lines = tmp_path / "mine.jsonl"
        lines.write_text(content, encoding="utf-8")
        file = tmp_path / "plant.yaml"
        file.write_text(json.dumps({**plan(lines, base).model_dump(mode="json"), **changes}), encoding="utf-8")
        code, _, err = call("plant", file, "--out", tmp_path / "out")
        assert code == 2
        assert len(err.strip().splitlines()[-1]) < 500
        return err

    row = json.dumps(rows[0])
    ended("5\n" + row)
    assert call.refused(by="TrainingSet.rows", naming=("mine.jsonl", "line 1", "--skip-bad-rows"))
    blank = json.dumps({**rows[0], "body": " "})
    ended(f"{blank}\n{blank}\n", bad_rows="skip")
    assert call.refused(by="_require_usable", naming=("mine.jsonl", "line 1", "'body'"))
    ended(row, columns={**COLUMNS, "user": "writer"})
    # There may be no users; a slip shows that there are.
    assert call.refused(by="require_columns", naming=("'writer'", "'columns'", "split.canaries_only"))
    slip = ended(row, columns={**COLUMNS, "user": f"{COLUMNS['user']}x"})
    assert call.refused(by="require_columns", naming=(f"'{COLUMNS['user']}x'", "'columns'"))
    assert "split.canaries_only" not in slip
    ended(row, training=str(tmp_path / "nothing.jsonl"))
    assert call.refused(by="require_readable", naming=(f"'{tmp_path / 'nothing.jsonl'}'", "'training'"))


def test_a_mistyped_column_is_seen_before_any_model_is_loaded(rows, base, tmp_path, monkeypatch):
    import heldin.planting.plant as planting

    monkeypatch.setattr(planting, "load_language_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for name in ("mine.jsonl", "mine.csv", "mine.parquet"):
        path = _written(rows, tmp_path / name)
        with refused(by="require_columns", naming=(name, "'writer'")):
            plant(plan(path, base, columns={**COLUMNS, "user": "writer"}), tmp_path / "out", QUIET)


def _written(rows, path):
    plain = [{key: row[key] for key in COLUMNS.values()} for row in rows[:3]]
    table = pd.DataFrame(plain)
    {
        ".jsonl": lambda: table.to_json(path, orient="records", lines=True),
        ".csv": lambda: table.to_csv(path, index=False),
        ".parquet": lambda: table.to_parquet(path),
    }[path.suffix]()
    return path


@pytest.mark.parametrize(("sign", "encoding"), [(";", "cp1252"), ("\t", "utf-8")])
def test_a_table_is_written_as_it_was_read(rows, base, tmp_path, sign, encoding):
    plain = [{**{key: row[key] for key in COLUMNS.values()}, "ort": "Köln"} for row in rows]
    path = tmp_path / "mine.csv"
    pd.DataFrame(plain).to_csv(path, index=False, sep=sign, encoding=encoding)
    form = {"encoding": encoding} if encoding != "utf-8" else {}
    manifest = plant(plan(path, base, format=form, canaries=[]), tmp_path / "out", QUIET)
    written = pd.read_csv(tmp_path / "out" / "training" / "mine.csv", sep=sign, encoding=encoding)
    assert len(written) == manifest.rows
    assert set(written["ort"]) == {"Köln"}
    assert set(written["body"]) <= {row["body"] for row in plain}


def test_an_array_is_written_as_one_and_a_list_within_an_object_is_refused(rows, base, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    manifest = plant(plan(path, base, canaries=[]), tmp_path / "out", QUIET)
    written = json.loads((tmp_path / "out" / "training" / "mine.json").read_text(encoding="utf-8"))
    assert len(written) == manifest.rows
    assert written[0].keys() == rows[0].keys()
    with refused(naming="format.field"):
        plan(path, base, format={"field": "data"})
