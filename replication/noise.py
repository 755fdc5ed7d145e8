"""The noise that ELS and ULS add at equal compute, and black-box accounting compared with exact accounting.

Charles et al. (2024), Figures 1, 2 and 9. These results need only accounting, without data or training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting import heuristics
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.reports.figures import BLUE, GREY, ORANGE, figure, label
from replication.black_box import black_box_epsilon

USERS, RECORDS, STEPS, DELTA, CLIP_NORM = 1024, 32, 1000, 1e-6, 10.0  # N, K, T, delta and L_ELS of Appendix B
EPSILONS, COHORTS, GROUP_SIZES = (1.0, 4.0, 16.0), (16, 64), (1, 2, 4, 8, 16, 32)
BUDGET = 64  # of Figure 2a
SIGMAS, FIGURE_1 = (0.5, 1.0, 2.0, 4.0), (2000, 0.01)  # T and p of Figure 1


@dataclass(frozen=True)
class Accounted:
    """The data of Figure 1: epsilon of ELS for users; None if black-box accounting gives no epsilon."""

    noise_multiplier: float
    group_size: int
    exact: float
    black_box: float | None


@dataclass(frozen=True)
class Noise:
    """The data of Figures 2 and 9: variances of the noise on the mean gradient.

    Attributes:
        els: variance for example-level sampling with at most ``RECORDS`` records per user.
        alike: variance for user-level sampling if the gradients of a user are equal.
        diverse: variance for user-level sampling if the gradients of a user are as diverse as possible, so the clip
            norm decreases with the root of the group size.
    """

    epsilon: float
    cohort: int
    group_size: int
    els: float
    alike: float
    diverse: float

    @property
    def budget(self) -> int:
        """Return the number of gradients per step."""
        return self.cohort * self.group_size


@dataclass(frozen=True)
class Study:
    """The data of all three figures.

    Attributes:
        by_group: epsilon, group size of ELS at ``BUDGET`` gradients per step, and variance (Figure 2a).
    """

    accounted: tuple[Accounted, ...]
    by_group: tuple[tuple[float, int, float], ...]
    noises: tuple[Noise, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return every number as a JSON value."""
        return asdict(self)


def settings() -> int:
    """Return how many numbers are calibrated or accounted for."""
    return len(SIGMAS) * len(GROUP_SIZES) + len(EPSILONS) * len(GROUP_SIZES) * (1 + len(COHORTS))


def run_study(advance: Callable[[int], object] = lambda _: None) -> Study:
    """Compute every number of the three figures. ``advance`` is called with the number of finished settings."""
    steps, rate = FIGURE_1
    accounted = []
    for sigma in SIGMAS:
        for group in GROUP_SIZES:
            exact = accounting.epsilon(PoissonGaussian(sigma, rate, group), steps, DELTA)
            box = black_box_epsilon(PoissonGaussian(sigma, rate), group, steps, DELTA)
            accounted.append(Accounted(sigma, group, exact, box if math.isfinite(box) else None))
            advance(1)
    by_group, noises = [], []
    for epsilon in EPSILONS:
        for group in GROUP_SIZES:
            by_group.append((epsilon, group, _els(epsilon, BUDGET, group)))
            advance(1)
        for cohort in COHORTS:
            sigma = accounting.calibrate(PoissonGaussian(1.0, cohort / USERS), STEPS, DELTA, epsilon)
            alike = heuristics.uls_noise_variance(sigma, CLIP_NORM, cohort)
            for group in GROUP_SIZES:
                noises.append(
                    Noise(epsilon, cohort, group, _els(epsilon, cohort * group, RECORDS), alike, alike / group)
                )
                advance(1)
    return Study(tuple(accounted), tuple(by_group), tuple(noises))


def _els(epsilon: float, budget: int, group: int) -> float:
    event = PoissonGaussian(1.0, heuristics.els_rate(budget, group, USERS), group)
    return heuristics.els_noise_variance(accounting.calibrate(event, STEPS, DELTA, epsilon), CLIP_NORM, budget)


def table(found: Study) -> str:
    """Return the figures as plain text, and count in how many settings the paper's statements hold."""
    lines = [f"{'noise':>6}{'G':>4}{'exact':>12}{'black box':>12}"]
    for its in found.accounted:
        box = "-" if its.black_box is None else f"{its.black_box:.4g}"
        lines.append(f"{its.noise_multiplier:>6g}{its.group_size:>4}{its.exact:>12.4g}{box:>12}")
    lines += ["", f"{'epsilon':>8}{'M':>5}{'G':>4}{'B':>6}{'ELS':>12}{'ULS, alike':>12}{'ULS, diverse':>14}"]
    for row in found.noises:
        lines.append(
            f"{row.epsilon:>8g}{row.cohort:>5}{row.group_size:>4}{row.budget:>6}{row.els:>12.4g}{row.alike:>12.4g}"
            f"{row.diverse:>14.4g}"
        )
    spread = max(
        max(of_one) / min(of_one)
        for epsilon in EPSILONS
        if (of_one := [variance for its, _, variance in found.by_group if its == epsilon])
    )
    alike, diverse = (sum(getattr(its, name) < its.els for its in found.noises) for name in ("alike", "diverse"))
    total = len(found.noises)
    lines += [
        "",
        f"the group size of ELS changes its variance by a factor of at most {spread:.3f} at B = {BUDGET}",
        f"ULS has less variance in {alike} of {total} settings if gradients of a user are alike, and in {diverse} if"
        " they are diverse",
    ]
    return "\n".join(lines)


def noise_figure(found: Study) -> str:
    """Return the SVG. Left: Figure 1 at each noise multiplier. Others: variances over compute at each epsilon."""
    with figure(8.0, 2.5) as (drawn, saved):
        left, *panels = drawn.subplots(1, 1 + len(EPSILONS))
        for sigma, colour in zip(SIGMAS, (BLUE, ORANGE, "black", GREY), strict=True):
            rows = [its for its in found.accounted if its.noise_multiplier == sigma]
            sizes, exact = [its.group_size for its in rows], [its.exact for its in rows]
            left.plot(sizes, exact, "-", color=colour, label=f"{sigma:g}")
            boxed = [(its.group_size, its.black_box) for its in rows if its.black_box is not None]
            left.plot(*zip(*boxed, strict=True), "--", color=colour)
        left.legend(title="noise; dashed: black box", fontsize=6, title_fontsize=6, loc="upper left", ncols=2)
        left.set(xscale="log", yscale="log", ylim=(0.3, 1e5))  # space for the legend
        label(left, "group size", "epsilon")
        for axes, epsilon in zip(panels, EPSILONS, strict=True):
            _variances(axes, [its for its in found.noises if its.epsilon == epsilon])
            axes.set_title(f"epsilon {epsilon:g}", fontsize=8)
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=6)
    return saved[0]


def _variances(axes: Any, rows: Sequence[Noise]) -> None:
    for cohort, marks in zip(COHORTS, ("os^", "DvP"), strict=True):
        own = [its for its in rows if its.cohort == cohort]
        budgets = [its.budget for its in own]
        for name, dash, mark, colour in zip(
            ("els", "alike", "diverse"), ("-", "--", ":"), marks, (ORANGE, GREY, BLUE), strict=True
        ):
            shown = f"{'ELS' if name == 'els' else 'ULS, ' + name}, M {cohort}"
            values = [getattr(its, name) for its in own]
            axes.plot(budgets, values, mark + dash, color=colour, markersize=3, linewidth=0.9, label=shown)
    axes.set(xscale="log", yscale="log")
    label(axes, "gradients a step", "variance of the noise")
