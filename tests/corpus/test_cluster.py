"""The build on a cluster gives, row for row, the store of the build on one machine; with Ray where it is installed."""

import importlib.util
import json
import socket

import pytest

from heldin.corpus import cluster
from heldin.corpus.build import build_store
from heldin.corpus.cluster import build_on_cluster, rows_between, user_ranges
from heldin.corpus.sources.bad_rows import OnBadRows
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.open import Several
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import CorpusStore
from tests.refusals import refused

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray (the extra 'cluster') is missing")


def _sources(folder, *, ids):
    sources = []
    for part in range(3):
        rows = [
            {"user": f"user{(7 * i + part) % 13}", "text": f"text {i % 5}", "id": f"{part}-{i}"}
            for i in range(40 + part)
        ]
        path = folder / f"part{part}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        sources.append(Json(path, Columns(id="id" if ids else None)))
    return sources


def _records(store):
    return [(r.user, r.text, r.id) for r in map(store.record, range(len(store)))]


@pytest.mark.parametrize("ids", [True, False], ids=["given ids", "made ids"])
def test_merged_ranges_are_the_store_of_one_machine(tmp_path, ids):
    sources = _sources(tmp_path, ids=ids)
    whole = build_store(Several(tuple(sources)), tmp_path / "whole")
    expected = _records(whole)
    (whole.folder / "records.arrow").unlink()
    stores = [build_store(source, tmp_path / "each") for source in sources]
    for parts in (1, 4, 50):
        users, records, files = [], [], []
        for i, (first, last) in enumerate(user_ranges(stores, parts)):
            files.append(whole.folder / f"records-{i:05d}.arrow")
            index = cluster.merge_slices([s.folder for s in stores], first, last, files[-1])
            users += index.column("user").to_pylist()
            records += index.column("count").to_pylist()
        assert users == whole.users
        assert records == whole.counts.tolist()
        assert _records(CorpusStore(whole.folder)) == expected
        for file in files:
            file.unlink()


def test_ranges_hold_about_equally_many_records(tmp_path):
    stores = [build_store(source, tmp_path) for source in _sources(tmp_path, ids=True)]
    ranges = user_ranges(stores, 4)
    sizes = [sum(b - a for a, b in (rows_between(s, *its) for s in stores)) for its in ranges]
    assert sum(sizes) == sum(map(len, stores))
    assert max(sizes) < 2 * min(sizes)
    assert (ranges[0][0], ranges[-1][1]) == (None, None)


def test_repeated_ids_are_found_over_all_stores(tmp_path):
    sources = _sources(tmp_path, ids=True)
    folders = [build_store(s, tmp_path).folder for s in (*sources, sources[0])]
    found = [cluster.repeated_ids(folders, share, 4) for share in range(4)]
    with refused(by="refuse_repeated", naming=("40", "2")):
        cluster.refuse_repeated(found)
    cluster.refuse_repeated([cluster.repeated_ids(folders[:3], share, 4) for share in range(4)])


def test_a_source_without_a_record_is_counted_with_what_was_skipped(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"user": "", "text": "x"}\n' * 3, encoding="utf-8")
    built = cluster.build_one(Json(bad, Columns()), tmp_path, {}, OnBadRows.SKIP)
    assert (built.folder, built.skipped.unusable) == (None, 3)
    assert built.nothing.endswith("bad.jsonl': 3 rows skipped, the first: " + str(built.skipped.first))
    good = cluster.build_one(_sources(tmp_path, ids=False)[0], tmp_path, {}, OnBadRows.SKIP)
    assert (good.folder.is_dir(), good.skipped.rows, good.nothing) == (True, 0, "")
    with refused(by="batched", naming="'user'"):
        cluster.build_one(Json(bad, Columns()), tmp_path, {}, OnBadRows.SKIP_EMPTY)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_line_says_how_to_get_it(tmp_path):
    with refused(naming=".[cluster]"):
        build_on_cluster(_sources(tmp_path, ids=True), tmp_path)


@needs_ray
def test_an_address_where_nobody_answers_is_refused_at_once(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with refused(by="_require_answer", naming=("--ray-address", address)):
            build_on_cluster(_sources(tmp_path, ids=True), tmp_path, address=address)


@needs_ray
@pytest.mark.slow
def test_ray_builds_the_same_store(tmp_path):
    sources = _sources(tmp_path, ids=False)
    built = build_on_cluster(sources, tmp_path / "cluster", parts=3, aliases={"user12": "user1"})
    whole = build_store(Several(tuple(sources)), tmp_path / "whole", aliases={"user12": "user1"})
    assert _records(built) == _records(whole)
    assert built.fingerprint == whole.fingerprint
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"user": "", "text": "x"}\n', encoding="utf-8")
    with refused(naming=("bad.jsonl line 1", "'user'")):
        build_on_cluster([*sources, Json(bad, Columns())], tmp_path / "other")
    skipping = build_on_cluster([*sources, Json(bad, Columns())], tmp_path / "skipping", on_bad=OnBadRows.SKIP)
    assert len(skipping) == len(whole)
    assert skipping.report.skipped.unusable == 1
    with refused(by="build_on_cluster", naming=("1", "bad.jsonl line 1")):
        build_on_cluster([Json(bad, Columns())], tmp_path / "nothing", on_bad=OnBadRows.SKIP)
