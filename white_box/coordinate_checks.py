"""Check the noise in every coordinate of every tensor: in empty steps under two keys, and in steps with units.

Noise must not depend on the units in the cohort. A trainer that scales noise to the largest contribution is correct in
a crowd with a clipped gradient. A trainer that omits noise for a single unit is correct in every larger cohort. So each
kind of cohort has a separate check: no unit, one unit, small contributions, all units.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.base.coins import keyed_digest
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.white_box import laws
from heldin.white_box.canaries import Array, flat
from heldin.white_box.check import LEVEL, Check, tested
from heldin.white_box.laws import LawResult
from heldin.white_box.regular_checks import Tensors, direction_check, regular_checks
from heldin.white_box.stage import SURE, Stage
from heldin.white_box.trainers import Run, Trainer, changed, releases

EMPTY_STEPS = 16  # of each of the two keys
SMALL_STEPS = 8  # in which small contributions are drawn
_NOBODY = 1e-7  # sampling rate at which nobody is drawn
_FAR = 1e3  # a clip norm above every gradient, times this: a contribution is then lost in the noise
_CROWDED_RUNS = 2  # of each clip norm
_CANARIES = 8  # in a crowd
_PASS = 8  # records of a pass there: several passes
_ONE_PASS = 64  # records
_MOST_KS = 200_000  # numbers of a tensor whose law is tested
_GRID = 2e-6  # deviations of the noise within which two numbers count as one
_GRID_NUMBERS = 20_000
_BEYOND = (2.0, 3.0, 4.0)  # deviations
SHARED = LEVEL / 4  # level of checks of which there is one for each kind of cohort
_DENSE = 1e-4  # of the sensitivity: a sum that is no multiple of a grid's width


def empty_runs(stage: Stage, key: bytes) -> list[Run]:
    """Return runs that draw no unit, under two keys: one without units, and one with all writers at a rate of 1e-7."""
    nobody, writers = (
        stage.planned(keyed_digest(key, "white-box key", name), names)
        for name, names in (("first", ()), ("second", stage.names_of_writers))
    )
    steps = max(EMPTY_STEPS, 2 * stage.mechanism.sampler.groups)
    return [
        Run(replace(nobody, mechanism=changed(stage.mechanism, steps=steps))),
        Run(replace(writers, mechanism=changed(stage.mechanism, steps=steps, rate=_NOBODY))),
    ]


def small_cohorts(stage: Stage, key: bytes, high: float) -> Run:
    """Return a run that draws each writer with probability 1/2 per step, with a clip norm far above ``high``."""
    training = stage.planned(keyed_digest(key, "white-box cohort", "small"), stage.names_of_writers)
    return Run(replace(training, mechanism=far_above(stage, high, rate=0.5, steps=SMALL_STEPS)))


def lone_units(stage: Stage, key: bytes, high: float) -> list[Run]:
    """Return runs of one step that draws exactly one unit, with a clip norm far above ``high``.

    There is one run for a unit of each writer, and one for a unit without records. Another run uses a text that the
    model predicts, so loss and gradient are near 0.
    """
    mechanism = far_above(stage, high, rate=1.0, steps=1)

    def alone(units: Sequence[SampledUnit]) -> list[Run]:
        return [
            Run(replace(base, key=keyed_digest(key, "white-box alone", unit.name), units=(unit,))) for unit in units
        ]

    base = replace(stage.planned(key, (*stage.names_of_writers, stage.people.canaries[0].name)), mechanism=mechanism)
    of_user = {stage.records.users[unit.rows[0]]: unit for unit in reversed(base.units)}
    sure = of_user.pop(stage.people.canaries[0].name)
    runs = alone([*of_user.values(), SampledUnit("nobody's records", ())])
    return [*runs, replace(alone([sure])[0], weights=SURE)]


def crowds(stage: Stage, key: bytes, high: float) -> list[PrivateTraining]:
    """Return runs of one step with all writers and some gradient canaries, in small passes, with two clip norms.

    The first norm is the stated norm, and clips all units. The second norm is ``high``, and clips only the canaries.
    """
    return [
        _crowd(stage, keyed_digest(key, "white-box crowd", f"{name} {i}"), norm)
        for name, norm in (("as stated", stage.clip_norm), ("far above the gradients", high))
        for i in range(_CROWDED_RUNS)
    ]


def lone_canary(stage: Stage, key: bytes) -> PrivateTraining:
    """Return a run of one step with one gradient canary, whose contribution is the largest allowed."""
    crowd = _crowd(stage, keyed_digest(key, "white-box alone", "canary"), stage.clip_norm)
    return replace(crowd, units=crowd.units[-1:])


def _crowd(stage: Stage, key: bytes, norm: float) -> PrivateTraining:
    """Return a run with all writers and some gradient canaries, whose gradients are ten times the clip norm
    ``norm``."""
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


def far_above(stage: Stage, high: float, *, rate: float, steps: int) -> Mechanism:
    """Return the mechanism with a clip norm far above ``high``, so contributions are negligible compared with the
    noise."""
    return changed(stage.all_records, clip_norm=_FAR * high, rate=rate, steps=steps)


def empty_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Check the noise of steps without units, under two keys, in every coordinate of every tensor.

    A trainer that skips empty cohorts releases nothing. This counts as noise with deviation 0.
    """
    streams = [releases(stage, trainer, run) for run in empty_runs(stage, key)]
    return checks_of_empty_steps(over_stated(stage, streams))


