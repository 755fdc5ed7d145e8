"""Files that are never half-written (temporary name, then rename), owner-only folders, content hashes and JSON.

JSON is standard: heldin writes a number that is not finite as null. In record.json and plan.json, a null epsilon means
an infinite epsilon, which guarantees nothing.
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
    """Return the cache folder, ``$HELDIN_CACHE_DIR`` or ``~/.cache/heldin``. The folder contains people's text."""
    return Path(os.environ.get("HELDIN_CACHE_DIR") or Path.home() / ".cache" / "heldin")


def cache_directory() -> Path:
    """Create ``cache_root``, readable by its owner only. Raises InputError if the folder cannot be created."""
    return private_directory(cache_root())


def private_directory(path: Path) -> Path:
    """Create ``path`` and its missing parents, readable by their owner only. Existing folders keep their permissions.

    Raises InputError if the folder cannot be created.
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
    """Lock ``folder`` for this process, and remove the leftovers of killed processes. Creates a missing folder.

    With ``wait``, waits for another process's lock. Otherwise raises InputError if another process has the lock.
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
    """Create and return ``folder``. ``one_process_at_a_time`` then refuses the folder until this process ends.

    Raises InputError if the folder cannot be created.
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
    """Release the lock of ``keep_in_use``."""
    if (handle := _IN_USE.pop(folder.absolute(), None)) is not None:
        os.close(handle)


_IN_USE: dict[Path, int] = {}  # handles of the folders that this process uses
_TAKING = threading.Lock()


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is the file that is now at this path."""
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
    """Yield a temporary name next to ``path``. On success, flush and rename the file to ``path``, else remove it."""
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
    """Yield a temporary folder next to ``path``. On success, rename it over any folder at ``path``, else remove it.

    Args:
        same: function that returns whether the folder at ``path`` has the same content and stays. Another process may
            have finished that folder.
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
    """Return a small text file's content for comparison; None if there is no file. Undecodable bytes equal no text."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write ``text`` to ``path``, either completely or not at all."""
    with whole_file(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def existing(path: Path) -> Path:
    """Return the path. Raises InputError if the file does not exist."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the current folder, '{Path.cwd()}'"
        raise InputError(f"no such file: '{path}'{where}. Correct the path")
    return path


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def text_sha256(*parts: str) -> str:
    """Return one SHA-256 of several strings, hexadecimal. ("ab", "c") and ("a", "bc") give different hashes."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        # The length frames each part, so that moving the boundary between two parts changes the hash.
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """Return a text's digest, 16 bytes, hexadecimal. The digest identifies the text in files that contain no texts."""
    return text_key(text).hex()


def text_key(text: str) -> bytes:
    """Return a text's digest as 16 bytes, to find repeated texts without storing the texts."""
    # Enough that no two texts meet by chance.
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()


def sync(path: Path) -> None:
    """Write a file's bytes to disk before returning."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _remove_leftovers_once(folder: Path) -> None:
    """Call ``_remove_leftovers`` before this process's first file in the folder, so heldin lists a large folder only
    once."""
    if folder not in _SWEPT:
        _SWEPT.add(folder)
        _remove_leftovers(folder)


_SWEPT: set[Path] = set()


def _remove_leftovers(folder: Path, *, below: bool = False) -> None:
    """Remove temporary files and folders of processes of this machine that were killed.

    Args:
        folder: the folder to search.
        below: whether to search its subfolders as well, but not their subfolders.
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
    """Return a name that distinguishes this process from others on all machines that share the file system."""
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
    """Return the JSON content of a file. Raises OSError if the file cannot be read, and ValueError like
    ``parsed_json``."""
    return parsed_json(path.read_text(encoding="utf-8"))


def parsed_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def strict_json(value: Any) -> str:
    """Return the value as JSON. Tuples become lists, and non-finite numbers become null."""
    # Python would write NaN, which is not JSON; the flag makes one that is left an error.
    return json.dumps(finite(value), allow_nan=False)


def finite(value: Any) -> Any:
    """Return the value, with None in place of every non-finite number."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(part) for key, part in value.items()}
        case tuple() | list():
            return [finite(part) for part in value]
        case _:
            return value
