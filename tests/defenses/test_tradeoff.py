"""Attacker ceilings against docs/theory.md#attacker-ceilings, closed forms, and a simulated optimal attacker."""

import math
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from heldin.defenses.accounting import composition
from heldin.defenses.accounting import guarantees as tradeoff
from heldin.defenses.accounting.closed_forms import gaussian_delta
from heldin.defenses.accounting.composition import AREA_PRECISION
from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of, epsilon, loss_distribution, pld_ceiling
from heldin.defenses.accounting.loss_pmf import LossPair, compose_pair
from heldin.defenses.accounting.roc_ceiling import RocCeiling, symmetrised
from heldin.defenses.accounting.step_pld import Mixture, mixture_step
from replication.effective_noise import gaussian_mu
from tests.oracles import ceilings
from tests.refusals import refused
from tests.theory_tables import numbers

DELTA = 1e-6

# sigma, rate, G, T: epsilon, AUROC by PLD, AUROC by (epsilon, delta), TPR at FPR 1e-3, 1e-2, 1e-1
REFERENCE = numbers("table-of-attacker-ceilings")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("row", REFERENCE)
def test_reference_table(row):
    sigma, rate, group, steps, eps, auroc, loose, *tprs = row
    event, steps = PoissonGaussian(sigma, rate, int(group)), int(steps)
    ceiling = ceiling_of(event, steps, DELTA)
    assert ceiling.auroc == pytest.approx(auroc, abs=2e-4)
    for fpr, tpr in zip((1e-3, 1e-2, 1e-1), tprs, strict=True):
        assert ceiling.tpr_at(fpr) == pytest.approx(tpr, abs=5e-4)
    spent = epsilon(event, steps, DELTA)
    assert spent == pytest.approx(eps, rel=2e-3)
    assert ceilings.epsilon_delta_auroc(eps, DELTA) == pytest.approx(loose, abs=1e-4)
    assert ceiling.auroc < ceilings.epsilon_delta_auroc(spent, DELTA)
    for fpr in (1e-4, 1e-2, 0.3, 0.9):
        assert ceiling.tpr_at(fpr) <= ceilings.epsilon_delta_tpr(spent, DELTA, fpr) + 1e-9


