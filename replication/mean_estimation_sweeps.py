"""The three sweeps of Charles et al. (2024), Figure 3, and tests of the paper's conclusions from them.

All statements are about ratios of mean squared errors over repeats. Repeats are independent of each other; within a
repeat, arms and settings share data and noise. The logarithm of a product of such means therefore has the linearisation
sum_i sign_i error_i / mean_i per repeat. Its mean over repeats gets a Student interval (delta method, paired).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from scipy import stats

from replication.mean_estimation import Array, Point, Setting, Task, TunedArm, measure_point

Swept = Literal["epsilon", "budget", "within"]

ALPHA = 0.05
FINDINGS = 4  # tested together: each at ALPHA / FINDINGS
MARGIN = 1.1  # "comparable": at most a tenth more error
NAMES: dict[Swept, str] = {
    "epsilon": "epsilon",
    "budget": "compute budget B (gradients a round)",
    "within": "within-user deviation sigma_2",
}


@dataclass(frozen=True)
class Sweeps:
    """The values of each sweep. The two other parameters stay at the paper's defaults (``Setting``).

    Attributes:
        epsilon: values of epsilon per user.
        budget: expected numbers of gradients per round.
        within: standard deviations of a user's examples.
    """

    epsilon: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    budget: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    within: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

    def settings(self, swept: Swept) -> list[Setting]:
        """Return one setting per value, in increasing order."""
        values: tuple[float, ...] = getattr(self, swept)
        return [dataclasses.replace(Setting(), **cast(dict[str, Any], {swept: value})) for value in sorted(values)]


@dataclass(frozen=True)
class Interval:
    """An estimate with its limits.

    Attributes:
        value: the estimate.
        low: lower limit.
        high: upper limit.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Finding:
    """A conclusion of the paper, and the result of this study.

    Attributes:
        claim: the conclusion.
        checks: tuples (name, interval, limit); each interval must be below its limit.
    """

    claim: str
    checks: tuple[tuple[str, Interval, float], ...]

    @property
    def confirmed(self) -> bool:
        """Return whether the upper ends of all intervals are below their limits."""
        # All must be: a false finding needs a false check, so no correction for their number is needed.
        return all(interval.high < limit for _, interval, limit in self.checks)


