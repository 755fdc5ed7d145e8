"""Is the noise what is stated: in every coordinate, between coordinates, between steps, under two keys, amid people."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.white_box import laws
from audit.white_box.canaries import Array
from audit.white_box.check import LEVEL, Check, Subject
from audit.white_box.laws import Found
from audit.white_box.runs import Run, changed, releases
from audit.white_box.stage import Stage
from audit.white_box.trainers import Trainer
from corpus.coins import keyed_digest
from finetune.units import PrivateTraining

EMPTY_STEPS = 16  # of each of the two keys
_CROWDED_RUNS = 3  # of each clip norm
_CANARIES = 8  # in a crowded step
_PASS = 8  # records of a pass there: several passes
_MOST_KS = 200_000
_ROWS = 1000  # of a block of correlations
_GRID = 2e-6  # deviations of the noise within which two numbers count as one
_DENSE = 1e-4  # of the sensitivity: a sum that is no multiple of a grid's width

Tensors = Mapping[str, Array]  # by name, (keys, steps, *shape)


def noise_checks(noise: NDArray[np.float32], trainings: int = 1) -> tuple[Check, ...]:
    """Is what whole trainings release where nobody's gradient reaches N(0, 1), independent between steps and places?

    Two-sided: too little and too much are both caught. The first check is of the deviation as stated, the others of
    the noise over its own deviation, so that a wrong deviation raises one alarm and not all; that own deviation is
    taken as known (T P is in the thousands).

    Args:
        noise: over the stated deviation, (trainings x T, P).
        trainings: one after the other, T steps each.
    """
    z = noise.astype(np.float64)
    rows, places = z.shape
    deviation = math.sqrt(float(np.square(z).mean()))
    whole = laws.deviations(np.square(z).sum(), z.size, LEVEL)
    told = f"a deviation off by {100 * whole.smallest:.2g} % in all steps of the trainings"
    found = [_check("noise deviation over the stated one", "coordinates", whole, told, expected=1.0)]
    if deviation == 0.0:
        return tuple(found)
    u = z / deviation
    of_step = laws.deviations(np.square(u).sum(axis=1), places, LEVEL)
    of_place = laws.deviations(np.square(u).sum(axis=0), rows, LEVEL)
    mean = laws.means(u.sum(), u.size, LEVEL)
    law = laws.distances([u.ravel()[:: max(1, u.size // _MOST_KS)]], LEVEL)
    found += [
        _check("noise mean", "coordinates", mean, f"a mean of {mean.smallest:.2g} deviations"),
        _check("noise distance from normal", "coordinates", law, f"a distribution off by {law.smallest:.2g}"),
        _check(
            "noise of the most deviant step",
            "state",
            of_step,
            f"one step with a deviation off by {100 * of_step.smallest:.2g} %",
            expected=1.0,
        ),
        _check(
            "noise of the most deviant coordinate",
            "coordinates",
            of_place,
            f"one coordinate with a deviation off by {100 * of_place.smallest:.2g} % in all steps",
            expected=1.0,
        ),
    ]
    return (*found, *_between_steps(u, trainings), *_between_places(u))


def empty_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Steps with nobody to draw, under two keys, in every coordinate of every tensor.

    A trainer that skips empty cohorts releases nothing, which is a deviation of 0.
    """
    mechanism = changed(stage.mechanism, steps=EMPTY_STEPS)
    streams = []
    for name in ("first", "second"):
        training = replace(stage.planned(keyed_digest(key, "white-box key", name), ()), mechanism=mechanism)
        streams.append(releases(stage, trainer, Run(training)) / mechanism.noise_multiplier)
    z = np.stack(streams).astype(np.float64)
    return checks_of_empty_steps(_tensors(stage, z))