def exact_step(sigma, group, rate):
    """One step's best attacker, a threshold on the output: (x -> (FPR, TPR), area), in closed form."""
    k = np.arange(group + 1)
    weights = stats.binom.pmf(k, group, rate)

    def rates(x):
        return stats.norm.sf(x, scale=sigma), weights @ stats.norm.sf(x, loc=k[:, None], scale=sigma)

    return rates, float(weights @ stats.norm.cdf(k / (sigma * math.sqrt(2))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sigma=st.floats(0.1, 5.0), group=st.integers(1, 32), rate=st.floats(1e-4, 1.0), spread=st.floats(0.0, 1.0))
@example(sigma=0.25, group=8, rate=0.05, spread=0.5)  # 0.6843 for 0.6676 before the grid was refined for attackers
@example(sigma=0.1, group=32, rate=0.01, spread=0.5)
@example(sigma=0.25, group=8, rate=0.005, spread=0.5)
@example(sigma=0.5, group=1, rate=0.01, spread=0.5)
@example(sigma=0.25, group=1, rate=0.5, spread=0.5)
def test_the_ceiling_of_one_step_is_close_to_the_exact_one(sigma, group, rate, spread):
    rates, area = exact_step(sigma, group, rate)
    ceiling = ceiling_of(PoissonGaussian(sigma, rate, group), 1, DELTA)
    assert area - 1e-9 <= ceiling.auroc <= area + AREA_PRECISION
    x = np.linspace(-9 * sigma, 9 * sigma + spread * group, 500)
    fpr, tpr = rates(x)
    seen = fpr > 1e-300  # smaller ones are 0 in double precision
    assert np.all(np.interp(fpr[seen], ceiling.fpr, ceiling.tpr) >= tpr[seen] - 1e-9)


def test_the_grid_that_epsilon_needs_is_too_coarse_for_attackers():
    pair = loss_distribution(PoissonGaussian(0.25, 0.05, 8), 1, DELTA)
    assert pld_ceiling(pair).auroc > exact_step(0.25, 8, 0.05)[1] + 20 * AREA_PRECISION


FEW_STEPS = [(0.25, 8, 0.05, 2), (0.3, 2, 0.01, 5), (0.15, 4, 1e-3, 20), (0.5, 8, 1e-3, 100), (0.5, 8, 1e-5, 10_000)]


@pytest.mark.parametrize(("sigma", "group", "rate", "steps"), FEW_STEPS)
def test_the_ceiling_of_few_steps_is_close_to_that_of_a_finer_grid(monkeypatch, sigma, group, rate, steps):
    event = PoissonGaussian(sigma, rate, group)
    found = ceiling_of(event, steps, DELTA).auroc
    monkeypatch.setattr(composition, "AREA_PRECISION", 4e-5)
    finer = ceiling_of(event, steps, DELTA).auroc
    assert finer <= found <= finer + 0.9 * AREA_PRECISION


@pytest.mark.parametrize(
    ("sigma", "group", "rate", "steps"), [(0.25, 8, 0.05, 2), (0.3, 2, 0.1, 5), (0.4, 4, 0.01, 20)]
)
def test_a_simulated_attacker_of_few_steps_meets_the_ceiling(sigma, group, rate, steps):
    """The likelihood-ratio attacker; drawing both groups' noise alike leaves a standard error of about 4e-4."""
    rng, n = np.random.default_rng(3), 400_000
    k = np.arange(group + 1)
    weights = stats.binom.pmf(k, group, rate)
    drawn, noise = rng.binomial(group, rate, (steps, n)), sigma * rng.standard_normal((2, steps, n))

    def llr(x):
        total, likely = np.zeros(n), [(c, w) for c, w in zip(k, weights, strict=True) if w > 1e-12]
        for of_step in x:  # a step at a time, which the processor's cache holds
            total += np.log(sum(w * np.exp((c * of_step - c * c / 2) / sigma**2) for c, w in likely))
        return total

    held_in, held_out = llr(drawn + noise[0]), llr(noise[1])
    auroc = np.searchsorted(np.sort(held_out), held_in).mean() / n
    ceiling = ceiling_of(PoissonGaussian(sigma, rate, group), steps, DELTA).auroc
    error = math.sqrt(auroc * (1 - auroc) * 2 / 3 / n) * 1.5
    assert ceiling - AREA_PRECISION - 5 * error < auroc < ceiling + 5 * error
    assert auroc > ceiling_of(PoissonGaussian(sigma, 0.9 * rate, group), steps, DELTA).auroc + 5 * error


def test_one_direction_alone_is_looser_or_equal():
    pair = loss_distribution(PoissonGaussian(0.55636, 16 / 1024), 1000, DELTA)
    both = pld_ceiling(pair)
    for roc in (tradeoff.remove_roc(pair.remove), tradeoff.add_roc(pair.add)):
        assert np.trapezoid(roc[1], roc[0]) >= both.auroc - 1e-9
    swapped = pld_ceiling(LossPair(pair.add, pair.remove))
    assert abs(swapped.auroc - both.auroc) > 1e-4 or abs(swapped.tpr_at(0.01) - both.tpr_at(0.01)) > 1e-3


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_gaussian_closed_forms(mu):
    ceiling = ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, DELTA)
    assert ceilings.gaussian_auroc(mu) <= ceiling.auroc <= ceilings.gaussian_auroc(mu) + 2e-5
    for fpr in (1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.999):
        exact = ceilings.gaussian_tpr(mu, fpr)
        assert exact - 1e-12 <= ceiling.tpr_at(fpr) <= exact + 3e-5
    composed = ceiling_of(PoissonGaussian(20 / mu, 1.0), 400, DELTA)
    assert composed.auroc == pytest.approx(ceilings.gaussian_auroc(mu), abs=5e-5)


def test_an_optimal_attacker_stays_under_the_ceiling_and_close_to_it():
    """The likelihood-ratio attacker on the dominating pair itself: 2 x 20,000 runs."""
    sigma, rate, steps, n = 0.92826, 16 / 1024, 1000, 20_000
    rng = np.random.default_rng(1)

    def llr(member):
        total = np.zeros(n)
        for _ in range(steps):
            x = rng.normal(0.0, sigma, n) + (rng.random(n) < rate if member else 0.0)
            total += np.log1p(rate * np.expm1((x - 0.5) / sigma**2))
        return total

    held_in, held_out = llr(True), llr(False)
    both = np.concatenate([held_in, held_out])
    ranks = np.empty(2 * n)
    ranks[np.argsort(both)] = np.arange(1, 2 * n + 1)
    auroc = (ranks[:n].sum() - n * (n + 1) / 2) / n**2
    bound = ceiling_of(PoissonGaussian(sigma, rate), steps, DELTA).auroc
    standard_error = 0.0026
    assert bound - 5 * standard_error < auroc < bound + 5 * standard_error
    too_much_noise_claimed = ceiling_of(PoissonGaussian(sigma * 1.5, rate), steps, DELTA).auroc
    assert auroc > too_much_noise_claimed + 5 * standard_error


