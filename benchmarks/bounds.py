"""Times of every bound on 10,000 scores: `python benchmarks/bounds.py`. One thread: set OMP_NUM_THREADS=1.

Goals: every bound takes less than 2 s, and the f-DP one-run recursion for m = 10,000 less than 1 s. No row uses another
row's cache.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from heldin.bounds import bands, estimates, one_run, power, verdict
from heldin.bounds import thresholds as bounds
from heldin.bounds.design import Assignment, Design
from heldin.bounds.judgement import evaluate
from heldin.bounds.noise_family import family_bound
from heldin.bounds.one_run import Guesses
from heldin.bounds.scores import LabelledScores, labelled
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of, loss_distribution
from tests.coverage.mechanisms import family_of

DELTA = 1e-5


def row(name: str, call: Callable[[], Any], goal: float) -> None:
    for cached in (one_run.one_run_epsilon, one_run.fdp_epsilon, one_run.fdp_mu, bands.local_level):
        cached.cache_clear()
    began = time.perf_counter()
    call()
    taken = time.perf_counter() - began
    print(f"{name:<52}{taken:>9.4f} s   goal {goal:g} s{'' if taken < goal else '   MISSED'}")


def main() -> None:
    rng = np.random.default_rng(0)
    trainings = labelled(rng.normal(1, 1, 5000), rng.normal(0, 1, 5000))
    member = rng.random(10_000) < 0.5
    run = LabelledScores(rng.standard_normal(10_000) + member, member)
    event = PoissonGaussian(0.92826, 16 / 1024)
    loss_distribution(event, 1000, DELTA)
    ceiling = ceiling_of(event, 1000, DELTA)
    inverse = one_run.curve_inverse(ceiling)
    claim = verdict.curve_claim(ceiling, 3.3, DELTA)
    v = one_run.guess(run, 10_000).correct
    full = Guesses(10_000, 10_000, v)
    coin = Design(Assignment.COIN)
    apart = Design(Assignment.FIXED, independent_trainings=True, thresholds=(1.0,))
    mu = one_run.fdp_mu(full)
    row(
        "f-DP recursion, one test near the limit, r = m",
        lambda: one_run.fdp_rejects(full, one_run.gaussian_inverse(mu)),
        1,
    )
    row("f-DP recursion to mu, r = m", lambda: one_run.fdp_mu(full), 1)
    row("f-DP recursion to epsilon, r = m", lambda: one_run.fdp_epsilon(full, DELTA), 1)
    row("f-DP recursion to mu, all right", lambda: one_run.fdp_mu(Guesses(10_000, 10_000, 10_000)), 1)
    row("one run, Steinke, three numbers", lambda: one_run.steinke_bound(run, DELTA), 2)
    row("one run, f-DP, three numbers", lambda: one_run.fdp_bound(run, DELTA), 2)
    row("one run, f-DP Gaussian, three numbers", lambda: one_run.fdp_gaussian_bound(run, DELTA), 2)
    row(
        "one run against the accountant's curve, three numbers",
        lambda: [one_run.fdp_rejects(one_run.guess(run, r), inverse) for r in (100, 1000, 10_000)],
        2,
    )
    row("one run, the plan's noise inverted", lambda: family_bound(run, family_of(0.92826, 16 / 1024, 1000), DELTA), 3)
    row("one run, the same again", lambda: family_bound(run, family_of(0.92826, 16 / 1024, 1000), DELTA), 3)
    row("Clopper-Pearson, fixed threshold", lambda: bounds.threshold_bound(trainings, [1.0], DELTA), 2)
    row("Clopper-Pearson, split halves", lambda: bounds.split_bound(trainings, DELTA), 2)
    row("Gaussian, split halves", lambda: bounds.split_gaussian_bound(trainings, DELTA), 2)
    row("ROC band", lambda: bands.equal_local_level_band(trainings).epsilon(DELTA), 2)
    row("DKW band", lambda: bands.dkw_band(trainings).epsilon(DELTA), 2)
    row("ROC against the accountant's curve", lambda: bands.violates(trainings, ceiling), 2)
    row("AUROC", lambda: bands.auroc_at_least(trainings), 2)
    row("Bayesian interval", lambda: estimates.bayesian_interval(bounds.counts_at(trainings, 1.0), DELTA), 2)
    row("one-shot canaries, 1000 resamples", lambda: estimates.andrew_estimate(rng.normal(1, 1, 10_000), DELTA), 2)
    row("everything, one run, one claim", lambda: evaluate(run, replace(coin, gaussian=True), claims=[claim]), 5)
    row(
        "everything, independent trainings, one claim",
        lambda: evaluate(trainings, replace(apart, gaussian=True), claims=[claim]),
        5,
    )
    row("power, m = 10,000", lambda: power.power(10_000, 0.75, DELTA), 5)
    row("power, m = 1,000,000", lambda: power.power(1_000_000, 0.75, DELTA), 10)


if __name__ == "__main__":
    main()
