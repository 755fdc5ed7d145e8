"""Folders that several processes want at once."""

import os

import pytest

from heldin.base.errors import InputError
from heldin.base.files import cache_root, one_process_at_a_time, private_directory


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


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "work").write_text("a file", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot use folder '.*work' \(File exists\): name another one"):
        private_directory(tmp_path / "work")


def test_work_that_can_be_redone_is_kept_where_the_environment_says_or_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("HELDIN_CACHE_DIR")
    assert cache_root().parts[-2:] == (".cache", "heldin")
