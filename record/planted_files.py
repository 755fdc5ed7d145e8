"""The files of a planted folder: the files for the person who trains, and the names of the files to keep."""

import json
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256

MANIFEST, TRAINING = "manifest.json", "training"
LOG = "training-log"  # folder of what a training was given
AUDITS = "audits"
CONTROL = "control.parquet"  # of an audit: losses of the positive control
SEAL = "planted.json"  # in the ledger: hashes of what was fixed
_DICT = "dataset_dict.json"


def content_sha256(path: Path) -> str:
    """Return the hash of a file. For a folder, hash the names and contents of the files that ``load_from_disk`` reads.

    The hash ignores other files, such as caches of ``map``. Raises InputError for a folder that
    ``save_to_disk`` did not write, or that lacks a file.
    """
    if path.is_file():
        return file_sha256(path)
    files = _files_of_dataset(path)
    lost = next((file for file in files if not file.is_file()), None)
    if lost is not None:
        raise InputError(
            f"'{lost}' is missing, so '{path}' is damaged or save_to_disk did not write this folder: save the data"
            " set again"
        )
    return text_sha256(*(part for file in files for part in (str(file.relative_to(path)), file_sha256(file))))


def splits_of(path: Path) -> tuple[str, ...]:
    """Return the names of the splits in a folder of ``DatasetDict.save_to_disk``; empty for other folders."""
    return tuple(_json(path / _DICT)["splits"]) if (path / _DICT).is_file() else ()


def home_of(audit: Path, recorded: str) -> Path:
    """Return the planted folder of an audit: the audit's parent folder, or else the folder that the record names.

    Audits move together with their planted folder, and another folder may now have its old path.
    """
    home = audit.resolve().parent.parent
    return home if (home / MANIFEST).is_file() else Path(recorded)


def _files_of_dataset(path: Path) -> list[Path]:
    if (path / _DICT).is_file():
        return [path / _DICT, *(file for split in splits_of(path) for file in _files_of_dataset(path / split))]
    state = path / "state.json"
    named = _json(state)["_data_files"] if state.is_file() else []
    return [state, path / "dataset_info.json", *(path / entry["filename"] for entry in named)]


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is damaged: plant again") from error
    return content
