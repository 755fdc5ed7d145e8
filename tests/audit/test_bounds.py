"""Bounds and estimates against accounting.md section 4, slow twins, and what must be refused."""

import math
import time

import numpy as np
import pytest
from scipy import special

from audit import bands, bounds, estimates, one_run
from audit.bounds import Counts, clopper_pearson, gaussian_conversion
from audit.labelled import LabelledScores, join, labelled
from audit.one_run import Guesses, fdp_epsilon, fdp_mu, fdp_rejects, one_run_epsilon, one_run_p_value
from audit.tradeoff import ceiling_of, epsilon_delta_ceiling, gaussian_auroc
from corpus.errors import InputError
from defenses.accounting import gaussian_epsilon
from defenses.events import PoissonGaussian, UnamplifiedGaussian
from tests.oracles import bounds as slow

M = (100, 200, 500, 1000, 2000, 5000, 10000)


def gaussian_scores(mu, n, seed=0):
    rng = np.random.default_rng(seed)
    return labelled(rng.normal(mu, 1, n), rng.normal(0, 1, n))


def coin_scores(mu, m, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.random(m) < 0.5
    return LabelledScores(rng.standard_normal(m) + mu * member, member)


# one run


def test_one_run_reference_numbers():
    assert one_run_p_value(Guesses(100, 100, 75), math.log(3), 0.0) == pytest.approx(0.5535, abs=5e-5)
    assert one_run_epsilon(Guesses(1000, 100, 75), 1e-4, 0.05) == pytest.approx(0.6730, abs=5e-5)


@pytest.mark.parametrize(
    ("delta", "row"),
    [
        (0.0, (3.49, 4.19, 5.11, 5.81, 6.50, 7.42, 8.11)),
        (1e-5, (3.49, 4.19, 5.10, 5.78, 6.45, 7.28, 7.83)),
        (1e-3, (3.20, 3.57, 3.57, 3.49, 3.42, 3.35, 3.30)),
    ],
)
def test_largest_certifiable_by_steinke(delta, row):
    for m, epsilon in zip(M, row, strict=True):
        assert one_run_epsilon(Guesses(m, m, m), delta) == pytest.approx(epsilon, abs=6e-3)
    if delta == 0.0:
        assert one_run_epsilon(Guesses(100, 100, 100), 0.0) == pytest.approx(special.logit(0.05**0.01), abs=2e-5)


def test_largest_certifiable_by_fdp():
    mus, epsilons = (1.70, 1.92, 2.18, 2.37, 2.54, 2.76, 2.92), (8.2, 9.5, 11.1, 12.3, 13.5, 15.0, 16.1)
    for m, mu, epsilon in zip(M, mus, epsilons, strict=True):
        assert fdp_mu(Guesses(m, m, m)) == pytest.approx(mu, abs=6e-3)
        assert gaussian_epsilon(fdp_mu(Guesses(m, m, m)), 1e-5) == pytest.approx(epsilon, abs=6e-2)


@pytest.mark.parametrize(("m", "r", "v"), [(30, 30, 22), (100, 40, 31), (60, 10, 10), (25, 12, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_one_run_p_value_is_the_sum_of_its_terms(m, r, v, delta):
    for epsilon in (0.0, 0.7, 2.5):
        slowly = slow.one_run_p_value(m, r, v, epsilon, delta)
        assert one_run_p_value(Guesses(m, r, v), epsilon, delta) == pytest.approx(slowly, rel=1e-9)


def test_fdp_recursion_equals_its_slow_twin():
    rng = np.random.default_rng(0)
    for _ in range(200):
        m = int(rng.integers(10, 300))
        r = int(rng.integers(5, m + 1))
        v = int(rng.integers(r // 2, r + 1))
        for inverse in (
            one_run.gaussian_inverse(rng.uniform(0, 2)),
            one_run.epsilon_delta_inverse(rng.uniform(0, 2), rng.choice([0.0, 1e-4, 1e-2])),
        ):
            assert fdp_rejects(Guesses(m, r, v), inverse) == slow.fdp_rejects(m, r, v, inverse, 0.05)


def test_fdp_never_rejects_what_the_linear_programme_allows():
    """Rejecting means: no law of the number right that f-DP allows gives it probability alpha or more."""
    rejected = 0
    for m, r, v in [(12, 12, 12), (12, 12, 11), (20, 10, 10), (14, 12, 10), (16, 16, 14)]:
        for epsilon, delta in [(0.0, 0.0), (0.5, 0.0), (0.5, 0.01), (1.0, 0.0), (1.5, 0.001)]:
            up, down = math.exp(epsilon), math.exp(-epsilon)
            lines = [(up, delta), (down, 1 - down * (1 - delta))]
            largest = slow.most_probable(m, r, v, lines)
            inverse = one_run.epsilon_delta_inverse(epsilon, delta)
            for alpha in (0.02, 0.05, 0.2):
                if fdp_rejects(Guesses(m, r, v), inverse, alpha):
                    rejected += 1
                    assert largest <= alpha + 1e-9
                elif v == r and delta == 0.0:  # there the recursion is exact
                    assert largest >= alpha - 1e-6
    assert rejected > 10


def test_fdp_on_a_pure_curve_is_the_binomial_tail_or_just_below():
    for m, r, v in [(100, 100, 100), (100, 100, 75), (1000, 100, 80)]:
        exact, found = one_run_epsilon(Guesses(m, r, v), 0.0), fdp_epsilon(Guesses(m, r, v), 0.0)
        assert exact * 0.975 <= found <= exact + 2e-5
    assert fdp_epsilon(Guesses(10000, 10000, 10000), 1e-3) > 2 * one_run_epsilon(Guesses(10000, 10000, 10000), 1e-3)


def test_reduced_accountants_curve():
    """ULS at epsilon 4: rejected by a strong attacker, not by one on its ceiling."""
    ceiling = ceiling_of(PoissonGaussian(0.92826, 16 / 1024), 1000, 1e-6)
    inverse = one_run.curve_inverse(ceiling)
    assert any(fdp_rejects(Guesses(100, r, round(0.95 * r)), inverse) for r in (20, 30, 40, 50))
    assert not any(fdp_rejects(Guesses(1000, r, round(0.69 * r)), inverse) for r in (50, 100, 1000))
    assert one_run.fdp_violates(coin_scores(2.2, 1000), ceiling) is not None
    assert one_run.fdp_violates(coin_scores(0.7, 1000), ceiling) is None


def test_gaussian_curve_and_family_agree():
    ceiling = ceiling_of(UnamplifiedGaussian(1.0, 1), 1, 1e-5)
    game = Guesses(1000, 200, 197)
    mu = fdp_mu(game)
    assert 1.0 < mu < 2.0
    assert fdp_rejects(game, one_run.curve_inverse(ceiling))
    assert not fdp_rejects(game, one_run.gaussian_inverse(mu + 2e-5))


def test_guessing():
    scores = LabelledScores(np.array([5.0, 1, 4, 2, 3, 0]), np.array([True, False, False, False, True, True]))
    assert one_run.guess(scores, 1) == Guesses(6, 1, 1)
    assert one_run.guess(scores, 2) == Guesses(6, 2, 1)
    assert one_run.guess(scores, 5) == Guesses(6, 5, 3)
    with pytest.raises(InputError, match="7 guesses on 6 users: choose between 1 and 6"):
        one_run.guess(scores, 7)


def test_ties_do_not_betray_membership():
    """A file sorted by membership, all scores but two alike: guesses must be right half of the time."""
    member = np.arange(2000) < 1000
    scores = np.zeros(2000)
    scores[0] = 1.0
    correct = [one_run.guess(LabelledScores(scores, member), 1000, tie_seed=s).correct for s in range(20)]
    assert abs(np.mean(correct) - 500) < 5 * np.sqrt(250 / 20)


def test_numbers_of_guesses_are_paid_for():
    assert one_run.numbers_of_guesses(1000) == (20, 50, 100, 200, 400, 1000)
    assert one_run.numbers_of_guesses(100) == (10, 20, 40, 100)
    assert one_run.numbers_of_guesses(5) == (5,)
    assert one_run.tries_and_level(1000, attacks=5) == ((20, 50, 100, 200, 400, 1000), 0.05 / 5 / 6)
    with pytest.raises(InputError, match="4 users cannot support any statement.*at least 5 are needed"):
        one_run.numbers_of_guesses(4)
    scores = coin_scores(1.5, 1000)
    grid = one_run.steinke_bound(scores, 1e-5)
    assert grid.epsilon == max(one_run_epsilon(one_run.guess(scores, r), 1e-5, 0.05 / 6) for r in grid.tried)
    registered = one_run.steinke_bound(scores, 1e-5, made=grid.guesses.made)
    assert registered.epsilon > grid.epsilon > one_run.steinke_bound(scores, 1e-5, attacks=10).epsilon > 0.5


def test_either_theorem_may_reject():
    game = Guesses(1000, 100, 80)
    for epsilon in np.linspace(0, 2, 21):
        either = one_run_p_value(game, epsilon, 1e-5) <= 0.05
        either |= fdp_rejects(game, one_run.epsilon_delta_inverse(epsilon, 1e-5))
        assert one_run.one_run_rejects(game, epsilon, 1e-5) == either


# independent trials


@pytest.mark.parametrize(("m", "epsilon"), list(zip(M, (2.57, 3.28, 4.21, 4.91, 5.60, 6.52, 7.21), strict=True)))
def test_largest_certifiable_by_clopper_pearson(m, epsilon):
    found = clopper_pearson(Counts(m // 2, m // 2, 0, m // 2), 0.0, pairs=1)
    assert found == pytest.approx(epsilon, abs=6e-3)


def test_clopper_pearson_limits():
    for k, n in [(0, 10), (1, 10), (7, 10), (10, 10), (40, 60)]:
        lower = float(bounds.rate_at_least(k, n, 0.0125))
        assert lower == pytest.approx(slow.clopper_pearson_lower(k, n, 0.0125), abs=1e-10)
        assert float(bounds.rate_at_most(n - k, n, 0.0125)) == pytest.approx(1 - lower, abs=1e-10)


def test_clopper_pearson_by_hand():
    counts = Counts(70, 100, 20, 100)
    tpr, fpr = slow.clopper_pearson_lower(70, 100, 0.0125), 1 - slow.clopper_pearson_lower(80, 100, 0.0125)
    expected = max(math.log((tpr - 1e-3) / fpr), math.log((1 - fpr - 1e-3) / (1 - tpr)))
    assert clopper_pearson(counts, 1e-3) == pytest.approx(expected, rel=1e-9)
    assert clopper_pearson(counts, 0.9) == 0.0
    mirrored = Counts(80, 100, 30, 100)
    assert clopper_pearson(mirrored, 0.0) == pytest.approx(clopper_pearson(counts, 0.0), rel=1e-9)
    assert clopper_pearson(counts, 0.0, pairs=20) < clopper_pearson(counts, 0.0)


def test_gaussian_conversion():
    counts = Counts(70, 100, 20, 100)
    tpr, fpr = slow.clopper_pearson_lower(70, 100, 0.025), 1 - slow.clopper_pearson_lower(80, 100, 0.025)
    epsilon, mu = gaussian_conversion(counts, 1e-5)
    assert mu == pytest.approx(special.ndtri(tpr) - special.ndtri(fpr), rel=1e-9)
    assert epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert gaussian_conversion(Counts(20, 100, 70, 100), 1e-5) == (0.0, 0.0)


def test_several_thresholds_and_attacks_are_paid_for():
    scores = gaussian_scores(1.5, 200)
    one = bounds.threshold_bound(scores, [1.0], 1e-5)
    assert one.epsilon == clopper_pearson(bounds.counts_at(scores, 1.0), 1e-5, pairs=2)
    three = bounds.threshold_bound(scores, [1.0, 50.0, 60.0], 1e-5)
    assert three.epsilon == clopper_pearson(bounds.counts_at(scores, 1.0), 1e-5, pairs=6) < one.epsilon
    assert bounds.threshold_bound(scores, [1.0], 1e-5, attacks=3).epsilon == pytest.approx(three.epsilon)
    assert bounds.threshold_gaussian_bound(scores, [1.0, 9.0], 1e-5).mu == pytest.approx(
        gaussian_conversion(bounds.counts_at(scores, 1.0), 1e-5, thresholds=2)[1]
    )
    with pytest.raises(InputError, match="no threshold was fixed beforehand"):
        bounds.threshold_bound(scores, [], 1e-5)


def test_split_halves_choose_and_test_on_different_trials():
    scores = gaussian_scores(2.0, 400)
    found = bounds.split_bound(scores, 1e-5)
    choose, test = bounds.halves(scores, 0)
    assert found.counts == bounds.counts_at(test, found.threshold)
    assert found.threshold in choose.scores
    assert sorted([*choose.held_in, *test.held_in]) == sorted(scores.held_in)
    assert 0.5 < found.epsilon < gaussian_epsilon(2.0, 1e-5)
    assert 1.4 < bounds.split_gaussian_bound(scores, 1e-5).mu < 2.0
    assert bounds.split_bound(gaussian_scores(-2.0, 400), 1e-5).epsilon == 0.0
    with pytest.raises(InputError, match="1 members and 2 non-members cannot be halved"):
        bounds.halves(LabelledScores(np.array([1.0, 2, 3]), np.array([True, False, False])), 0)


def test_thresholds_against_a_ceiling():
    ceiling = ceiling_of(UnamplifiedGaussian(1.0, 1), 1, 1e-5)
    assert bounds.thresholds_violate(gaussian_scores(2.0, 300), [1.0], ceiling)
    assert not bounds.thresholds_violate(gaussian_scores(1.0, 300), [1.0], ceiling)


# bands


@pytest.mark.parametrize(
    ("n", "eta", "rel"),
    [(50, 1.45e-3, 0.1), (100, 1.06e-3, 0.1), (200, 7.6e-4, 0.15), (500, 6.2e-4, 0.1), (1000, 5e-4, 0.1)],
)
def test_local_levels(n, eta, rel):
    """accounting.md section 4g; its values are simulated to 5..10 %, these are exact."""
    found = bands.local_level(n, 0.025)
    assert found == pytest.approx(eta, rel=rel)
    assert 0.0249 < bands.crossing_probability(n, found) <= 0.025


@pytest.mark.parametrize(("n", "eta"), [(1, 0.03), (4, 0.01), (60, 1.4e-3), (300, 7e-4)])
def test_crossing_probability_against_simulation(n, eta):
    rng = np.random.default_rng(3)
    k = np.arange(1, n + 1)
    limits = special.betaincinv(k, n + 1 - k, eta)
    crossed = np.concatenate([(np.sort(rng.random((5000, n)), 1) < limits).any(1) for _ in range(8)])
    exact = bands.crossing_probability(n, eta)
    assert abs(crossed.mean() - exact) < 5.5 * math.sqrt(exact * (1 - exact) / crossed.size)
    if n == 1:
        assert exact == pytest.approx(0.03, rel=1e-9)
    assert abs(crossed.mean() - bands.crossing_probability(n, 1.5 * eta)) > 3 * math.sqrt(exact / crossed.size)


@pytest.mark.slow
def test_crossing_probability_at_5000_trials():
    """Where the simulated table of section 4g says 4.6e-4, the exact level is 3.8e-4."""
    rng = np.random.default_rng(4)
    n = 5000
    k = np.arange(1, n + 1)
    for eta in (3.77e-4, 4.6e-4):
        limits = special.betaincinv(k, n + 1 - k, eta)
        crossed = np.concatenate([(np.sort(rng.random((500, n)), 1) < limits).any(1) for _ in range(60)])
        exact = bands.crossing_probability(n, eta)
        assert abs(crossed.mean() - exact) < 5.5 * math.sqrt(exact * (1 - exact) / crossed.size)
    assert bands.crossing_probability(n, 4.6e-4) > 0.029


def test_dkw_widths():
    for n, width in ((100, 0.136), (500, 0.061), (1000, 0.043)):
        assert bands.dkw_width(n, 0.05) == pytest.approx(width, abs=6e-4)


def test_bands_by_hand():
    rng = np.random.default_rng(1)
    scores = labelled(rng.integers(0, 6, 40).astype(float) + 1, rng.integers(0, 6, 30).astype(float))
    local, dkw = bands.equal_local_level_band(scores), bands.dkw_band(scores)
    eta1, eta0 = bands.local_level(40, 0.025), bands.local_level(30, 0.025)
    for i, t in enumerate(local.thresholds):
        k, j = slow.band_by_hand(scores.held_in, scores.held_out, t)
        assert local.tpr[i] == pytest.approx(slow.clopper_pearson_lower(k, 40, eta1), abs=1e-9)
        assert local.fpr[i] == pytest.approx(1 - slow.clopper_pearson_lower(30 - j, 30, eta0), abs=1e-9)
        assert dkw.tpr[i] == pytest.approx(max(0.0, k / 40 - bands.dkw_width(40, 0.05)))
        assert dkw.fpr[i] == pytest.approx(min(1.0, j / 30 + bands.dkw_width(30, 0.05)))


def test_violation_test_has_the_power_of_section_4g():
    """n = 500 + 500: claim mu = 0.7 of a truth 1.0 about half of the time, 0.5 nearly always, the truth never."""
    found = dict.fromkeys((0.5, 0.7, 1.0), 0)
    ceilings = {mu: ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, 1e-5) for mu in found}
    for seed in range(100):
        scores = gaussian_scores(1.0, 500, seed)
        for mu, ceiling in ceilings.items():
            found[mu] += bands.violates(scores, ceiling).violated
    assert found[0.5] >= 95
    assert 35 <= found[0.7] <= 85
    assert found[1.0] <= 3


def test_auroc_bound():
    scores = gaussian_scores(2.0, 1000)
    least = bands.auroc_at_least(scores)
    assert least == pytest.approx(gaussian_auroc(2.0) - math.sqrt(math.log(20) / 1000), abs=0.03)
    assert bands.auroc_epsilon(0.7311, 0.0) == pytest.approx(1.0, abs=1e-3)
    assert bands.auroc_epsilon(0.4, 0.0) == 0.0
    ceiling = epsilon_delta_ceiling(1.0, 1e-3)
    assert bands.auroc_epsilon(ceiling.auroc, 1e-3) == pytest.approx(1.0, abs=1e-9)
    assert bands.auroc_at_least(scores, attacks=4) < least


def test_band_epsilon_is_below_the_truth_and_not_far():
    scores = gaussian_scores(1.5, 2500)
    truth = gaussian_epsilon(1.5, 1e-5)
    for band in (bands.equal_local_level_band(scores), bands.dkw_band(scores)):
        assert 0.25 * truth < band.epsilon(1e-5) < truth


# estimates


def test_andrew_is_near_the_truth_where_two_variances_are_not():
    pooled, own = [], []
    for seed in range(50):
        observed = np.random.default_rng(seed).normal(1 / math.sqrt(1.01), 1.0, 200)
        pooled.append(estimates.andrew_estimate(observed, 1e-5, resamples=50).epsilon)
        own.append(estimates.two_gaussian_epsilon(observed.mean(), observed.std(ddof=1), 1e-5))
    assert np.median(pooled) == pytest.approx(4.38, rel=0.05)
    assert np.median(own) > np.median(pooled)
    assert estimates.two_gaussian_epsilon(0.99, 0.913, 1e-5) > 6.5


def test_andrew_with_scored_controls_and_its_warnings():
    rng = np.random.default_rng(0)
    found = estimates.andrew_estimate(
        rng.normal(2, 1, 1500), 1e-5, unobserved=rng.normal(0, 1, 1500), dimension=10_000, resamples=200
    )
    assert found.mu == pytest.approx(2.0, abs=0.15)
    assert found.lower < found.epsilon < found.upper
    assert found.warning == "1500 canaries in 10000 dimensions disturb each other: keep k / d below 0.01"
    few = estimates.andrew_estimate(rng.normal(-1, 1, 20), 1e-5, resamples=50)
    assert (few.epsilon, few.warning) == (0.0, "20 canaries are few: use at least 1000")
    with pytest.raises(InputError, match="scores of included canaries must be at least two finite numbers"):
        estimates.andrew_estimate(np.array([1.0, math.nan]), 1e-5)


def test_two_gaussians():
    for mu in (0.3, 1.0, 3.0):
        assert estimates.two_gaussian_epsilon(mu, 1.0, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), abs=1e-6)
    x = np.linspace(-30, 30, 600_001)
    for mean, deviation in ((1.0, 0.8), (0.5, 1.4)):
        epsilon = estimates.two_gaussian_epsilon(mean, deviation, 1e-3)
        p = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / deviation / math.sqrt(2 * math.pi)
        q = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        one = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)
        other = np.trapezoid(np.maximum(q - math.exp(epsilon) * p, 0), x)
        assert max(one, other) == pytest.approx(1e-3, rel=1e-4)


def test_bayesian_interval_against_simulation():
    counts = Counts(60, 100, 30, 100)
    found = estimates.bayesian_interval(counts, 1e-5)
    for level, epsilon in ((0.05, found.lower), (0.5, found.epsilon), (0.95, found.upper)):
        assert slow.region_mass(counts, 1e-5, epsilon, 0.5, 200_000, 1) == pytest.approx(level, abs=0.006)
    assert found.lower > clopper_pearson(counts, 1e-5, alpha=0.05)


# bad input


def test_labelled_scores_refuse():
    good, member = np.array([1.0, 2, 3]), np.array([True, False, True])
    with pytest.raises(InputError, match="the score of user 'bo' is nan; no user may be dropped"):
        LabelledScores(np.array([1.0, math.nan, 3]), member, ("al", "bo", "cy"))
    with pytest.raises(InputError, match="the score of row 2 is inf"):
        LabelledScores(np.array([1.0, 2, math.inf]), member)
    with pytest.raises(InputError, match="all 3 users are members"):
        LabelledScores(good, np.ones(3, dtype=bool))
    with pytest.raises(InputError, match="all 3 scores are 7"):
        LabelledScores(np.full(3, 7.0), member)
    with pytest.raises(InputError, match="a user has two scores"):
        LabelledScores(good, member, ("al", "al", "cy"))
    with pytest.raises(InputError, match=r"scores of shape \(3,\) but membership of shape \(2,\)"):
        LabelledScores(good, member[:2])


def test_join_refuses():
    scores = {"al": 1.0, "bo": 2.0}
    assert join(scores, {"al"}, {"bo"}).users == ("al", "bo")
    with pytest.raises(InputError, match="user 'al' is in both groups"):
        join(scores, {"al"}, {"al", "bo"})
    with pytest.raises(InputError, match="user 'bo' has a score but no membership"):
        join(scores, {"al"}, set())
    with pytest.raises(InputError, match="user 'cy' has membership but no score"):
        join(scores, {"al"}, {"bo", "cy"})


def test_levels_and_deltas_refuse():
    with pytest.raises(InputError, match=r"error level 1.5 is outside \(0, 1\)"):
        bands.dkw_band(gaussian_scores(1, 10), alpha=1.5)
    with pytest.raises(InputError, match="0 attacks"):
        bands.dkw_band(gaussian_scores(1, 10), attacks=0)
    with pytest.raises(InputError, match=r"delta 1.0 is outside \[0, 1\)"):
        one_run_p_value(Guesses(10, 10, 5), 1.0, 1.0)
    with pytest.raises(InputError, match="11 right of 10 guesses on 10 users is not a game"):
        Guesses(10, 10, 11)
    with pytest.raises(InputError, match="more were called in than there are"):
        Counts(3, 2, 0, 2)


# speed


def test_every_bound_on_ten_thousand_scores_is_quick():
    scores = gaussian_scores(1.0, 5000)
    ceiling = ceiling_of(UnamplifiedGaussian(0.8, 1), 1, 1e-5)
    calls = {
        "recursion": (lambda: fdp_mu(Guesses(10_000, 10_000, 6914)), 1.0),
        "steinke": (lambda: one_run.steinke_bound(scores, 1e-5), 2.0),
        "fdp": (lambda: one_run.fdp_bound(scores, 1e-5), 2.0),
        "fdp mu": (lambda: one_run.fdp_gaussian_bound(scores, 1e-5), 2.0),
        "curve": (lambda: one_run.fdp_violates(scores, ceiling), 2.0),
        "split": (lambda: bounds.split_bound(scores, 1e-5), 2.0),
        "band": (lambda: bands.equal_local_level_band(scores).epsilon(1e-5), 2.0),
    }
    for name, (call, limit) in calls.items():
        began = time.process_time()
        call()
        assert time.process_time() - began < limit, name


def test_very_many_trials_use_the_dkw_band_alone(monkeypatch):
    monkeypatch.setattr(bands, "LARGEST", 400)
    scores, ceiling = gaussian_scores(1.0, 487), ceiling_of(UnamplifiedGaussian(2.0, 1), 1, 1e-5)
    assert bands.both_bands(scores)[0] is None
    assert bands.violates(scores, ceiling) == bands.RocTest(False, True, 0.05)
    with pytest.raises(InputError, match="487 trials of one group are too many for the exact ROC band"):
        bands.equal_local_level_band(scores)
