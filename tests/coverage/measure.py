"""How often each bound is wrong where epsilon is known.

`python -m tests.coverage.measure` writes docs/coverage.csv, every case, and from it the summary, docs/coverage.md.
"""

import csv
import functools
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special, stats

from heldin.bounds import bands, estimates, one_run, verdict
from heldin.bounds import thresholds as bounds
from heldin.bounds.design import Assignment, Design
from heldin.bounds.judgement import PLAN_FAMILY
from heldin.bounds.noise_family import family_bound
from heldin.bounds.one_run import Guesses
from heldin.bounds.scores import LabelledScores
from tests.coverage.mechanisms import DELTA, Known, gaussian, mechanisms, randomised_response

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT, CASES = DOCS / "coverage.md", DOCS / "coverage.csv"
COLUMNS = ("bound", "mechanism", "epsilon", "users", "audits", "wrong", "share", "gated")

ALPHA = 0.05
EPSILONS = (0.0, 0.5, 1.0, 4.0)
SLACK = 1e-4  # of a bound above the true epsilon: the precision of calibrated mechanisms

_COIN = Design(Assignment.COIN)

Wrong = Callable[[LabelledScores, Known], bool]


@dataclass(frozen=True)
class Row:
    """A bound on a mechanism: `wrong` of `trials`, or the exact share of wrong bounds (trials None)."""

    bound: str
    mechanism: str
    epsilon: float
    users: int
    trials: int | None
    wrong: float
    gated: bool = True

    @property
    def share(self) -> float:
        return self.wrong / self.trials if self.trials else self.wrong

    @property
    def passes(self) -> bool:
        """Within the binomial 1 - 1e-6 quantile of the nominal level; exact shares within the level itself."""
        return self.share <= ALPHA + 1e-12 if self.trials is None else self.wrong <= most_wrong(self.trials)


def most_wrong(trials: int) -> int:
    """The binomial 1 - 1e-6 quantile at the nominal level."""
    return int(stats.binom.ppf(1 - 1e-6, trials, ALPHA))


def above(bound: Callable[[LabelledScores, Known], float]) -> Wrong:
    return lambda scores, known: bound(scores, known) > known.epsilon + SLACK


ONE_RUN: dict[str, Wrong] = {
    "one-run": above(lambda s, k: one_run.steinke_bound(s, k.delta).epsilon),
    "one-run, r = m": above(lambda s, k: one_run.steinke_bound(s, k.delta, made=s.scores.size).epsilon),
    "one-run f-DP": above(lambda s, k: one_run.fdp_bound(s, k.delta).epsilon),
    "one-run f-DP, curve": lambda s, k: verdict.rejects(s, k.claim, _COIN),
}
ONE_RUN_GAUSSIAN: dict[str, Wrong] = {
    "one-run Gaussian": above(lambda s, k: one_run.fdp_gaussian_bound(s, k.delta).epsilon)
}
PLAN: dict[str, Wrong] = {PLAN_FAMILY: above(lambda s, k: family_bound(s, k.family, k.delta).epsilon)}
TRIALS: dict[str, Wrong] = {
    "Clopper-Pearson, fixed": above(lambda s, k: bounds.threshold_bound(s, [k.threshold], k.delta).epsilon),
    "Clopper-Pearson, split": above(lambda s, k: bounds.split_bound(s, k.delta).epsilon),
    "ROC band": above(lambda s, k: bands.equal_local_level_band(s).epsilon(k.delta)),
    "DKW band": above(lambda s, k: bands.dkw_band(s).epsilon(k.delta)),
    "AUROC": above(lambda s, k: bands.auroc_epsilon(bands.auroc_at_least(s), k.delta)),
    "ROC violates the curve": lambda s, k: bands.violates(s, k.ceiling).contradicted,
}
TRIALS_GAUSSIAN: dict[str, Wrong] = {
    "Gaussian, fixed threshold": above(lambda s, k: bounds.threshold_gaussian_bound(s, [k.threshold], k.delta).epsilon),
    "Gaussian, split halves": above(lambda s, k: bounds.split_gaussian_bound(s, k.delta).epsilon),
}
ESTIMATES: dict[str, Wrong] = {
    "Bayesian interval": above(
        lambda s, k: estimates.bayesian_interval(bounds.counts_at(s, k.threshold), k.delta).lower
    )
}


def best_threshold_uncorrected(scores: LabelledScores, delta: float) -> float:
    """The rule that must fail: the best of all thresholds and both directions at the price of one. No ties."""
    n1, n0 = int(scores.member.sum()), int((~scores.member).sum())
    low, high = _limit_tables(n1, n0)
    ranked = scores.member[np.argsort(-scores.scores)]
    return float(bounds.epsilon_of_rates(low[ranked.cumsum()], high[(~ranked).cumsum()], delta).max())


