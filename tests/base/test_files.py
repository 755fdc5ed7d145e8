"""Folders that several processes want at once."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import heldin
from heldin.base.files import (
    cache_root,
    is_held,
    one_process_at_a_time,
    private_directory,
    whole_directory,
    whole_file,
    write_text,
)
from tests.refusals import refused


def test_a_folder_that_another_process_makes_meanwhile_is_used(tmp_path, monkeypatch):
    mkdir = os.mkdir

    def made_by_another_first(path, *arguments):
        mkdir(path, *arguments)
        mkdir(path, *arguments)

    monkeypatch.setattr(os, "mkdir", made_by_another_first)
    assert private_directory(tmp_path / "new").is_dir()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_its_last_holder_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    work, opened, real = tmp_path / "work", [], os.open

    def removed_first(path, *arguments, **options):
        opened.append(path)
        if len(opened) == 1:
            path.rmdir()
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", removed_first)
    with one_process_at_a_time(work):
        assert opened == [work, work]
        assert work.is_dir()


def test_missing_parents_are_private_too(tmp_path):
    private_directory(tmp_path / "a" / "b" / "c")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o700] * 3


def test_who_only_asks_does_not_keep_anybody_out(tmp_path):
    folder = private_directory(tmp_path / "work")
    asking = os.open(folder, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_EX)
    threading.Timer(0.06, lambda: os.close(asking)).start()
    with one_process_at_a_time(folder):
        assert is_held(folder)
    assert not is_held(folder)


def test_leftovers_of_this_machine_s_dead_processes_go_and_another_machine_s_stay(tmp_path):
    host = socket.gethostname()
    ours = (f"{host}.999999999", f"{host}.999999999.old", f"{host}.{os.getpid()}")
    theirs = ("elsewhere.9", f"{host}.b.9", "9", f"{host}.{os.getppid()}")
    for name in (*ours, *theirs):
        (tmp_path / f".store.{name}.tmp").mkdir()
    with whole_directory(tmp_path / "store") as temporary:
        (temporary / "x").write_text("x", encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["store", *(f".store.{name}.tmp" for name in theirs)]
    )


KILLED = """
import os, signal
from pathlib import Path
from heldin.base.files import whole_file
with whole_file(Path("PATH"), private=True) as temporary:
    temporary.write_text("secret")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", ["lock", "same file", "another file"])
def test_what_a_killed_process_was_writing_goes_with_the_next_that_works_in_the_folder(tmp_path, way):
    folder = tmp_path / "out" / "ledger"
    # The machine's own number of the process is in the name: one that has ended is dead.
    code = KILLED.replace("PATH", str(folder / "manifest.json"))
    environment = {**os.environ, "PYTHONPATH": str(Path(heldin.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.startswith(".manifest.json.")
    (folder / "plan.json.tmp").write_text("mine", encoding="utf-8")
    if way == "lock":
        with one_process_at_a_time(tmp_path / "out"):
            pass
    else:
        write_text(folder / ("manifest.json" if way == "same file" else "purged.json"), "new")
    assert not left.exists()
    assert (folder / "plan.json.tmp").exists()


def test_what_a_living_process_writes_stays(tmp_path):
    with whole_file(tmp_path / "a") as temporary:
        temporary.write_text("half", encoding="utf-8")
        write_text(tmp_path / "b", "whole")
        with one_process_at_a_time(tmp_path):
            assert temporary.exists()
    assert (tmp_path / "a").read_text(encoding="utf-8") == "half"


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "work").write_text("a file", encoding="utf-8")
    with refused(by=private_directory, naming="work"):
        private_directory(tmp_path / "work")


def test_work_that_can_be_redone_is_kept_where_the_environment_says_or_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("HELDIN_CACHE_DIR")
    assert cache_root().parts[-2:] == (".cache", "heldin")
