"""Looser accountants, Asi & Liu's filter (docs/theory.md#filtered-descent) and the heuristics, against its tables."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from heldin.defenses.accounting import comparison_accountants, heuristics
from heldin.defenses.accounting.comparison_accountants import black_box_epsilon, rdp_epsilon
from heldin.defenses.accounting.events import CappedPoissonGaussian, PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import calibrate, delta_of, epsilon
from heldin.defenses.accounting.heuristics import BudgetChoice, estimate_and_double
from heldin.finetune.filtered import concentration_threshold
from heldin.words.guarantee import DeltaText
from tests.refusals import refused
from tests.statements import values_of
from tests.theory_tables import numbers

T, RATE, DELTA = 2000, 0.01, 1e-6

# sigma, G: epsilon of black-box group privacy and the delta that it needs, to base 10
BLACK_BOX = {(s, int(g)): (box, needed) for s, g, _, _, box, needed in numbers("table-of-exact-epsilons")}


@pytest.mark.parametrize(("sigma", "group"), [key for key, (_, needed) in BLACK_BOX.items() if needed > -12])
def test_black_box_where_it_converges(sigma, group):
    exact = BLACK_BOX[sigma, group][0]
    found = black_box_epsilon(PoissonGaussian(sigma, RATE), group, T, DELTA)
    assert exact * (1 - 1e-5) <= found <= exact * 1.002
    assert found >= epsilon(PoissonGaussian(sigma, RATE, group), T, DELTA)


@pytest.mark.parametrize(("sigma", "group"), [key for key, (_, needed) in BLACK_BOX.items() if not needed > -13])
def test_black_box_diverges_to_infinity(sigma, group):
    assert black_box_epsilon(PoissonGaussian(sigma, RATE), group, T, DELTA) == math.inf


def test_black_box_is_the_vadhan_conversion():
    event, group = PoissonGaussian(2.0, RATE), 4
    single = black_box_epsilon(event, group, T, DELTA) / group
    assert delta_of(event, T, single) * math.expm1(group * single) / math.expm1(single) == pytest.approx(
        DELTA, rel=5e-3
    )


@pytest.mark.parametrize(("sigma", "group"), [(2.0, 1), (1.0, 1), (1.0, 4), (2.0, 32), (0.5, 2)])
def test_renyi_is_looser_but_not_by_much(sigma, group):
    event = PoissonGaussian(sigma, RATE, group)
    assert epsilon(event, T, DELTA) < rdp_epsilon(event, T, DELTA) < 1.2 * epsilon(event, T, DELTA)


def test_renyi_quadrature_equals_dp_accounting(monkeypatch):
    event = PoissonGaussian(1.0, RATE)
    orders = comparison_accountants.ORDERS
    ours = comparison_accountants.rdp.compute_epsilon(
        orders, T * comparison_accountants.mixture_rdp(event, orders), DELTA
    )[0]
    assert ours == pytest.approx(rdp_epsilon(event, T, DELTA), rel=1e-4)


def test_comparison_edges():
    assert rdp_epsilon(PoissonGaussian(0.0, 0.1), 5, 1e-6) == math.inf
    # Of a group this large the quadrature is not tried: it took 700 GiB once.
    assert rdp_epsilon(PoissonGaussian(1.0, 0.1, 100_000), 100, 1e-5) is None
    assert rdp_epsilon(UnamplifiedGaussian(4.774, 16), 1000, 1e-6) >= 4.0
    assert black_box_epsilon(PoissonGaussian(0.0, 0.1), 3, 5, 1e-6) == math.inf
    assert black_box_epsilon(PoissonGaussian(1e4, 1e-3), 3, 5, 1e-3) == 0.0
    with refused(by=rdp_epsilon, naming=("cohort", "cap", "PLD")):
        rdp_epsilon(CappedPoissonGaussian(1.0, 0.1, 100, 20), 5, 1e-6)
    with refused(by=black_box_epsilon):
        black_box_epsilon(PoissonGaussian(1.0, 0.1, 2), 3, 5, 1e-6)


def test_noise_variances_and_conjecture_1():
    """Charles et al., Conjecture 1, at K = 32 and p = q = 1/64: docs/theory.md#table-of-noise-ratios."""
    for target, ratio in numbers("table-of-noise-ratios"):
        els = calibrate(PoissonGaussian(1.0, 1 / 64, 32), 1000, DELTA, target)
        uls = calibrate(PoissonGaussian(1.0, 1 / 64), 1000, DELTA, target)
        assert els / (32 * uls) == pytest.approx(ratio, abs=2e-3)
        els_variance = heuristics.els_noise_variance(els, 1.0, 512)
        assert els_variance / heuristics.uls_noise_variance(uls, 1.0, 16) == pytest.approx((els / (32 * uls)) ** 2)


