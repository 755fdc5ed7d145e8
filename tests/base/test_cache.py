"""The cache: what it holds, and that it is removed only when asked, whole, and when nobody works with it."""

import json
import os
import select
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from heldin.base import cache
from heldin.base.files import cache_directory, cache_root, keep_in_use, one_process_at_a_time
from heldin.models.score_cache import ScoreCache
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
        "answers": (0, 0),
        "pretrained": (500, 1),
        "references": (0, 0),
        "sweeps": (0, 0),
        "pld": (20, 1),
        "plugins": (0, 0),
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


def _files():
    return sorted(cache_root().rglob("*"))


USER = """
import sys
from pathlib import Path
from heldin.base.files import cache_directory, keep_in_use
folder = keep_in_use(cache_directory() / sys.argv[1])
(folder / "mine").write_text("x")
print("ready", flush=True)
sys.stdin.read()
sys.exit(0 if (folder / "mine").is_file() else 9)
"""


@contextmanager
def used_elsewhere(kind):
    """Another process uses this kind of the cache until the block ends; it finds its file there then."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", USER, kind], **pipes) as process:
        yield process
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_what_another_process_uses_is_refused_and_nothing_is_removed(call):
    with used_elsewhere("pretrained") as process:
        assert process.stdout.readline() == "ready\n"
        before = _files()
        code, _, err = call("cache", "--clear", "--yes")
        assert (code, err.count("\n")) == (2, 1)
        assert call.refused(by="clear", naming=(str(cache_root() / "pretrained"), f"process {process.pid} "))
        assert _files() == before
        assert call("cache", "--clear", "pld", "--yes")[0] == 0
    assert call("cache", "--clear", "--yes")[0] == 0
    assert not (cache_root() / "pretrained").exists()


def test_a_process_that_comes_while_a_folder_is_removed_gets_a_new_one():
    folder = cache_root() / "pretrained"
    with used_elsewhere("pretrained") as process:
        with one_process_at_a_time(folder):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=3.0)  # until it waits for the lock of the old folder
            assert not select.select([process.stdout], [], [], 0)[0]
            folder.rename(folder.with_name("old"))
        assert process.stdout.readline() == "ready\n"
        shutil.rmtree(folder.with_name("old"))
        with refused(by="clear", naming="pretrained"):
            cache.clear(cache.parts())
    assert (folder / "mine").is_file()


def test_a_process_does_not_stand_in_its_own_way():
    keep_in_use(cache_root() / "pretrained")
    assert cache.clear(cache.parts("pretrained")) == 500
    # What it makes afterwards is locked again.
    assert keep_in_use(cache_root() / "pretrained").is_dir()
    with refused(by="one_process_at_a_time"), one_process_at_a_time(cache_root() / "pretrained"):
        pass


def test_a_score_cache_that_was_closed_is_still_in_use_by_its_process(call):
    """This process has the cache, and another one clears, which starts sooner than one that loads models."""
    ScoreCache(cache_directory() / "scores").close()
    words = [sys.executable, "-m", "heldin", "cache", "--clear", "scores", "--yes"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, (cache_root() / "scores").is_dir()) == (2, True)
    (line,) = ended.stderr.splitlines()[-1:]
    assert names(line, str(cache_root() / "scores"), f"process {os.getpid()} ")
    # A process does not stand in its own way.
    assert call("cache", "--clear", "scores", "--yes")[0] == 0
    assert not (cache_root() / "scores").exists()
