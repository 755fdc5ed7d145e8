"""The choice of a mechanism with the least noise at a compute budget: ULS cohorts and group sizes, banded noise, ELS.

These are heuristics of Charles et al. (2024), section 6 and Appendices E, F. No heuristic is part of a guarantee.
heldin compares splits of the budget, banded noise and ELS at equal compute, B gradients per step. The measure is the
noise in sums of gradients over steps. The intermediate options of Estimate-and-Double cost less.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heldin.base.errors import InputError
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting import heuristics
from heldin.defenses.accounting.bands import best_bands
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.heuristics import BudgetChoice
from heldin.defenses.choices import DeltaRule
from heldin.defenses.correlation import banded_square_root, step_error, workload_error
from heldin.words.statement import Statement

START_COHORT = 32


@dataclass(frozen=True)
class Option:
    """One way to spend the budget.

    Attributes:
        method: "uls", "banded" or "els".
        group_size: G, number of a user's records in a step ("uls", "banded") or in training ("els").
        cohort: expected number of users ("uls", "banded") or examples ("els") in a step.
        noise_multiplier: noise multiplier that meets the target epsilon; inf if no such cohort exists.
        clip_norm: clip norm L of eqs. (5), (6), estimated from public users, or 1 for every group size.
        deviation: standard deviation of the noise on the mean gradient, per coordinate (eqs. (5), (6)), as a root mean
            square over the steps.
        sums: standard deviation of the noise in the sum of mean gradients up to a step, as a root mean square over the
            steps.
        passed: whether Estimate-and-Double passes through this option.
        chosen: whether Estimate-and-Double ends at this option.
    """

    method: str
    group_size: int
    cohort: float
    noise_multiplier: float
    clip_norm: float
    deviation: float
    sums: float
    bands: int = 1
    passed: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class MechanismChoice:
    """The answer of ``heldin choose``.

    Attributes:
        users: public number of users.
        budget: expected number of gradients per step.
        target_epsilon: epsilon of every option.
        delta: delta of every option.
        clip_norms_estimated: whether clip norms come from public users; otherwise they are 1.
        options: the options in order of compute and group size; ELS is last.
    """

    users: int
    budget: int
    steps: int
    target_epsilon: float
    delta: float
    delta_rule: Statement | None
    clip_norms_estimated: bool
    options: tuple[Option, ...]

    @property
    def least(self) -> Option:
        """Return the option that adds the least noise to sums of gradients over steps."""
        return min(self.options, key=lambda o: o.sums)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a nested dict, with the option of least noise."""
        rule = None if self.delta_rule is None else str(self.delta_rule)
        return {**dataclasses.asdict(self), "delta_rule": rule, "least": dataclasses.asdict(self.least)}


