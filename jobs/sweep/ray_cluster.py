"""A Ray cluster for the cells of a sweep: the sweep's folder is on a file system that all share, caches are not.

What cells share is made on one machine, in a cache of its own, and published whole in ``OUT/shared``; every machine
takes a copy before its first cell. So no SQLite file and no lock of a cache is used by two machines.
"""

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from heldin.base.coins import new_key
from heldin.base.errors import InputError, ResumableError
from heldin.base.files import (
    cache_directory,
    is_held,
    one_process_at_a_time,
    private_directory,
    text_sha256,
    whole_directory,
    write_text,
)
from heldin.jobs.sweep.config import Resources
from heldin.jobs.sweep.processes import Ended, Slot, Task, run_process

SHARED = "shared"
_PARTS = "parts.json"
_RETRIES = 3  # of a cell whose machine is lost
_MOST = 1000  # cells that wait with Ray
_PAUSE = 1.0  # seconds
_PATIENCE = 30.0  # seconds for a server to accept a connection


class Cluster:
    """Machines behind one Ray address: as many cells at a time as its CPUs and GPUs take."""

    def __init__(self, resources: Resources, cells: int, *, address: str, out: Path) -> None:
        """Connect.

        Args:
            resources: ``workers`` is the number of cells on the smallest machine, unless ``threads`` says otherwise.
            cells: number of cells to run.
            address: of the cluster: HOST:PORT, ``ray://HOST:PORT``, or ``auto`` for the one that Ray finds.
            out: folder of the sweep, which every machine sees under this name.

        Raises:
            InputError: Ray is not installed, or nobody answers at the address.
        """
        self._ray = _connected(address)
        machines = [its["Resources"] for its in self._ray.nodes() if its["Alive"]]
        fewest = int(min(its.get("CPU", 0) for its in machines if its.get("CPU", 0) >= 1))
        threads = resources.threads or max(1, fewest // (resources.workers * resources.processes))
        on_gpus = any(its.get("GPU", 0) >= resources.processes for its in machines)
        # Which GPUs it sees is Ray's to say.
        self._slot = Slot(threads, resources.processes)
        self._needs = {"num_cpus": threads * resources.processes, "num_gpus": resources.processes if on_gpus else 0}
        self._alone = Slot(resources.threads or fewest)
        self._alone_needs = {"num_cpus": self._alone.threads, "num_gpus": 1 if on_gpus else 0}
        if not any(self._fits(its) for its in machines):
            raise InputError(
                f"--ray-address {address}: no machine has the {self._needs['num_cpus']} CPUs and"
                f" {self._needs['num_gpus']} GPUs of a cell: lower resources.threads or resources.processes"
            )
        self.width = min(_MOST, max(1, cells))
        self._out = out.resolve()
        self._published = _token(private_directory(self._out / SHARED))
        self._machine: str | None = None  # where shared work is made
        self._used: set[str] = set()
        self._waiting: set[Any] = set()
        self._lock = threading.Lock()
        self.describes = f"Ray at {address}, {len(machines)} machine(s), {threads} thread(s) each"

    def run(self, task: Task) -> Ended:
        """Run a cell where there is room; again elsewhere if its machine is lost."""
        number, token = _number(self._out), self._published
        ended: Ended
        ended, machine = self._on_cluster(
            _cell, (task, self._slot, str(self._out), token, number), self._needs, retries=_RETRIES
        )
        self._used.add(machine)
        return ended

    def share(self, task: Task) -> Ended:
        """Make a part of what cells share, unless it is published already; all parts on one machine."""
        if _part(task) in _parts(self._out):
            return Ended(0)
        where = self._affinity(self._machine) if self._machine else {}
        ended: Ended
        ended, self._machine = self._on_cluster(
            _shared, (task, self._alone, str(self._out), self._published), {**self._alone_needs, **where}, retries=0
        )
        return ended

    def publish(self) -> None:
        """Copy what was made to the sweep's folder, whole or not at all."""
        if self._machine is not None:
            its = {"num_cpus": 1, **self._affinity(self._machine)}
            self._on_cluster(_publish, (str(self._out), self._published), its, retries=0)
            self._machine = None

    def stop(self) -> None:
        """Stop the cells' processes; each goes on from its last checkpoint when it is called again."""
        with self._lock:
            waiting = list(self._waiting)
        for its in waiting:
            self._ray.cancel(its)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what still runs, and remove the machines' copies."""
        self.stop()
        if kind is None:
            for machine in self._used:
                its = {"num_cpus": 0, **self._affinity(machine)}
                # A machine that is gone has taken its copy along.
                try:
                    self._on_cluster(_remove, (self._published,), its, retries=0)
                except ResumableError:
                    continue
        self._ray.shutdown()

    def _fits(self, machine: dict[str, float]) -> bool:
        return machine.get("CPU", 0) >= self._needs["num_cpus"] and machine.get("GPU", 0) >= self._needs["num_gpus"]

    def _affinity(self, machine: str) -> dict[str, Any]:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return {"scheduling_strategy": strategy(node_id=machine, soft=False)}

    def _on_cluster(
        self, call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], *, retries: int
    ) -> tuple[Any, str]:
        """What the call returned, and the machine that it ran on."""
        remote = self._ray.remote(call).options(max_retries=retries, **options)
        waiting = remote.remote(*arguments)
        with self._lock:
            self._waiting.add(waiting)
        try:
            answer: tuple[Any, str] = self._ray.get(waiting)
            return answer
        except self._ray.exceptions.TaskCancelledError as error:
            raise KeyboardInterrupt from error
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None
        except self._ray.exceptions.RayError as error:
            # Lost more often than it is tried again.
            raise ResumableError(f"Ray: {type(error).__name__}: the same command goes on") from error
        finally:
            with self._lock:
                self._waiting.discard(waiting)


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError("--ray-address needs Ray: pip install 'heldin[cluster]'") from error
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except Exception as error:  # Ray has an error of its own for each of its layers
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"--ray-address {address}: no cluster answers: {said}") from error
    return ray


