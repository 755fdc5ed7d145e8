"""The one-run bounds of Steinke et al. and of f-DP against docs/theory.md#one-run-bounds and slow twins."""

import math

import numpy as np
import pytest
from scipy import special, stats

from heldin.bounds import one_run
from heldin.bounds.design import Assignment, Design
from heldin.bounds.judgement import evaluate
from heldin.bounds.one_run import Guesses, fdp_epsilon, fdp_mu, fdp_rejects, one_run_epsilon, one_run_p_value
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import stated_claim
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from tests.drawn_scores import coin_scores
from tests.oracles import bounds as slow
from tests.theory_tables import numbers


@pytest.mark.parametrize(("m", "r", "v", "delta", "epsilon", "p"), numbers("table-of-one-run-values"))
def test_one_run_reference_numbers(m, r, v, delta, epsilon, p):
    game = Guesses(int(m), int(r), int(v))
    assert one_run_p_value(game, epsilon, delta) == pytest.approx(p, abs=5e-5)
    assert one_run_epsilon(game, delta, p) == pytest.approx(epsilon, abs=3e-4)


@pytest.mark.parametrize("row", numbers("table-of-largest-certifiable-epsilons"))
def test_largest_certifiable(row):
    m, *epsilons, mu, gaussian, _ = row
    game = Guesses(int(m), int(m), int(m))
    for delta, epsilon in zip((0.0, 1e-5, 1e-3), epsilons, strict=True):
        assert one_run_epsilon(game, delta) == pytest.approx(epsilon, abs=6e-3)
    assert one_run_epsilon(game, 0.0) == pytest.approx(special.logit(0.05 ** (1 / m)), abs=2e-5)
    assert fdp_mu(game) == pytest.approx(mu, abs=6e-3)
    assert gaussian_epsilon(fdp_mu(game), 1e-5) == pytest.approx(gaussian, abs=6e-2)


@pytest.mark.parametrize(("m", "r", "v"), [(30, 30, 22), (100, 40, 31), (60, 10, 10), (25, 12, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_one_run_p_value_is_the_sum_of_its_terms(m, r, v, delta):
    for epsilon in (0.0, 0.7, 2.5):
        slowly = slow.one_run_p_value(m, r, v, epsilon, delta)
        assert one_run_p_value(Guesses(m, r, v), epsilon, delta) == pytest.approx(slowly, rel=1e-9)


@pytest.mark.parametrize(("m", "r", "v"), [(20_000, 5_000, 4_000), (20_000, 20_000, 10_100), (5_000, 5_000, 4_990)])
def test_one_run_p_value_of_many_guesses_leaves_nothing_out(m, r, v):
    for epsilon in (0.0, 1.0, 1.4, 5.0):
        q = special.expit(epsilon)
        below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q)) / np.arange(1, v + 1)
        whole = min(1.0, stats.binom.sf(v - 1, r, q) + 2 * m * 1e-5 * below.max())
        assert one_run_p_value(Guesses(m, r, v), epsilon, 1e-5) == pytest.approx(whole, rel=1e-12)


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
    for strength, rejected in ((2.2, True), (0.7, False)):
        games = [one_run.guess(coin_scores(strength, 1000), r) for r in (20, 50, 100)]
        assert any(fdp_rejects(game, inverse, 0.05 / 3) for game in games) == rejected


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


def test_ties_do_not_betray_membership():
    """A file sorted by membership, all scores but two alike: guesses must be right half of the time."""
    member = np.arange(2000) < 1000
    scores = np.zeros(2000)
    scores[0] = 1.0
    correct = [one_run.guess(LabelledScores(scores, member), 1000, tie_seed=s).correct for s in range(20)]
    assert abs(np.mean(correct) - 500) < 5 * np.sqrt(250 / 20)


def test_a_judgement_plays_its_games_once_for_its_bounds_and_once_for_its_verdicts(monkeypatch):
    played = []
    guess = one_run.guess
    monkeypatch.setattr(one_run, "guess", lambda scores, made: played.append(made) or guess(scores, made))
    scores, claims = coin_scores(1.5, 1000), [stated_claim(epsilon, 1e-5) for epsilon in (0.5, 4.0)]
    judged = evaluate(scores, Design(Assignment.COIN), claims=claims)
    assert [bound.name for bound in judged.bounds] == ["one-run", "one-run f-DP"]
    paid = [t.made for alpha in (0.05, 0.025) for t in one_run.paid_tries(1000, alpha=alpha)]
    assert sorted(played) == sorted(paid)
    # Other scores are other games.
    evaluate(coin_scores(1.5, 1000), Design(Assignment.COIN), claims=claims)
    assert len(played) == 2 * len(paid)


def test_the_price_of_several_numbers_of_guesses():
    scores = coin_scores(1.5, 1000)
    tried = one_run.steinke_bound(scores, 1e-5)
    tries = one_run.paid_tries(1000)
    assert tried.tried == tuple(its.made for its in tries)
    assert tried.epsilon == max(one_run_epsilon(one_run.guess(scores, t.made), 1e-5, t.level) for t in tries)
    registered = one_run.steinke_bound(scores, 1e-5, made=tried.guesses.made)
    assert registered.epsilon > tried.epsilon > one_run.steinke_bound(scores, 1e-5, attacks=10).epsilon > 0.5


def test_either_theorem_may_reject():
    game = Guesses(1000, 100, 80)
    for epsilon in np.linspace(0, 2, 21):
        either = one_run_p_value(game, epsilon, 1e-5) <= 0.05
        either |= fdp_rejects(game, one_run.epsilon_delta_inverse(epsilon, 1e-5))
        assert one_run.one_run_rejects(game, epsilon, 1e-5) == either
