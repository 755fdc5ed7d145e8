"""Artefacts: files that one command writes and a later command reads. Each has a digest and a recorded origin.

| artefact | place of its digest |
|---|---|
| a file | ``artefacts.json`` in its folder (``artefact_file``) |
| a folder that is written as a whole, such as a model | ``artefacts.json`` inside the folder (``artefact_folder``) |
| a JSON document, such as ``artefacts.json`` | in the document itself (``write_document``) |

A JSON document also has its schema version and the version of heldin that wrote it (``stamped``). heldin refuses a
document of another schema version: there are no migrations.

A digest detects damage and careless changes. A digest does not stop anyone who also changes the digest. Facts that
depend on somebody's honesty are labelled as declared.

``heldin purge`` marks a folder when it removes the secrets, and every reader refuses a marked folder in one line.
Tables for a later command are Parquet files that only their owner can read.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, read_json, text_sha256, whole_directory, whole_file, write_text
from heldin.base.machine import version

if TYPE_CHECKING:
    import pyarrow as pa


INDEX = "artefacts.json"
_DIGEST = "sha256"
_SCHEMA, _WRITER = "schema_version", "heldin"
_LONGEST = 40  # characters of a version in a message


class OtherSchemaError(InputError):
    """A document has a schema version that this heldin does not read."""


class State(StrEnum):
    """The state of an artefact."""

    WHOLE = "whole"
    ABSENT = "absent"
    CHANGED = "changed"
    UNLISTED = "unlisted"
    OTHER = "made from something else"


@contextlib.contextmanager
def artefact_file(path: Path, *, made_from: str = "") -> Iterator[Path]:
    """Yield a temporary name. On success, list the file with its digest and rename it to ``path``.

    Args:
        path: the final file; the function updates the index of the file's folder.
        made_from: name or hash of the file's inputs.
    """
    with whole_file(path, private=True) as temporary:
        yield temporary
        # Before the rename: after a crash in between the old file is made again, and no file is trusted unlisted.
        write_index(path.parent, {**read_index(path.parent), path.name: [file_sha256(temporary), made_from]})


@contextlib.contextmanager
def artefact_folder(path: Path, *, made_from: str = "") -> Iterator[Path]:
    """Yield a temporary folder. On success, write the list of its files, make it owner-only and rename it to ``path``.

    The function does not replace an intact folder at ``path`` with this origin.
    """
    with whole_directory(path, same=lambda: bool(made_from) and is_whole(path, made_from)) as temporary:
        yield temporary
        for path_in in temporary.rglob("*"):
            path_in.chmod(0o700 if path_in.is_dir() else 0o600)
        seal(temporary, made_from=made_from)


def write_artefact(path: Path, text: str, *, made_from: str = "") -> None:
    """Write a text as an artefact file."""
    with artefact_file(path, made_from=made_from) as temporary:
        temporary.write_text(text, encoding="utf-8")


def seal(folder: Path, *, made_from: str = "") -> None:
    """List the files of a folder, with their digests, in the folder."""
    write_index(folder, {name: [file_sha256(folder / name), made_from] for name in files_in(folder)})


def files_in(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder; subfolders give names such as ``adapter/config.json``."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / INDEX)
    return sorted(path.relative_to(folder).as_posix() for path in files)


def state_of(path: Path, made_from: str | None = None) -> State:
    """Compare a file or folder with its digest.

    Args:
        made_from: required origin; None accepts any origin.
    """
    if path.is_dir():
        listed = read_index(path)
        names = {*files_in(path)}
        if not listed:
            return State.UNLISTED
        # A further file may change what a folder is: an adapter's config beside a model's weights.
        if names != listed.keys() or any(file_sha256(path / name) != listed[name][0] for name in names):
            return State.CHANGED
        origins = {entry[1] for entry in listed.values()}
        return State.WHOLE if made_from is None or origins == {made_from} else State.OTHER
    if not path.is_file():
        return State.ABSENT
    entry = read_index(path.parent).get(path.name)
    if entry is None:
        return State.UNLISTED
    if file_sha256(path) != entry[0]:
        return State.CHANGED
    return State.WHOLE if made_from is None or entry[1] == made_from else State.OTHER


def is_whole(path: Path, made_from: str | None = None, say: Callable[[str], object] = lambda _: None) -> bool:
    """Return whether an artefact can be read. Call ``say`` if the artefact exists but was changed."""
    state = state_of(path, made_from)
    if state in (State.CHANGED, State.UNLISTED):
        say(f"'{path}' is damaged or was changed, so heldin makes this file again")
    return state is State.WHOLE


def require_whole(path: Path, remedy: str = "restore it") -> None:
    """Raise InputError if an artefact is missing or was changed."""
    match state_of(path):
        case State.WHOLE:
            return
        case State.ABSENT:
            raise InputError(f"'{path}' is missing: {remedy}")
        case _:
            raise InputError(f"'{path}' is damaged or was changed: {remedy}")


def origin_of(folder: Path, remedy: str) -> str:
    """Return the origin of an intact artefact folder. Raises InputError like ``require_whole``."""
    require_whole(folder, remedy=remedy)
    return next(iter(read_index(folder).values()))[1]


def state_of_file(path: Path) -> State:
    """Return the state of a file. The file may also be a list of digests, or a document with its own digest."""
    if path.name == INDEX:
        return State.WHOLE if read_index(path.parent) else State.CHANGED
    state = state_of(path)
    if state is not State.UNLISTED or path.suffix != ".json":
        return state
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return State.CHANGED
    if not isinstance(content, dict) or _DIGEST not in content:
        return State.UNLISTED
    return State.WHOLE if content.pop(_DIGEST) == _digest(content) else State.CHANGED


def listed_files(folder: Path) -> list[str]:
    """Return the names of the files that were written to a folder as artefacts, including missing files."""
    return [name for name in read_index(folder) if is_within(name)]


def is_within(name: str) -> bool:
    """Return whether a name is a file's relative path that stays within the folder."""
    path = Path(name)
    return path.as_posix() == name and name.isprintable() and not path.is_absolute() and ".." not in path.parts


