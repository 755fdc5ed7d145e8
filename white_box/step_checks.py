"""Check single steps without noise: contributions of gradient canaries and of units with texts, at several clip norms.

Only the sample is random in such a step, and the step shows which units were sampled. A step is correct up to rounding,
or wrong.
"""

import math
from dataclasses import replace

import numpy as np

from heldin.base.coins import keyed_digest
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.white_box.canaries import Array
from heldin.white_box.check import ROUNDING, Check, exact
from heldin.white_box.oracle import furthest, gradient
from heldin.white_box.outcome import AlarmKind
from heldin.white_box.stage import Stage
from heldin.white_box.trainers import Run, Trainer, changed, readings, releases

HUGE, HALF = 1000.0, 0.5  # norms of the canary, in clip norms
FOLLOWED = 5  # steps of a short audit in which some units take part, read against the weights of each
_LEFT_OUT = 4  # units whose influence is measured at the stated clip norm
_CROWD = 8  # gradient canaries
_ALL, _SOME = 64, 4  # records of a pass, at most
_PERCENT = f"{100 * ROUNDING:g} %"


def norms_of_units(stage: Stage, key: bytes) -> Array:
    """Return the norms of the units' gradients before training, over all their records, ascending, shape (units,)."""
    base = stage.model()
    units = stage.planned(key, stage.names_of_writers).units
    texts = {tuple(tuple(stage.sequences[row].ids) for row in unit.rows) for unit in units}
    return np.array(sorted(float(np.linalg.norm(gradient(base, rows))) for rows in texts))