def checks_of_empty_steps(tensors: Tensors) -> tuple[Check, ...]:
    """Check noise divided by its stated deviation; ``tensors`` has shape (2 keys, steps, *shape) for each tensor."""
    by_part = _granular(tensors, "noise in empty steps")
    deviation = math.sqrt(sum(float(np.square(z).sum()) for z in tensors.values()) / _flat(tensors).size)
    if deviation == 0.0:  # no noise at all is an alarm already, and the other checks divide by the deviation
        return tuple(by_part)
    # By the measured deviation: a wrong one has its alarm above, and should not raise those of law and dependence too.
    u = {name: z / deviation for name, z in tensors.items()}
    every = _flat(u)
    steps = every.shape[1]
    # About its own mean over the steps, which costs a degree of freedom: what every step repeats is then missing.
    about = np.square(every - every.mean(axis=1, keepdims=True)).sum(axis=1)
    same = laws.deviations(about, steps - 1, LEVEL)
    # Halved, as a difference of two independent numbers has twice the variance.
    across = laws.deviations(np.square(every[0] - every[1]).sum(axis=0) / 2.0, steps, LEVEL)
    in_steps = (
        f"one coordinate that varies by {same.below:.2g} times the stated deviation from step to step, in {steps}"
        " empty steps"
    )
    in_keys = (
        f"one coordinate that differs by {across.below:.2g} times the stated deviation between two keys, in {steps}"
        " empty steps"
    )
    later, earlier = ({name: z[:, window] for name, z in u.items()} for window in (slice(1, None), slice(None, -1)))
    samples = [z.ravel()[:: max(1, z.size // _MOST_KS)] for z in u.values()]  # every n-th of a large tensor: time
    law = laws.distances(samples, LEVEL)
    tail = laws.tails(every.ravel(), _BEYOND, LEVEL)
    of_law = f"a distribution off by {law.smallest:.2g} in the smallest tensor"
    of_tail = f"{tail.times} as many numbers beyond {_BEYOND[-1]:g} deviations (none at all where it is cut off)"
    return (
        *by_part,
        tested("noise of a coordinate about its mean", "state", same, 1.0, in_steps),
        _repeated(u, "noise shared by two steps", "one key"),
        _repeated(u, "noise shared by two keys", "two keys"),
        tested("noise of a coordinate under two keys", "keys", across, 1.0, in_keys),
        *_along(u),
        *regular_checks(u, "noise in empty steps"),
        direction_check(later, earlier, "noise in empty steps", "the step before"),
        tested("noise of a tensor, distance from normal", "coordinates", law, 0.0, of_law),
        tested("noise far from zero", "coordinates", tail, 1.0, of_tail),
    )


def crowded_checks(stage: Stage, trainer: Trainer, key: bytes, high: float) -> tuple[Check, ...]:
    """Check the noise of steps with units: with small contributions, with one unit, and with all units in small passes.

    Small contributions are negligible compared with the noise. Larger contributions are subtracted, because the same
    step without noise has the same sum.
    """
    runs = small_cohorts(stage, key, high), *lone_units(stage, key, high)
    far_above = [releases(stage, trainer, run).astype(np.float64) / stage.mechanism.noise_multiplier for run in runs]
    small, *alone = far_above
    alone += [noise_and_sum(stage, trainer, lone_canary(stage, key))[0]]
    pairs = [noise_and_sum(stage, trainer, crowd) for crowd in crowds(stage, key, high)]
    # shape (1, steps, d)
    crowded, still = (np.concatenate(steps)[None] for steps in zip(*pairs, strict=True))
    z = np.concatenate([small, *alone, crowded[0]])[None]
    u = z / (math.sqrt(float(np.square(z).mean())) or 1.0)
    return (
        *_granular(by_tensor(stage, z), "noise amid people"),
        most_deviant_step(small, "small contributions", "that draws contributions far below the clip norm"),
        most_deviant_step(np.concatenate(alone), "one unit", "that draws exactly one unit"),
        most_deviant_part(by_tensor(stage, z)),
        _repeated(by_tensor(stage, u), "noise amid people shared by two steps", "any two"),
        *regular_checks(by_tensor(stage, u), "noise amid people"),
        *_against_the_sum(stage, crowded, still),
    )


def noise_and_sum(stage: Stage, trainer: Trainer, training: PrivateTraining) -> tuple[Array, Array]:
    """Return a step's noise divided by its stated deviation, and the sum below the noise, each of shape (1, d)."""
    # In one pass, unlike the step with noise. Both draw everybody from the same weights, so that the sums cancel.
    quiet = replace(training, mechanism=changed(training.mechanism, noise_multiplier=0.0), micro_records=_ONE_PASS)
    still, noisy = (releases(stage, trainer, Run(variant)).astype(np.float64) for variant in (quiet, training))
    return (noisy - still) / training.mechanism.noise_multiplier, still


def _against_the_sum(stage: Stage, z: Array, still: Array) -> tuple[Check, ...]:
    """Check the noise ``z`` in relation to the sums ``still`` to which it was added, both of shape (1, steps, d)."""
    along = (z * still / np.maximum(np.linalg.norm(still, axis=-1, keepdims=True), 1e-300)).sum(axis=-1)
    # The runs of one clip norm together: a sum that is larger or smaller under noise is so in each of them.
    by_norm = along.reshape(2, -1)
    added = laws.means(by_norm.sum(axis=1), by_norm.shape[1], LEVEL)
    of_sum = f"a sum that noise makes larger or smaller, by {added.smallest:.2g} deviations of the noise"
    u = z / (math.sqrt(float(np.square(z).mean())) or 1.0)
    weights = np.broadcast_to(flat(stage.model()), z.shape)
    # Only where the sum is no multiple of a grid's width: what lies on a grid there is the noise itself.
    kept = u[np.abs(still) > _DENSE]
    grid = laws.close_pairs(kept[:: max(1, kept.size // _GRID_NUMBERS)], _GRID, LEVEL)
    of_grid = f"noise on a grid of {grid.smallest:.1g} deviations added to sums that are on no grid"
    return (
        tested("noise amid people along the sum", "texts", added, 0.0, of_sum),
        tested("noise amid people on a grid, close numbers", "coordinates", grid, grid.below, of_grid),
        direction_check(by_tensor(stage, u), by_tensor(stage, still), "noise amid people", "the sum"),
        direction_check(by_tensor(stage, u), by_tensor(stage, weights), "noise amid people", "the weights"),
    )


def over_stated(stage: Stage, streams: Sequence[NDArray[np.float32]]) -> Tensors:
    """Return, by tensor, releases of empty steps divided by the stated deviation. ``streams`` has one (steps, d) per
    key."""
    return by_tensor(stage, np.stack(streams).astype(np.float64) / stage.mechanism.noise_multiplier)


def by_tensor(stage: Stage, z: Array) -> Tensors:
    """Return values (keys, steps, d), split by tensor."""
    offsets = stage.canaries.offsets
    return {
        name: z[..., offsets[name] : offsets[name] + shape.numel()].reshape(*z.shape[:2], *shape)
        for name, shape in stage.canaries.shapes.items()
    }


def _granular(tensors: Tensors, name: str) -> list[Check]:
    """Check the deviations of whole tensors, of rows of matrices, and of single coordinates."""
    whole = {k: np.square(z).sum(axis=(0, 1)) for k, z in tensors.items()}
    rows = next(z.shape[0] * z.shape[1] for z in tensors.values())
    of_tensors = [(z.size * rows, np.array([z.sum()])) for z in whole.values()]
    of_rows = [(z.shape[-1] * rows, z.sum(axis=-1).ravel()) for z in whole.values() if z.ndim > 1]
    of_one = [(rows, z.ravel()) for z in whole.values()]
    checks = []
    for part, sums in (("tensor", of_tensors), ("row", of_rows), ("coordinate", of_one)):
        worst = _most_deviant(sums)
        detects = f"one {part} of {worst.times} the stated deviation ({name})"
        checks.append(tested(f"{name}: the most deviant {part}", "coordinates", worst, 1.0, detects))
    return checks


def steps_check(stage: Stage, z: Array, name: str, cohort: str) -> Check:
    """Check the noise of steps, shape (steps, d): of each whole step, and of its tensors and rows. All share one level.

    Args:
        name: beginning of the check's name.
        cohort: text about the property that the steps share.
    """
    steps, size = z.shape
    whole = laws.deviations(np.square(z).sum(axis=1), size, SHARED / 2)
    part = _of_parts(by_tensor(stage, z[None]), SHARED / 2)
    detects = f"one of {steps} steps {cohort}, of {whole.times} the stated deviation (a tensor or row of {part.times})"
    worst = laws.either([whole, part])
    return replace(tested(f"{name}: the most deviant step", "coordinates", worst, 1.0, detects), level=SHARED)


def most_deviant_step(z: Array, name: str, cohort: str) -> Check:
    """Check the deviation of each step's noise, shape (steps, d)."""
    steps, size = z.shape
    finding = laws.deviations(np.square(z).sum(axis=1), size, LEVEL)
    detects = f"one of {steps} steps {cohort}, of {finding.times} the stated deviation"
    return tested(f"noise of {name}: the most deviant step", "coordinates", finding, 1.0, detects)


def most_deviant_part(tensors: Tensors) -> Check:
    """Check, in each step, the deviation of the noise of each tensor and of each row of a matrix."""
    worst, steps = _of_parts(tensors, LEVEL), len(next(iter(tensors.values()))[0])
    detects = f"a tensor or row of {worst.times} the stated deviation in one of {steps} steps that draw a unit"
    return tested("noise amid people: the most deviant part of a step", "coordinates", worst, 1.0, detects)


def _of_parts(tensors: Tensors, level: float) -> LawResult:
    squares = [np.square(z[0]) for z in tensors.values()]
    sums = [(math.prod(z.shape[1:]), z.reshape(len(z), -1).sum(axis=1)) for z in squares]
    sums += [(z.shape[-1], z.sum(axis=-1).ravel()) for z in squares if z.ndim > 2]
    return _most_deviant(sums, level)


def _most_deviant(sums: list[tuple[int, Array]], level: float = LEVEL) -> LawResult:
    """Test sums of squares together, grouped by their number of squares, and return the most deviant result.

    ``smallest`` and ``below`` are for the group whose deviations are hardest to detect.
    """
    by_size: dict[int, list[Array]] = {}
    for size, values in sums:
        by_size.setdefault(size, []).append(values)
    findings = [laws.deviations(np.concatenate(groups), size, level / len(by_size)) for size, groups in by_size.items()]
    # Each group of equal sizes has its share of the level, and the smallest p-value is corrected for their number.
    worst = min(findings, key=lambda f: f.p_value)
    largest, least = max(f.smallest for f in findings), min(f.below for f in findings)
    return LawResult(min(1.0, worst.p_value * len(findings)), worst.measured, largest, least)


def _repeated(tensors: Tensors, name: str, pairs: Literal["one key", "two keys", "any two"]) -> Check:
    """Check the largest correlation between two steps: over all numbers, over a tensor, and over a row of a matrix."""
    values, sizes, tests = [], [], 0
    for blocks in _blocks(tensors):  # (blocks, keys, steps, length)
        unit = blocks / np.maximum(np.linalg.norm(blocks, axis=-1, keepdims=True), 1e-300)
        steps = unit.shape[2]
        if pairs == "two keys":
            # Every step of one key with every step of the other.
            products = np.einsum("bsn,btn->bst", unit[:, 0], unit[:, 1])
        else:
            # Pairs of two different steps only, each once.
            products = np.einsum("bksn,bktn->bkst", unit, unit)[..., *np.triu_indices(steps, 1)]
        values.append(float(np.abs(products).max(initial=0.0)))
        sizes.append(blocks.shape[-1])
        tests += products.size
    finding = laws.correlations(np.array(values), np.array(sizes), LEVEL, tests)
    titles = {"one key": "steps of one key", "two keys": "steps of two keys", "any two": "any two steps amid people"}
    detects = (
        f"a correlation of {finding.smallest:.2g} between {titles[pairs]} ({finding.below:.2g} in a short row alone)"
    )
    return tested(name, "state" if pairs == "one key" else "keys", finding, 0.0, detects)


def _blocks(tensors: Tensors) -> Iterator[Array]:
    """Yield all numbers, then tensors and rows of matrices, grouped by length, as (blocks, keys, steps, length)."""
    yield _flat(tensors)[None]
    by_length: dict[int, list[Array]] = {}
    for z in tensors.values():
        by_length.setdefault(math.prod(z.shape[2:]), []).append(z.reshape(1, *z.shape[:2], -1))
        if z.ndim > 3:
            rows = z.reshape(*z.shape[:2], -1, z.shape[-1])
            by_length.setdefault(z.shape[-1], []).append(rows.transpose(2, 0, 1, 3))
    for length, blocks in by_length.items():
        if length > 1:  # a single number has no direction to compare
            yield np.concatenate(blocks)


def _along(tensors: Tensors) -> list[Check]:
    """Check correlations between coordinates at a fixed distance, overall and within tensors, and between two
    tensors."""
    whole = laws.products(*laws.lag_sums(_flat(tensors)), LEVEL)
    parts = [laws.lag_sums(z.reshape(*z.shape[:2], -1)) for z in tensors.values() if math.prod(z.shape[2:]) > 1]
    sums, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    within = laws.products(sums, counts, LEVEL, min(pairs.max() for _, pairs in parts) / 2.0)
    shared = _first_numbers(tensors)
    far = f"a correlation of {whole.smallest:.2g} between numbers at one distance, across tensors"
    near = f"a correlation of {within.smallest:.2g} between numbers at one distance in the smallest tensor"
    first = f"a correlation of {shared.below:.2g} between the first numbers of two tensors"
    return [
        tested("noise at a distance", "coordinates", whole, 0.0, far),
        tested("noise at a distance within a tensor", "coordinates", within, 0.0, near),
        tested("noise shared by two tensors", "coordinates", shared, 0.0, first),
    ]


def _first_numbers(tensors: Tensors) -> LawResult:
    values, sizes = [], []
    flat = [z.reshape(*z.shape[:2], -1) for z in tensors.values()]
    for a, b in combinations(flat, 2):
        size = min(a.shape[-1], b.shape[-1])
        x, y = a[..., :size].ravel(), b[..., :size].ravel()
        scale = math.sqrt(float(np.square(x).sum() * np.square(y).sum()))
        values.append(float(x @ y) / scale if scale > 0.0 else 0.0)
        sizes.append(x.size)
    return laws.correlations(np.array(values), np.array(sizes), LEVEL)


def _flat(tensors: Tensors) -> Array:
    return np.concatenate([z.reshape(*z.shape[:2], -1) for z in tensors.values()], axis=-1)
