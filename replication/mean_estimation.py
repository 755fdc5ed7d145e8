"""Mean estimation with user-level DP: ELS compared with ULS at one compute budget (Charles et al. 2024, section 4).

A population mean is mu ~ N(0, I_d). User means are ~ N(mu, between^2 I_d). A user's examples are ~ N(user mean,
within^2 I_d). The loss of an example x is ||theta - x||^2 / 2, with gradient theta - x. theta starts at 0, and the
measured error is ||theta_T - mu||^2 after T steps. The rounds follow Charles et al., Algorithms 1 and 2, with Poisson
cohorts and a constant divisor. This is the mechanism that the trainer runs (finetune/private.py;
tests/studies/test_mean_estimation.py runs both with the same coins and noise). The paper tunes and reports on the same
repeats; this module tunes on separate repeats.

Axes: R repeats, N users, K examples per user, m units in a cohort, H pairs of learning rate and clip norm, d.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import InputError
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import calibrate
from heldin.defenses.accounting.heuristics import els_rate

Array = NDArray[np.float64]
Method = Literal["ELS", "ULS"]
Stage = Literal["tuning", "measuring"]

LEARNING_RATES = tuple(2.0**k for k in range(-9, 1))
CLIP_NORMS = tuple(2.0**k for k in range(-1, 7))
TUNING_REPEATS = 32
_BLOCK = 32  # repeats drawn and run together
_SMALLEST_SQUARE = 1e-150  # of a gradient's norm


@dataclass(frozen=True)
class Task:
    """The sizes that are the same in all sweeps.

    Attributes:
        users: number of users N.
        examples: number of examples per user K.
        dimension: dimension d.
        rounds: number of rounds T.
        delta: delta per user.
        between: standard deviation of user means, sigma_1.
    """

    users: int = 256
    examples: int = 16
    dimension: int = 32
    rounds: int = 256
    delta: float = 1e-6
    between: float = 1.0

    def floor(self, within: float) -> float:
        """Return the expected squared error of the mean over all examples, without privacy: d (between^2 + within^2 /
        K) / N."""
        return self.dimension * (self.between**2 + within**2 / self.examples) / self.users


@dataclass(frozen=True)
class Setting:
    """The parameters that the sweeps vary.

    Attributes:
        epsilon: epsilon per user.
        budget: expected number of gradients per round, B.
        within: standard deviation of a user's examples, sigma_2.
    """

    epsilon: float = 1.0
    budget: int = 64
    within: float = 1.0


@dataclass(frozen=True)
class Arm:
    """A way to spend the budget. ELS: G = K and expected batch B. ULS: G examples from each of M = B / G expected
    users.

    Attributes:
        method: "ELS" or "ULS".
        group_size: number of examples per user, G.
        expected: expected number of units per round, which is the public divisor.
        units: number of units from which the sampler draws.
    """

    method: Method
    group_size: int
    expected: int
    units: int

    @property
    def rate(self) -> float:
        """Return the Poisson rate of a unit."""
        return self.expected / self.units

    @property
    def event(self) -> PoissonGaussian:
        """Return one round's event for one user (Charles et al., Theorems 1 and 2). Its noise multiplier needs
        calibration."""
        # ULS draws whole users, one member for a user; ELS draws examples, of which a user has G.
        return PoissonGaussian(1.0, self.rate, self.group_size if self.method == "ELS" else 1)

    def noise_multiplier(self, task: Task, epsilon: float) -> float:
        """Return the smallest noise multiplier for (epsilon, task.delta)-DP per user over all rounds, by the trainer's
        accountant."""
        return calibrate(self.event, task.rounds, task.delta, epsilon)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Learning rates and clip norms that are tried on the same data, coins and noise; shape (H,) each."""

    learning_rate: Array
    clip_norm: Array


@dataclass(frozen=True, eq=False)
class Data:
    """Populations drawn at random.

    Attributes:
        mean: population means mu, shape (R, d).
        examples: examples of all users, shape (R, N, K, d).
        user_means: mean of each user's examples, shape (R, N, d).
    """

    mean: Array
    examples: Array
    user_means: Array = field(init=False)  # (R, N, d)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_means", self.examples.mean(2))


@dataclass(frozen=True, eq=False)
class TunedArm:
    """An arm with its best learning rate and clip norm.

    Attributes:
        arm: the arm.
        noise_multiplier: noise standard deviation divided by sensitivity.
        learning_rate: the best learning rate on the tuning repeats.
        clip_norm: the best clip norm on the tuning repeats.
        tuning_error: mean squared error on the tuning repeats.
        errors: squared errors on the other repeats, shape (R,).
    """

    arm: Arm
    noise_multiplier: float
    learning_rate: float
    clip_norm: float
    tuning_error: float
    errors: Array

    @property
    def on_edge(self) -> bool:
        """Return whether the best pair is at the edge of the grid, so a wider grid might be better."""
        # A best value at an end may not be the best there is, and the comparison may then favour the other arm.
        ends = (LEARNING_RATES[0], LEARNING_RATES[-1]), (CLIP_NORMS[0], CLIP_NORMS[-1])
        return self.learning_rate in ends[0] or self.clip_norm in ends[1]


