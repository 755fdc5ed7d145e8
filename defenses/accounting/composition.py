"""Composed pairs on a grid that is fine enough for the answer, tilted if delta is small.

The error of the grid decides its width. One step on a grid of width h raises the log-moment of order s by s (s + 1)
h^2 / 12 on average, so T steps raise epsilon by

    T (s + 1) h^2 / 12,    s = -d ln(delta) / d(epsilon) at the answer,

which matches the measured bias to a few percent (docs/theory.md#loss-grid). A coarse grid gives s. heldin then refines
the grid until this bias is below PRECISION times epsilon.

heldin caches one-step distributions on disk to save time. After any problem with the cache, it computes them again.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy import special

from heldin.base.errors import InputError
from heldin.base.files import cache_directory, cache_root, private_directory, whole_file
from heldin.defenses.accounting.events import GridEvent, PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.loss_pmf import (
    TAIL_MASS,
    LossPair,
    LossPmf,
    Parts,
    WindowError,
    compose_pair,
    compose_parts,
    compose_tilted,
    epsilon_at,
    order_at,
    pair_delta,
    pair_epsilon,
)
from heldin.defenses.accounting.rounding import check_rounding, rounding_mass
from heldin.defenses.accounting.step_pld import GridError, absence_loss, one_step, one_step_range

PRECISION = 1e-4  # relative overestimate of epsilon that the grid may cause
AREA_PRECISION = 5e-4  # of the area under the highest ROC curve
EPSILON_FLOOR = 1e-3  # epsilons below this are resolved to PRECISION * this
VISIBLE = 1e-3  # share of delta that rounding and truncation may have before the tilt is worth its time
WORTH_STORING = 50_000  # masses; building a smaller one-step distribution is faster than reading it
_KEPT, _KEPT_MASSES = 128, 2**14  # one-step distributions in memory, and masses of each: at most 32 MiB in all
_RETILTS = 4
_TILTED_EVENTS = (PoissonGaussian, TwoLevelGaussian)

Runs: TypeAlias = tuple[tuple[GridEvent, int], ...]
"""Different events, each with its number of steps, to compose together."""
Bias: TypeAlias = Callable[[LossPair], tuple[float, float]]
Compose: TypeAlias = Callable[[Sequence[LossPair]], LossPair]
"""One step's pair of each event, in the order of ``Runs``, to the pair of all steps."""


# Few entries: with MAX_WINDOW points a pair has 64 MiB.
@functools.lru_cache(maxsize=8)
def settled_pair(event: GridEvent, steps: int, delta: float) -> LossPair:
    """Return the whole composed pair on the grid that resolves epsilon at this delta."""
    return _settled(((event, steps),), delta)


def _settled(runs: Runs, delta: float) -> LossPair:
    return refined(runs, whole_pairs(runs), functools.partial(_epsilon_bias, _steps(runs), delta))


def grid_epsilon(event: GridEvent, steps: int, delta: float) -> float:
    """Return epsilon(delta) of one event; see ``composed_grid_epsilon``."""
    return composed_grid_epsilon(((event, steps),), delta)


def composed_grid_epsilon(runs: Runs, delta: float) -> float:
    """Return epsilon(delta), from the whole pair if rounding and truncation are negligible, else from a tilted pair.

    A hard cohort cap has no tilted pair.

    Raises InputError for a hard cohort cap if delta is not well above the rounding.
    """
    steps = _steps(runs)
    # Only mixtures built here are tilted: their masses are relatively exact far into the tail, dp-accounting's are not.
    if TAIL_MASS + rounding_mass(steps) > VISIBLE * delta:
        if all(isinstance(event, _TILTED_EVENTS) for event, _ in runs):
            return tilted_epsilon(runs, delta)
        check_rounding(delta, steps)
    # One event's pair is kept, since the ceiling of attackers is read off it too.
    return pair_epsilon(settled_pair(*runs[0], delta) if len(runs) == 1 else _settled(runs, delta), delta)