def choose(
    *,
    users: int,
    budget: int,
    steps: int,
    target_epsilon: float,
    delta: float | DeltaRule | None = None,
    examples: int | None = None,
    els_group_size: int | None = None,
    clip_norm: Callable[[int], float] | None = None,
) -> MechanismChoice:
    """Calibrate each split of the budget into group size (a power of two) and cohort, and ELS at the same cost.

    A split also has an option with banded noise if banded noise reduces the noise in sums of gradients.

    Args:
        users: public number of users N.
        budget: B = G M, expected number of gradients per step.
        steps: number of steps T.
        target_epsilon: epsilon of every option.
        delta: delta of every option, or its rule; None: N^-1.1.
        examples: public number of examples before any cap, for the delta rule "examples^-1.1".
        els_group_size: cap of ELS, such as the median number of records of public users; None: no ELS option.
        clip_norm: function L(G), estimated from public users; None: 1 for every G, which favours large cohorts.

    Raises:
        InputError: the budget is below one, or every cohort of the budget is larger than the population.
    """
    delta, rule = heuristics.settled_delta(delta, users, examples)
    norm = clip_norm or (lambda _group: 1.0)
    if budget < 1:
        raise InputError(f"budget {budget} is below one gradient per step: raise the budget")

    def noise(cohort: int) -> float:
        if cohort > users:
            return math.inf  # there is no such cohort
        rate = cohort / users
        return accounting.calibrate(PoissonGaussian(1.0, rate), steps, delta, target_epsilon)

    # Estimate-and-Double weighs clip norms against noise multipliers: without estimates there is nothing to weigh.
    trail = _trail(budget, users, norm, noise) if clip_norm else []
    # Rounded down: a budget that is no multiple of g buys the next smaller cohort.
    splits = [BudgetChoice(g, budget // g) for g in _powers(budget) if budget // g <= users]
    if not splits:
        raise InputError(f"budget {budget} is too large for any cohort of {users} users: lower the budget")
    options, independent = [], workload_error((1.0,), steps)
    # A choice on the trail may also be a split of the budget: each option is listed once.
    for split in dict.fromkeys([*splits, *trail]):
        s, length = noise(split.cohort), norm(split.group_size)
        deviation = heuristics.uls_noise_variance(s, length, split.cohort) ** 0.5
        marks = {"passed": split in trail, "chosen": split in trail[-1:]}
        size = split.group_size
        options.append(Option("uls", size, split.cohort, s, length, deviation, deviation * independent, **marks))
        options += _banded(users, split, steps, target_epsilon, delta, length)
    options.sort(key=lambda o: (o.group_size * o.cohort, o.group_size, o.bands))
    if els_group_size is not None:
        rate = heuristics.els_rate(budget, els_group_size, users)
        event = PoissonGaussian(1.0, rate, els_group_size)
        s = accounting.calibrate(event, steps, delta, target_epsilon)
        # ELS clips single records, whatever its cap: its clip norm is that of group size 1.
        deviation = heuristics.els_noise_variance(s, norm(1), budget) ** 0.5
        options.append(Option("els", els_group_size, budget, s, norm(1), deviation, deviation * independent))
    return MechanismChoice(users, budget, steps, target_epsilon, delta, rule, clip_norm is not None, tuple(options))


def _banded(
    users: int, split: BudgetChoice, steps: int, target_epsilon: float, delta: float, clip_norm: float
) -> list[Option]:
    """Return the option with banded noise for a split; empty if independent noise is as good."""
    if split.cohort > users:
        return []
    best = best_bands(users, split.cohort, steps, target_epsilon, delta)
    if best.bands == 1:
        return []
    share = clip_norm / split.cohort
    deviation = share * best.noise_multiplier * step_error(banded_square_root(best.bands), steps)
    size, cohort, noise = split.group_size, split.cohort, best.noise_multiplier
    return [Option("banded", size, cohort, noise, clip_norm, deviation, share * best.error, best.bands)]


def table(choice: MechanismChoice) -> str:
    """Return the options as plain text. The last lines recommend the option with the least noise."""
    least = choice.least
    lines = [
        f"{choice.users} users, {choice.budget} gradients per step, {choice.steps} steps, epsilon"
        f" {choice.target_epsilon:g}, delta {choice.delta:.3g}",
        *([str(choice.delta_rule)] if choice.delta_rule else []),
        "clip norms: "
        + (
            "medians over public users" if choice.clip_norms_estimated else "1 for every group size (give public texts)"
        ),
        "",
        f"{'method':<8}{'group size':>11}{'cohort':>8}{'bands':>7}{'noise multiplier':>18}{'clip norm':>11}"
        f"{'noise on mean':>15}{'noise on sums':>15}",
    ]
    for o in choice.options:
        mark = "  <- Estimate-and-Double" if o.chosen else "  (passed)" if o.passed else ""
        lines.append(
            f"{o.method:<8}{o.group_size:>11}{o.cohort:>8g}{o.bands:>7}{o.noise_multiplier:>18.5g}{o.clip_norm:>11.4g}"
            f"{o.deviation:>15.4g}{o.sums:>15.4g}{mark}"
        )
    lines += [
        "",
        f"choose {least.method}, group size {least.group_size}, cohort {least.cohort:g}"
        f"{f', {least.bands} bands' if least.bands > 1 else ''}: it adds the least noise to sums of gradients, which is"
        " no measure of utility",
    ]
    ended = next((o for o in choice.options if o.chosen), least)
    if ended is not least:
        lines.append(
            f"(Estimate-and-Double measures fewer options, and ends at group size {ended.group_size}, cohort"
            f" {ended.cohort:g})"
        )
    return "\n".join(lines)


def _trail(budget: int, users: int, norm: Callable[[int], float], noise: Callable[[int], float]) -> list[BudgetChoice]:
    start = BudgetChoice(1, min(START_COHORT, budget, users))
    return heuristics.estimate_and_double(norm, noise, budget, start)


def _powers(limit: int) -> list[int]:
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]
