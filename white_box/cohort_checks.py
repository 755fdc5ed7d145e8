"""Check noise in cohorts of two, in cohorts above the mean size, and in batches of low, middle and high loss.

A trainer may omit noise if many units are drawn, or reduce it if the loss is low. Such a trainer adds the stated noise
in nearly every training step. These checks force the rare steps by a chosen number of units, a small mean, and a chosen
likelihood of a text.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from heldin.base.coins import keyed_digest
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.white_box.check import Check, silent
from heldin.white_box.coordinate_checks import far_above, noise_and_sum, steps_check
from heldin.white_box.stage import Stage
from heldin.white_box.trainers import Run, Trainer, changed, releases

TIMES = (1.25, 1.5, 2.0)  # cohorts above so many times the mean
_SAMPLED, _SAMPLED_MEAN, _SAMPLED_STEPS = 12, 1.25, 64  # of a run with a small mean, of which 3 units are 2.4 times
_SMALL = 1e-4  # norm of a contribution there, in clip norms
_MOST_UNITS, _TEXTS = 400, 2  # of a cohort that is made, and of those the units with texts
# How much likelier the token of a text is made, in steps of ten nats: mean losses from near 0 to more than 10.
LIKELY = (2.0, 1.4, 1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.6, 0.0)
_LOSS_UNITS, _LOSS_STEPS = 3, 2  # of a run in which all texts have one loss


def cohort_size_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Check the noise in cohorts of two units, and in cohorts above 1.25, 1.5 and 2 times the mean.

    A trainer may compute the mean from the sampling rate or from the divisor. For cohorts above the divisor, a run
    draws more units at rate 1. For cohorts above the rate's mean, a run has a mean of 1.25 units.
    """
    exactly = [noise_and_sum(stage, trainer, cohort)[0] for cohort in made_cohorts(stage, key)]
    drawn = releases(stage, trainer, sampled_cohorts(stage, key)).astype(np.float64)
    z = np.concatenate([*exactly, drawn / stage.mechanism.noise_multiplier])
    rare = 1.0 - float(stats.binom.cdf(2, _SAMPLED, _SAMPLED_MEAN / _SAMPLED)) ** _SAMPLED_STEPS
    sizes = sizes_above(stage)
    above = f"of {_words(sizes)} units, {_words(TIMES[: len(sizes)])} times the divisor, " if sizes else ""
    name = "noise by size of cohorts"
    cohorts = (
        f"that draws two units, {above}or of a run with a mean of {_SAMPLED_MEAN} units (with probability {rare:.4f}"
        f" one step draws {3 / _SAMPLED_MEAN:g} times as many)"
    )
    check = steps_check(stage, z, name, cohorts)
    if len(sizes) == len(TIMES):
        return (check,)
    why = f"noise in cohorts of more than {_most_units(stage)} units, which {TIMES[-1]:g} times the divisor would be"
    return (check, silent(f"{name}, large", "coordinates", why))


def loss_checks(stage: Stage, trainer: Trainer, key: bytes, high: float) -> tuple[Check, ...]:
    """Check the noise in steps in which all texts have the same loss, from near 0 nats to more than 10.

    Args:
        high: a clip norm above the gradient norm of every unit.
    """
    runs = [batch_of_loss(stage, key, high, likely) for likely in LIKELY]
    z = np.concatenate([releases(stage, trainer, run).astype(np.float64) for run in runs])
    z /= stage.mechanism.noise_multiplier
    losses = [round(loss_at(stage, likely), 2) for likely in LIKELY]
    return (steps_check(stage, z, "noise by loss", f"with mean losses of {_words(losses)} nats"),)


def sizes_above(stage: Stage) -> list[int]:
    """Return the smallest cohort sizes above 1.25, 1.5 and 2 times the divisor, without impossible sizes."""
    divisor = stage.mechanism.divisor.constant
    assert divisor is not None
    return [size for times in TIMES if (size := int(times * divisor) + 1) <= _most_units(stage)]


def made_cohorts(stage: Stage, key: bytes) -> list[PrivateTraining]:
    """Return runs of one step that draws all units: first three pairs, then cohorts above the divisor."""
    there = stage.with_places(_MOST_UNITS)
    planned = there.planned(key, stage.names_of_writers)
    members = stage.mechanism.members
    # One member of each canary, so that each adds 1 also under ELS.
    canaries = there.gradient_units(range(there.canaries.count))[::members]
    cohorts = [planned.units[:2], tuple(canaries[:2]), (planned.units[-1], canaries[0])]
    cohorts += [(*planned.units[:_TEXTS], *canaries)[:size] for size in sizes_above(stage)]
    return [
        replace(
            planned,
            key=keyed_digest(key, "white-box size", str(i)),
            mechanism=changed(stage.all_records, rate=1.0, steps=1),
            units=cohort,
            canaries=there.canaries,
        )
        for i, cohort in enumerate(cohorts)
    ]


def sampled_cohorts(stage: Stage, key: bytes) -> Run:
    """Return a run that draws 1.25 units on average. Its units are canaries with gradients far below the clip norm."""
    there = stage.with_places(_SAMPLED)
    planned = there.planned(keyed_digest(key, "white-box size", "sampled"), ())
    mechanism = changed(stage.all_records, rate=_SAMPLED_MEAN / _SAMPLED, steps=_SAMPLED_STEPS)
    units = there.gradient_units(range(there.canaries.count))[:: stage.mechanism.members]
    small = replace(there.canaries, norm=_SMALL * stage.clip_norm)
    return Run(replace(planned, mechanism=mechanism, units=units, canaries=small))


def batch_of_loss(stage: Stage, key: bytes, high: float, likely: float) -> Run:
    """Return a run whose units have the texts of one text canary. ``likely`` sets the likelihood of the canary's token.

    Args:
        high: a clip norm above the gradient norm of every unit.
    """
    planned = stage.planned(keyed_digest(key, "white-box loss", str(likely)), (stage.people.canaries[0].name,))
    mechanism = far_above(stage, high, rate=1.0, steps=_LOSS_STEPS)
    # The same rows under several names: a cohort in which everybody has this loss.
    units = tuple(SampledUnit(f"copy {i}", planned.units[0].rows) for i in range(_LOSS_UNITS))
    return Run(replace(planned, mechanism=mechanism, units=units), likely)


def loss_at(stage: Stage, likely: float) -> float:
    """Return the mean loss per token of the first text canary before training, in nats."""
    ids = torch.tensor([list(stage.people.canaries[0].records[0])])
    with torch.no_grad():
        return float(stage.model(likely).model(input_ids=ids, labels=ids, use_cache=False).loss)


def _most_units(stage: Stage) -> int:
    """Return the size of the largest possible cohort: units with texts, and one canary on each quiet coordinate."""
    return min(_MOST_UNITS, _TEXTS + stage.canaries.quiet.size)


def _words(numbers: Sequence[float]) -> str:
    *most, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(most)} and {last}" if most else last