def grid_delta(event: GridEvent, steps: int, epsilon: float) -> float:
    """Return delta(epsilon) from the whole pair or a tilted pair, chosen as in ``grid_epsilon``."""
    return _composed_delta(((event, steps),), epsilon)


def deltas_of(runs: Runs, delta: float) -> Callable[[float], float]:
    """Return the function delta(epsilon) of all runs together, as exact near this delta as their epsilon."""
    if TAIL_MASS + rounding_mass(_steps(runs)) > VISIBLE * delta:
        return functools.partial(_composed_delta, runs)
    return functools.partial(pair_delta, _settled(runs, delta))


def _composed_delta(runs: Runs, epsilon: float) -> float:
    steps = _steps(runs)
    bias = functools.partial(_delta_bias, steps, epsilon)
    delta = pair_delta(refined(runs, whole_pairs(runs), bias), epsilon)
    tilted = all(isinstance(event, _TILTED_EVENTS) for event, _ in runs)
    if TAIL_MASS + rounding_mass(steps) <= VISIBLE * delta or not tilted:
        return delta
    pairs, _ = coarsest_grid(runs, whole_pairs(runs))
    orders = [order_at(parts, epsilon) for parts in _directions(runs, pairs)]
    return min(delta, pair_delta(refined(runs, _tilted(runs, orders), bias), epsilon))  # both are bounds


def refined(runs: Runs, compose: Compose, bias: Bias) -> LossPair:
    """Compose on finer grids until the predicted bias is at most the allowed bias, or the grid is at its limit.

    A pair on any grid is a valid bound, so the limit costs tightness but not validity.

    Args:
        runs: the events, and the number of steps of each.
        compose: function from one step's pairs to the pair of all steps.
        bias: function from the composed pair to the (predicted, allowed) bias of the answer. The bias falls with the
            square of the width.
    """
    _, pair = coarsest_grid(runs, compose)
    while True:
        predicted, allowed = bias(pair)
        if predicted <= allowed:
            return pair
        # The bias falls as the square of the width. At most 64 times finer at once, as the first prediction is rough.
        ratio = max(math.sqrt(allowed / predicted), 2.0**-6)
        # Widths are powers of two, so that runs share cached steps.
        finer = pair.width * 2.0 ** min(-1.0, math.floor(math.log2(ratio)))
        try:
            pair = compose([_stored_step(event, finer) for event, _ in runs])
        except (GridError, WindowError):
            return pair


@functools.lru_cache(maxsize=256)
def tilted_epsilon(runs: Runs, delta: float) -> float:
    """Return epsilon(delta) from the pair tilted to the loss that decides epsilon, separately in each direction."""
    # The tilt depends on epsilon, and only a tilted pair shows it: begin with the delta that a whole pair shows, and
    # tilt again until the order settles. An order that has not settled costs tightness, never validity.
    readable = max(delta, (TAIL_MASS + rounding_mass(_steps(runs))) / VISIBLE)
    coarse, whole = coarsest_grid(runs, whole_pairs(runs))
    orders = []
    for parts, composed in zip(_directions(runs, coarse), (whole.remove, whole.add), strict=True):
        order, before = order_at(parts, epsilon_at(composed, readable)), -1.0
        for _ in range(_RETILTS):
            if abs(order - before) <= 0.1 * order:
                break
            order, before = order_at(parts, epsilon_at(_one_tilted(parts, order), delta)), order
        orders.append(order)
    bias = functools.partial(_epsilon_bias, _steps(runs), delta)
    return pair_epsilon(refined(runs, _tilted(runs, orders), bias), delta)