@dataclass(frozen=True, eq=False)
class Study:
    """The results of the study.

    Attributes:
        task: the sizes.
        repeats: number of measured repeats per arm.
        seed: seed for data, coins and noise.
        sweeps: points of each sweep, in increasing order.
        findings: the paper's conclusions, each tested at confidence 1 - ALPHA / FINDINGS.
    """

    task: Task
    repeats: int
    seed: int
    sweeps: dict[Swept, tuple[Point, ...]]
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return every number in table and figure, without errors of single repeats, which the seed reproduces."""
        return {
            "task": dataclasses.asdict(self.task),
            "repeats": self.repeats,
            "seed": self.seed,
            "confidence": {"errors": 1.0 - ALPHA, "findings": 1.0 - ALPHA / FINDINGS},
            "sweeps": {swept: [_point_dict(point) for point in points] for swept, points in self.sweeps.items()},
            "findings": [{**dataclasses.asdict(its), "confirmed": its.confirmed} for its in self.findings],
        }


def run_study(
    repeats: int = 128,
    seed: int = 0,
    *,
    task: Task | None = None,
    sweeps: Sweeps | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Study:
    """Measure every setting once, and judge the findings.

    Args:
        repeats: number of measured repeats per arm, at least 2, in addition to the repeats for tuning.
        seed: seed for data, coins and noise.
        task: the sizes; None: the paper's sizes.
        sweeps: values of the sweeps; None: the defaults.
        advance: called with 1 after each of ``len(settings_of(sweeps))`` settings.
    """
    task, sweeps = task or Task(), sweeps or Sweeps()
    points = {}
    for setting in settings_of(sweeps):
        # A setting that is in several sweeps, as the default one is, is measured once.
        points[setting] = measure_point(task, setting, repeats, seed)
        advance(1)
    found = {swept: tuple(points[setting] for setting in sweeps.settings(swept)) for swept in NAMES}
    return Study(task, repeats, seed, found, judge(found))


def settings_of(sweeps: Sweeps) -> list[Setting]:
    """Return the settings of all sweeps, each once."""
    return list(dict.fromkeys(setting for swept in NAMES for setting in sweeps.settings(swept)))


def contrast(above: Sequence[Array], below: Sequence[Array], confidence: float) -> Interval:
    """Return the product of the means of ``above``, divided by the product of the means of ``below``.

    All errors are of the same repeats, shape (R,) each. With one array above and none below, the result is its mean.
    Intervals are symmetric in the logarithm.
    """
    means = [float(errors.mean()) for errors in (*above, *below)]
    signs = [1.0] * len(above) + [-1.0] * len(below)
    centre = sum(sign * math.log(mean) for sign, mean in zip(signs, means, strict=True))
    # Linearisation of the logarithm in each repeat, (R,): paired, as the repeats share data and noise.
    each = sum(
        (sign * errors / mean for sign, errors, mean in zip(signs, (*above, *below), means, strict=True)),
        start=np.zeros_like(above[0]),
    )
    # R repeats are few, so Student's law and not the normal.
    width = float(stats.t.ppf(0.5 + confidence / 2.0, each.size - 1) * each.std(ddof=1)) / math.sqrt(each.size)
    return Interval(math.exp(centre), math.exp(centre - width), math.exp(centre + width))


def mean_error(tuned: TunedArm, confidence: float = 1.0 - ALPHA) -> Interval:
    """Return the mean squared error over repeats, with its interval."""
    return contrast([tuned.errors], [], confidence)


def ratio(point: Point, confidence: float = 1.0 - ALPHA) -> Interval:
    """Return the mean error of ULS with its tuned group size, divided by the mean error of ELS."""
    return contrast([point.uls.errors], [point.els.errors], confidence)


def judge(sweeps: dict[Swept, tuple[Point, ...]]) -> tuple[Finding, ...]:
    """Judge the four conclusions in section 4 of the paper.

    "ULS improves significantly on ELS where epsilon is small, the budget large, sigma_2 large" is tested at that end of
    the sweep. The ratio of errors must be below 1, and below the ratio at the other end. "ULS with G = 1 is comparable
    if not better across all settings" is tested at every setting with G = 1. Its error must be at most MARGIN times the
    error of ELS.
    """
    return (
        _better_at_one_end(sweeps["epsilon"], "at small epsilon", "epsilon"),
        _better_at_one_end(sweeps["budget"][::-1], "at a large compute budget", "budget"),
        _better_at_one_end(sweeps["within"][::-1], "at a large within-user deviation", "within"),
        # Each setting once: the default setting is in every sweep.
        _single_examples(list({point.setting: point for points in sweeps.values() for point in points}.values())),
    )


def _better_at_one_end(points: Sequence[Point], where: str, swept: Swept) -> Finding:
    here, there = points[0], points[-1]
    confidence = 1.0 - ALPHA / FINDINGS
    # (ULS / ELS here) / (ULS / ELS there) as one contrast, so that what both ends share cancels.
    trend = contrast([here.uls.errors, there.els.errors], [here.els.errors, there.uls.errors], confidence)
    at, other = (f"{swept} {getattr(point.setting, swept):g}" for point in (here, there))
    return Finding(
        f"ULS improves on ELS {where}",
        ((f"ULS / ELS at {at}", ratio(here, confidence), 1.0), (f"that over ULS / ELS at {other}", trend, 1.0)),
    )


def _single_examples(points: Sequence[Point]) -> Finding:
    checks = []
    for point in points:
        # A budget above the number of users has no split with one example a user.
        single = next((its for its in point.every_uls if its.arm.group_size == 1), None)
        if single is not None:
            its = point.setting
            name = f"ULS with G = 1 / ELS at epsilon {its.epsilon:g}, budget {its.budget}, within {its.within:g}"
            checks.append((name, contrast([single.errors], [point.els.errors], 1.0 - ALPHA / FINDINGS), MARGIN))
    return Finding("ULS with G = 1 is comparable to ELS or better in all settings", tuple(checks))


def table(study: Study) -> str:
    """Return sweeps and findings as plain text."""
    task = study.task
    lines = [
        f"{task.users} users x {task.examples} examples, d = {task.dimension}, {task.rounds} rounds, delta"
        f" {task.delta:g}, {study.repeats} repeats; squared error of the mean (95 % interval)",
    ]
    for swept, points in study.sweeps.items():
        lines += ["", f"{NAMES[swept]}", f"{'':>8}  {'ELS':<26}{'ULS':<26}{'G x M':<10}ULS / ELS"]
        for point in points:
            arm = point.uls.arm
            lines.append(
                f"{getattr(point.setting, swept):>8g}  {mean_error(point.els)!s:<26}{mean_error(point.uls)!s:<26}"
                f"{f'{arm.group_size} x {arm.expected}':<10}{ratio(point)}"
            )
    lines += ["", f"findings, {100.0 * (1.0 - ALPHA / FINDINGS):g} % intervals (together {100.0 * (1.0 - ALPHA):g} %)"]
    for finding in study.findings:
        lines.append(f"{'confirmed' if finding.confirmed else 'not confirmed'}: {finding.claim}")
        shown = finding.checks
        if len(shown) > 2:
            # The check that is closest to failing, or fails: a finding needs all of them.
            shown = (max(shown, key=lambda check: check[1].high),)
            lines.append(f"  of {len(finding.checks)} settings the worst:")
        lines += [f"  {name}: {interval}, to be below {limit:g}" for name, interval, limit in shown]
    edge = [p.setting for points in study.sweeps.values() for p in points if p.els.on_edge or p.uls.on_edge]
    lines += [f"note: the best learning rate or clip norm lies at an end of the grid at {its}" for its in edge]
    return "\n".join(lines) + "\n"


def _point_dict(point: Point) -> dict[str, Any]:
    return {
        **dataclasses.asdict(point.setting),
        "ratio": dataclasses.asdict(ratio(point)),
        "best_group_size": point.uls.arm.group_size,
        "els": _tuned_dict(point.els),
        "uls": [_tuned_dict(tuned) for tuned in point.every_uls],
    }


def _tuned_dict(tuned: TunedArm) -> dict[str, Any]:
    return {
        **dataclasses.asdict(tuned.arm),
        "sampling_rate": tuned.arm.rate,
        "noise_multiplier": tuned.noise_multiplier,
        "learning_rate": tuned.learning_rate,
        "clip_norm": tuned.clip_norm,
        "on_edge": tuned.on_edge,
        "tuning_error": tuned.tuning_error,
        "error": dataclasses.asdict(mean_error(tuned)),
    }
