"""Single steps without noise: what a gradient canary adds, and what units with texts add, at several clip norms.

Nothing is random here but who takes part, which is read off; a step is right to rounding or it is not.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from audit.white_box.canaries import Array
from audit.white_box.check import ROUNDING, Check, exact
from audit.white_box.oracle import gradient
from audit.white_box.runs import Reading, Run, changed, readings, releases
from audit.white_box.stage import Stage
from audit.white_box.trainers import Trainer
from corpus.coins import keyed_digest
from finetune.units import PrivateTraining, SampledUnit

HUGE, HALF = 1000.0, 0.5  # norms of the canary, in clip norms
FOLLOWED = 6  # steps of a short audit in which some units take part, read against the weights of each
_LEFT_OUT = 4  # writers whose influence is measured at the stated clip norm
_CROWD = 8  # gradient canaries
_PASS = 8  # records of a small pass


def norms_of_units(stage: Stage, key: bytes) -> Array:
    """Norm of each sampled unit's gradient before training, all its records taken, (units,)."""
    base = stage.model()
    units = stage.planned(key, stage.names_of_writers).units
    texts = {tuple(tuple(stage.sequences[row]) for row in unit.rows) for unit in units}
    return np.array(sorted(float(np.linalg.norm(gradient(base, its))) for its in texts))