def checks_of_empty_steps(tensors: Tensors, prefix: str = "") -> tuple[Check, ...]:
    """Of noise over the stated deviation by tensor, (2 keys, steps, *shape); prefix: of the checks' names."""
    found = _granular(tensors, f"{prefix}noise")
    deviation = math.sqrt(sum(float(np.square(z).sum()) for z in tensors.values()) / _size(tensors))
    if deviation == 0.0:
        return tuple(found)
    u = {name: z / deviation for name, z in tensors.items()}
    flat = _flat(u)
    steps = flat.shape[1]
    about = np.square(flat - flat.mean(axis=1, keepdims=True)).sum(axis=1)
    constant = laws.deviations(about, steps - 1, LEVEL)
    across = laws.deviations(np.square(flat[0] - flat[1]).sum(axis=0) / 2.0, steps, LEVEL)
    found += [
        _check(
            f"{prefix}noise of a coordinate about its mean",
            "coordinates",
            constant,
            f"a coordinate that is the same in all {steps} empty steps",
            expected=1.0,
        ),
        _repeated(u, f"{prefix}noise shared by two steps", "state", one_key=True),
        _repeated(u, f"{prefix}noise shared by two keys", "keys", one_key=False),
        _check(
            f"{prefix}noise of a coordinate under two keys",
            "keys",
            across,
            f"a coordinate that is the same under two keys in {steps} empty steps",
            expected=1.0,
        ),
        *_along(u, prefix),
    ]
    samples = [z.ravel() for z in u.values() if z.size > 1]
    law = laws.distances([s[:: max(1, s.size // _MOST_KS)] for s in samples], LEVEL)
    told = f"a distribution off by {law.smallest:.2g} in the smallest tensor"
    return (*found, _check(f"{prefix}noise of a tensor, distance from normal", "coordinates", law, told))


def crowded_checks(stage: Stage, trainer: Trainer, key: bytes, high: float) -> tuple[Check, ...]:
    """The first step with everybody there, in small passes, less the same step without noise.

    At the stated clip norm, and at `high`, which clips nobody.
    """
    streams, sums = [], []
    for norm in (stage.clip_norm, high):
        mechanism = changed(stage.mechanism, clip_norm=norm, rate=1.0, steps=1, group_size=stage.most_records)
        quiet = changed(mechanism, noise_multiplier=0.0)
        plain = crowd(stage, key, norm)
        still = releases(stage, trainer, Run(replace(plain, mechanism=quiet)))[0].astype(np.float64)
        for i in range(_CROWDED_RUNS):
            run_key = keyed_digest(key, "white-box crowd", f"{norm} {i}")
            noisy = releases(stage, trainer, Run(replace(plain, mechanism=mechanism, key=run_key, micro_records=_PASS)))[0]
            streams.append((noisy - still) / mechanism.noise_multiplier)
            sums.append(still)
    z = np.stack(streams)[None]
    dense = np.stack(sums)[None]
    found = _granular(_tensors(stage, z), "noise amid people")
    u = z / (math.sqrt(float(np.square(z).mean())) or 1.0)
    shared = _repeated(_tensors(stage, u), "noise amid people shared by two keys", "keys", one_key=True)
    kept = u[np.abs(dense) > _DENSE]
    grid = laws.close_pairs(kept[:: max(1, kept.size // 20_000)], _GRID, LEVEL)
    told = f"noise on a grid of {grid.smallest:.1g} deviations under sums that are on none"
    return (*found, shared, _check("noise amid people on a grid", "coordinates", grid, told))


def _between_steps(u: Array, trainings: int) -> list[Check]:
    rows, places = u.shape
    steps = rows // trainings
    if rows == 1:
        return []
    kept = laws.deviations(np.square(u.sum(axis=0)).sum() / rows, places, LEVEL)
    pairs = laws.correlations(np.array([_largest(u)]), np.array([places]), LEVEL, rows * (rows - 1) // 2)
    found = [
        _check(
            "noise kept from step to step",
            "state",
            kept,
            f"a part that is common to all steps, with {100 * _share(kept.smallest, rows):.2g} % of the variance",
            expected=1.0,
        ),
        _check(
            "noise shared by two steps of trainings",
            "keys" if steps == 1 else "state",
            pairs,
            f"a correlation of {pairs.smallest:.2g} between any two of {rows} steps, of one training or two",
        ),
    ]
    if steps > 1:
        sums, counts = laws.lag_sums(u.reshape(trainings, steps, places).transpose(0, 2, 1))
        lags = laws.products(sums, counts, LEVEL)
        told = f"a correlation of {lags.smallest:.2g} at a lag of up to half of {steps} steps"
        found.append(_check("noise against a later step's", "state", lags, told))
    return found


def _between_places(u: Array) -> list[Check]:
    rows, places = u.shape
    if places == 1:
        return []
    common = laws.deviations(np.square(u.sum(axis=1)).sum() / places, rows, LEVEL)
    along = laws.products(*laws.lag_sums(u), LEVEL)
    share = 100 * _share(common.smallest, places)
    return [
        _check(
            "noise common to coordinates",
            "coordinates",
            common,
            f"a part that is common to all coordinates, with {share:.2g} % of the variance",
            expected=1.0,
        ),
        _check(
            "noise against another coordinate's",
            "coordinates",
            along,
            f"a correlation of {along.smallest:.2g} between places at one distance",
        ),
    ]


def _granular(tensors: Tensors, name: str) -> list[Check]:
    """Deviations of tensors, of rows of matrices, and of single coordinates, as stated."""
    rows = sum(z.shape[0] * z.shape[1] for z in list(tensors.values())[:1])
    parts: list[tuple[str, list[Found]]] = []
    whole = {k: np.square(z).sum(axis=(0, 1)) for k, z in tensors.items()}
    by_size: dict[int, list[Array]] = {}
    for z in whole.values():
        by_size.setdefault(z.size * rows, []).append(np.array([z.sum()]))
    parts.append(("tensor", _all_deviations(by_size)))
    by_size = {}
    for z in whole.values():
        if z.ndim > 1:
            by_size.setdefault(z.shape[-1] * rows, []).append(z.sum(axis=-1).ravel())
    parts.append(("row", _all_deviations(by_size)))
    parts.append(("coordinate", _all_deviations({rows: [z.ravel() for z in whole.values()]})))
    found = []
    for what, its in parts:
        worst = min(its, key=lambda f: f.p_value)
        value = Found(min(1.0, worst.p_value * len(its)), worst.measured, max(f.smallest for f in its))
        told = f"one {what} with a deviation off by {100 * value.smallest:.2g} %"
        told += " amid people" if "amid" in name else " in empty steps"
        found.append(_check(f"{name} of the most deviant {what}", "coordinates", value, told, expected=1.0))
    return found


def _all_deviations(by_size: dict[int, list[Array]]) -> list[Found]:
    return [laws.deviations(np.concatenate(sums), size, LEVEL / len(by_size)) for size, sums in by_size.items()]


def _repeated(tensors: Tensors, name: str, subject: Subject, *, one_key: bool) -> Check:
    """The largest correlation of two steps of one key, or of two, in all numbers, in a tensor and in a matrix row."""
    values, sizes, tests = [], [], 0
    for blocks in _blocks(tensors):  # (blocks, keys, steps, size)
        unit = blocks / np.maximum(np.linalg.norm(blocks, axis=-1, keepdims=True), 1e-300)
        steps = unit.shape[2]
        if one_key:
            products = np.einsum("bksn,bktn->bkst", unit, unit)[..., *np.triu_indices(steps, 1)]
        else:
            products = np.einsum("bsn,btn->bst", unit[:, 0], unit[:, 1])
        values.append(float(np.abs(products).max(initial=0.0)))
        sizes.append(blocks.shape[-1])
        tests += products.size
    found = laws.correlations(np.array(values), np.array(sizes), LEVEL, tests)
    two = "two steps" if subject == "state" else "steps of two keys"
    told = f"a correlation of {two} of {found.smallest:.2g} in all numbers, {found.below:.2g} in the shortest row"
    return _check(name, subject, found, told)


def _blocks(tensors: Tensors) -> Iterator[Array]:
    """All numbers, then tensors and rows of matrices, those of one length together: (blocks, keys, steps, length)."""
    yield _flat(tensors)[None]
    by_length: dict[int, list[Array]] = {}
    for z in tensors.values():
        by_length.setdefault(math.prod(z.shape[2:]), []).append(z.reshape(1, *z.shape[:2], -1))
        if z.ndim > 3 and z.shape[-1] > 1:
            rows = z.reshape(*z.shape[:2], -1, z.shape[-1])
            by_length.setdefault(z.shape[-1], []).append(rows.transpose(2, 0, 1, 3))
    for length, blocks in by_length.items():
        if length > 1:
            yield np.concatenate(blocks)


def _along(tensors: Tensors, prefix: str) -> list[Check]:
    """Correlations between places at one distance, in all numbers and within tensors, and between two tensors."""
    whole = laws.products(*laws.lag_sums(_flat(tensors)), LEVEL)
    parts = [laws.lag_sums(z.reshape(*z.shape[:2], -1)) for z in tensors.values() if math.prod(z.shape[2:]) > 1]
    least = min(counts.max() for _, counts in parts) / 2.0
    within = laws.products(
        np.concatenate([sums for sums, _ in parts]), np.concatenate([counts for _, counts in parts]), LEVEL, least
    )
    shared = _first_numbers(tensors)
    return [
        _check(
            f"{prefix}noise at a distance",
            "coordinates",
            whole,
            f"a correlation of {whole.smallest:.2g} between numbers at one distance, across tensors",
        ),
        _check(
            f"{prefix}noise at a distance within a tensor",
            "coordinates",
            within,
            f"a correlation of {within.smallest:.2g} between numbers at one distance in the smallest tensor",
        ),
        _check(
            f"{prefix}noise shared by two tensors",
            "coordinates",
            shared,
            f"a correlation of {shared.below:.2g} between the first numbers of two tensors",
        ),
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


def crowd(stage: Stage, key: bytes, norm: float) -> PrivateTraining:
    """Every writer and some gradient canaries of ten times the clip norm `norm`."""
    training = stage.planned(keyed_digest(key, "white-box crowd", str(norm)), stage.names_of_writers)
    some = stage.gradient_units(range(min(_CANARIES, stage.canaries.count)))
    return replace(training, units=(*training.units, *some), canaries=stage.canaries.of_norm(norm))


def _largest(u: Array) -> float:
    """The largest correlation between two rows, a block of rows at a time."""
    unit = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
    largest = 0.0
    for start in range(0, len(unit), _ROWS):
        block = np.abs(unit[start : start + _ROWS] @ unit[start:].T)
        largest = max(largest, float(np.triu(block, 1).max(initial=0.0)))
    return largest


def _share(relative: float, number: int) -> float:
    """The share of variance, common to `number` values, that makes their sum's deviation larger by `relative`."""
    return min(1.0, ((1.0 + relative) ** 2 - 1.0) / max(1, number - 1))


def _tensors(stage: Stage, z: Array) -> Tensors:
    """(keys, steps, d) by tensor."""
    offsets = stage.canaries.offsets
    return {
        name: z[..., offsets[name] : offsets[name] + shape.numel()].reshape(*z.shape[:2], *shape)
        for name, shape in stage.canaries.shapes.items()
    }


def _flat(tensors: Tensors) -> Array:
    return np.concatenate([z.reshape(*z.shape[:2], -1) for z in tensors.values()], axis=-1)


def _size(tensors: Tensors) -> int:
    return sum(z.size for z in tensors.values())


def _check(name: str, subject: Subject, found: Found, told: str, *, expected: float = 0.0) -> Check:
    return Check(name, subject, found.p_value, found.measured, expected, found.smallest, told)
