"""Times of heldin's accounting compared with dp-accounting's, in one run: `python benchmarks/accounting.py [--all]`.

Three measurements: one step of a mixture of Gaussians on the same grid (h = 1e-3), an epsilon at T = 2000 with a cold
and a warm cache, and a calibration. Times exclude the interpreter's start and imports. One thread: set
OMP_NUM_THREADS=1. `--small-delta` measures how far epsilon at the smallest delta is above the exact value, over 60
mechanisms.
"""

import argparse
import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import stats

from heldin.defenses.accounting import composition
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import CappedPoissonGaussian, PoissonGaussian
from heldin.defenses.accounting.guarantees import calibrate, ceiling_of, epsilon, loss_distribution, pld_ceiling
from heldin.defenses.accounting.step_pld import binomial_mixture, mixture_step, to_dp_event
from tests.oracles import contour_accountant

STEPS, RATE, DELTA, WIDTH = 2000, 0.01, 1e-6, 1e-3
WHOLE = (  # noise multiplier, rate, records of a user, steps, delta
    (1.0, 0.01, 1, 2000, 1e-6),
    (1.0, 0.01, 32, 2000, 1e-6),
    (2.0, 1 / 64, 1, 1000, 1e-6),
    (10.97, 1e-3, 64, 2000, 1e-8),
    (0.9, 0.01, 8, 52000, 1e-6),
)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    value = call()
    return time.perf_counter() - began, value


def library_step(sigma: float, group: int) -> privacy_loss_distribution.PrivacyLossDistribution:
    counts = range(group + 1)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, counts, stats.binom.pmf(counts, group, RATE), value_discretization_interval=WIDTH
    )


def library_calibration(event: PoissonGaussian, steps: int, target: float, width: float) -> float:
    def at(noise: float) -> dp_accounting.DpEvent:
        return to_dp_event(PoissonGaussian(noise, event.rate, event.group_size), steps)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: PLDAccountant(value_discretization_interval=width), at, target, DELTA, tol=1e-4
    )


def build(cases: list[tuple[float, int]]) -> None:
    print(f"one step, both directions, h = {WIDTH:g}")
    print(f"{'sigma':>6} {'G':>4} {'dp-accounting s':>16} {'ours s':>9} {'ratio':>7}")
    for sigma, group in cases:
        theirs, _ = seconds(lambda s=sigma, g=group: library_step(s, g))
        ours, _ = seconds(lambda s=sigma, g=group: mixture_step(binomial_mixture(s, g, RATE), WIDTH))
        print(f"{sigma:>6} {group:>4} {theirs:>16.3f} {ours:>9.4f} {theirs / ours:>7.0f}")


def epsilons() -> None:
    print(f"\nepsilon, T = {STEPS}, p = {RATE}, delta = {DELTA:g} (goal: 3 s cold, 50 ms warm; ceiling 0.5 s)")
    print(f"{'sigma':>6} {'G':>4} {'epsilon':>12} {'cold s':>8} {'warm s':>9} {'disk s':>8} {'ROC ceiling s':>14}")
    for sigma in (0.5, 1.0, 2.0):
        for group in (1, 8, 32):
            event = PoissonGaussian(sigma, RATE, group)
            cold, value = seconds(lambda e=event: epsilon(e, STEPS, DELTA))
            warm, _ = seconds(lambda e=event: epsilon(e, STEPS, DELTA))
            ceiling, _ = seconds(lambda e=event: ceiling_of(e, STEPS, DELTA).auroc)
            composition.settled_pair.cache_clear()
            disk, _ = seconds(lambda e=event: epsilon(e, STEPS, DELTA))
            print(f"{sigma:>6} {group:>4} {value:>12.6f} {cold:>8.3f} {warm:>9.5f} {disk:>8.3f} {ceiling:>14.3f}")
    capped = CappedPoissonGaussian(0.9283, 16 / 1024, 1024, 40)
    cold, value = seconds(lambda: epsilon(capped, 1000, DELTA))
    print(f"hard cap 40 of 16 expected, T = 1000: epsilon {value:.4f} in {cold:.2f} s")


def whole() -> None:
    """Compare epsilon, with a cold cache, with dp-accounting's on two grids (docs/decisions/0049). Takes five
    minutes."""
    print(f"{'sigma':>6} {'rate':>8} {'G':>3} {'T':>6} {'ours':>10} {'s':>6}  h: theirs, ratio of times")
    for sigma, rate, group, steps, delta in WHOLE:
        event = PoissonGaussian(sigma, rate, group)
        ours, value = seconds(lambda e=event, t=steps, d=delta: epsilon(e, t, d))
        beside = []
        for width in (1e-3, 1e-4):
            accountant = PLDAccountant(value_discretization_interval=width)
            taken, theirs = seconds(
                lambda a=accountant, e=event, t=steps, d=delta: a.compose(to_dp_event(e, t)).get_epsilon(d)
            )
            beside.append(f"{width:g}: {theirs:.6g}, {taken / ours:.1f}")
        print(f"{sigma:>6} {rate:>8.4g} {group:>3} {steps:>6} {value:>10.6g} {ours:>6.3f}  {'; '.join(beside)}")