def _require_answer(address: str) -> None:
    """Raise InputError if nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise InputError(f"--ray-address {address}: nobody answers ({error.strerror or error})") from error


# What follows runs on the cluster's machines.


def _cell(task: Task, slot: Slot, out: str, token: str, number: int) -> tuple[Ended, str]:
    _require_seen(out, token)
    cache = _own_copy(Path(out), token, number)
    assert task.folder is not None
    # Of a machine that is thought lost, a process may still work on the cell.
    while task.folder.is_dir() and is_held(task.folder):
        time.sleep(_PAUSE)
    if (task.folder / "record.json").is_file():
        return Ended(0), _here()
    return run_process(task, slot, {"HELDIN_CACHE_DIR": str(cache)}), _here()


def _shared(task: Task, slot: Slot, out: str, token: str) -> tuple[Ended, str]:
    _require_seen(out, token)
    work = _work(token)
    with one_process_at_a_time(work.parent, wait=True):
        number = _number(Path(out))
        # From what is published, so that nothing is made twice.
        if not work.is_dir() and number:
            with whole_directory(work) as temporary:
                shutil.copytree(Path(out) / SHARED / str(number), temporary, dirs_exist_ok=True)
        private_directory(work)
        ended = run_process(task, slot, {"HELDIN_CACHE_DIR": str(work)})
        if ended.code == 0:
            parts = sorted({*_listed(work), _part(task)})
            write_text(work / _PARTS, json.dumps(parts))
    return ended, _here()


def _publish(out: str, token: str) -> tuple[None, str]:
    work, number = _work(token), _number(Path(out))
    with one_process_at_a_time(work.parent, wait=True):
        with whole_directory(Path(out) / SHARED / str(number + 1)) as temporary:
            shutil.copytree(work, temporary, dirs_exist_ok=True)
        shutil.rmtree(work)
    if number:
        shutil.rmtree(Path(out) / SHARED / str(number), ignore_errors=True)
    return None, _here()


def _remove(token: str) -> tuple[None, str]:
    for folder in (cache_directory() / "sweeps").glob(f"{token}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return None, _here()


def _own_copy(out: Path, token: str, number: int) -> Path:
    """This machine's copy of what is published, made once."""
    folder = private_directory(cache_directory() / "sweeps") / f"{token}-{number}"
    with one_process_at_a_time(folder.parent, wait=True):
        if not folder.is_dir():
            with whole_directory(folder) as temporary:
                if number:
                    shutil.copytree(out / SHARED / str(number), temporary, dirs_exist_ok=True)
    return folder


def _require_seen(out: str, token: str) -> None:
    path = Path(out) / SHARED / "token"
    if not path.is_file() or path.read_text(encoding="utf-8") != token:
        raise InputError(
            f"machine {socket.gethostname()} does not see '{out}': with --ray-address the sweep's folder must be on a"
            " file system that all machines share, under one name"
        )


def _here() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _work(token: str) -> Path:
    return private_directory(cache_directory() / "sweeps") / f"{token}-work"


def _token(shared: Path) -> str:
    """A name for this sweep's copies on other machines, drawn once."""
    path = shared / "token"
    if not path.is_file():
        write_text(path, new_key().hex()[:24], private=True)
    return path.read_text(encoding="utf-8")


def _number(out: Path) -> int:
    """Number of the latest published copy; 0 if there is none."""
    return max((int(its.name) for its in (out / SHARED).iterdir() if its.name.isdigit()), default=0)


def _parts(out: Path) -> set[str]:
    number = _number(out)
    return set(_listed(out / SHARED / str(number))) if number else set()


def _listed(folder: Path) -> list[str]:
    path = folder / _PARTS
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def _part(task: Task) -> str:
    return text_sha256(task.module, *task.words)[:24]
