"""Run a trainer in two processes that train together, started on one machine in the way of ``torchrun``.

The checks test whether noise is added once, units are clipped as a whole, and all processes see one release.

Each process is a new interpreter that makes all runs. The process uses torch.distributed's default group (gloo,
connected through a file, so no port is needed). The trainer is pickled, so the process must be able to import it. The
trainer may be a function or a dataclass of a module, but not a function that another function made.
"""

import contextlib
import datetime
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist

from heldin.white_box.check import ROUNDING, Check, exact, silent
from heldin.white_box.coordinate_checks import checks_of_empty_steps, empty_runs, over_stated
from heldin.white_box.draw_checks import DRAWN_CANARIES, checks_of_draws, drawing, steps_to_see_one_coin
from heldin.white_box.oracle import furthest
from heldin.white_box.stage import Stage
from heldin.white_box.step_checks import followed
from heldin.white_box.trainers import Run, Trainer, draws, readings, releases

PROCESSES = 2
_PATIENCE = 300.0  # seconds
_JOINING = datetime.timedelta(seconds=120)

How = Literal["releases", "readings", "draws"]
_HOW: Mapping[How, Callable[[Stage, Trainer, Run], Any]] = {"releases": releases, "readings": readings, "draws": draws}
Part = Literal["noise", "texts", "draws"]
PARTS: tuple[Part, ...] = get_args(Part)

_STEPS = 4  # read against one backward pass for each unit
_TOGETHER = f"{PROCESSES} processes"


@dataclass(frozen=True)
class Job:
    """One run, and the name of the function that observes it.

    Attributes:
        how: name of a function in ``white_box.trainers``.
    """

    how: How
    run: Run
    stage: Stage
    trainer: Trainer


class NotRun(Exception):
    """No run in several processes was possible; the message gives the reason in one line."""


def together(jobs: Sequence[Job]) -> list[tuple[Any, ...]]:
    """Run the jobs in several processes. Return, for each job, the result of each process.

    Raises NotRun if the trainer cannot be pickled, or a process fails or takes too long.
    """
    if not dist.is_available() or dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise NotRun("the audit already runs in several processes, or torch.distributed is missing")
    try:
        # Here and not in the processes, so that a trainer that cannot be handed over is a reason and no crash.
        work = pickle.dumps(tuple(jobs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotRun(f"the trainer cannot be sent to another process ({error})") from error
    with tempfile.TemporaryDirectory(prefix="heldin-processes-") as name:
        folder = Path(name)
        (folder / "work").write_bytes(work)
        started = [_start(folder, rank) for rank in range(PROCESSES)]
        try:
            _wait(started, folder)
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()
        seen = [pickle.loads((folder / f"seen {rank}").read_bytes()) for rank in range(PROCESSES)]
    return list(zip(*seen, strict=True))


def _start(folder: Path, rank: int) -> "subprocess.Popen[bytes]":
    environment: dict[str, str] = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # The trainer's module must be found again, also one beside the script that was started ("" in sys.path).
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's host name may not resolve to itself
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(folder), str(rank)]
    with (folder / f"errors {rank}").open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)


def _wait(started: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while any(process.poll() is None for process in started):
        if time.monotonic() > until:
            raise NotRun(f"{PROCESSES} processes did not finish within {_PATIENCE:.0f} s")
        # One has failed: the others would wait for it until their own patience ends.
        if any(process.poll() for process in started):
            break
        time.sleep(0.02)
    for rank, process in enumerate(started):
        if process.poll():
            errors = (folder / f"errors {rank}").read_text("utf-8", errors="replace").strip().splitlines()
            last = errors[-1].removeprefix(f"[rank{rank}]: ") if errors else "without a word"
            raise NotRun(f"process {rank} of {PROCESSES} stopped: {last}")


def _take_part(folder: Path, rank: int) -> None:
    """Do the work of one process, and write its results to the folder."""
    # Both processes share the cores: with more threads than cores each is many times slower than with one thread.
    torch.set_num_threads(1)
    store = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES, timeout=_JOINING)
    try:
        jobs: tuple[Job, ...] = pickle.loads((folder / "work").read_bytes())
        seen = [_HOW[job.how](job.stage, job.trainer, job.run) for job in jobs]
        (folder / f"seen {rank}").write_bytes(pickle.dumps(seen))
        # So that neither leaves the group while the other is still in its last run.
        dist.barrier()
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def process_checks(stage: Stage, trainer: Trainer, key: bytes, low: float) -> tuple[Check, ...]:
    """Run the trainer in two processes and compare their results, or report why this is impossible."""
    try:
        seen = together([job for part in PARTS for job in jobs(part, stage, trainer, key, low)])
    except NotRun as why:
        return (silent(_TOGETHER, "processes", f"several processes: {why}"),)
    return (
        *checks_of("noise", stage, seen[:2]),
        *checks_of("texts", stage, seen[2:4]),
        *checks_of("draws", stage, seen[4:]),
    )


def jobs(part: Part, stage: Stage, trainer: Trainer, key: bytes, low: float) -> list[Job]:
    """Return the jobs: empty steps under two keys, steps with all texts, steps with some texts, and sampling."""
    match part:
        case "noise":
            return [Job("releases", run, stage, trainer) for run in empty_runs(stage, key)]
        case "texts":
            # Everybody, so that it is known who should be there; and cohorts, which are read from what they release.
            runs = followed(stage, key, low, rate=1.0, steps=1), followed(stage, key, low, rate=0.5, steps=_STEPS)
            return [Job("readings", run, stage, trainer) for run in runs]
        case "draws":
            steps = steps_to_see_one_coin(stage.mechanism.sampler.rate, DRAWN_CANARIES)
            there, run = drawing(stage, key, low, steps=steps * stage.mechanism.sampler.groups)
            return [Job("draws", run, there, trainer)]


def checks_of(part: Part, stage: Stage, seen: Sequence[Sequence[Any]]) -> tuple[Check, ...]:
    """Check the observations of each process in each of the part's jobs; ``seen`` has shape (jobs, processes)."""
    percent = f"{100 * ROUNDING:g} %"
    match part:
        case "noise":
            # All processes must release the same: one that lacks the noise gives it away by comparison.
            apart = max(float(np.abs(other - outputs[0]).max()) for outputs in seen for other in outputs[1:])
            detects = f"releases of two processes that differ by {percent} of the sensitivity"
            checks = [exact("releases, apart", "processes", apart, 0.0, detects)]
            checks += checks_of_empty_steps(over_stated(stage, [outputs[0] for outputs in seen]))
        case "texts":
            off = max(furthest(of_one) for outputs in seen for of_one in outputs)
            detects = f"a unit with texts whose contribution is off by {percent} of the largest"
            checks = [exact("texts", "processes", off, 0.0, detects)]
        case "draws":
            checks = checks_of_draws([seen[0][0]], stage)  # as the first process saw them
    return tuple(replace(check, name=f"{_TOGETHER}: {check.name}", subject="processes") for check in checks)


if __name__ == "__main__":
    _take_part(Path(sys.argv[1]), int(sys.argv[2]))
