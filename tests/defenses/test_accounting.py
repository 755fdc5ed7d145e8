"""Epsilon, delta and calibration against the reference values of docs/theory.md#poisson-accounting."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from heldin.defenses.accounting import closed_forms, composition
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    PoissonGaussian,
    UnamplifiedGaussian,
    participations,
)
from heldin.defenses.accounting.guarantees import calibrate, delta_of, epsilon, loss_distribution
from heldin.defenses.accounting.loss_pmf import LossPair, LossPmf, compose_pair, epsilon_at, mix, pair_epsilon
from heldin.defenses.accounting.step_pld import Mixture, binomial_mixture, mixture_step
from replication.effective_noise import gaussian_mu
from tests.oracles import contour_accountant
from tests.refusals import refused
from tests.theory_tables import numbers, rows

T, RATE, DELTA = 2000, 0.01, 1e-6
STATED = 2e-6  # what the reference table is exact to

# sigma, G: epsilon (= remove), epsilon of the add direction
REFERENCE = {(s, int(g)): (remove, add) for s, g, remove, add, *_ in numbers("table-of-exact-epsilons")}
# rate, G: sigma at epsilon 1, 4 and 16; T = 1000
CALIBRATION = [(drawn / of, int(g), sigmas) for drawn, of, g, *sigmas in numbers("table-of-calibrated-noise")]


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))


def acceptable(value, exact, relative=2e-3):
    """The rule of the project: never below the exact value, at most 0.2 % above it."""
    return exact - STATED <= value <= exact * (1 + relative)


@pytest.mark.parametrize(("sigma", "group"), REFERENCE)
def test_epsilon_is_the_exact_one_and_never_below(sigma, group):
    event = PoissonGaussian(sigma, RATE, group)
    exact, exact_add = REFERENCE[sigma, group]
    assert acceptable(epsilon(event, T, DELTA), exact, 2e-4)
    pair = loss_distribution(event, T, DELTA)
    assert acceptable(epsilon_at(pair.remove, DELTA), exact, 2e-4)
    assert acceptable(epsilon_at(pair.add, DELTA), exact_add, 1e-3)


@pytest.mark.parametrize(("sigma", "group"), [(0.5, 1), (1.0, 4), (2.0, 32)])
def test_wrong_accountants_are_rejected(sigma, group):
    exact = REFERENCE[sigma, group][0]
    pair = loss_distribution(PoissonGaussian(sigma, RATE, group), T, DELTA)
    assert not acceptable(epsilon_at(pair.add, DELTA), exact), "the wrong direction alone"
    assert not acceptable(epsilon(PoissonGaussian(sigma * 1.5, RATE, group), T, DELTA), exact), "claims noise x 3/2"
    assert not acceptable(epsilon(PoissonGaussian(sigma / 1.5, RATE, group), T, DELTA), exact), "noise x 2/3"
    assert not acceptable(epsilon(PoissonGaussian(sigma, RATE, group), T - 20, DELTA), exact), "1 % of the steps unpaid"
    step = mixture_step(binomial_mixture(sigma, group, RATE), pair.width)
    down = LossPmf(pair.width, step.remove.lowest - 1, step.remove.masses, step.remove.infinity)
    optimistic = compose_pair(LossPair(down, step.add), T)
    assert not acceptable(epsilon_at(optimistic.remove, DELTA), exact), "losses rounded down"


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("sigma", "group", "rate", "steps", "delta"),
    [(2.0, 1, 0.01, 2000, 1e-9), (1.0, 4, 0.01, 2000, 1e-6), (8.0, 256, 0.01, 500, 1e-6), (30.0, 4, 0.01, 20000, 1e-7)],
)
def test_against_the_contour_integral(sigma, group, rate, steps, delta, direction):
    pair = loss_distribution(PoissonGaussian(sigma, rate, group), steps, delta)
    ours = epsilon_at(getattr(pair, direction), delta)
    exact = contour_accountant.epsilon(
        *contour_accountant.binomial_gaussian(sigma, group, rate), steps, delta, direction, (0.8 * ours, 1.1 * ours)
    )
    assert exact <= ours <= exact * 1.001


@pytest.mark.slow
def test_random_mechanisms_against_the_contour_integral():
    rng = np.random.default_rng(3)
    compared = 0
    for _ in range(40):
        sigma, rate = float(np.exp(rng.uniform(-0.4, 2.0))), float(np.exp(rng.uniform(-5, -1)))
        group, steps = int(rng.choice([1, 2, 5, 20, 64])), int(np.exp(rng.uniform(4, 9)))
        delta = float(np.exp(rng.uniform(math.log(1e-10), math.log(1e-3))))
        pair = loss_distribution(PoissonGaussian(sigma, rate, group), steps, delta)
        grid = contour_accountant.binomial_gaussian(sigma, group, rate)
        for direction in ("remove", "add"):
            ours = epsilon_at(getattr(pair, direction), delta)
            try:
                exact = contour_accountant.epsilon(*grid, steps, delta, direction, (0.8 * ours, 1.1 * ours))
            except (ArithmeticError, ValueError):
                continue
            compared += 1
            assert exact * (1 - 1e-7) <= ours <= exact * 1.002, (sigma, rate, group, steps, delta, direction)
    assert compared >= 40


@pytest.mark.parametrize(("sigma", "group", "rate"), [(1.0, 1, 0.3), (0.7, 8, 0.05), (3.0, 64, 0.02)])
def test_one_step_against_quadrature(sigma, group, rate):
    """H_a(P, Q) = int (p - a q)_+ by brute force on a fine grid, both directions."""
    x = np.linspace(-12 * sigma, group + 12 * sigma, 400_001)
    k = np.arange(group + 1)
    p = sum(
        w * np.exp(-((x - c) ** 2) / (2 * sigma**2)) for c, w in zip(k, stats.binom.pmf(k, group, rate), strict=True)
    )
    q = np.exp(-(x**2) / (2 * sigma**2))
    p, q = (its / (sigma * math.sqrt(2 * math.pi)) for its in (p, q))
    for target in (0.05, 0.5, 2.0):
        a = math.exp(target)
        exact = max(np.trapezoid(np.maximum(u - a * v, 0), x) for u, v in ((p, q), (q, p)))
        ours = delta_of(PoissonGaussian(sigma, rate, group), 1, target)
        assert exact * (1 - 1e-6) <= ours <= exact * 1.01 + 1e-11


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 50.0])
def test_full_batch_is_the_gaussian_mechanism(mu):
    exact = closed_forms.gaussian_epsilon(mu, DELTA)
    for steps in (1, 400):
        ours = epsilon(PoissonGaussian(math.sqrt(steps) / mu, 1.0), steps, DELTA)
        assert exact * (1 - 1e-8) <= ours <= exact * 1.001
    assert closed_forms.gaussian_delta(mu, exact) == pytest.approx(DELTA, rel=1e-5)
    assert gaussian_mu(exact, DELTA) == pytest.approx(mu, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "group", "sigmas"), CALIBRATION)
def test_calibration_tables(rate, group, sigmas):
    for target, sigma in zip((1, 4, 16), sigmas, strict=True):
        ours = calibrate(PoissonGaussian(1.0, rate, group), 1000, DELTA, target)
        assert ours == pytest.approx(sigma, rel=2e-3)
        assert epsilon(PoissonGaussian(ours, rate, group), 1000, DELTA) <= target
        assert epsilon(PoissonGaussian(ours * (1 - 3e-4), rate, group), 1000, DELTA) > target


def test_delta_inverts_epsilon():
    for sigma, group in ((1.0, 1), (2.0, 8)):
        event = PoissonGaussian(sigma, RATE, group)
        exact = REFERENCE[sigma, group][0]
        assert DELTA * (1 - 1e-5) <= delta_of(event, T, exact) <= DELTA * 1.005
    assert delta_of(PoissonGaussian(2.0, RATE), T, 1e4) == accounting.SMALLEST_DELTA
    assert delta_of(PoissonGaussian(0.0, RATE), T, 1.0) == 1.0


def test_edges():
    event = PoissonGaussian(1.0, RATE)
    assert epsilon(PoissonGaussian(0.0, RATE), T, DELTA) == math.inf
    assert epsilon(PoissonGaussian(1e5, RATE), 1, 0.1) == 0.0
    assert epsilon(event, 1, 0.5) == 0.0
    spent = [epsilon(event, steps, DELTA) for steps in (1, 10, 100, 1000, 2000)]
    assert np.all(np.diff(spent) > 0)
    assert acceptable(spent[-1], REFERENCE[1.0, 1][0])


def test_more_of_anything_costs_more():
    base = epsilon(PoissonGaussian(1.5, 0.02, 4), 300, 1e-7)
    assert epsilon(PoissonGaussian(1.4, 0.02, 4), 300, 1e-7) > base
    assert epsilon(PoissonGaussian(1.5, 0.022, 4), 300, 1e-7) > base
    assert epsilon(PoissonGaussian(1.5, 0.02, 5), 300, 1e-7) > base
    assert epsilon(PoissonGaussian(1.5, 0.02, 4), 330, 1e-7) > base
    assert epsilon(PoissonGaussian(1.5, 0.02, 4), 300, 5e-8) > base


def test_hard_cap_costs_what_the_page_says():
    free = epsilon(PoissonGaussian(0.9283, 16 / 1024), 1000, DELTA)
    for cap, spent in numbers("table-of-hard-cohort-caps"):
        found = epsilon(CappedPoissonGaussian(0.9283, 16 / 1024, 1024, int(cap)), 1000, DELTA)
        assert found == pytest.approx(spent, rel=4e-3)
        assert found >= free * (1 - 2e-4)


def test_wrong_steps_cost_what_the_page_says():
    for row in rows("table-of-wrong-steps"):
        noise, rate, steps = 0.92826 / float(row["divided by"]), float(row["rate"]), int(row["steps"])
        found = epsilon(PoissonGaussian(noise, rate, int(row["G"])), steps, DELTA)
        assert found == pytest.approx(float(row["epsilon"]), rel=2e-3), row["what is done"]


def test_coins_that_are_seen_amplify_little():
    """A Gaussian step with public probability 1/64, nothing otherwise."""
    step = mixture_step(Mixture(0.92826, np.ones(1), np.ones(1)), 2.0**-9)
    nothing = LossPmf(step.width, 0, np.ones(1), 0.0)
    seen = LossPair(mix(step.remove, nothing, 1 / 64), mix(step.add, nothing, 1 / 64))
    assert pair_epsilon(compose_pair(seen, 1000), DELTA) == pytest.approx(36.9, rel=2e-3)


def test_shuffled_fallback():
    assert participations(1024, 16, 1000) == 16
    assert participations(10, 4, 5) == 2
    assert participations(10, 4, 5, drop_incomplete=True) == 3
    assert UnamplifiedGaussian(2.0, 16).mu == 2.0
    assert UnamplifiedGaussian(2.0, 16, "replace").mu == 4.0
    assert calibrate(UnamplifiedGaussian(1.0, 16), 1000, DELTA, 4.0) == pytest.approx(4.774, rel=2e-4)
    assert epsilon(UnamplifiedGaussian(0.928, 16), 1000, DELTA) == pytest.approx(29.1, rel=1e-3)


@pytest.mark.parametrize(("sigma", "steps", "least", "assumed"), numbers("table-of-shuffled-cohorts"))
def test_shuffled_cohorts_break_poisson_accounting(sigma, steps, least, assumed):
    """docs/theory.md#shuffled-cohorts: the best event "the largest coordinate is at least c" of one pass."""
    c = np.linspace(0.0, 30.0, 30_001)
    others = (steps - 1) * stats.norm.logcdf(c / sigma)
    reached, without = (-np.expm1(stats.norm.logcdf((c - a) / sigma) + others) for a in (2.0, 1.0))
    seen = (reached > DELTA) & (without > 0.0)
    found = np.log((reached[seen] - DELTA) / without[seen]).max()
    assert found == pytest.approx(least, rel=2e-3)
    spent = epsilon(PoissonGaussian(sigma, 1 / steps), int(steps), DELTA)
    assert spent == pytest.approx(assumed, rel=4e-3)
    fallback = UnamplifiedGaussian(sigma, participations(1000 * int(steps), 1000, int(steps)))
    assert spent < found < epsilon(fallback, int(steps), DELTA)


