"""Checks of what a trainer releases: is the noise what the plan states, too little or too much; clip, divisor, coins.

Statistical checks give p-values under "the trainer does what the mechanism states".
Exact checks run single steps without noise; their p-value is 1 or 0. `alarms` pays for the number of checks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.labelled import check_alpha
from audit.white_box.canaries import Array, Index, Stage
from audit.white_box.trainers import Trainer, watched_steps
from defenses.choices import PoissonSampler
from defenses.mechanism import Mechanism
from finetune.units import PrivateTraining, SampledUnit

_ROUNDING = 1e-3  # of a float32 sum of units, relative to the sensitivity
_HUGE, _HALF = 1000.0, 0.5  # canary norms of the clip check, in clip norms
_LEFT_OUT = 4  # real units whose influence is measured
_COHORTS, _CANARIES = 200, 200  # most steps and canaries of the sampling check
_DRAWS = 6_000  # of units, expected: the check's time
_EMPTY_STEPS = 8
_MOST_KS = 200_000


@dataclass(frozen=True)
class Check:
    """One comparison of what was seen with what was stated. p_value: 0 or 1 where nothing is random."""

    name: str
    p_value: float
    measured: float
    expected: float

    def line(self) -> str:
        """One line for the terminal."""
        return f"{self.name:<40}{self.measured:>11.4g}{self.expected:>11.4g}{self.p_value:>11.2g}"


def alarms(checks: Sequence[Check], level: float) -> tuple[Check, ...]:
    """Those that reject at level / number of checks: a correct trainer raises any with probability at most `level`."""
    check_alpha(level)
    return tuple(check for check in checks if check.p_value < level / len(checks))


def noise_checks(noise: NDArray[np.float32]) -> tuple[Check, ...]:
    """Is this N(0, 1), independent between steps and coordinates? Two-sided: too little and too much are both caught.

    The first check is of the deviation as stated, the others of the noise over its own deviation, so that a wrong
    deviation raises one alarm and not all. P-values of means of products are normal approximations, the rest is exact
    but for the noise's own deviation, which is taken as known (T P is in the thousands).

    Args:
        noise: what T steps released in P coordinates that nobody's gradient reaches, over the stated deviation, (T, P).
    """
    z = noise.astype(np.float64)
    steps, places = z.shape
    total = float(np.square(z).sum())
    deviation = math.sqrt(total / z.size)
    found = [Check("noise deviation over the stated one", _chi2(total, z.size), deviation, 1.0)]
    if deviation == 0.0:
        return tuple(found)
    u = z / deviation
    of_step, of_place = np.square(u).sum(axis=1), np.square(u).sum(axis=0)
    mean = float(u.mean())
    some = u.ravel()[:: max(1, u.size // _MOST_KS)]
    distance = stats.kstest(some, "norm")
    found += [
        Check("noise mean", _normal(mean * math.sqrt(u.size)), mean, 0.0),
        Check("noise distance from normal", float(distance.pvalue), float(distance.statistic), 0.0),
        Check("noise of the most deviant step", _most(of_step, places), _worst(of_step / places), 1.0),
        Check("noise of the most deviant coordinate", _most(of_place, steps), _worst(of_place / steps), 1.0),
    ]
    if steps > 1:
        kept = float(np.square(u.sum(axis=0)).sum() / steps)
        found += [
            Check("noise kept from step to step", _chi2(kept, places), kept / places, 1.0),
            _product("noise against the next step's", u[:-1] * u[1:]),
        ]
    if places > 1:
        common = float(np.square(u.sum(axis=1)).sum() / places)
        found += [
            Check("noise common to coordinates", _chi2(common, steps), common / steps, 1.0),
            _product("noise against the next coordinate's", u[:, :-1] * u[:, 1:]),
        ]
    return tuple(found)


def empty_cohort_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Steps with nobody in the cohort are noise of the stated deviation in every tensor, and another in each.

    A trainer that skips empty cohorts releases nothing, which is a deviation of 0.
    """
    mechanism = _changed(stage.mechanism, steps=min(stage.mechanism.steps, _EMPTY_STEPS))
    training = replace(stage.training(key, np.zeros(stage.canaries.count, dtype=np.bool_)), units=())
    stream = _watch(stage, trainer, replace(training, mechanism=mechanism)) / mechanism.noise_multiplier
    offsets = stage.canaries.offsets
    tensors = {
        name: stream[:, offsets[name] : offsets[name] + shape.numel()].astype(np.float64)
        for name, shape in stage.canaries.shapes.items()
    }
    values = [_chi2(float(np.square(z).sum()), z.size) for z in tensors.values()]
    worst = _worst(np.array([float(np.square(z).mean()) for z in tensors.values()]))
    return (
        Check("noise of the most deviant tensor", _bonferroni(values), math.sqrt(worst), 1.0),
        _shared_noise(tensors),
    )