@functools.cache
def _limit_tables(n1: int, n0: int) -> tuple[np.ndarray, np.ndarray]:
    low = bounds.rate_at_least(np.arange(n1 + 1.0), np.full(n1 + 1, float(n1)), ALPHA / 2)
    return low, bounds.rate_at_most(np.arange(n0 + 1.0), np.full(n0 + 1, float(n0)), ALPHA / 2)


def count(wrong: Iterable[Wrong], known: Known, users: int, trials: int, *, coins: bool, seed: int) -> list[int]:
    """Wrong answers of each rule in `trials` audits. Coins for one run, fixed halves for independent trials."""
    rng = np.random.default_rng([seed, users, trials])
    rules, totals = list(wrong), []
    halves = np.arange(users) % 2 == 0
    for _ in range(trials):
        member = rng.random(users) < 0.5 if coins else halves
        scores = LabelledScores(known.draw(member, rng), member)
        totals.append([rule(scores, known) for rule in rules])
    return np.sum(totals, axis=0).tolist()


def simulate(
    epsilons: Iterable[float], users: int, trials: int, *, seed: int = 1, estimates: bool = True, plans: bool = True
) -> list[Row]:
    """Every bound, and every estimate, on every mechanism at these epsilons; plans' families of curves are slow."""
    rows = []
    for epsilon in epsilons:
        for known in mechanisms(epsilon, users):
            one_run_rules = (
                ONE_RUN | (ONE_RUN_GAUSSIAN if known.gaussian else {}) | (PLAN if plans and known.family else {})
            )
            batches = [(one_run_rules, True, True)]
            if known.independent:
                batches.append((TRIALS | (TRIALS_GAUSSIAN if known.gaussian else {}), False, True))
                batches += [(ESTIMATES, False, False)] if estimates else []
            for rules, coins, gated in batches:
                audits = trials if gated else max(100, trials // 10)
                wrong = count(rules.values(), known, users, audits, coins=coins, seed=seed)
                rows += [
                    Row(name, known.name, epsilon, users, audits, w, gated)
                    for name, w in zip(rules, wrong, strict=True)
                ]
    return rows


def exact_one_run(epsilon: float, users: int, made: int) -> list[Row]:
    """Randomised response tells each of `made` guesses right with probability q: v is binomial, and so is the error."""
    v = np.arange(made + 1)
    mass = stats.binom.pmf(v, made, special.expit(epsilon))
    plain = [one_run.one_run_epsilon(Guesses(users, made, int(i)), 0.0, ALPHA) > epsilon + 1e-9 for i in v]
    fdp = [one_run.fdp_rejects(Guesses(users, made, int(i)), one_run.epsilon_delta_inverse(epsilon, 0.0)) for i in v]
    label = f"r = {made}"
    return [
        Row(f"{name}, {label}", "randomised response", epsilon, users, None, float(mass[np.array(bad)].sum()))
        for name, bad in (("one-run", plain), ("one-run f-DP", fdp))
    ]


def exact_clopper_pearson(known: Known, tpr: float, fpr: float, users: int) -> Row:
    """Every pair of counts of one threshold, K = 2, weighed by its probability."""
    n = users // 2
    k = np.arange(n + 1.0)
    low = bounds.rate_at_least(k, np.full(n + 1, float(n)), ALPHA / 4)
    high = bounds.rate_at_most(k, np.full(n + 1, float(n)), ALPHA / 4)
    epsilon = bounds.epsilon_of_rates(*np.meshgrid(low, high, indexing="ij"), known.delta)
    mass = stats.binom.pmf(k, n, tpr)[:, None] * stats.binom.pmf(k, n, fpr)
    wrong = float(mass[epsilon > known.epsilon + 1e-9].sum())
    return Row("Clopper-Pearson, fixed", known.name, known.epsilon, users, None, wrong)


def exact_gaussian_conversion(known: Known, users: int) -> Row:
    """The same for the Gaussian conversion of N(mu, 1) against N(0, 1) at the threshold mu."""
    n, mu = users // 2, known.threshold
    k = np.arange(n + 1.0)
    low = bounds.rate_at_least(k, np.full(n + 1, float(n)), ALPHA / 2)
    high = bounds.rate_at_most(k, np.full(n + 1, float(n)), ALPHA / 2)
    with np.errstate(invalid="ignore"):
        found = np.nan_to_num(special.ndtri(low)[:, None] - special.ndtri(high), nan=-np.inf)
    mass = stats.binom.pmf(k, n, 0.5)[:, None] * stats.binom.pmf(k, n, special.ndtr(-mu))
    return Row(
        "Gaussian, fixed threshold", known.name, known.epsilon, users, None, float(mass[found > mu + 1e-9].sum())
    )


def exact(user_counts: Iterable[int]) -> list[Row]:
    """What can be enumerated: counts of randomised response and of a Gaussian at one threshold."""
    rows = []
    for users in user_counts:
        for epsilon in EPSILONS:
            for made in sorted({max(10, users // 10), users}):
                rows += exact_one_run(epsilon, users, made)
            response, normal = randomised_response(epsilon), gaussian(epsilon)
            q = float(special.expit(epsilon))
            rows.append(exact_clopper_pearson(response, q, 1 - q, users))
            rows.append(exact_clopper_pearson(normal, 0.5, float(special.ndtr(-normal.threshold)), users))
            rows.append(exact_gaussian_conversion(normal, users))
    return rows


def andrew(trials: int, seed: int = 3) -> list[Row]:
    """The one-shot estimate's 90 % interval on one noisy sum of random unit vectors: is its lower end too high?"""
    rows = []
    for epsilon in (1.0, 4.0):
        mu, k, d = gaussian(epsilon).threshold, 200, 4000
        rng = np.random.default_rng(seed)
        canaries = rng.standard_normal((k, d)) / np.sqrt(d)
        wrong = 0
        for i in range(trials):
            released = canaries.sum(0) + rng.standard_normal(d) / mu
            observed = np.sqrt(d) * canaries @ released / (np.linalg.norm(canaries, axis=1) * np.linalg.norm(released))
            found = estimates.andrew_estimate(observed, DELTA, resamples=200, seed=i)
            wrong += found.lower > epsilon
        rows.append(Row("one-shot canaries", "random unit vectors", epsilon, k, trials, wrong, gated=False))
    return rows


def write_cases(rows: list[Row], path: Path) -> None:
    """docs/coverage.csv: every case. Counts are exact; an exact share has four digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            audits, wrong = ("exact", "") if row.trials is None else (row.trials, int(row.wrong))
            case = (row.bound, row.mechanism, f"{row.epsilon:g}", row.users, audits, wrong, f"{row.share:.4f}")
            out.writerow([*case, "yes" if row.gated else "no"])


def read_cases(path: Path) -> list[Row]:
    """What `write_cases` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(case) for case in csv.DictReader(file, strict=True)]


def _row(case: dict[str, str]) -> Row:
    exact = case["audits"] == "exact"
    trials, wrong = (None, float(case["share"])) if exact else (int(case["audits"]), int(case["wrong"]))
    gated = {"yes": True, "no": False}[case["gated"]]
    return Row(case["bound"], case["mechanism"], float(case["epsilon"]), int(case["users"]), trials, wrong, gated)


FIRST = "| bound | lowest coverage | where | passes |"


def summary(rows: list[Row]) -> str:
    """The table at the end of docs/coverage.md: the worst case of every bound."""
    lines = [FIRST, "|---|---|---|---|"]
    for name in dict.fromkeys(base(row.bound) for row in rows):
        worst = max((row for row in rows if base(row.bound) == name), key=lambda row: row.share)
        where = f"{worst.mechanism}, epsilon {worst.epsilon:g}, {worst.users} users"
        verdict = ("yes" if worst.passes else "**no**") if worst.gated else "estimate, no limit"
        lines.append(f"| {name} | {1 - worst.share:.4f} | {where} | {verdict} |")
    return "\n".join(lines) + "\n"


def base(name: str) -> str:
    """The bound's name without the number of guesses."""
    return name.split(", r = ")[0]


def everything(trials: int = 2000) -> list[Row]:
    """The cases of docs/coverage.csv."""
    rows = exact((50, 200, 1000, 5000))
    for users, epsilons in ((50, EPSILONS), (500, EPSILONS), (5000, (1.0,))):
        began = time.perf_counter()
        rows += simulate(epsilons, users, trials)
        print(f"{users} users: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    rows += andrew(500)
    rows.append(failing_rule(trials))
    return rows


def failing_rule(trials: int, users: int = 10_000, epsilon: float = 1.0) -> Row:
    """Best threshold, uncorrected, on randomised response with 5000 members and 5000 others."""
    rule = above(lambda s, k: best_threshold_uncorrected(s, k.delta))
    wrong = count([rule], randomised_response(epsilon), users, trials, coins=False, seed=2)[0]
    return Row("best threshold, uncorrected", "randomised response", epsilon, users, trials, wrong)


if __name__ == "__main__":
    write_cases(everything(), CASES)
    text = DOCUMENT.read_text(encoding="utf-8").partition(FIRST)[0]
    DOCUMENT.write_text(text + summary(read_cases(CASES)), encoding="utf-8")
