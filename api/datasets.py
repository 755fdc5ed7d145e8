"""Hugging Face datasets as sources. heldin saves a dataset in memory to a folder, so commands and records can name the
dataset."""

from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import cache_directory, keep_in_use, text_sha256, whole_directory


def is_dataset(source: object) -> bool:
    """Return whether a source is a ``datasets.Dataset`` rather than a path."""
    return hasattr(source, "save_to_disk") and hasattr(source, "_fingerprint")


def folder_of(source: Any) -> Path:
    """Return the folder in the cache that has the dataset's rows. heldin saves an equal dataset only once.

    Raises InputError for a stream, whose rows are not loaded yet.
    """
    if not hasattr(source, "num_rows"):
        raise InputError(
            "a streamed dataset cannot be read here: save the dataset to a file, or give the hub name of the"
            " dataset in a config"
        )
    folder = cache_directory() / "datasets" / text_sha256(str(source._fingerprint))[:24]
    keep_in_use(folder.parent)
    if not folder.is_dir():
        from datasets import disable_progress_bars

        disable_progress_bars()  # heldin shows its own
        with whole_directory(folder, same=lambda: True) as temporary:
            source.save_to_disk(temporary)
    return folder


def named(source: object) -> str:
    """Return the path of a file, or the path of a dataset's folder."""
    return str(folder_of(source) if is_dataset(source) else source)
