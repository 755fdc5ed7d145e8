"""Files that are never left half-written (temporary name, then rename), owner-only folders, content hashes, JSON.

JSON is standard: a number that is not finite is written as null, as in record.json and plan.json, where an infinite
epsilon promises nothing.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError

_TRIES, _PAUSE = 4, 0.05  # seconds


def cache_root() -> Path:
    """The folder of reproducible work, ``$HELDIN_CACHE_DIR`` or ``~/.cache/heldin``; it contains people's text."""
    return Path(os.environ.get("HELDIN_CACHE_DIR") or Path.home() / ".cache" / "heldin")


def cache_directory() -> Path:
    """``cache_root``, created readable by its owner only. Raises InputError if it cannot be created."""
    return private_directory(cache_root())


def private_directory(path: Path) -> Path:
    """Create ``path`` and its missing parents, readable by their owner only; what exists keeps its permissions.

    Raises InputError if it cannot be created.
    """
    try:
        # One by one: ``mkdir(parents=True)`` would give its mode to the last folder only.
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"cannot use folder '{path}' ({error.strerror}): name another folder") from error
    return path


@contextlib.contextmanager
def one_process_at_a_time(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock ``folder`` (created if missing) for this process, or ``wait`` for it; what killed processes left in it goes.

    Raises InputError if another process has locked it and ``wait`` is false.
    """
    # The operating system releases an flock when the process ends, however it ends: no stale lock files.
    handle = _open_folder(folder)
    try:
        if not _locked(handle, wait=wait):
            raise InputError(f"another process works in '{folder}': wait for that process, or name another folder")
        _remove_leftovers(folder, below=True)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Return whether a process has locked the existing folder with ``one_process_at_a_time``."""
    # Asking takes the lock for a moment, which a process that wants it survives: it tries more than once.
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def keep_in_use(folder: Path) -> Path:
    """Create and return ``folder``, which ``one_process_at_a_time`` then refuses until this process ends.

    Raises InputError if it cannot be created.
    """
    absolute = folder.absolute()
    with _TAKING:
        # A folder may have been removed, by this process before or by another one while this process waited for it.
        while (handle := _IN_USE.get(absolute)) is None or not _is_at(handle, absolute):
            stop_using(absolute)
            _IN_USE[absolute] = _open_folder(absolute)
            fcntl.flock(_IN_USE[absolute], fcntl.LOCK_SH)
    return folder


def stop_using(folder: Path) -> None:
    """Release what ``keep_in_use`` locked."""
    if (handle := _IN_USE.pop(folder.absolute(), None)) is not None:
        os.close(handle)


_IN_USE: dict[Path, int] = {}  # handles of the folders that this process uses
_TAKING = threading.Lock()


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is the one that has this path now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _locked(handle: int, *, wait: bool) -> bool:
    for _ in range(1 if wait else _TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return True
    return False


def _open_folder(folder: Path) -> int:
    while True:
        try:
            return os.open(private_directory(folder), os.O_RDONLY)
        except FileNotFoundError:  # the previous holder removed it after it was created here
            continue


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; on success flush it to disk and rename it to ``path``, else remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers_once(path.parent)
    # Beside the target, since a rename is atomic only within one file system; with the process number, so that two
    # processes that write the same file do not share a temporary one.
    temporary = path.with_name(f".{path.name}.{_process()}.tmp")
    try:
        if private:
            temporary.touch(mode=0o600)  # before the first byte, so that nobody else can read any of it
        yield temporary
        sync(temporary)  # else a crash after the rename could leave an empty file under the final name
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_directory(path: Path, *, same: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success rename it to ``path``, over an older one, else remove it.

    Args:
        same: whether a folder at ``path``, which another process may have finished meanwhile, holds the same and stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each time, since leftovers of killed processes hold copies of texts or weights and would pile up.
    _remove_leftovers(path.parent)
    temporary = path.with_name(f".{path.name}.{_process()}.tmp")
    # One under this process's own number is of an earlier process that had the same one.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                sync(file)
        try:
            temporary.rename(path)
        except OSError:
            # A folder cannot be renamed over one that has files. One with the same content stays: the process that
            # made it may be writing into it.
            if not path.is_dir():
                raise
            if not same():
                # The older one steps aside first. A crash between the two renames leaves no folder of this name.
                old = path.with_name(f".{path.name}.{_process()}.old.tmp")
                shutil.rmtree(old, ignore_errors=True)
                path.rename(old)
                temporary.rename(path)
                shutil.rmtree(old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def kept_text(path: Path) -> str | None:
    """Return a small text file's content, to be compared; None without a file. Bytes that are no text equal nothing."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write ``text`` to ``path`` whole or not at all."""
    with whole_file(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def existing(path: Path) -> Path:
    """The path itself. Raises InputError if there is no such file."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the current folder, '{Path.cwd()}'"
        raise InputError(f"no such file: '{path}'{where}")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def text_sha256(*parts: str) -> str:
    """SHA-256 of several strings, hexadecimal; ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        # The length frames each part, so that moving the boundary between two parts changes the hash.
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """Return the digest by which a text is known in files that hold no text: 16 bytes, hexadecimal."""
    return text_key(text).hex()


def text_key(text: str) -> bytes:
    """Return the same digest as 16 bytes, to find texts that occur twice without keeping them."""
    # Enough that no two texts meet by chance.
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()


def sync(path: Path) -> None:
    """Have a file's bytes on disk before going on."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _remove_leftovers_once(folder: Path) -> None:
    """``_remove_leftovers``, before this process's first file in the folder: a folder of many files is listed once."""
    if folder not in _SWEPT:
        _SWEPT.add(folder)
        _remove_leftovers(folder)


_SWEPT: set[Path] = set()


def _remove_leftovers(folder: Path, *, below: bool = False) -> None:
    """Remove temporary files and folders that this machine's processes were writing when they died.

    Args:
        folder: where they are looked for.
        below: also in its own folders, not in theirs.
    """
    # Another machine's processes, on a file system that both share, cannot be asked whether they are alive.
    ours = re.compile(rf"\..+\.{re.escape(_machine())}\.(\d+)(?:\.old)?\.tmp")
    # What cannot be listed or removed is another person's; what is gone was removed by another process.
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = ours.fullmatch(path.name)
            if match and not _is_alive(int(match[1])):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            elif below and path.is_dir():
                _remove_leftovers(path)


def _machine() -> str:
    return socket.gethostname().replace("/", "-")


def _process() -> str:
    """Tells this process from others of this machine and of machines that share the file system."""
    return f"{_machine()}.{os.getpid()}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only asks whether the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to somebody else
        return True
    return True


def read_json(path: Path) -> Any:
    """Return a file's content. Raises OSError if it cannot be read, ValueError as ``parsed_json``."""
    return parsed_json(path.read_text(encoding="utf-8"))


def parsed_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def strict_json(value: Any) -> str:
    """The value as JSON; tuples become lists and non-finite numbers null."""
    # Python would write NaN, which is not JSON; the flag makes one that is left an error.
    return json.dumps(finite(value), allow_nan=False)


def finite(value: Any) -> Any:
    """The value with every non-finite number in it replaced by None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(part) for key, part in value.items()}
        case tuple() | list():
            return [finite(part) for part in value]
        case _:
            return value