def exact_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Single steps without noise, everybody drawn, in units of the sensitivity.

    | check       | what is compared                                               | must be  |
    |-------------|----------------------------------------------------------------|----------|
    | clip        | all writers with and without a canary of norm 1000 C           | 1        |
    | small       | the same with a canary of norm C / 2: nothing is scaled up     | 1 / 2    |
    | divisor     | a canary alone, and among writers and other canaries           | 1, both  |
    | sensitivity | all writers with and without one of them                       | at most 1 |
    """
    clip = stage.clip_norm
    whole = replace(stage.canaries, coordinates=None)
    nobody = np.zeros(stage.canaries.count, dtype=np.bool_)
    quiet = _changed(stage.mechanism, noise_multiplier=0.0, steps=1, sampler=PoissonSampler(rate=1.0))
    writers = replace(replace(stage, mechanism=quiet).training(key, nobody), mechanism=quiet)
    canary = (SampledUnit("canary", (), canary=0),)

    def moved(training: PrivateTraining) -> Array:
        return np.asarray(_watch(stage, trainer, training)[0], dtype=np.float64)

    def of(training: PrivateTraining, size: float) -> float:
        added = replace(training, units=(*training.units, *canary), canaries=replace(whole, norm=size))
        return float(np.linalg.norm(moved(added) - base))

    base = moved(writers)
    huge, half = of(writers, _HUGE * clip), of(writers, _HALF * clip)
    crowd = tuple(SampledUnit(f"canary {j}", (), canary=j) for j in range(min(8, stage.canaries.quiet.size)))
    own = replace(stage.canaries, coordinates=stage.canaries.quiet)
    place = int(stage.canaries.quiet[0])
    alone = moved(replace(writers, units=crowd[:1], canaries=own))[place]
    among = moved(replace(writers, units=(*writers.units, *crowd), canaries=own))[place]
    furthest = max((float(alone), float(among)), key=lambda value: abs(value - 1.0))
    left_out = range(0, len(writers.units), max(1, len(writers.units) // _LEFT_OUT))
    fewer = [tuple(u for j, u in enumerate(writers.units) if j != i) for i in left_out]
    sensitivity = max(float(np.linalg.norm(base - moved(replace(writers, units=units)))) for units in fewer)
    return (
        _equal("clip: what norm 1000 C adds", huge, 1.0),
        _equal("clip: what norm C / 2 adds", half, 0.5),
        _equal("divisor: what a canary adds", furthest, 1.0),
        Check("sensitivity: what a writer adds, at most", float(sensitivity <= 1.0 + _ROUNDING), sensitivity, 1.0),
    )


def sampling_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Do canaries enter each step by independent coins of the stated rate? Read off steps without noise.

    Each canary user's total over the steps and each step's total over the canaries are binomial under Poisson sampling;
    their dispersion is compared with a gamma distribution of the same mean and variance (an approximation). Shuffled
    passes give every canary the same total, cohorts of one size every step.
    """
    rate, members = stage.mechanism.sampler.rate, stage.mechanism.members
    places = stage.canaries.quiet[:_CANARIES]
    own = replace(stage.canaries, coordinates=places, count=places.size)
    steps = min(_COHORTS, max(10, int(_DRAWS / (places.size * members * rate))))
    mechanism = _changed(stage.mechanism, noise_multiplier=0.0, steps=4 if rate == 1.0 else steps)
    seen = replace(stage, mechanism=mechanism, canaries=own)
    training = seen.training(key, np.ones(own.count, dtype=np.bool_))
    training = replace(training, units=tuple(unit for unit in training.units if unit.canary is not None))
    stream = _watch(seen, trainer, training, own.watched).astype(np.float64)
    drawn = np.rint(stream)
    odd = float(np.abs(stream - drawn).max())
    found = [Check("sampling: furthest from whole units", float(odd <= _ROUNDING), odd, 0.0)]
    if rate == 1.0:
        return (*found, _equal("sampling: least drawn of all", float(drawn.min()), float(members)))
    trials = drawn.size * members
    total = int(min(max(drawn.sum(), 0.0), trials))
    share = Check(
        "sampling: rate", float(stats.binomtest(total, trials, rate).pvalue), float(drawn.sum()) / trials, rate
    )
    return (
        *found,
        share,
        _dispersion("sampling: spread of canaries' totals", drawn.sum(axis=0), members * steps, rate),
        _dispersion("sampling: spread of cohorts", drawn.sum(axis=1), members * own.count, rate),
    )