@settings(max_examples=25, deadline=None, derandomize=True)
@given(mu=st.floats(0.05, 6.0), fpr=st.floats(0.0, 1.0), width=st.floats(0.01, 0.2))
@example(mu=1.25, fpr=1.27e-14, width=0.125)  # 1 - U held four digits here and the ceiling was 2 % too low
def test_ceiling_is_never_below_the_truth_on_any_grid(mu, fpr, width):
    pair = mixture_step(Mixture(1 / mu, np.ones(1), np.ones(1)), width)
    assert pld_ceiling(pair).tpr_at(fpr) >= ceilings.gaussian_tpr(mu, fpr) - 1e-12
    twice = pld_ceiling(compose_pair(pair, 2))
    assert twice.tpr_at(fpr) >= ceilings.gaussian_tpr(math.sqrt(2) * mu, fpr) - 1e-9


def test_curves_are_concave_monotone_and_end_in_the_corner():
    for event, steps in ((PoissonGaussian(1.0, 0.01, 8), 2000), (PoissonGaussian(0.55636, 16 / 1024), 1000)):
        ceiling = ceiling_of(event, steps, DELTA)
        assert (ceiling.fpr[0], ceiling.fpr[-1], ceiling.tpr[-1]) == (0.0, 1.0, 1.0)
        assert np.all(np.diff(ceiling.fpr) > 0)
        assert np.all(np.diff(ceiling.tpr) >= 0)
        x = np.linspace(0, 1, 1001)
        y = np.interp(x, ceiling.fpr, ceiling.tpr)
        assert np.all(np.diff(y, 2) <= 1e-9)
        assert [ceiling.tpr_at(alpha) for alpha in x[::100]] == pytest.approx(y[::100])
        assert np.all(y >= x)


def test_inverse_and_ends():
    ceiling = RocCeiling(np.array([0.0, 0.5, 1.0]), np.array([0.2, 0.9, 1.0]))
    assert ceiling.fpr_at(0.1) == 0.0
    assert ceiling.fpr_at(0.55) == pytest.approx(0.25)
    assert ceiling.fpr_at(1.0) == 1.0
    assert ceiling.tpr_at(0.25) == pytest.approx(0.55)
    with refused(by="RocCeiling.tpr_at", naming=("1.5", "[0, 1]")):
        ceiling.tpr_at(1.5)
    with refused(by="RocCeiling.fpr_at", naming=("-0.5", "[0, 1]")):
        ceiling.fpr_at(-0.5)
    assert ceiling_of(PoissonGaussian(0.0, 0.1), 3, DELTA).auroc == 1.0


def test_symmetrised_hull():
    ceiling = ceiling_of(PoissonGaussian(0.92826, 16 / 1024), 1000, DELTA)
    hull = symmetrised(ceiling)
    assert hull.auroc == pytest.approx(0.6939, abs=1e-4)
    for x in (1e-4, 0.01, 0.2, 0.7, 0.99):
        assert hull.tpr_at(x) >= ceiling.tpr_at(x) - 1e-12
        assert hull.tpr_at(1 - hull.tpr_at(x)) == pytest.approx(1 - x, abs=1e-4)
    symmetric = ceiling_of(UnamplifiedGaussian(1.0, 1), 1, DELTA)
    assert symmetrised(symmetric).auroc == pytest.approx(symmetric.auroc, abs=2e-5)


def test_epsilon_delta_region():
    assert ceilings.epsilon_delta_tpr(1.0, 0.0, 0.0) == 0.0
    assert ceilings.epsilon_delta_tpr(1.0, 0.01, 0.0) == pytest.approx(0.01)
    assert ceilings.epsilon_delta_tpr(1e9, 0.0, 1e-3) == 1.0
    x = np.linspace(0, 1, 200_001)
    y = [ceilings.epsilon_delta_tpr(1.5, 0.05, v) for v in x]
    assert np.trapezoid(y, x) == pytest.approx(ceilings.epsilon_delta_auroc(1.5, 0.05), abs=1e-6)
    mu = gaussian_mu(1.5, 0.05)
    assert gaussian_delta(mu, 1.5) == pytest.approx(0.05)
    assert ceilings.gaussian_auroc(mu) < ceilings.epsilon_delta_auroc(1.5, 0.05)


def test_interactive_from_a_cached_plan():
    event = PoissonGaussian(0.55636, 16 / 1024)
    loss_distribution(event, 1000, DELTA)
    began = time.perf_counter()
    ceiling = ceiling_of(event, 1000, DELTA)
    _ = ceiling.auroc
    assert time.perf_counter() - began < 0.5
    assert np.diff(ceiling.fpr).max() < 1e-2
