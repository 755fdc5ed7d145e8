"""The noise of every coordinate of every tensor: in steps without anybody, under two keys, and in steps with people."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.base.coins import keyed_digest
from heldin.finetune.units import PrivateTraining
from heldin.white_box import laws
from heldin.white_box.canaries import Array
from heldin.white_box.check import LEVEL, Check, tested
from heldin.white_box.coins import flat
from heldin.white_box.laws import Found
from heldin.white_box.regular_checks import Tensors, direction_check, regular_checks
from heldin.white_box.runs import Run, changed, releases
from heldin.white_box.stage import Stage
from heldin.white_box.trainers import Trainer

EMPTY_STEPS = 16  # of each of the two keys
_CROWDED_RUNS = 2  # of each clip norm
_CANARIES = 8  # in a crowded step
_PASS = 8  # records of a pass there: several passes
_MOST_KS = 200_000  # numbers of a tensor whose law is tested
_GRID = 2e-6  # deviations of the noise within which two numbers count as one
_GRID_NUMBERS = 20_000
_BEYOND = (2.0, 3.0, 4.0)  # deviations
_DENSE = 1e-4  # of the sensitivity: a sum that is no multiple of a grid's width


def empty_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Steps without anybody to sample, under two keys, in every coordinate of every tensor.

    A trainer that skips empty cohorts releases nothing, which counts as noise with deviation 0.
    """
    streams = [releases(stage, trainer, run) for run in empty_runs(stage, key)]
    return checks_of_empty_steps(over_stated(stage, streams))


def empty_runs(stage: Stage, key: bytes) -> list[Run]:
    """Runs with the stated noise and without anybody to sample, under two keys."""
    mechanism = changed(stage.mechanism, steps=EMPTY_STEPS)
    keys = [keyed_digest(key, "white-box key", name) for name in ("first", "second")]
    return [Run(replace(stage.planned(run_key, ()), mechanism=mechanism)) for run_key in keys]