def renyi(order, group, rate, sigma):
    """Order a Rényi divergence of N(Binom(group, rate), sigma^2) from N(0, sigma^2), by quadrature on a grid."""
    grid = np.linspace(-12 * sigma, order * group + 12 * sigma, 4_001)
    drawn = np.arange(group + 1)
    log_ratio = logsumexp(
        (2 * drawn * grid[:, None] - drawn**2) / (2 * sigma**2), b=stats.binom.pmf(drawn, group, rate), axis=1
    )
    log_mass = stats.norm.logpdf(grid, scale=sigma) + math.log(grid[1] - grid[0])
    return logsumexp(order * log_ratio + log_mass) / (order - 1)


@pytest.mark.parametrize("order", [2, 3, 6])
@pytest.mark.parametrize("group", [1, 2, 8, 32])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.7), (0.3, 0.7), (0.3, 4.0), (0.9, 1.5)])
def test_lemma_1_of_charles(order, group, rate, sigma):
    """docs/theory.md#table-of-noise-ratios: K times the noise of ULS is enough for ELS, in this direction."""
    one = renyi(order, 1, rate, sigma)
    # Exact for a group of one: the mean over x of (1 - p + p e^...)^a is a binomial sum.
    picks = np.arange(order + 1)
    exact = logsumexp((picks**2 - picks) / (2 * sigma**2), b=stats.binom.pmf(picks, order, rate)) / (order - 1)
    assert one == pytest.approx(exact, rel=1e-6)
    assert renyi(order, group, rate, group * sigma) <= one * (1 + 1e-6)


def test_the_filter_goes_on_above_four_fifths_of_the_users():
    assert concentration_threshold(100) == 80.0


def test_budgets():
    assert heuristics.compute_budget(8, 16) == BudgetChoice(8, 16).budget == 128
    assert heuristics.els_rate(64, 32, 1024) == 64 / (32 * 1024)
    assert heuristics.median_group_size([1, 3, 9, 11]) == 6
    assert heuristics.median_group_size([0, 0]) == 1
    with refused(by="els_rate"):
        heuristics.els_rate(100, 3, 10)
    with refused(by="median_group_size"):
        heuristics.median_group_size([])
    with refused(by="check_count", naming="0"):
        heuristics.compute_budget(0, 5)


@pytest.mark.slow
def test_estimate_and_double():
    def orthogonal(group):
        return group**-0.5

    def noise(cohort):
        return calibrate(PoissonGaussian(1.0, cohort / 1024), 1000, DELTA, 4.0)

    trail = estimate_and_double(orthogonal, noise, 256, BudgetChoice(1, 4))
    assert trail[0] == BudgetChoice(1, 4)
    assert [c.budget for c in trail] == [4, 8, 16, 32, 64, 128, 256]
    # sigma(2M) / (2 sigma(M)) is .58 and .64 up to M = 16, then .76: above the 1 / sqrt(2) that doubling G gains
    assert [c.cohort for c in trail] == [4, 8, 16, 16, 16, 16, 16]
    assert trail[-1] == BudgetChoice(16, 16)
    same_gradients = estimate_and_double(lambda _: 1.0, lambda _: 1.0, 64, BudgetChoice(2, 8))
    assert same_gradients[-1] == BudgetChoice(2, 32)
    with refused(by=estimate_and_double, naming=("32", "16")):
        estimate_and_double(orthogonal, noise, 16, BudgetChoice(1, 32))


def test_delta_follows_a_rule_over_a_public_number():
    over_users, rule = heuristics.settled_delta(None, 1000, 50_000)
    assert over_users == pytest.approx(10**-3.3)
    assert values_of(rule, DeltaText.OVER_UNITS) == {"number": 1000}
    # Stack Overflow of Charles et al.: 135,818,730 examples, and the delta that the paper prints.
    published, rule = heuristics.settled_delta("examples^-1.1", 342_477, 135_818_730)
    assert f"{published:.2e}" == "1.13e-09"
    assert values_of(rule, DeltaText.OVER_EXAMPLES) == {"number": 135_818_730}
    # CC-News: ten times its 708,241 examples (footnote 4).
    assert f"{heuristics.settled_delta('examples^-1.1', None, 7_082_410)[0]:.2e}" == "2.92e-08"
    # Of users it would be 700 times larger.
    assert heuristics.settled_delta("units^-1.1", 342_477, 135_818_730)[0] > 700 * published
    assert heuristics.settled_delta(1e-5, None, None) == (1e-5, None)
    for delta, units, examples in ((None, None, 9), ("examples^-1.1", 9, None)):
        with refused(by=heuristics.settled_delta):
            heuristics.settled_delta(delta, units, examples)