def area_pair(event: GridEvent, steps: int, start: LossPair, area: Callable[[LossPair], float]) -> LossPair:
    """Return a whole pair whose ROC area exceeds the mechanism's own by at most about AREA_PRECISION.

    A grid adds to the area in two ways. Losses that lie smoothly between its points add the information of a Gaussian
    of mu^2 = T h^2 / 6, by s (s + 1) h^2 / 12 at orders s in (-1, 0). Much of a step's loss may also be at the single
    value ln w_0 of a unit that is not in the step (``absence_loss``). A grid without a point there spreads this mass,
    which adds up to 0.28 w_0^T sqrt(T h min(h / 4, |ln w_0|)). The grids tried after ``start`` have such a point.

    Args:
        steps: number of steps T.
        start: a composed pair.
        area: function from a composed pair to the area under its ROC curve.
    """
    floor = absence_loss(event)
    spread = 0.28 * math.sqrt(steps * start.width * min(0.25 * start.width, -floor)) * math.exp(steps * floor)
    if _smooth_excess(area(start), steps, start.width) + spread <= AREA_PRECISION:
        return start
    best, width, before = start, 0.25 * start.width, math.inf
    while True:
        try:
            best = compose_pair(_stored_step(event, width, floor), steps)
        except (GridError, WindowError):
            return best
        size = area(best)
        # If a few steps do not add up to anything smooth, the first estimate is far too high; comparing two grids, one
        # four times finer, then tells.
        if before - size <= 0.5 * AREA_PRECISION or _smooth_excess(size, steps, width) <= AREA_PRECISION:
            return best
        before, width = size, 0.25 * width


def _smooth_excess(area: float, steps: int, width: float) -> float:
    """Return the area that the grid adds: a Gaussian's area, minus the area with mu^2 lower by T h^2 / 6."""
    mu = math.sqrt(2.0) * float(special.ndtri(min(area, 1.0 - 2.0**-53)))  # an area of 1 would have mu infinite
    return area - float(special.ndtr(math.sqrt(max(0.0, mu * mu - steps * width * width / 6.0) / 2.0)))


def coarsest_grid(runs: Runs, compose: Compose) -> tuple[list[LossPair], LossPair]:
    """Return the pairs of one step of each event, and of all steps, on a grid of about 512 cells or a wider grid."""
    # A power of two, as in ``refined``.
    width = 2.0 ** math.floor(math.log2(max(one_step_range(event) for event, _ in runs) / 512.0))
    while True:
        try:
            steps = [_stored_step(event, width) for event, _ in runs]
            return steps, compose(steps)
        except (GridError, WindowError):
            width *= 2.0


def _steps(runs: Runs) -> int:
    return sum(steps for _, steps in runs)


def _directions(runs: Runs, pairs: Sequence[LossPair]) -> tuple[Parts, Parts]:
    """Return the parts to compose for ``remove`` and for ``add``."""
    counts = [steps for _, steps in runs]
    remove, add = [pair.remove for pair in pairs], [pair.add for pair in pairs]
    return list(zip(remove, counts, strict=True)), list(zip(add, counts, strict=True))


def whole_pairs(runs: Runs) -> Compose:
    """Return the composition of all steps of these runs, without tilting."""
    return lambda pairs: LossPair(*map(compose_parts, _directions(runs, pairs)))


def _tilted(runs: Runs, orders: Sequence[float]) -> Compose:
    """Return the composition with tilts of these orders (remove, add). Order 0 composes the whole distribution."""
    return lambda pairs: LossPair(*map(_one_tilted, _directions(runs, pairs), orders))


def _one_tilted(parts: Parts, order: float) -> LossPmf:
    return compose_tilted(parts, order) if order > 0.0 else compose_parts(parts)


def _epsilon_bias(steps: int, delta: float, pair: LossPair) -> tuple[float, float]:
    """Return the amount by which the grid raises epsilon(delta), and the largest allowed amount."""
    spent = pair_epsilon(pair, delta)
    # 0 bounds from above, so it is exact; infinity comes from mass at infinite loss, which no finer grid moves.
    if spent == 0.0 or math.isinf(spent):
        return 0.0, 1.0
    looser = min(1.05 * delta, 0.5 * (1.0 + delta))  # 5 % more, but below 1
    order = math.log(looser / delta) / max(spent - pair_epsilon(pair, looser), 1e-12)
    return _grid_bias(steps, order, pair.width), PRECISION * max(spent, EPSILON_FLOOR)