@dataclass(frozen=True, eq=False)
class Point:
    """ELS, and ULS with every group size, at one setting. Each repeat uses the same data and noise for all.

    Attributes:
        setting: the setting.
        els: result of ELS.
        every_uls: results of ULS, one for each group size.
    """

    setting: Setting
    els: TunedArm
    every_uls: tuple[TunedArm, ...]

    @property
    def uls(self) -> TunedArm:
        """Return ULS with the group size that was best on the tuning repeats."""
        # By the tuning error: chosen by its measured one, ULS would have several tries and ELS one.
        return min(self.every_uls, key=lambda outcome: outcome.tuning_error)


def arms_of(task: Task, budget: int) -> list[Arm]:
    """Return ELS with G = K, then ULS with G = 1, 2, 4, ... up to K, if M = B / G is a whole number from 1 to N.

    Raises InputError if the budget exceeds the number of examples, or no power of two divides it.
    """
    # Only for its refusal of a budget above all examples.
    els_rate(budget, task.examples, task.users)
    groups = [2**k for k in range(task.examples.bit_length())]
    splits = [(g, budget // g) for g in groups if budget % g == 0 and 1 <= budget // g <= task.users]
    if not splits:
        raise InputError(
            f"budget {budget} has no split into a power of two and at most {task.users} users: change the budget"
        )
    # ELS's units are all examples, and B of them are expected; ULS's are users, and B / G of them.
    els = Arm("ELS", task.examples, budget, task.users * task.examples)
    return [els, *(Arm("ULS", g, m, task.users) for g, m in splits)]


def draw_data(task: Task, within: float, repeats: int, rng: np.random.Generator) -> Data:
    """Draw populations, users and examples.

    Args:
        task: the sizes.
        within: standard deviation of a user's examples, sigma_2.
        repeats: number of repeats R.
        rng: generator for all draws.
    """
    mean = rng.standard_normal((repeats, task.dimension))
    users = rng.standard_normal((repeats, task.users, task.dimension))
    examples = rng.standard_normal((repeats, task.users, task.examples, task.dimension))
    # (R, N, d), around each repeat's own mean. All numbers are drawn above, so that settings share them.
    users = mean[:, None] + task.between * users
    return Data(mean, users[:, :, None] + within * examples)


def draw_points(arm: Arm, data: Data, rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Draw a Poisson cohort in every repeat. Return points (R, m, d), each the mean of a unit's chosen examples, and
    present (R, m).

    In every round, ULS chooses G of a user's K examples without replacement. m is the size of the largest cohort.
    """
    repeats, users, examples, d = data.examples.shape
    # (R, units): an independent coin for each unit, as accounted for; cohorts differ in size.
    drawn = rng.random((repeats, arm.units)) < arm.rate
    counts = drawn.sum(1)
    repeat, unit = np.nonzero(drawn)
    # Cohorts side by side, padded with unit 0 to the largest; ``present`` keeps the padding out of every sum.
    index = np.zeros((repeats, max(1, int(counts.max()))), dtype=np.int64)
    # A drawn unit's place in its own repeat's cohort: its number among all drawn, less those of the repeats before.
    index[repeat, np.arange(len(repeat)) - np.repeat(np.cumsum(counts) - counts, counts)] = unit
    present = np.arange(index.shape[1]) < counts[:, None]
    rows = np.arange(repeats)[:, None]
    # All of a user's examples: there is nothing to choose, and the means are at hand.
    if arm.method == "ULS" and arm.group_size == examples:
        return data.user_means[rows, index], present
    # User u's examples are the places u K to u K + K - 1.
    flat = data.examples.reshape(repeats, users * examples, d)
    if arm.method == "ELS":
        return flat[rows, index], present
    if arm.group_size == 1:
        return flat[rows, index * examples + rng.integers(examples, size=index.shape)], present
    # The G smallest of K random numbers: a choice without replacement for every drawn user at once.
    order = rng.random((*index.shape, examples))
    chosen = np.argpartition(order, arm.group_size, axis=-1)[..., : arm.group_size]  # (R, m, G)
    return flat[rows[..., None], index[..., None] * examples + chosen].mean(2), present


def step(theta: Array, points: Array, present: NDArray[np.bool_], noise: Array, pairs: Pairs, divisor: float) -> Array:
    """Return theta after one round: theta - eta (sum_u clip(theta - points_u, C) + C noise) / divisor.

    This is Charles et al., Algorithm 2; in ELS (Algorithm 1), units are examples. An empty cohort also takes a noised
    step.

    Args:
        theta: estimates, shape (R, H, d).
        points: mean of each drawn unit's chosen examples, shape (R, m, d).
        present: mask of the drawn points, shape (R, m).
        noise: normal noise with the noise multiplier as deviation, equal for all pairs, shape (R, d).
        pairs: eta and C, shape (H,) each.
        divisor: expected number of units, a public constant.
    """
    # ||theta - x||^2, multiplied out: the differences themselves would take R H m d numbers.
    squares = (theta * theta).sum(-1)[..., None] + (points * points).sum(-1)[:, None]
    squares -= 2.0 * (theta @ points.swapaxes(1, 2))  # (R, H, m)
    # A difference of large numbers: rounding may make it negative, and 0 must not be divided by.
    norms = np.sqrt(np.maximum(squares, _SMALLEST_SQUARE, out=squares), out=squares)
    factors = np.minimum(1.0, pairs.clip_norm[:, None] / norms) * present[:, None]
    # The sum over units of factor (theta - x), again without the differences.
    total = theta * factors.sum(-1)[..., None] - factors @ points  # (R, H, d)
    # Noise on the sum, in proportion to C, the most that one unit adds. The divisor is public, not the cohort's size.
    noised = total + pairs.clip_norm[:, None] * noise[:, None]
    moved: Array = theta - pairs.learning_rate[:, None] * noised / divisor
    return moved


def run_arm(
    task: Task,
    arm: Arm,
    noise_multiplier: float,
    pairs: Pairs,
    data: Data,
    coins: np.random.Generator,
    noises: np.random.Generator,
) -> Array:
    """Return ||theta_T - mu||^2 for every repeat and pair, shape (R, H).

    Args:
        task: the sizes.
        arm: how to spend the budget.
        noise_multiplier: noise standard deviation divided by sensitivity.
        pairs: learning rates and clip norms, shape (H,) each.
        data: populations of the R repeats.
        coins: generator for cohorts and chosen examples.
        noises: generator for the noise.
    """
    theta = np.zeros((len(data.mean), len(pairs.clip_norm), task.dimension))
    for _ in range(task.rounds):
        points, present = draw_points(arm, data, coins)
        # One draw for all pairs, (R, d): they differ by their rates and norms alone.
        noise = noise_multiplier * noises.standard_normal(data.mean.shape)
        theta = step(theta, points, present, noise, pairs, arm.expected)
    errors: Array = ((theta - data.mean[:, None]) ** 2).sum(-1)
    return errors


def measure_point(task: Task, setting: Setting, repeats: int, seed: int) -> Point:
    """Tune every arm over the same grid. Then measure each arm at its best pair on separate repeats.

    Args:
        task: the sizes.
        setting: the parameters.
        repeats: number of measured repeats, at least 2.
        seed: seed for data, coins and noise.

    Raises:
        InputError: there are fewer than two repeats, the budget has no split, or no noise meets the setting.
    """
    if repeats < 2:
        raise InputError(f"{repeats} repeats give no interval: give at least 2")
    if not setting.within > 0.0:
        raise InputError(f"within-user deviation is {setting.within}: give a number above 0")
    arms = arms_of(task, setting.budget)
    noise = [arm.noise_multiplier(task, setting.epsilon) for arm in arms]
    grid = np.array(list(itertools.product(LEARNING_RATES, CLIP_NORMS)))
    # The same grid for both methods, so that neither gains by a finer one.
    everywhere = [Pairs(grid[:, 0], grid[:, 1])] * len(arms)
    # (repeats, H) -> (H,)
    tuned = [e.mean(0) for e in _errors(task, setting, arms, noise, everywhere, TUNING_REPEATS, seed, "tuning")]
    best = [grid[int(mean.argmin())] for mean in tuned]
    at_best = [Pairs(pair[:1], pair[1:]) for pair in best]
    # Other repeats than those that chose the pair: the least of a noisy grid is too low on its own repeats.
    errors = _errors(task, setting, arms, noise, at_best, repeats, seed, "measuring")
    found = [
        TunedArm(arm, z, float(pair[0]), float(pair[1]), float(mean.min()), its[:, 0])
        for arm, z, pair, mean, its in zip(arms, noise, best, tuned, errors, strict=True)
    ]
    return Point(setting, found[0], tuple(found[1:]))


def _errors(
    task: Task,
    setting: Setting,
    arms: Sequence[Arm],
    noise: Sequence[float],
    pairs: Sequence[Pairs],
    repeats: int,
    seed: int,
    stage: Stage,
) -> list[Array]:
    """Return the squared errors of each arm, shape (repeats, H)."""
    found: list[list[Array]] = [[] for _ in arms]
    for block, start in enumerate(range(0, repeats, _BLOCK)):
        # Seeds of separate streams: stage and block, then 0 for data, 1 for noise, 2 + i for the coins of arm i.
        root = [seed, int(stage == "measuring"), block]
        # All arms and settings share the draws of data and noise, for sharper differences; each arm has its own coins.
        data = draw_data(task, setting.within, min(_BLOCK, repeats - start), np.random.default_rng([*root, 0]))
        for i, arm in enumerate(arms):
            coins, noises = np.random.default_rng([*root, 2 + i]), np.random.default_rng([*root, 1])
            found[i].append(run_arm(task, arm, noise[i], pairs[i], data, coins, noises))
    return [np.concatenate(blocks) for blocks in found]
