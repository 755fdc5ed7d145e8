"""The store against a dictionary of lists, its atomicity, and its errors."""

import json
import socket
import stat
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heldin.corpus.build
from heldin.base.files import whole_directory, whole_file
from heldin.corpus.build import build_store
from heldin.corpus.names import load_aliases
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.open import Several
from heldin.corpus.sources.rows import Columns
from tests.refusals import refused


def _source(folder, rows, name="mail.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return Json(path, Columns(id="id"))


def _rows(users, per_user):
    return [{"user": f"u{i % users}", "text": f"text {i}", "id": f"r{i}"} for i in range(users * per_user)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(st.sampled_from(["b", "a", "Zoë", "c c"]), min_size=1, max_size=30))
def test_the_store_equals_a_dictionary_of_lists(owners, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    rows = [{"user": u, "text": f"text {i} of {u}", "id": f"r{i}"} for i, u in enumerate(owners)]
    by_user = defaultdict(list)
    for row in rows:
        by_user[row["user"]].append(row)
    store = build_store(_source(folder, rows), folder)
    assert store.users == sorted(by_user)
    assert len(store) == len(rows)
    for user, its in by_user.items():
        records = [store.record(row) for row in store.rows(user)]
        assert [(r.user, r.id, r.text) for r in records] == [(user, r["id"], r["text"]) for r in its]
        assert store.count(user) == len(its)
    assert list(store.texts()) == [store.text(i) for i in range(len(store))]


def test_sampling_returns_distinct_records_of_distinct_users(tmp_path):
    store = build_store(_source(tmp_path, _rows(50, 5)), tmp_path)
    sample = store.sample(4, 2, np.random.default_rng(0))
    assert [len(records) for records in sample] == [2, 2, 2, 2]
    assert len({records[0].user for records in sample}) == 4
    assert all(len({r.user for r in records}) == 1 and len({r.id for r in records}) == 2 for records in sample)
    assert store.sample(1, 99, np.random.default_rng(0))[0].__len__() == 5
    with refused(by="CorpusStore.sample", naming=("51", "50")):
        store.sample(51, 1, np.random.default_rng(0))


def test_sampling_reads_no_more_than_it_returns(tmp_path, monkeypatch):
    store = build_store(_source(tmp_path, _rows(200, 5)), tmp_path)
    reads = []
    original = type(store).record
    monkeypatch.setattr(type(store), "record", lambda self, row: reads.append(row) or original(self, row))
    store.sample(4, 2, np.random.default_rng(0))
    assert len(reads) == 8


def test_a_second_build_opens_the_first_and_another_content_does_not(tmp_path):
    first = build_store(_source(tmp_path, _rows(3, 2)), tmp_path)
    assert not first.report.reused
    assert build_store(_source(tmp_path, _rows(3, 2)), tmp_path).report.reused
    assert build_store(_source(tmp_path, _rows(3, 3)), tmp_path).folder != first.folder


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(table, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heldin.corpus.build, "write_table", full_disk)
    with pytest.raises(OSError, match="No space left"):
        build_store(_source(tmp_path, _rows(3, 2)), tmp_path)
    assert list((tmp_path / "corpora").iterdir()) == []


def test_a_build_that_was_killed_is_done_anew(tmp_path):
    source = _source(tmp_path, _rows(3, 2))
    folder = build_store(source, tmp_path).folder
    dead = folder.rename(folder.with_name(f".{folder.name}.{socket.gethostname()}.999999999.tmp"))
    (dead / "meta.json").unlink()
    assert not build_store(source, tmp_path).report.reused
    assert not dead.exists()


def test_a_repeated_id_is_refused(tmp_path):
    rows = [*_rows(2, 2), {"user": "u9", "text": "x", "id": "r1"}]
    with refused(by="refuse_repeated_ids", naming=("1", "2", "record 5")):
        build_store(_source(tmp_path, rows), tmp_path)


def test_an_empty_corpus_is_refused(tmp_path):
    with refused(by=build_store, naming="mail.jsonl"):
        build_store(_source(tmp_path, []), tmp_path)


def _records(store):
    return [(r.user, r.text, r.id) for r in map(store.record, range(len(store)))]


@pytest.mark.parametrize("ids", [True, False], ids=["given ids", "made ids"])
def test_appending_reads_the_earlier_store_and_gives_what_building_at_once_gives(tmp_path, monkeypatch, ids):
    columns = Columns(id="id" if ids else None)
    parts = []
    for i, rows in enumerate((_rows(5, 4), _rows(7, 3))):
        rows = [{**row, "id": f"{i}{row['id']}"} for row in rows]
        parts.append(Json(_source(tmp_path, rows, f"part{i}.jsonl").path, columns))
    at_once = _records(build_store(Several(tuple(parts)), tmp_path / "a"))
    build_store(parts[0], tmp_path / "b")
    read = []
    monkeypatch.setattr(Json, "batches", _counting(Json.batches, read))
    assert _records(build_store(Several(tuple(parts)), tmp_path / "b")) == at_once
    assert read == ["part1.jsonl"]
    assert build_store(Several(tuple(parts)), tmp_path / "b").report.reused
    if not ids:
        assert len({i for *_, i in at_once}) == len(at_once) > len({t for _, t, _ in at_once})


def _counting(real, read):
    def batches(self, bad):
        read.append(self.path.name)
        return real(self, bad)

    return batches


def test_an_appended_record_must_have_an_id_of_its_own(tmp_path):
    first, second = (_source(tmp_path, _rows(3, 2)[:n], f"{n}.jsonl") for n in (6, 5))
    build_store(first, tmp_path)
    with refused(by="refuse_repeated_ids", naming=("5", "record 1")):
        build_store(Several((first, second)), tmp_path)


def test_a_file_that_is_named_twice_is_refused_under_any_name(tmp_path):
    rows = _rows(3, 2)
    first, other, copy = (
        _source(tmp_path, its, f"{name}.jsonl") for name, its in zip("abc", (rows, rows[:5], rows), strict=True)
    )
    with refused(by="require_named_once", naming=("a.jsonl", "c.jsonl")):
        build_store(Several((first, other, copy)), tmp_path)
    with refused(by="require_named_once", naming="a.jsonl"):
        build_store(Several((first, first)), tmp_path)


def test_parts_without_a_record_are_alike_and_no_error(tmp_path):
    parts = [_source(tmp_path, its, f"{i}.jsonl") for i, its in enumerate((_rows(3, 2), [], []))]
    assert len(build_store(Several(tuple(parts)), tmp_path)) == 6


def test_what_goes_wrong_in_a_source_is_said_as_it_is(tmp_path):
    path = tmp_path / "mail.jsonl"
    path.write_text('{"user": "a", "text": "b"}\n{"user": ""}\n', encoding="utf-8")
    with refused(by="batched", naming=("mail.jsonl", "line 2", "'user'")):
        build_store(Json(path, Columns()), tmp_path)
    assert list((tmp_path / "corpora").iterdir()) == []


def test_aliases_merge_the_addresses_of_one_person(tmp_path):
    aliases = tmp_path / "aliases.yaml"
    aliases.write_text("james@x: [d..steffes@x, j.s@x]\n", encoding="utf-8")
    rows = [
        {"user": u, "text": f"t {i}", "id": str(i)} for i, u in enumerate(["james@x", "d..steffes@x", "ann@x", "j.s@x"])
    ]
    store = build_store(_source(tmp_path, rows), tmp_path, aliases=load_aliases(aliases))
    assert {user: store.count(user) for user in store.users} == {"ann@x": 1, "james@x": 3}


@pytest.mark.parametrize(
    ("content", "by", "naming"),
    [
        ("ann: [a]\nbob: [a]\n", load_aliases, ("1", "2")),
        ("ann: [bob]\nbob: [c]\n", load_aliases, ("person 2", "person 1")),
        ("- ann\n", load_aliases, ("aliases.yaml", "'person: [alias, alias]'")),
        ("ann: [", "_UniqueKeys.get_single_node", "YAML"),
        ("ann: [a]\nann: [b]\n", "_UniqueKeys.construct_mapping", ("aliases.yaml", "line 2")),
        ("ann: !x [a]\n", "_UniqueKeys.construct_mapping", ("aliases.yaml", "line 1")),
        ("ann: [5]\nbob: [5]\n", load_aliases, ("1", "2")),
    ],
    ids=["two persons", "chain", "list", "broken", "twice", "tag", "number"],
)
def test_alias_files_that_cannot_be_used(tmp_path, content, by, naming):
    path = tmp_path / "aliases.yaml"
    path.write_text(content, encoding="utf-8")
    with refused(by=by, naming=naming):
        load_aliases(path)


def test_whole_files_and_folders_replace_or_leave_alone(tmp_path):
    path = tmp_path / "secret.txt"
    with whole_file(path, private=True) as temporary:
        temporary.write_text("one", encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def fail_inside(context):
        with context as temporary:
            (temporary / "x" if temporary.is_dir() else temporary).write_text("two", encoding="utf-8")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail_inside(whole_file(path, private=True))
    assert path.read_text(encoding="utf-8") == "one"
    folder = tmp_path / "folder"
    for content in ("a", "b"):
        with whole_directory(folder) as temporary:
            (temporary / content).write_text(content, encoding="utf-8")
    assert [p.name for p in folder.iterdir()] == ["b"]
    with pytest.raises(RuntimeError, match="killed"):
        fail_inside(whole_directory(folder))
    assert {p.name for p in tmp_path.iterdir()} == {"folder", "secret.txt"}
