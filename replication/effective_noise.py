"""When Asi & Liu's filtered descent adds less noise than user-wise DP-SGD (Chua et al. 2024, Figures 3 and 7).

Each noise is a standard deviation per coordinate of the averaged gradient. For user-wise DP-SGD, the noise is
proportional to the clip norm C, and for Algorithm 3 to the concentration threshold tau. The ratio of the two noises is
therefore a line in tau / C, and crosses 1 once. The figures' records per user k affect the noises only through the
number of steps.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import optimize

from heldin.base.errors import InputError
from heldin.defenses.accounting.closed_forms import gaussian_delta
from heldin.defenses.accounting.events import PoissonGaussian, check_count
from heldin.defenses.accounting.guarantees import calibrate

USERS = (1_024, 18_195, 342_477)
COHORTS = (16, 64, 256, 1_024)
STEPS = (100, 1_000, 4_000)
EPSILONS = (1.0, 3.0, 8.0)
DELTA = 1e-5
PAPERS_LIMIT = 0.1  # "only if tau / C < 0.1"
PAPERS_MEASURED = 1.0  # "in the evaluated datasets, tau / C is around 1"


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which N(mu, 1) against N(0, 1) is (epsilon, delta)-DP, within 1e-10 relative."""
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2.0
    return float(optimize.brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, high, xtol=1e-13, rtol=1e-11))


@dataclass(frozen=True)
class FilterNoise:
    """The noise of Algorithm 3 in units of its concentration threshold tau.

    Attributes:
        noise_multiplier: s_A, PRIVACCOUNTING(eps/2, delta/2, N, N, T).
        deviation_per_tau: noise standard deviation per coordinate of the averaged gradient, over tau:
            s_A sqrt(8 (eps + ln(T / delta))) / N (line 14).
    """

    noise_multiplier: float
    deviation_per_tau: float


def filter_noise(users: int, steps: int, target_epsilon: float, delta: float) -> FilterNoise:
    """Return the noise that Algorithm 3 adds, with s_A = sqrt(T) / mu(eps/2, delta/2) for full batches.

    Args:
        users: public number of users N.
        steps: number of steps T.
        target_epsilon: epsilon of the whole run.
        delta: delta of the whole run.
    """
    check_count("users", users)
    check_count("steps", steps)
    if not target_epsilon > 0.0:
        raise InputError(f"target epsilon is {target_epsilon}: give a number above 0")
    # T full-batch steps are one Gaussian of mu = sqrt(T) / s_A, for which half of epsilon and of delta is left.
    noise = math.sqrt(steps) / gaussian_mu(target_epsilon / 2.0, delta / 2.0)
    concentration = math.sqrt(8.0 * (target_epsilon + math.log(steps / delta)))
    return FilterNoise(noise, noise * concentration / users)


def break_even_concentration(users: int, cohort: int, steps: int, target_epsilon: float, delta: float) -> float:
    """Return the tau / C below which Algorithm 3 adds less noise than ULS with this cohort (Chua et al., Figure 3).

    The value is (s_U / n) N / (s_A sqrt(8 (eps + ln(T / delta)))), with s_U calibrated for the Poisson rate n / N. The
    algorithms differ in compute: Algorithm 3 needs N user gradients per step, and ULS needs n.

    Args:
        users: public number of users N.
        cohort: expected cohort size n of ULS.
        steps: number of steps T.
        target_epsilon: epsilon of either algorithm.
        delta: delta of either algorithm.
    """
    if cohort > users:
        raise InputError(f"cohort {cohort} is larger than the population {users}: lower the cohort")
    if cohort == users:
        # Nobody is left out by sampling: a Gaussian has a closed form and needs no loss grid.
        uls_noise = math.sqrt(steps) / gaussian_mu(target_epsilon, delta)
    else:
        uls_noise = calibrate(PoissonGaussian(1.0, cohort / users), steps, delta, target_epsilon)
    return uls_noise / cohort / filter_noise(users, steps, target_epsilon, delta).deviation_per_tau


@dataclass(frozen=True)
class NoiseRow:
    """One setting of both algorithms (docs/theory.md#filtered-descent).

    Attributes:
        users: number of users.
        cohort: expected users per step of user-wise DP-SGD.
        steps: number of steps T.
        epsilon: epsilon per user.
        delta: delta per user.
        uls_noise: noise s_U / n of user-wise DP-SGD, in units of C.
        filter_noise: noise of Algorithm 3, in units of tau.
        break_even: tau / C below which Algorithm 3 adds less noise: uls_noise / filter_noise.
    """

    users: int
    cohort: int
    steps: int
    epsilon: float
    delta: float
    uls_noise: float
    filter_noise: float
    break_even: float


