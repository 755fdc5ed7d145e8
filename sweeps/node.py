"""The work that a cluster machine does for a sweep: cells, shared work, and copies of the published files.

Machines do not communicate with each other. Each machine reads published files, and writes to its own cache and its
cell's folder.
"""

import json
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from heldin.base.coins import new_key
from heldin.base.errors import InputError
from heldin.base.files import (
    cache_directory,
    is_held,
    keep_in_use,
    kept_text,
    one_process_at_a_time,
    private_directory,
    text_sha256,
    whole_directory,
    write_text,
)
from heldin.base.machine import version
from heldin.sweeps.finished import is_finished
from heldin.sweeps.processes import Ended, Slot, Task, run_process

SHARED = "shared"
_PARTS = "parts.json"
_PAUSE = 1.0  # seconds


@dataclass(frozen=True)
class SweepBatch:
    """The facts about a sweep that a machine of the cluster needs.

    Attributes:
        out: absolute path of the sweep's folder.
        token: content of ``OUT/shared/token``.
        version: heldin's version on the machine that started the sweep.
        cwd: folder for relative paths in configs.
        environment: environment variables for the sweep's processes.
    """

    out: str
    token: str
    version: str
    cwd: str
    environment: dict[str, str]

    @property
    def home(self) -> Path:
        """This machine's folder for the sweep, in the cache. The folder's name contains the machine's name, because
        machines may share a cache."""
        return keep_in_use(cache_directory() / "sweeps") / f"{self.token}-{socket.gethostname()}"

    def process(self, task: Task, slot: Slot, cache: Path) -> Ended:
        """Run a call that uses this machine's copy as its cache. The call ends when its caller ends."""
        cwd = Path(self.cwd)
        given = {**self.environment, "HELDIN_CACHE_DIR": str(cache)}
        return run_process(task, slot, given, cwd=cwd if cwd.is_dir() else None)


def cell(batch: SweepBatch, task: Task, slot: Slot, number: int) -> tuple[Ended, str]:
    """Run a cell. Return how it ended, and the name of the machine.

    Args:
        number: number of the published copy for the cell.

    Raises:
        InputError: this machine has another version of heldin, or cannot see the folder.
    """
    require_same_code(batch)
    cache = _own_copy(batch, number)
    assert task.folder is not None
    # Of a machine that is thought lost, a process may still work on the cell.
    while task.folder.is_dir() and is_held(task.folder):
        time.sleep(_PAUSE)
    if is_finished(task.folder):
        return Ended(0), _here()
    return batch.process(task, slot, cache), _here()


def shared(batch: SweepBatch, task: Task, slot: Slot, number: int) -> tuple[Ended, str]:
    """Make a part of the cells' shared work in this machine's cache. Return how it ended, and the name of the machine.

    Args:
        number: number of the published copy to start from; 0 if there is none yet.

    Raises:
        InputError: this machine has another version of heldin, or cannot see the folder.
    """
    require_same_code(batch)
    with one_process_at_a_time(batch.home, wait=True):
        work = batch.home / "work"
        # From what is published, so that nothing is made twice.
        if not work.is_dir() and number:
            with whole_directory(work) as temporary:
                shutil.copytree(_published(batch.out, number), temporary, dirs_exist_ok=True)
        private_directory(work)
        ended = batch.process(task, slot, work)
        if ended.code == 0:
            write_text(work / _PARTS, json.dumps(sorted({*_listed(work), part(task)})))
    return ended, _here()


def publish(batch: SweepBatch, number: int) -> tuple[int, str]:
    """Copy this machine's work to the sweep's folder. Return the number of the copy, and the name of the machine."""
    with one_process_at_a_time(batch.home, wait=True):
        with whole_directory(_published(batch.out, number + 1)) as temporary:
            shutil.copytree(batch.home / "work", temporary, dirs_exist_ok=True)
        shutil.rmtree(batch.home / "work")
    if number:
        shutil.rmtree(_published(batch.out, number), ignore_errors=True)
    return number + 1, _here()


def remove(batch: SweepBatch) -> tuple[None, str]:
    """Remove this machine's files for the sweep."""
    shutil.rmtree(batch.home, ignore_errors=True)
    return None, _here()


def token(folder: Path) -> str:
    """Return a name for this sweep's copies on other machines. heldin draws the name once, so sweeps of equal name have
    different names here."""
    path = folder / "token"
    if not path.is_file():
        write_text(path, new_key().hex()[:24], private=True)
    return path.read_text(encoding="utf-8")


def published(out: Path) -> int:
    """Return the number of the latest published copy; 0 if there is none."""
    return max((int(path.name) for path in (out / SHARED).iterdir() if path.name.isdigit()), default=0)


def parts(out: Path) -> set[str]:
    """Return the names of the published parts."""
    number = published(out)
    return set(_listed(_published(out, number))) if number else set()


def part(task: Task) -> str:
    """Return the name of a part of the shared work."""
    return text_sha256(task.module, *task.words)[:24]


def _own_copy(batch: SweepBatch, number: int) -> Path:
    """Return this machine's copy of the published files. The copy is made only once."""
    with one_process_at_a_time(batch.home, wait=True):
        folder = batch.home / str(number)
        if not folder.is_dir():
            with whole_directory(folder) as temporary:
                if number:
                    shutil.copytree(_published(batch.out, number), temporary, dirs_exist_ok=True)
    return folder


def require_same_code(batch: SweepBatch) -> None:
    """Raise InputError if this machine cannot see the sweep's folder, or has another version of heldin."""
    path = Path(batch.out) / SHARED / "token"
    if kept_text(path) != batch.token:
        raise InputError(
            f"machine {socket.gethostname()} cannot see {batch.out}: with --ray-address, put the sweep's folder on"
            " a file system that all machines share, under the same path"
        )
    if version() != batch.version:
        raise InputError(
            f"machine {socket.gethostname()} has heldin {version()} instead of {batch.version}: install the same"
            " version on all machines"
        )


def _published(out: str | Path, number: int) -> Path:
    return Path(out) / SHARED / str(number)


def _listed(folder: Path) -> list[str]:
    path = folder / _PARTS
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def _here() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