def canary_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Single steps with everybody drawn, in units of the sensitivity.

    | check       | what is compared                                               | must be  |
    |-------------|----------------------------------------------------------------|----------|
    | clip        | all writers with and without a canary of norm 1000 C           | 1        |
    | small       | the same with a canary of norm C / 2: nothing is scaled up     | 1 / 2    |
    | divisor     | a canary alone, and among writers and other canaries           | 1, both  |
    | sensitivity | all writers with and without one of them                       | at most 1 |
    """
    writers = _alone(stage, key)
    whole = replace(stage.canaries, coordinates=None)
    canary = (SampledUnit("canary", (), canary=0),)

    def moved(training: PrivateTraining) -> Array:
        return releases(stage, trainer, Run(training))[0].astype(np.float64)

    def of(training: PrivateTraining, size: float) -> float:
        added = replace(training, units=(*training.units, *canary), canaries=replace(whole, norm=size))
        return float(np.linalg.norm(moved(added) - base))

    base = moved(writers)
    huge, half = of(writers, HUGE * stage.clip_norm), of(writers, HALF * stage.clip_norm)
    crowd = tuple(SampledUnit(f"canary {j}", (), canary=j) for j in range(min(_CROWD, stage.canaries.quiet.size)))
    own = replace(stage.canaries, coordinates=stage.canaries.quiet)
    place = int(stage.canaries.quiet[0])
    alone = moved(replace(writers, units=crowd[:1], canaries=own))[place]
    among = moved(replace(writers, units=(*writers.units, *crowd), canaries=own))[place]
    furthest = max((float(alone), float(among)), key=lambda value: abs(value - 1.0))
    left_out = range(0, len(writers.units), max(1, len(writers.units) // _LEFT_OUT))
    fewer = [tuple(u for j, u in enumerate(writers.units) if j != i) for i in left_out]
    sensitivity = max(float(np.linalg.norm(base - moved(replace(writers, units=units)))) for units in fewer)
    off = f"off by {100 * ROUNDING:g} % of the clip norm"
    return (
        exact("clip: what norm 1000 C adds", "canaries", huge, 1.0, f"what a canary of norm 1000 C adds, {off}"),
        exact("clip: what norm C / 2 adds", "canaries", half, 0.5, f"what a canary of norm C / 2 adds, {off}"),
        exact("divisor: what a canary adds", "canaries", furthest, 1.0, f"what a canary adds alone and among others, {off}"),
        _at_most("sensitivity: what a writer adds, at most", sensitivity),
    )


def text_checks(
    stage: Stage, trainer: Trainer, key: bytes, norms: Array, low: float, high: float, effort: int = 1
) -> tuple[Check, ...]:
    """Steps of units with texts against one backward pass for each unit, at the weights of the step.

    At clip norms far below every unit's gradient, between them, far above, and as stated; everybody, and half of
    them by coins over several steps; in passes of 64 records and of 3.

    Args:
        stage: of the audit.
        trainer: that is audited.
        key: of these runs.
        norms: of the units' gradients, increasing.
        low: a clip norm below all of them.
        high: one above all.
        effort: how many times the steps of a short audit.
    """
    middle = float(np.median(norms))
    spread = f"{float(norms[0]) / stage.clip_norm:.2g} to {float(norms[-1]) / stage.clip_norm:.2g} C"
    what = f"what a writer adds (gradients of {spread}), off by {100 * ROUNDING:g} % of the largest contribution"
    rows = (
        ("far below the writers' gradients", low),
        ("between the writers' gradients", middle),
        ("far above the writers' gradients", high),
        ("as stated", stage.clip_norm),
    )
    found = []
    for name, norm in rows:
        everyone = _readings(stage, trainer, key, norm, rate=1.0, steps=1)
        some = _readings(stage, trainer, key, norm, rate=0.5, steps=1, micro_records=_PASS)
        told = f"{what}, at a clip norm {name}"
        found.append(exact(f"texts: clip norm {name}", "texts", _furthest([*everyone, *some]), 0.0, told))
    steps = FOLLOWED * effort
    followed = _readings(stage, trainer, key, low, rate=0.5, steps=steps, micro_records=_PASS)
    told = f"what a step holds besides its cohort at its weights, {100 * ROUNDING:g} % of a contribution, in {steps} steps"
    return (*found, exact("texts: what earlier steps leave", "state", _furthest(followed), 0.0, told))


def unlike_checks(stage: Stage, trainer: Trainer, key: bytes, low: float) -> tuple[Check, ...]:
    """Units that are not as the others are: not finite, and without a record. A trainer that stops has told of them.

    low: a clip norm below every unit's gradient.
    """
    base = replace(_alone(stage, key, stage.most_records), micro_records=64)
    base = replace(base, mechanism=changed(base.mechanism, clip_norm=low))
    sick = replace(base, units=(*base.units, stage.sick_unit()))
    empty = replace(base, units=(*base.units, SampledUnit("nobody's records", ())))
    told = f"{100 * ROUNDING:g} % of a contribution in what a step holds"
    return (
        exact(
            "unlike: beside a unit that is not finite",
            "unlike units",
            _survived(stage, trainer, Run(sick, sick=True)),
            0.0,
            f"a unit whose gradient is not finite: {told}",
        ),
        exact(
            "unlike: beside a unit without records",
            "unlike units",
            _survived(stage, trainer, Run(empty)),
            0.0,
            f"a unit without records: {told}",
        ),
    )


def _readings(
    stage: Stage, trainer: Trainer, key: bytes, norm: float, *, rate: float, steps: int, micro_records: int = 64
) -> list[Reading]:
    training = stage.planned(keyed_digest(key, "white-box texts", f"{norm} {rate} {steps}"), stage.names_of_writers)
    mechanism = changed(stage.mechanism, clip_norm=norm, rate=rate, steps=steps, noise_multiplier=0.0)
    some = stage.gradient_units(range(min(_CROWD, stage.canaries.count)))
    units = (*training.units, *some)
    run = Run(
        replace(
            training, mechanism=mechanism, micro_records=micro_records, units=units, canaries=stage.canaries.of_norm(norm)
        )
    )
    return readings(stage, trainer, run)


def _alone(stage: Stage, key: bytes, group_size: int | None = None) -> PrivateTraining:
    """One step without noise, all writers."""
    training = stage.planned(keyed_digest(key, "white-box step", ""), stage.names_of_writers)
    size = {} if group_size is None else {"group_size": group_size}
    return replace(training, mechanism=changed(stage.mechanism, rate=1.0, steps=1, noise_multiplier=0.0, **size))


def _furthest(found: Sequence[Reading]) -> float:
    return max((max(each.off, each.odd) for each in found), default=math.inf)


def _survived(stage: Stage, trainer: Trainer, run: Run) -> float:
    """How far the steps are from what they should hold; NaN where the trainer stopped."""
    try:
        return _furthest(readings(stage, trainer, run))
    except Exception:  # whatever a trainer raises over one unit's data, it stops for it
        return math.nan


def _at_most(name: str, measured: float) -> Check:
    right = measured <= 1.0 + ROUNDING
    told = f"what one of {_LEFT_OUT} writers adds at the stated clip norm, {100 * ROUNDING:g} % above it"
    return Check(name, "texts", float(right), measured, 1.0, ROUNDING, told, 0.0)