@pytest.mark.parametrize(
    ("call", "by", "naming"),
    [
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 10, 1e-12), "check_delta", ("1e-12", "1e-11")),
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 10**8, 1e-10), "check_delta", "100000000"),
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 10, 0.0), "check_delta", ("0", "1")),
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 10, 1.0), "check_delta", ("0", "1")),
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 10.5, 1e-6), "check_count", ("steps", "10.5")),
        (lambda: epsilon(PoissonGaussian(1.0, 0.01), 0, 1e-6), "check_count", ("steps", "0", "1")),
        (lambda: PoissonGaussian(-1.0, 0.01), "check_noise", "-1.0"),
        (lambda: PoissonGaussian(1.0, 1.5), "check_rate", ("1.5", "(0, 1]")),
        (lambda: PoissonGaussian(1.0, 0.1, 0), "check_count", "0"),
        (lambda: CappedPoissonGaussian(1.0, 0.1, 100, 9), "CappedPoissonGaussian.__post_init__", ("9", "10")),
        (lambda: participations(10, 11, 5), participations, ("11", "10")),
        (lambda: calibrate(PoissonGaussian(1.0, 0.01), 10, 1e-6, 1e9), "_noise_bracket", "0.01"),
        (lambda: calibrate(PoissonGaussian(1.0, 0.01), 10, 1e-6, 0.0), calibrate, ("0.0", "0")),
        (
            lambda: calibrate(UnamplifiedGaussian(1.0, 2**31 - 1), 1, 1e-6, 1e-9),
            "_noise_bracket",
            ("1e-09", "1e+06", "0.174"),
        ),
        (lambda: loss_distribution(PoissonGaussian(0.0, 0.01), 10, 1e-6), loss_distribution, "0"),
    ],
)
def test_bad_input_is_one_line(call, by, naming):
    with refused(by=by, naming=naming) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_delta_caution():
    assert accounting.delta_caution(1e-6, 1000) is None
    assert accounting.delta_caution(0.01, 1000).values["units"] == 1000


def test_interactive():
    event = PoissonGaussian(0.5, RATE, 32)
    composition.settled_pair.cache_clear()
    began = time.perf_counter()
    epsilon(event, T, DELTA)
    cold = time.perf_counter() - began
    began = time.perf_counter()
    epsilon(event, T, DELTA)
    warm = time.perf_counter() - began
    assert cold < 3.0
    assert warm < 0.05


def test_grid_error_rule_predicts_the_bias():
    """T (s + 1) h^2 / 12 with s = -d ln(delta) / d(epsilon): the rule by which the grid is chosen."""
    sigma, group, width = 1.0, 4, 2e-3
    pair = compose_pair(mixture_step(binomial_mixture(sigma, group, RATE), width), T)
    spent = pair_epsilon(pair, DELTA)
    order = math.log(1.05) / (spent - pair_epsilon(pair, 1.05 * DELTA))
    assert spent - REFERENCE[sigma, group][0] == pytest.approx(T * (order + 1) * width**2 / 12, rel=0.05)