def _watch(
    stage: Stage, trainer: Trainer, training: PrivateTraining, places: Index | None = None
) -> NDArray[np.float32]:
    everywhere = np.arange(stage.canaries.dimension) if places is None else places
    return watched_steps(trainer, stage.model(), training, stage.sequences, stage.canaries.shapes, everywhere)


def _changed(mechanism: Mechanism, **changes: Any) -> Mechanism:
    return Mechanism(**{**dict(mechanism), **changes})


def _dispersion(name: str, totals: Array, trials: int, rate: float) -> Check:
    variance = trials * rate * (1.0 - rate)
    spread = float(np.square(totals - trials * rate).sum() / variance)
    excess = 2.0 + (1.0 - 6.0 * rate * (1.0 - rate)) / variance
    law = stats.gamma(totals.size / excess, scale=excess)
    p_value = min(1.0, 2.0 * min(float(law.cdf(spread)), float(law.sf(spread))))
    return Check(name, p_value, spread / totals.size, 1.0)


def _shared_noise(tensors: Mapping[str, Array]) -> Check:
    """The largest correlation between the first numbers of any two tensors."""
    values, correlations = [1.0], [0.0]
    for a, b in combinations(tensors.values(), 2):
        size = min(a.shape[1], b.shape[1])
        x, y = a[:, :size].ravel(), b[:, :size].ravel()
        scale = math.sqrt(float(np.square(x).sum() * np.square(y).sum()))
        if x.size > 2 and scale > 0.0:
            correlations.append(float(x @ y) / scale)
            # exact for independent normals of mean zero: r^2 is Beta(1/2, (n - 1)/2)
            values.append(float(stats.beta.sf(min(1.0, correlations[-1] ** 2), 0.5, (x.size - 1) / 2)))
    return Check("noise shared by two tensors", _bonferroni(values), _furthest(correlations), 0.0)


def _product(name: str, products: Array) -> Check:
    mean = float(products.mean())
    return Check(name, _normal(mean * math.sqrt(products.size)), mean, 0.0)


def _equal(name: str, measured: float, expected: float) -> Check:
    return Check(name, float(abs(measured - expected) <= _ROUNDING), measured, expected)


def _most(sums: Array, freedom: int) -> float:
    return _bonferroni([_chi2(float(value), freedom) for value in (sums.min(), sums.max())] + [1.0] * (sums.size - 2))


def _worst(ratios: Array) -> float:
    logs = np.abs(np.log(np.maximum(ratios, 1e-300)))
    return float(ratios[int(np.argmax(logs))])


def _furthest(values: Sequence[float]) -> float:
    return max(values, key=abs)


def _bonferroni(values: Sequence[float]) -> float:
    return min(1.0, min(values) * len(values))


def _chi2(value: float, freedom: int) -> float:
    return min(1.0, 2.0 * min(float(stats.chi2.cdf(value, freedom)), float(stats.chi2.sf(value, freedom))))


def _normal(z: float) -> float:
    return 2.0 * float(stats.norm.sf(abs(z)))