def canary_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Check single steps that draw all units. All values are in units of the sensitivity.

    | check       | what is compared                                              | must be   |
    |-------------|---------------------------------------------------------------|-----------|
    | clip        | all units with texts, with and without a canary of norm 1000 C | 1         |
    | small       | the same with a canary of norm C / 2: nothing is scaled up    | 1 / 2     |
    | divisor     | a canary alone, and among units with texts and other canaries | 1, both   |
    | sensitivity | all units with texts, with and without one of them            | at most 1 |
    """
    everyone = _alone(stage, key)
    whole, canary = replace(stage.canaries, coordinates=None), (SampledUnit("canary", (), canary=0),)

    def moved(training: PrivateTraining) -> Array:
        return np.asarray(releases(stage, trainer, Run(training))[0], dtype=np.float64)

    def added_by_norm(size: float) -> float:
        # Along a random direction over all tensors: a clip that leaves one out, or clips each alone, adds more than C.
        added = replace(everyone, units=(*everyone.units, *canary), canaries=replace(whole, norm=size))
        return float(np.linalg.norm(moved(added) - base))

    base = moved(everyone)
    own = stage.with_places(_CROWD)
    crowd, place = tuple(own.gradient_units(range(own.canaries.count))), int(stage.canaries.quiet[0])
    alone = moved(replace(everyone, units=crowd[:1], canaries=own.canaries))[place]
    # One member of each canary, so that each adds 1 also under ELS.
    among = moved(replace(everyone, units=(*everyone.units, *crowd[:: stage.mechanism.members]), canaries=own.canaries))
    furthest = max((float(alone), float(among[place])), key=lambda value: abs(value - 1.0))
    left_out = range(0, len(everyone.units), max(1, len(everyone.units) // _LEFT_OUT))
    fewer = [tuple(u for j, u in enumerate(everyone.units) if j != i) for i in left_out]
    sensitivity = max(float(np.linalg.norm(base - moved(replace(everyone, units=units)))) for units in fewer)
    adds = f"a gradient canary whose contribution is off by {_PERCENT} of the clip norm"
    return (
        exact(
            "clip: what norm 1000 C adds",
            "canaries",
            added_by_norm(HUGE * stage.clip_norm),
            1.0,
            f"{adds} (norm 1000 C)",
        ),
        exact(
            "clip: what norm C / 2 adds", "canaries", added_by_norm(HALF * stage.clip_norm), 0.5, f"{adds} (norm C / 2)"
        ),
        exact("divisor: what a canary adds", "canaries", furthest, 1.0, f"{adds} (alone, and among others)"),
        _at_most("sensitivity: what a writer adds, at most", sensitivity),
    )


def text_checks(
    stage: Stage, trainer: Trainer, key: bytes, norms: Array, low: float, high: float, effort: int = 1
) -> tuple[Check, ...]:
    """Compare steps of units with texts with one backward pass per unit, at the weights of the step.

    The clip norms are far below the gradients of all units, between the gradients, far above them, and the stated norm.
    The first step draws all units, in one pass or in one pass per record. In several further steps, coins draw half of
    the units, in passes of four.

    Args:
        norms: norms of the units' gradients, in ascending order.
        low: a clip norm below the gradient norms of all units.
        high: a clip norm above the gradient norms of all units.
    """
    middle = float(np.median(norms))
    spread = f"gradients of {float(norms[0]) / stage.clip_norm:.2g} to {float(norms[-1]) / stage.clip_norm:.2g} C"
    many, few = FOLLOWED * effort, 2 * effort
    rows = [("far below the gradients", low, many), ("between the gradients", middle, many)]
    rows += [("far above the gradients", high, few), ("as stated", stage.clip_norm, 1)]
    checks, carried = [], []
    for name, norm, steps in rows:
        detects = (
            f"a contribution of a unit with texts off by {_PERCENT} of the largest, at a clip norm {name} ({spread})"
        )
        at_once = 1 if norm == low else _ALL
        own = keyed_digest(key, "white-box clip norm", name)  # not of the norm, which differs by a bit among machines
        everyone = readings(stage, trainer, followed(stage, own, norm, rate=1.0, steps=1, most=at_once))
        some = readings(stage, trainer, followed(stage, own, norm, rate=0.5, steps=steps))
        # What is off in the first step cannot have been left by an earlier one; later steps are a check of state.
        checks.append(exact(f"texts: clip norm {name}", "texts", furthest([*everyone, *some[:1]]), 0.0, detects))
        carried += some[1:]
    detects = f"an addition to the cohort's contributions of {_PERCENT} of the largest, in {many} steps"
    return (*checks, exact("texts: what earlier steps leave", "state", furthest(carried), 0.0, detects))


def unlike_checks(stage: Stage, trainer: Trainer, key: bytes, low: float) -> tuple[Check, ...]:
    """Check unusual units: one whose gradient is not finite, and one without records.

    A trainer that stops reveals such a unit. An alarm about the first unit has the kind "non-finite", unless the step
    is equally wrong without this unit.
    """
    alone = _alone(stage, key)
    base = replace(alone, mechanism=changed(stage.all_records, rate=1.0, steps=1, noise_multiplier=0.0, clip_norm=low))
    beside_sick = Run(replace(base, units=(*base.units, stage.sick_unit())), "sick")
    beside_empty = Run(replace(base, units=(*base.units, SampledUnit("nobody's records", ()))))
    sick, empty = (_survived(stage, trainer, run) for run in (beside_sick, beside_empty))
    # A step that is wrong at these weights without that unit too is wrong on finite input.
    finite_right = sick <= ROUNDING or _survived(stage, trainer, Run(base, "sick")) <= ROUNDING
    kind = AlarmKind.NON_FINITE if finite_right else AlarmKind.MECHANISM
    name, detects = (
        "unlike: beside a unit",
        f"a step that is off by {_PERCENT} of the largest contribution, with a unit",
    )
    not_finite, without = "that is not finite", "without records"
    return (
        exact(f"{name} {not_finite}", "unlike units", sick, 0.0, f"{detects} {not_finite}", kind=kind),
        exact(f"{name} {without}", "unlike units", empty, 0.0, f"{detects} {without}"),
    )


def followed(stage: Stage, key: bytes, norm: float, *, rate: float, steps: int, most: int = _SOME) -> Run:
    """Return a run without noise of units with texts and some gradient canaries.

    Args:
        key: key from which the run's key is derived.
        rate: sampling rate of a unit.
        most: maximum number of records per pass.
    """
    there = stage.with_places(_CROWD)
    training = stage.planned(keyed_digest(key, "white-box texts", f"{rate} {steps}"), stage.names_of_writers)
    training = replace(
        training,
        mechanism=changed(stage.mechanism, clip_norm=norm, rate=rate, steps=steps, noise_multiplier=0.0),
        micro_records=most,
        units=(*training.units, *there.gradient_units(range(there.canaries.count))),
        canaries=there.canaries.of_norm(norm),
    )
    return Run(training)


def _alone(stage: Stage, key: bytes) -> PrivateTraining:
    """Return a run of one step without noise that draws all units with texts."""
    training = stage.planned(keyed_digest(key, "white-box step", ""), stage.names_of_writers)
    return replace(training, mechanism=changed(stage.mechanism, rate=1.0, steps=1, noise_multiplier=0.0))


def _survived(stage: Stage, trainer: Trainer, run: Run) -> float:
    """Return the distance of the steps from the stated steps; NaN if the trainer stops."""
    try:
        with np.errstate(all="ignore"):  # NaN is a finding here
            return furthest(readings(stage, trainer, run))
    except Exception:  # whatever the trainer raises, it stopped because of one unit's data
        return math.nan


def _at_most(name: str, measured: float) -> Check:
    right = measured <= 1.0 + ROUNDING
    detects = f"a contribution of one of {_LEFT_OUT} units with texts, {_PERCENT} above the stated clip norm"
    return Check(name, "texts", float(right), measured, 1.0, ROUNDING, detects, 0.0)