def _delta_bias(steps: int, epsilon: float, pair: LossPair) -> tuple[float, float]:
    """Return the amount by which the grid raises ln(delta(epsilon)), and the largest allowed amount."""
    nearby = 0.01 * max(epsilon, EPSILON_FLOOR)
    near, further = pair_delta(pair, epsilon), pair_delta(pair, epsilon + nearby)
    order = math.log(near / further) / nearby if further < near else 0.0
    return order * _grid_bias(steps, order, pair.width), 1e-3  # d ln(delta) = order * d(epsilon)


def _grid_bias(steps: int, order: float, width: float) -> float:
    return steps * (order + 1.0) * width * width / 12.0  # docs/theory.md#loss-grid


def _stored_step(event: GridEvent, width: float, offset: float = 0.0) -> LossPair:
    masses = one_step_range(event) / width
    if masses < WORTH_STORING:
        return (_kept_step if masses < _KEPT_MASSES else one_step)(event, width, offset)
    # Floats in hex, which is exact: rounded decimals could give two widths one name.
    parameters = {"event": type(event).__name__, "width": float(width).hex()}
    parameters |= {"offset": offset.hex()} if offset else {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        parameters[field.name] = float(value).hex() if isinstance(value, float) else str(value)
    return cached_pair(parameters, lambda: one_step(event, width, offset))


# Every number of steps, delta and direction of one event begins with the same few grids.
@functools.lru_cache(maxsize=_KEPT)
def _kept_step(event: GridEvent, width: float, offset: float) -> LossPair:
    return one_step(event, width, offset)


_VERSION = 1  # of the stored numbers; another one makes every older file a miss


def cached_pair(parameters: dict[str, str], build: Callable[[], LossPair]) -> LossPair:
    """Return the cached pair for these parameters. If there is no cached pair, cache and return the result of
    ``build``.

    The function overwrites a file that is damaged or has other parameters, and ignores a folder that it cannot write.
    """
    key = json.dumps({"version": _VERSION, **parameters}, sort_keys=True)
    path = cache_root() / "pld" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    stored = _read(path, key)
    if stored is not None:
        return stored
    pair = build()
    with contextlib.suppress(OSError, InputError):
        _write(path, key, pair)
    return pair


def _read(path: Path, key: str) -> LossPair | None:
    try:
        # Without pickle: a file in the cache folder must not be able to run code.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # The file's name is a hash of 128 bits; the parameters inside settle that it is the right pair.
            if str(file["key"]) != key:
                return None
            pair = LossPair(*(_unpack(file[f"{side}_grid"], file[f"{side}_masses"]) for side in ("remove", "add")))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return pair


def _unpack(grid: np.ndarray, masses: np.ndarray) -> LossPmf:
    width, lowest, infinity, *offset = (float(value) for value in grid)
    # A damaged array can move epsilon either way, also below the truth, so that it is refused rather than trusted.
    total = float(masses.sum()) + infinity
    if masses.ndim != 1 or masses.dtype != np.float64 or not (masses >= 0).all() or not 1 - 1e-9 < total < 1 + 1e-9:
        raise ValueError("the array is not a probability mass function")
    return LossPmf(width, int(lowest), masses, infinity, *offset)


def _write(path: Path, key: str, pair: LossPair) -> None:
    cache_directory()
    private_directory(path.parent)
    arrays = {"key": np.array(key)}
    for side, pmf in (("remove", pair.remove), ("add", pair.add)):
        # (3,), or (4,) on a grid with an offset.
        arrays[f"{side}_grid"] = np.array([pmf.width, pmf.lowest, pmf.infinity, *([pmf.offset] if pmf.offset else [])])
        arrays[f"{side}_masses"] = pmf.masses
    with whole_file(path, private=True) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
