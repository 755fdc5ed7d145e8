"""Runs with noise, which must not depend on who takes part: nobody, one unit, small contributions, everybody.

Noise that is scaled to the largest contribution is as stated in a crowd that holds a clipped gradient, and noise that
is left out for one unit is as stated in every larger cohort. Each kind of cohort is therefore watched by itself.
"""

from collections.abc import Sequence
from dataclasses import replace

from heldin.base.coins import keyed_digest
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.white_box.runs import Run, changed
from heldin.white_box.stage import Stage

EMPTY_STEPS = 16  # of each of the two keys
SMALL_STEPS = 8  # in which small contributions are drawn
_NOBODY = 1e-7  # sampling rate at which nobody is drawn
_FAR = 1e3  # a clip norm above every gradient, times this: a contribution is then lost in the noise
_CROWDED_RUNS = 2  # of each clip norm
_CANARIES = 8  # in a crowd
_PASS = 8  # records of a pass there: several passes


def empty_runs(stage: Stage, key: bytes) -> list[Run]:
    """Runs that draw nobody, under two keys: from no units at all, and from the writers at a rate of 1e-7."""
    nobody, writers = (
        stage.planned(keyed_digest(key, "white-box key", name), names)
        for name, names in (("first", ()), ("second", stage.names_of_writers))
    )
    return [
        Run(replace(nobody, mechanism=changed(stage.mechanism, steps=EMPTY_STEPS))),
        Run(replace(writers, mechanism=changed(stage.mechanism, steps=EMPTY_STEPS, rate=_NOBODY))),
    ]


def small_cohorts(stage: Stage, key: bytes, high: float) -> Run:
    """A run that draws half of the writers by coin in each step; the clip norm is far above ``high``."""
    training = stage.planned(keyed_digest(key, "white-box cohort", "small"), stage.names_of_writers)
    return Run(replace(training, mechanism=_far_above(stage, high, rate=0.5, steps=SMALL_STEPS)))


def lone_units(stage: Stage, key: bytes, high: float) -> list[Run]:
    """Runs of a step that draws exactly one unit, at a clip norm far above ``high``.

    One run for a unit of each writer, one for a unit without records, and one for a text that the model predicts, whose
    loss and gradient are near 0.
    """
    mechanism = _far_above(stage, high, rate=1.0, steps=1)

    def alone(units: Sequence[SampledUnit]) -> list[Run]:
        return [
            Run(replace(base, key=keyed_digest(key, "white-box alone", unit.name), units=(unit,))) for unit in units
        ]

    base = replace(stage.planned(key, (*stage.names_of_writers, stage.people.canaries[0].name)), mechanism=mechanism)
    of_user = {stage.records.users[unit.rows[0]]: unit for unit in reversed(base.units)}
    sure = of_user.pop(stage.people.canaries[0].name)
    runs = alone([*of_user.values(), SampledUnit("nobody's records", ())])
    return [*runs, replace(alone([sure])[0], weights="sure")]


def crowds(stage: Stage, key: bytes, high: float) -> list[PrivateTraining]:
    """One step with every writer and some gradient canaries, in small passes, some at each of two clip norms.

    They are the stated clip norm, at which everybody is clipped, and ``high``, at which the canaries alone are.
    """
    return [
        _crowd(stage, keyed_digest(key, "white-box crowd", f"{name} {i}"), norm)
        for name, norm in (("as stated", stage.clip_norm), ("far above the gradients", high))
        for i in range(_CROWDED_RUNS)
    ]


def lone_canary(stage: Stage, key: bytes) -> PrivateTraining:
    """One step with one gradient canary, which contributes as much as a unit may."""
    crowd = _crowd(stage, keyed_digest(key, "white-box alone", "canary"), stage.clip_norm)
    return replace(crowd, units=crowd.units[-1:])


def _crowd(stage: Stage, key: bytes, norm: float) -> PrivateTraining:
    """Every writer and some gradient canaries of ten times the clip norm ``norm``, under the run's key."""
    there = stage.with_places(_CANARIES)
    training = stage.planned(key, stage.names_of_writers)
    return replace(
        training,
        mechanism=changed(stage.all_records, clip_norm=norm, rate=1.0, steps=1),
        # Noise that is added once a pass would be too much here.
        micro_records=_PASS,
        units=(*training.units, *there.gradient_units(range(there.canaries.count))),
        canaries=there.canaries.of_norm(norm),
    )


def _far_above(stage: Stage, high: float, *, rate: float, steps: int) -> Mechanism:
    return changed(stage.all_records, clip_norm=_FAR * high, rate=rate, steps=steps)
