"""The stated step in two processes that train together: noise once, whole units clipped, coins of all, one release."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audit.white_box.check import ROUNDING, Check, exact, silent
from audit.white_box.coordinate_checks import checks_of_empty_steps, empty_runs, tensors_of
from audit.white_box.draw_checks import checks_of_draws, drawing
from audit.white_box.processes import PROCESSES, Job, NotRun, together
from audit.white_box.stage import Stage
from audit.white_box.step_checks import followed, furthest
from audit.white_box.trainers import Trainer

_STEPS = 4  # read against one backward pass for each unit
_EFFORT = 4  # times the draws of a short audit: two processes are to be told apart from one
_TOGETHER = f"{PROCESSES} processes"


def process_checks(stage: Stage, trainer: Trainer, key: bytes, low: float) -> tuple[Check, ...]:
    """Run the trainer in two processes and compare; or say why that cannot be done.

    low: a clip norm below every unit's gradient.
    """
    try:
        return checks_of_processes(stage, together(jobs(stage, trainer, key, low)))
    except NotRun as why:
        return (silent(_TOGETHER, "processes", f"several processes: {why}"),)


def jobs(stage: Stage, trainer: Trainer, key: bytes, low: float) -> list[Job]:
    """What the processes do: empty steps under two keys, steps of texts, draws."""
    there, run = drawing(stage, key, low, _EFFORT)
    return [
        *(Job("releases", its, stage, trainer) for its in empty_runs(stage, key)),
        Job("readings", followed(stage, key, low, rate=1.0, steps=1), stage, trainer),
        Job("readings", followed(stage, key, low, rate=0.5, steps=_STEPS), stage, trainer),
        Job("draws", run, there, trainer),
    ]


def checks_of_processes(stage: Stage, seen: Sequence[Sequence[Any]]) -> tuple[Check, ...]:
    """Of what the processes saw of `jobs`."""
    one, two, everyone, some, drawn = seen
    apart = max(float(np.abs(others - first).max()) for first, *others_ in (one, two) for others in others_)
    off = max(furthest(of_rank) for of_rank in (*everyone, *some))
    noise = np.stack([one[0], two[0]]) / stage.mechanism.noise_multiplier
    percent = f"{100 * ROUNDING:g} %"
    told = f"what a unit with texts adds, {percent} of the largest contribution off"
    checks = [
        exact("releases, apart", "processes", apart, 0.0, f"releases that differ by {percent} of the sensitivity"),
        exact("texts", "processes", off, 0.0, told),
        *checks_of_empty_steps(tensors_of(stage, noise)),
        *checks_of_draws([drawn[0]], stage),
    ]
    return tuple(replace(check, name=f"{_TOGETHER}: {check.name}", subject="processes") for check in checks)