def calibrations(*, everything: bool) -> None:
    print(f"\ncalibration, K = 32, N = 1024, T = 1000, delta = {DELTA:g} (goal: 10 s)")
    for name, event, target in (
        ("ELS B=64", PoissonGaussian(1.0, 64 / (32 * 1024), 32), 4.0),
        ("ELS B=512", PoissonGaussian(1.0, 512 / (32 * 1024), 32), 1.0),
        ("ULS M=16", PoissonGaussian(1.0, 16 / 1024), 4.0),
    ):
        ours, noise = seconds(lambda e=event, t=target: calibrate(e, 1000, DELTA, t))
        line = f"{name:>10} epsilon {target:>4}: sigma {noise:.5f} in {ours:.3f} s"
        if everything or event.group_size == 1:
            theirs, other = seconds(lambda e=event, t=target: library_calibration(e, 1000, t, WIDTH))
            line += f"; dp-accounting (h = {WIDTH:g}) {other:.5f} in {theirs:.2f} s, ratio {theirs / ours:.0f}"
        print(line)


def small_deltas(delta: float) -> None:
    """Print epsilon at the smallest delta divided by the exact contour integral's. Takes five minutes."""
    print(f"epsilon at delta {delta:g} above the exact value (remove direction); - where the contour needs too long")
    print(f"{'s':>5} {'G':>3} {'q':>7} {'T':>7} {'epsilon':>13} {'seconds':>8} {'above':>9}")
    worst = 0.0
    for sigma, group, rate, steps in itertools.product(
        (0.5, 1.0, 3.0, 10.0), (1, 8), (1e-5, 1e-3, 0.05), (1_000, 10_000, 100_000)
    ):
        event = PoissonGaussian(sigma, rate, group)
        took, found = seconds(lambda e=event, t=steps: epsilon(e, t, delta))
        if not 0.0 < found < 2000.0:
            continue
        grid = contour_accountant.binomial_gaussian(sigma, group, rate)
        exact = contour_accountant.deltas(*grid, steps, [found, found * (1 - 5e-4)], "remove", most=40_000)
        above = "-"
        if exact is not None:
            relative = 5e-4 * math.log(delta / exact[0]) / math.log(exact[1] / exact[0])
            worst, above = max(worst, relative), f"{100 * relative:.4f} %"
        print(f"{sigma:>5} {group:>3} {rate:>7g} {steps:>7} {found:>13.6f} {took:>8.2f} {above:>9}")
    print(f"worst: {100 * worst:.4f} %")


def areas() -> None:
    print(
        "\nROC ceiling of one step, sigma = 0.25, G = 8: area above the exact one; that of the grid for epsilon alone"
    )
    for rate in (0.05, 0.005, 1e-4):
        event = PoissonGaussian(0.25, rate, 8)
        counts = np.arange(9)
        exact = float(stats.binom.pmf(counts, 8, rate) @ stats.norm.cdf(counts / (0.25 * math.sqrt(2.0))))
        coarse = pld_ceiling(loss_distribution(event, 1, DELTA)).auroc
        took, area = seconds(lambda e=event: ceiling_of(e, 1, DELTA).auroc)
        print(f"  q = {rate:<7g} exact {exact:.6f}  +{area - exact:.1e} (+{coarse - exact:.1e})  {took:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also the cases where dp-accounting takes minutes")
    parser.add_argument("--small-delta", action="store_true", help="only epsilon at 1e-11 against the exact one")
    parser.add_argument("--whole", action="store_true", help="only epsilon beside dp-accounting's, in five minutes")
    arguments = parser.parse_args()
    everything = arguments.all
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HELDIN_CACHE_DIR"] = folder
        if arguments.small_delta:
            small_deltas(accounting.SMALLEST_DELTA)
            return
        if arguments.whole:
            whole()
            return
        build([(2.0, 1), (1.0, 8), (2.0, 32), (1.0, 32), *([(0.5, 32)] if everything else [])])
        epsilons()
        areas()
        calibrations(everything=everything)
    assert math.isclose(epsilon(PoissonGaussian(1.0, RATE), STEPS, DELTA), 2.955246, rel_tol=2e-3)


if __name__ == "__main__":
    main()