def effective_noise(
    users: Sequence[int] = USERS,
    cohorts: Sequence[int] = COHORTS,
    steps: Sequence[int] = STEPS,
    epsilons: Sequence[float] = EPSILONS,
    delta: float = DELTA,
    advance: Callable[[int], None] = lambda done: None,
) -> list[NoiseRow]:
    """Return a row for every combination in which the cohort has no more than all users.

    Rows are sorted by epsilon, steps, users and cohort. The algorithms differ in compute: in every step, Algorithm 3
    computes a gradient for every user, and user-wise DP-SGD only for a cohort.

    Args:
        users: numbers of users.
        cohorts: expected users per step of user-wise DP-SGD.
        steps: numbers of steps.
        epsilons: epsilons per user.
        delta: delta per user.
        advance: called with 1 after every row.

    Raises:
        InputError: every cohort is larger than the number of users.
    """
    settings = settings_of(users, cohorts, steps, epsilons)
    if not settings:
        raise InputError("every cohort is larger than the number of users: give smaller cohorts or more users")
    rows = []
    for epsilon, t, population, cohort in settings:
        rows.append(_row(population, cohort, t, epsilon, delta))
        advance(1)
    return rows


def settings_of(
    users: Sequence[int] = USERS,
    cohorts: Sequence[int] = COHORTS,
    steps: Sequence[int] = STEPS,
    epsilons: Sequence[float] = EPSILONS,
) -> list[tuple[float, int, int, int]]:
    """Return epsilon, steps, users and cohort for each row of ``effective_noise``, in order.

    Args:
        users: numbers of users.
        cohorts: expected users per step.
        steps: numbers of steps.
        epsilons: epsilons per user.
    """
    every = itertools.product(sorted(epsilons), sorted(steps), sorted(users), sorted(cohorts))
    return [its for its in every if its[3] <= its[2]]


def as_dict(rows: Sequence[NoiseRow]) -> dict[str, Any]:
    """Return every number in the table and the figure."""
    return {"papers_limit": PAPERS_LIMIT, "rows": [dataclasses.asdict(row) for row in rows]}


def table(rows: Sequence[NoiseRow]) -> str:
    """Return break-even tau / C as plain text: a line for each users and cohort, a column for each epsilon and
    steps."""
    # In the order of the rows, which are sorted; a dictionary keeps it and drops repeats.
    columns = list(dict.fromkeys((row.epsilon, row.steps) for row in rows))
    at = {(row.users, row.cohort, row.epsilon, row.steps): row.break_even for row in rows}
    lines = [
        f"tau / C below which Asi & Liu's filter adds less noise than user-wise DP-SGD; delta {rows[0].delta:g}",
        f"{'epsilon':>27}" + "".join(f"{epsilon:>8g}" for epsilon, _ in columns),
        f"{'users':>9}{'cohort':>8}{'steps':>10}" + "".join(f"{steps:>8}" for _, steps in columns),
    ]
    for users, cohort in dict.fromkeys((row.users, row.cohort) for row in rows):
        values = "".join(f"{at[users, cohort, *column]:>8.3g}" for column in columns)
        lines.append(f"{users:>9}{cohort:>8}{'':>10}{values}")
    return "\n".join([*lines, "", *summary(rows)]) + "\n"


def summary(rows: Sequence[NoiseRow]) -> list[str]:
    """Return two sentences on the claim "lower only if tau / C < 0.1" (Chua et al., section 5.3)."""
    # "Only if tau / C < 0.1" fails wherever a larger tau still adds less noise.
    beyond = [row for row in rows if row.break_even >= PAPERS_LIMIT]
    worthwhile = [row for row in rows if row.break_even > PAPERS_MEASURED]
    said = [f"tau / C must be below {PAPERS_LIMIT:g} in {len(rows) - len(beyond)} of {len(rows)} settings"]
    if beyond:
        said[0] += f"; in the others the sampling rate is at most {max(r.cohort / r.users for r in beyond):.2g}"
    said.append(
        f"at tau / C = {PAPERS_MEASURED:g}, as the paper measures it, Algorithm 3 adds less noise in {len(worthwhile)}"
        " settings" + (", where it spends at least " if worthwhile else "")
    )
    if worthwhile:
        # Less noise is paid for in compute: Algorithm 3 takes N gradients a step, ULS the cohort's n.
        said[1] += f"{min(r.users / r.cohort for r in worthwhile):,.0f} times the gradients a step"
    return [f"{sentence}." for sentence in said]


def _row(users: int, cohort: int, steps: int, epsilon: float, delta: float) -> NoiseRow:
    ratio = break_even_concentration(users, cohort, steps, epsilon, delta)
    # The ratio is that of the two noises at tau = C, so ULS's own is the ratio times the filter's.
    per_tau = filter_noise(users, steps, epsilon, delta).deviation_per_tau
    return NoiseRow(users, cohort, steps, epsilon, delta, ratio * per_tau, per_tau, ratio)
