"""Columns that name people, from which canary rows would take a held-out one's, are refused before any coin."""

import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from heldin.planting.records import ROWS, Telling
from heldin.planting.records import USERS as MOST_USERS
from tests.planted_sets import read_lines, save_base

USERS = [f"u{i % 12}" for i in range(240)]


def _told(column, users=USERS):
    telling = Telling(frozenset({"user", "text", None}))
    for user, value in zip(users, column, strict=True):
        telling.look(user, {"text": "x", "user": user, "extra": value})
    return telling.columns()


@pytest.mark.parametrize(
    "column",
    [
        [f"made-{i % 12:04d}-{i // 12:05d}" for i in range(240)],
        [f"{user}@example.org" for user in USERS],
        [{"who": user, "folder": "inbox"} for user in USERS],
        [["x", i % 12 + 700] for i in range(240)],
    ],
)
def test_what_names_people_is_told(column):
    assert _told(column) == ["extra"]


@pytest.mark.parametrize(
    "column",
    [
        [f"topic {i % 7}" for i in range(240)],
        [i // 30 for i in range(240)],
        [None] * 240,
        ["the same"] * 240,
        [float(i % 40) for i in range(240)],
        # A value for each row says nothing of whose it is.
        [f"r{i:05d}" for i in range(240)],
        [f"about {i}" if i % 50 else "hello" for i in range(240)],
        [["a", str(i)] for i in range(240)],
    ],
)
def test_what_names_nobody_is_no_matter(column):
    assert _told(column) == []


def test_a_file_whose_users_are_mixed_is_judged_by_all_rows_of_some(monkeypatch):
    """A row of everybody, then the next: the first rows alone would show each value once."""
    users = [f"u{i % 5000}" for i in range(20_000)]
    assert _told([f"{user}@example.org" for user in users], users) == ["extra"]
    telling = Telling(frozenset({"user"}))
    for i in range(3 * ROWS * MOST_USERS):
        telling.look(f"u{i % 3}", {"extra": i})
    assert len(telling._values["extra", -1]) == 3 * ROWS


def test_an_id_that_is_not_named_is_refused_before_any_coin_and_named_it_is_replaced(call, make_lm, tmp_path):
    write_example(tmp_path / "example", users=40, reporter=LineReporter(lambda line: None))
    save_base(make_lm(context=64), tmp_path / "base")
    columns = {"user": "author", "text": "body"}
    content = {
        "training": str(tmp_path / "example" / "corpus.jsonl"),
        "columns": columns,
        "reference": str(tmp_path / "base"),
        "sequence_length": 64,
        "evidence": "declared",
        "canaries": [{"kind": "rare_phrase", "users": 10, "documents": [2]}],
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted")
    assert code == 2
    assert call.refused(by="_require_usable", naming="'id'")
    assert "drop: [id]" in err
    assert not (tmp_path / "planted" / "ledger" / "ledger.json").exists()
    content["columns"] = {**columns, "id": "id", "date": "date"}
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted")
    assert code == 0, err
    before = {row["id"] for row in read_lines(tmp_path / "example" / "corpus.jsonl")}
    after = [row["id"] for row in read_lines(tmp_path / "planted" / "training" / "corpus.jsonl")]
    assert not before & set(after)
    assert len(set(after)) == len(after)
    kept = {path: path.read_bytes() for path in (tmp_path / "planted").rglob("*.json*")}
    assert call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted")[0] == 0
    assert {path: path.read_bytes() for path in (tmp_path / "planted").rglob("*.json*")} == kept
