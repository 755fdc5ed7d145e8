"""A Ray cluster that runs the cells of a sweep. All machines share the sweep's folder, but not their caches.

One machine makes the cells' shared work in its own cache, and publishes all of it in ``OUT/shared``. Every machine
copies this folder before its first cell. Therefore no two machines use the same SQLite file or cache lock.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import cache_directory, keep_in_use, private_directory, whole_directory
from heldin.base.machine import version
from heldin.base.wording import counted
from heldin.corpus.cluster import connect_to_ray
from heldin.sweeps import node
from heldin.sweeps.node import SHARED, SweepBatch
from heldin.sweeps.processes import Ended, Slot, Task
from heldin.sweeps.sweep_config import Resources

_RETRIES = 3  # of a cell whose machine is lost
_MOST = 1000  # cells that wait with Ray
_PASSED_ON = ("HF_", "HELDIN_")  # what a machine's own environment need not have
_TO_STOP, _PAUSE = 10.0, 0.1  # seconds for cells to stop, and between looks
_MODELS = ("pretrained", "references")


class Cluster:
    """The machines at one Ray address. They run as many cells at a time as their CPUs and GPUs allow, up to the 1,000
    cells that heldin submits at a time."""

    def __init__(self, resources: Resources, cells: int, *, address: str, out: Path) -> None:
        """Connect to the cluster.

        Args:
            resources: resources of the sweep; ``workers`` is the number of cells on the smallest machine, unless
                ``threads`` is set.
            address: HOST:PORT of a cluster that includes this machine, or ``auto`` for the cluster that Ray finds.
            out: absolute path of the sweep's folder, which must be the same on every machine.

        Raises:
            InputError: Ray is not installed, no cluster answers at the address, or no machine has room for a cell.
        """
        self._ray = connect_to_ray(address)
        machines = [machine["Resources"] for machine in self._ray.nodes() if machine["Alive"]]
        fewest = int(min((machine["CPU"] for machine in machines if machine.get("CPU", 0) >= 1), default=1))
        threads = resources.threads or max(1, fewest // (resources.workers * resources.processes))
        on_gpus = any(machine.get("GPU", 0) >= resources.processes for machine in machines)
        # Which GPUs it sees is Ray's to say.
        self._slot = Slot(threads, resources.processes)
        self._needs = {"num_cpus": threads * resources.processes, "num_gpus": resources.processes if on_gpus else 0}
        self._alone = Slot(resources.threads or fewest)
        self._alone_needs = {"num_cpus": self._alone.threads, "num_gpus": 1 if on_gpus else 0}
        if not any(self._fits(machine) for machine in machines):
            raise InputError(
                f"--ray-address {address}: no machine has the {self._needs['num_cpus']} CPUs and"
                f" {self._needs['num_gpus']} GPUs that a cell needs. Lower resources.threads or resources.processes"
            )
        self.width = min(_MOST, max(1, cells))
        self._out = out
        # The driver's cache is its machine's own.
        passed = (name for name in os.environ if name.startswith(_PASSED_ON) and not name.endswith("TOKEN"))
        given = {name: os.environ[name] for name in passed}
        given.pop("HELDIN_CACHE_DIR", None)
        token = node.token(private_directory(out / SHARED))
        self._batch = SweepBatch(str(out), token, version(), str(Path.cwd()), given)
        self._published = node.published(out)
        self._machine: str | None = None  # where shared work is made
        self._waiting: set[Any] = set()
        self._lock = threading.Lock()
        self.describes = f"Ray at {address}, {counted(len(machines), 'machine')}, {counted(threads, 'thread')} each"

    def run(self, task: Task) -> Ended:
        """Run a cell on a machine that has room. If the machine is lost, run the cell again on another machine."""
        ended: Ended
        arguments = (self._batch, task, self._slot, self._published)
        ended, _ = self._on_cluster(node.cell, arguments, self._needs, retries=_RETRIES)
        return ended

    def share(self, task: Task) -> Ended:
        """Make a part of the cells' shared work, unless it is already published. One machine makes all parts."""
        if node.part(task) in node.parts(self._out):
            return Ended(0)
        where = self._affinity(self._machine) if self._machine else {}
        ended: Ended
        arguments = (self._batch, task, self._alone, self._published)
        ended, self._machine = self._on_cluster(node.shared, arguments, {**self._alone_needs, **where}, retries=0)
        return ended

    def publish(self) -> None:
        """Copy the shared work to the sweep's folder, completely or not at all."""
        if self._machine is not None:
            options = {"num_cpus": 0, **self._affinity(self._machine)}
            # Told, not looked up: a network file system may still show what was there before.
            self._published, _ = self._on_cluster(node.publish, (self._batch, self._published), options, retries=0)
            self._machine = None
            _take_models(self._out / SHARED / str(self._published))

    def stop(self, *, alone: bool = True) -> None:
        """Stop the processes of the cells. At the next call, each cell resumes from its last checkpoint.

        Args:
            alone: unused, because no interrupt reaches other machines.
        """
        # An interrupt may come where nobody hears it; the last call ends Ray's worker, and with it what it started.
        for force in (False, False, True):
            with self._lock:
                waiting = list(self._waiting)
            for reference in waiting:
                self._ray.cancel(reference, force=force)
            until = time.monotonic() + _TO_STOP
            while self._waiting and time.monotonic() < until:
                time.sleep(_PAUSE)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the running cells. If all cells are done, remove the copies on the machines."""
        try:
            self.stop()
            if kind is None:
                for machine in [alive["NodeID"] for alive in self._ray.nodes() if alive["Alive"]]:
                    options = {"num_cpus": 0, **self._affinity(machine)}
                    # A machine that is gone has taken its copy along.
                    with contextlib.suppress(ResumableError):
                        self._on_cluster(node.remove, (self._batch,), options, retries=0)
        finally:
            self._ray.shutdown()

    def _fits(self, machine: dict[str, float]) -> bool:
        return machine.get("CPU", 0) >= self._needs["num_cpus"] and machine.get("GPU", 0) >= self._needs["num_gpus"]

    def _affinity(self, machine: str) -> dict[str, Any]:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return {"scheduling_strategy": strategy(node_id=machine, soft=False)}

    def _on_cluster(
        self, call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], *, retries: int
    ) -> tuple[Any, str]:
        """Return the result of the call, and the name of the machine that ran it."""
        waiting = self._ray.remote(call).options(max_retries=retries, **options).remote(*arguments)
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
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            # Lost more often than it is tried again.
            raise ResumableError(
                f"Ray stopped with {type(error).__name__}: run the same command again to continue"
            ) from error
        finally:
            with self._lock:
                self._waiting.discard(waiting)


def _take_models(published: Path) -> None:
    """Copy new models to this machine's cache, where heldin verify and heldin report search for them."""
    for kind in _MODELS:
        for model in (published / kind).glob("*"):
            own = keep_in_use(cache_directory() / kind) / model.name
            if model.is_dir() and not own.exists():
                with whole_directory(own) as temporary:
                    shutil.copytree(model, temporary, dirs_exist_ok=True)