def folder_digest(folder: Path) -> str:
    """Return one digest of a whole artefact folder."""
    return file_sha256(folder / INDEX)


def stamped(content: dict[str, Any], schema: int = 1) -> dict[str, Any]:
    """Return a document's content, preceded by its schema version and heldin's version."""
    return {_SCHEMA: schema, _WRITER: version(), **content}


def unstamped(document: dict[str, Any], path: Path, remedy: str, schema: int = 1) -> dict[str, Any]:
    """Return a document's content without the versions that ``stamped`` added.

    Args:
        document: a JSON object.
        remedy: advice for a document of another version.
        schema: the schema version that can be read.

    Raises:
        OtherSchemaError: the document has another schema version.
    """
    read, writer = document.get(_SCHEMA), document.get(_WRITER)
    # By type too, since True == 1 in Python.
    if type(read) is not int or read != schema:
        known = isinstance(writer, str) and writer.isprintable() and len(writer) <= _LONGEST
        by, other = (f"heldin {writer}", f", or use heldin {writer}") if known else ("an unknown version of heldin", "")
        number = read if type(read) is int else "none"
        raise OtherSchemaError(
            f"'{path}' was written by {by} with schema version {number}, but this heldin reads schema version"
            f" {schema}: {remedy}{other}"
        )
    return {name: value for name, value in document.items() if name not in (_SCHEMA, _WRITER)}


def write_document(path: Path, content: dict[str, Any], *, schema: int = 1, private: bool = True) -> None:
    """Write a JSON object, stamped. The first key is a digest of everything after it.

    Args:
        schema: version of the document's schema; increase it with every change that makes older documents unreadable.
    """
    document = stamped(content, schema)
    text = json.dumps({_DIGEST: _digest(document), **document}, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", private=private)


def read_document(path: Path, remedy: str = "restore it", *, schema: int = 1, checked: bool = True) -> dict[str, Any]:
    """Read a document of ``write_document``.

    Args:
        remedy: advice for a document that is damaged or has another version.
        schema: version of the document's schema.
        checked: if true, refuse content that does not match its digest.

    Raises:
        InputError: the file cannot be read, is not a JSON object, has another version, or was changed.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"'{path}' is damaged: {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"'{path}' is damaged: {remedy}")
    digest = content.pop(_DIGEST, None)
    # The version first: another version's digest may be another one.
    whole = unstamped(content, path, remedy, schema)
    if checked and digest != _digest(content):
        raise InputError(f"'{path}' is damaged or was changed: {remedy}")
    return whole


def _refuse(constant: str) -> None:
    # Infinity and "not a number", which are null in what is written.
    raise ValueError(constant)


def _digest(content: dict[str, Any]) -> str:
    return text_sha256(json.dumps(content, sort_keys=True, ensure_ascii=False))


def read_index(folder: Path) -> dict[str, list[str]]:
    """Return, for each file name, digest and origin; empty if there is no index, or if the index is damaged."""
    try:
        content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if content.pop(_DIGEST) != _digest(content):
            return {}
        return {str(name): [str(entry[0]), str(entry[1])] for name, entry in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}


def write_index(folder: Path, files: dict[str, list[str]]) -> None:
    """Write the index of a folder, with a digest of the index."""
    content = {"files": files}
    document = {_DIGEST: _digest(content), **content}
    write_text(folder / INDEX, json.dumps(document, indent=1, sort_keys=True) + "\n", private=True)


PURGED = "purged.json"


def require_not_purged(folder: Path) -> None:
    """Raise InputError if ``heldin purge`` removed the contents of ``folder``."""
    path = folder / PURGED
    if not path.is_file():
        return
    try:
        when = read_json(path)["purged"]
    except (ValueError, KeyError, TypeError):
        when = "at an unknown time, because its mark is damaged"
    raise InputError(
        f"'{folder}' was purged ({when}), so keys, ledger and scores are gone. heldin can neither recompute nor"
        " continue this folder: start again in a new folder"
    )


TABLE = ".parquet"  # ending of every table's name


def write_table(columns: Mapping[str, Any], path: Path, *, made_from: str = "") -> None:
    """Write a table.

    Args:
        columns: arrays or lists, by column name.
        made_from: hash of the inputs of the table, such as models and texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with artefact_file(path, made_from=made_from) as temporary:
        pq.write_table(pa.table(dict(columns)), temporary)


def read_table(
    path: Path, *, made_from: str | None = None, say: Callable[[str], object] = lambda _: None
) -> "pa.Table | None":
    """Read a table of ``write_table``.

    Args:
        made_from: required origin; None accepts any origin.

    Returns:
        The table; None if the table is missing, was changed, or has another origin.
    """
    import pyarrow.parquet as pq

    return pq.read_table(path) if is_whole(path, made_from, say) else None
