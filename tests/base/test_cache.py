"""The cache: what it holds, and that it is removed only when asked, whole, and when nobody works with it."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from heldin.base import cache
from heldin.base.files import cache_root, one_process_at_a_time
from tests.refusals import names, refused


@pytest.fixture(autouse=True)
def _filled(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(root))
    for name, size in (("corpora/a/records.arrow", 1000), ("pretrained/b/model.safetensors", 500), ("pld/c.npz", 20)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    (root / "mine.txt").write_text("not the cache's", encoding="utf-8")


def test_sizes_are_told_by_kind(call):
    code, out, _ = call("cache", "--json")
    found = json.loads(out)
    assert (code, found["folder"]) == (0, str(cache_root()))
    sizes = {part["kind"]: (part["size"], part["entries"]) for part in found["kinds"]}
    assert sizes == {
        "corpora": (1000, 1),
        "scores": (0, 0),
        "pretrained": (500, 1),
        "references": (0, 0),
        "sweeps": (0, 0),
        "pld": (20, 1),
    }
    code, out, _ = call("cache")
    assert "1.52 kB  in " in out.splitlines()[-1]
    code, _, err = call("cache", "corpses")
    assert (code, err.count("\n")) == (2, 1)
    assert names(err, "'corpses'", *sizes)


def test_one_kind_or_all_are_removed_and_nothing_else(call):
    code, out, _ = call("cache", "--clear", "corpora", "--yes")
    assert (code, out) == (0, "removed 1,000 bytes: corpora\n")
    assert sorted(path.name for path in cache_root().iterdir()) == ["mine.txt", "pld", "pretrained"]
    code, out, _ = call("cache", "--clear", "--yes", "--json")
    assert json.loads(out)["removed_bytes"] == 520
    assert [path.name for path in cache_root().iterdir()] == ["mine.txt"]


def test_without_yes_somebody_is_asked(call, monkeypatch):
    code, _, err = call("cache", "--clear")
    assert (code, err.count("\n")) == (2, 1)
    assert names(err, "--yes")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *a, **k: False)
    code, _, err = call("cache", "--clear")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")
    assert "--yes" not in err
    assert (cache_root() / "pld" / "c.npz").is_file()


def test_what_is_in_use_is_refused_and_nothing_is_removed():
    before = sorted(cache_root().rglob("*"))
    with (
        one_process_at_a_time(cache_root() / "pretrained" / "b.work"),
        refused(by="clear", naming="pretrained", kind=ValueError),
    ):
        cache.clear(cache.parts())
    (cache_root() / "pretrained" / "b.work").rmdir()
    assert sorted(cache_root().rglob("*")) == before


def test_an_open_score_cache_is_in_use():
    (cache_root() / "scores").mkdir()
    with closing(sqlite3.connect(cache_root() / "scores" / "scores.sqlite")) as database:
        database.execute("CREATE TABLE t (a)")
        with refused(by="clear", naming=("scores", f"process {os.getpid()}"), kind=ValueError):
            cache.clear(cache.parts("scores"))
    assert cache.clear(cache.parts("scores")) > 0
