"""The stated step in two processes that train together: noise added once, whole units clipped, one release."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from heldin.white_box.check import ROUNDING, Check, exact, silent
from heldin.white_box.cohorts import empty_runs
from heldin.white_box.coordinate_checks import checks_of_empty_steps, over_stated
from heldin.white_box.draw_checks import DRAWN_CANARIES, checks_of_draws, drawing, steps_to_see_one_coin
from heldin.white_box.processes import PROCESSES, Job, NotRun, together
from heldin.white_box.stage import Stage
from heldin.white_box.step_checks import followed, furthest
from heldin.white_box.trainers import Trainer

Part = Literal["noise", "texts", "draws"]
PARTS: tuple[Part, ...] = get_args(Part)

_STEPS = 4  # read against one backward pass for each unit
_TOGETHER = f"{PROCESSES} processes"


def process_checks(stage: Stage, trainer: Trainer, key: bytes, low: float) -> tuple[Check, ...]:
    """Run the trainer in two processes and compare, or say why that cannot be done."""
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
    """Return the jobs of the processes: empty steps under two keys; steps with all texts and with some; sampling."""
    match part:
        case "noise":
            return [Job("releases", run, stage, trainer) for run in empty_runs(stage, key)]
        case "texts":
            # Everybody, so that it is known who should be there; and cohorts, which are read from what they release.
            runs = followed(stage, key, low, rate=1.0, steps=1), followed(stage, key, low, rate=0.5, steps=_STEPS)
            return [Job("readings", run, stage, trainer) for run in runs]
        case "draws":
            steps = steps_to_see_one_coin(stage.mechanism.sampler.rate, DRAWN_CANARIES)
            there, run = drawing(stage, key, low, steps=steps)
            return [Job("draws", run, there, trainer)]


def checks_of(part: Part, stage: Stage, seen: Sequence[Sequence[Any]]) -> tuple[Check, ...]:
    """Checks of what the processes saw of the part's jobs, shape (jobs, processes)."""
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
            detects = f"what a unit with texts adds, {percent} of the largest contribution off"
            checks = [exact("texts", "processes", off, 0.0, detects)]
        case "draws":
            checks = checks_of_draws([seen[0][0]], stage)  # as the first process saw them
    return tuple(replace(check, name=f"{_TOGETHER}: {check.name}", subject="processes") for check in checks)