def checks_of_empty_steps(tensors: Tensors) -> tuple[Check, ...]:
    """Checks of noise divided by its stated deviation, by tensor, shape (2 keys, steps, *shape)."""
    found = _granular(tensors, "noise in empty steps")
    deviation = math.sqrt(sum(float(np.square(z).sum()) for z in tensors.values()) / _flat(tensors).size)
    if deviation == 0.0:  # no noise at all is an alarm already, and the other checks divide by the deviation
        return tuple(found)
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
        f"one coordinate that varies by {same.below:.2g} times the stated from step to step, in {steps} empty steps"
    )
    in_keys = (
        f"one coordinate that differs by {across.below:.2g} times the stated between two keys, in {steps} empty steps"
    )
    later, earlier = ({name: z[:, its] for name, z in u.items()} for its in (slice(1, None), slice(None, -1)))
    samples = [z.ravel()[:: max(1, z.size // _MOST_KS)] for z in u.values()]  # every n-th of a large tensor: time
    law = laws.distances(samples, LEVEL)
    tail = laws.tails(every.ravel(), _BEYOND, LEVEL)
    of_law = f"a distribution off by {law.smallest:.2g} in the smallest tensor"
    of_tail = f"{tail.times} as many numbers beyond {_BEYOND[-1]:g} deviations (none at all where it is cut off)"
    return (
        *found,
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
    """Noise of the first step with everybody in it, in small passes: the step minus the same step without noise.

    Done at the stated clip norm and at one that clips nobody.

    Args:
        stage: the stage of the audit.
        trainer: the audited trainer.
        key: key of these runs.
        high: a clip norm above every unit's gradient.
    """
    streams, sums = [], []
    for name, norm in (("as stated", stage.clip_norm), ("far above the gradients", high)):
        mechanism = changed(stage.all_records, clip_norm=norm, rate=1.0, steps=1)
        for i in range(_CROWDED_RUNS):
            there = crowd(stage, keyed_digest(key, "white-box crowd", f"{name} {i}"), norm)
            quiet = replace(there, mechanism=changed(mechanism, noise_multiplier=0.0))
            sums.append(releases(stage, trainer, Run(quiet))[0])
            # In several passes, unlike the sum without noise: noise that is added once a pass would be too much here.
            noisy = releases(stage, trainer, Run(replace(there, mechanism=mechanism, micro_records=_PASS)))[0]
            # Both runs sample everybody from the same weights, so that the sums cancel and what is left is the noise.
            streams.append((noisy.astype(np.float64) - sums[-1]) / mechanism.noise_multiplier)
    z, still = np.stack(streams)[None], np.stack(sums)[None].astype(np.float64)
    along = (z * still / np.maximum(np.linalg.norm(still, axis=-1, keepdims=True), 1e-300)).sum(axis=-1)
    # The runs of one clip norm together: a sum that is larger or smaller under noise is so in each of them.
    by_norm = along.reshape(2, _CROWDED_RUNS).sum(axis=1)
    added = laws.means(by_norm, _CROWDED_RUNS, LEVEL)
    of_sum = f"a sum that is larger or smaller under noise, by {added.smallest:.2g} deviations of the noise"
    u = z / (math.sqrt(float(np.square(z).mean())) or 1.0)
    weights = np.broadcast_to(flat(stage.model()), z.shape)
    # Only where the sum is no multiple of a grid's width: what lies on a grid there is the noise itself.
    kept = u[np.abs(still) > _DENSE]
    grid = laws.close_pairs(kept[:: max(1, kept.size // _GRID_NUMBERS)], _GRID, LEVEL)
    of_grid = f"noise on a grid of {grid.smallest:.1g} deviations under sums that are on none"
    return (
        *_granular(_tensors(stage, z), "noise amid people"),
        _repeated(_tensors(stage, u), "noise amid people shared by two keys", "any two"),
        tested("noise amid people along the sum", "texts", added, 0.0, of_sum),
        tested("noise amid people on a grid, close numbers", "coordinates", grid, grid.below, of_grid),
        *regular_checks(_tensors(stage, u), "noise amid people"),
        direction_check(_tensors(stage, u), _tensors(stage, still), "noise amid people", "the sum"),
        direction_check(_tensors(stage, u), _tensors(stage, weights), "noise amid people", "the weights"),
    )


def crowd(stage: Stage, key: bytes, norm: float) -> PrivateTraining:
    """Every writer and some gradient canaries of ten times the clip norm ``norm``, under the run's key."""
    there = stage.with_places(_CANARIES)
    training = stage.planned(key, stage.names_of_writers)
    some = there.gradient_units(range(there.canaries.count))
    return replace(training, units=(*training.units, *some), canaries=there.canaries.of_norm(norm))


def over_stated(stage: Stage, streams: Sequence[NDArray[np.float32]]) -> Tensors:
    """What steps without anybody released, divided by the stated deviation, by tensor; a stream per key, (steps, d)."""
    return _tensors(stage, np.stack(streams).astype(np.float64) / stage.mechanism.noise_multiplier)


def _tensors(stage: Stage, z: Array) -> Tensors:
    """Split (keys, steps, d) by tensor."""
    offsets = stage.canaries.offsets
    return {
        name: z[..., offsets[name] : offsets[name] + shape.numel()].reshape(*z.shape[:2], *shape)
        for name, shape in stage.canaries.shapes.items()
    }


def _granular(tensors: Tensors, name: str) -> list[Check]:
    """Are the deviations of tensors, of rows of matrices, and of single coordinates as stated?"""
    whole = {k: np.square(z).sum(axis=(0, 1)) for k, z in tensors.items()}
    rows = next(z.shape[0] * z.shape[1] for z in tensors.values())
    of_tensors = [(z.size * rows, np.array([z.sum()])) for z in whole.values()]
    of_rows = [(z.shape[-1] * rows, z.sum(axis=-1).ravel()) for z in whole.values() if z.ndim > 1]
    of_one = [(rows, z.ravel()) for z in whole.values()]
    found = []
    for what, its in (("tensor", of_tensors), ("row", of_rows), ("coordinate", of_one)):
        worst = _most_deviant(its)
        told = f"one {what} of {worst.times} the stated deviation ({name})"
        found.append(tested(f"{name}: the most deviant {what}", "coordinates", worst, 1.0, told))
    return found


def _most_deviant(sums: list[tuple[int, Array]]) -> Found:
    """The most deviant of sums of squares, tested together by number of squares.

    ``smallest`` and ``below`` are those of the group in which deviations are hardest to see.
    """
    by_size: dict[int, list[Array]] = {}
    for size, its in sums:
        by_size.setdefault(size, []).append(its)
    found = [laws.deviations(np.concatenate(its), size, LEVEL / len(by_size)) for size, its in by_size.items()]
    # Each group of equal sizes has its share of the level, and the smallest p-value is corrected for their number.
    worst = min(found, key=lambda f: f.p_value)
    largest, least = max(f.smallest for f in found), min(f.below for f in found)
    return Found(min(1.0, worst.p_value * len(found)), worst.measured, largest, least)


def _repeated(tensors: Tensors, name: str, of: Literal["one key", "two keys", "any two"]) -> Check:
    """The largest correlation of two steps: in all numbers, in a tensor, in a row of a matrix."""
    values, sizes, tests = [], [], 0
    for blocks in _blocks(tensors):  # (blocks, keys, steps, length)
        unit = blocks / np.maximum(np.linalg.norm(blocks, axis=-1, keepdims=True), 1e-300)
        steps = unit.shape[2]
        if of == "two keys":
            # Every step of one key with every step of the other.
            products = np.einsum("bsn,btn->bst", unit[:, 0], unit[:, 1])
        else:
            # Pairs of two different steps only, each once.
            products = np.einsum("bksn,bktn->bkst", unit, unit)[..., *np.triu_indices(steps, 1)]
        values.append(float(np.abs(products).max(initial=0.0)))
        sizes.append(blocks.shape[-1])
        tests += products.size
    found = laws.correlations(np.array(values), np.array(sizes), LEVEL, tests)
    which = {"one key": "one key", "two keys": "two keys", "any two": "two keys amid people"}[of]
    told = f"a correlation of {found.smallest:.2g} between steps of {which} ({found.below:.2g} in a short row alone)"
    return tested(name, "state" if of == "one key" else "keys", found, 0.0, told)


def _blocks(tensors: Tensors) -> Iterator[Array]:
    """All numbers, then tensors and rows of matrices, grouped by length: (blocks, keys, steps, length)."""
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
    """Correlations of coordinates at one distance from each other, overall and within tensors, and of two tensors."""
    whole = laws.products(*laws.lag_sums(_flat(tensors)), LEVEL)
    parts = [laws.lag_sums(z.reshape(*z.shape[:2], -1)) for z in tensors.values() if math.prod(z.shape[2:]) > 1]
    sums, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    within = laws.products(sums, counts, LEVEL, min(its.max() for _, its in parts) / 2.0)
    shared = _first_numbers(tensors)
    far = f"a correlation of {whole.smallest:.2g} between numbers at one distance, across tensors"
    near = f"a correlation of {within.smallest:.2g} between numbers at one distance in the smallest tensor"
    first = f"a correlation of {shared.below:.2g} between the first numbers of two tensors"
    return [
        tested("noise at a distance", "coordinates", whole, 0.0, far),
        tested("noise at a distance within a tensor", "coordinates", within, 0.0, near),
        tested("noise shared by two tensors", "coordinates", shared, 0.0, first),
    ]


def _first_numbers(tensors: Tensors) -> Found:
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
