"""The corpus with canary users in it: rows keep their numbers, replaced users are gone, files are owner-only."""

import json
import stat

import numpy as np
import pytest

from heldin.canaries.planted import load_canaries, save_canaries
from heldin.canaries.users import Canary, CanaryRecord, CanaryUser
from heldin.corpus.build import build_store
from heldin.corpus.document import Document
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from tests.refusals import refused

USERS = [
    CanaryUser(
        Canary("canary/b", "substring", 3, None, "bob", "the shared words"),
        tuple(CanaryRecord(f"b{i}", Document.of(f"text {i} the shared words"), "2020", 6) for i in range(3)),
    ),
    CanaryUser(
        Canary("canary/a", "unseen_token", None, 2, None, "~^~"),
        tuple(CanaryRecord(f"a{i}", Document.of(f"~^~ {i}")) for i in range(4)),
    ),
]


@pytest.fixture
def store(tmp_path):
    rows = [
        {"user": u, "text": f"{u} writes {i}", "id": f"{u}-{i}"} for u in ("ann", "bob", "cyd", "zoe") for i in range(3)
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return build_store(Json(path, Columns(id="id")), tmp_path)


@pytest.fixture
def folder(tmp_path):
    save_canaries(USERS, tmp_path / "canaries", origin="x")
    return tmp_path / "canaries"


def test_what_was_planted_is_read_and_who_was_replaced_is_gone(store, folder):
    planted = load_canaries(store, folder, origin="x")
    assert planted.users == ["ann", "canary/a", "canary/b", "cyd", "zoe"]
    assert planted.canaries == {user.canary.user: user.canary for user in USERS}
    assert len(planted) == 3 * 3 + 3 + 4
    for user in USERS:
        rows = planted.rows(user.canary.user)
        found = [planted.record(row) for row in rows]
        assert [(r.id, r.text, r.date, r.row, r.user) for r in found] == [
            (want.id, want.text, want.date, row, user.canary.user) for want, row in zip(user.records, rows, strict=True)
        ]
        assert [planted.text(row) for row in rows] == [r.text for r in found]
        assert [planted.id(row) for row in rows] == [r.id for r in found]
        assert planted.count(user.canary.user) == len(user.records)
    for name in ("ann", "cyd", "zoe"):
        assert [planted.record(row) for row in planted.rows(name)] == [store.record(row) for row in store.rows(name)]
    with pytest.raises(KeyError):
        planted.rows("bob")


def test_rows_are_read_together_as_one_by_one(store, folder):
    planted = load_canaries(store, folder, origin="x")
    rows = np.array([15, 2, 18, 12, 0, 9])
    assert planted.texts_at(rows) == [planted.text(row) for row in rows.tolist()]
    assert planted.ids_at(rows) == [planted.id(row) for row in rows.tolist()]
    assert planted.texts_at(rows[:0]) == []
    every = [(first + i, text) for first, texts in planted.counted_chunks() for i, text in enumerate(texts.to_pylist())]
    assert every == [(row, planted.text(row)) for row in range(3 * 4 + 3 + 4)]


def test_another_content_has_another_fingerprint(store, folder, tmp_path):
    planted = load_canaries(store, folder, origin="x")
    assert planted.fingerprint != store.fingerprint
    assert load_canaries(store, folder, origin="x").fingerprint == planted.fingerprint
    save_canaries(USERS[:1], tmp_path / "other", origin="x")
    assert load_canaries(store, tmp_path / "other", origin="x").fingerprint != planted.fingerprint


def test_files_are_owner_only_and_an_unfinished_or_foreign_folder_is_not_taken(store, folder, tmp_path):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    assert load_canaries(store, tmp_path / "nothing", origin="x") is None
    with refused(by=load_canaries, naming="canaries"):
        load_canaries(store, folder, origin="y")
    (folder / "records.parquet").write_bytes(b"PAR1")
    with refused(by="require_whole", naming="canaries"):
        load_canaries(store, folder, origin="x")
