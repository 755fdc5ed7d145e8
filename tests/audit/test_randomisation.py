"""The randomisation test against every assignment counted one by one, its level under chance, and its power."""

import itertools

import numpy as np
import pytest
from scipy import stats

from heldin.audit.randomisation import (
    Law,
    ScoreTable,
    drawn_assignments,
    least_redraws,
    p_values_among,
    randomisation_test,
)
from tests.oracles import randomisation as oracle
from tests.refusals import refused

FPRS = (0.1, 0.25)


def _scores(users=9, scores=3, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(scores, users))
    return np.round(values, 0) if ties else values


@pytest.mark.parametrize("seed", range(6))
def test_statistics_are_those_of_the_slow_twin(seed):
    scores = _scores(users=17, seed=seed, ties=seed % 2 == 0)
    table, rng = ScoreTable.of(scores), np.random.default_rng(seed)
    drawn = rng.random((40, 17)) < 0.5
    drawn = drawn[drawn.any(axis=1) & ~drawn.all(axis=1)]
    areas, rates = table.standardised_aurocs(drawn), table.tprs(drawn, FPRS)
    for i, member in enumerate(drawn):
        for k, row in enumerate(scores):
            assert areas[i, k] == pytest.approx(oracle.standardised_auroc(row, member), abs=1e-12)
            for j, fpr in enumerate(FPRS):
                assert rates[i, k, j] == oracle.tpr(row, member, fpr)


def test_statistics_are_the_same_where_only_the_top_of_the_list_is_read():
    """5,000 users: redraws look at the first few hundred, a perfect score is read to the end."""
    rng = np.random.default_rng(0)
    member = rng.random(5000) < 0.5
    scores = np.array([rng.normal(size=5000), member + 0.0])
    table = ScoreTable.of(scores)
    drawn = np.array([member, rng.random(5000) < 0.5])
    found = table.tprs(drawn, (0.01, 0.05))
    expected = [[[oracle.tpr(row, m, f) for f in (0.01, 0.05)] for row in scores] for m in drawn]
    np.testing.assert_allclose(found, expected)
    assert found[0, 1].tolist() == [1.0, 1.0]


def test_the_p_value_is_that_of_all_assignments():
    """20,000 redraws against all 510 assignments of nine users."""
    member = np.array([1, 1, 1, 0, 1, 0, 0, 0, 0], dtype=bool)
    for seed in range(4):
        scores = _scores(seed=seed) + 1.0 * member
        found = randomisation_test(scores, member, law=Law.COINS, fprs=(), redraws=20_000)
        exact = oracle.exact_p(scores, member, oracle.largest)
        assert found.auroc_p == pytest.approx(exact, abs=5 * np.sqrt(exact * (1 - exact) / 20_000) + 1e-4)


def test_one_score_has_the_p_value_of_mann_whitney():
    rng = np.random.default_rng(1)
    member = rng.random(400) < 0.5
    scores = rng.normal(size=400) + 0.2 * member
    found = randomisation_test(scores[None], member, law=Law.PERMUTATION, fprs=(), redraws=20_000)
    assert found.auroc_p == pytest.approx(oracle.mann_whitney_p(scores, member) / 2, rel=0.25)
    assert found.auroc_adjusted.tolist() == [found.auroc_p]


def test_every_law_draws_what_it_says():
    member = np.array([1, 0, 0, 0], dtype=bool)
    coins = np.concatenate(list(drawn_assignments(member, Law.COINS, 8000, 0)))[1:]
    counts = {bits: int((coins == bits).all(axis=1).sum()) for bits in itertools.product([0, 1], repeat=4)}
    assert counts.pop((0, 0, 0, 0)) == counts.pop((1, 1, 1, 1)) == 0
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6
    orders = np.concatenate(list(drawn_assignments(member, Law.PERMUTATION, 8000, 0)))[1:]
    assert (orders.sum(axis=1) == 1).all()
    assert stats.chisquare(orders.sum(axis=0)).pvalue > 1e-6
    assert len(coins) == len(orders) == 8000


def test_step_down_pays_less_for_what_is_left_and_never_turns_the_order_around():
    rng = np.random.default_rng(2)
    member = rng.random(300) < 0.5
    gaps = np.array([0.8, 0.4, 0.0, 0.0, 0.0])
    scores = rng.normal(size=(5, 300)) + gaps[:, None] * member
    found = randomisation_test(scores, member, law=Law.COINS, fprs=(0.05, 0.1), redraws=2000)
    assert found.auroc_adjusted[0] == found.auroc_p < 0.001
    z = ScoreTable.of(scores).standardised_aurocs(member[None])[0]
    assert (np.diff(found.auroc_adjusted[np.argsort(-z)]) >= 0).all()
    single = [randomisation_test(row[None], member, law=Law.COINS, fprs=(), redraws=2000).auroc_p for row in scores]
    assert all(adjusted >= p - 0.02 for adjusted, p in zip(found.auroc_adjusted, single, strict=True))
    assert found.auroc_adjusted[1] < 5 * single[1] + 0.01
    assert found.tpr_adjusted.shape == (5, 2)
    assert found.tpr_adjusted.min() == found.tpr_p


def test_a_score_that_points_the_wrong_way_is_no_leak_and_is_seen():
    rng = np.random.default_rng(3)
    member = rng.random(300) < 0.5
    scores = rng.normal(size=(3, 300)) - 1.0 * member
    found = randomisation_test(scores, member, law=Law.COINS, fprs=(0.05,), redraws=999)
    assert found.auroc_p > 0.9
    assert found.reversed_p == 0.001


def test_rates_that_so_few_users_cannot_show_take_no_part():
    rng = np.random.default_rng(4)
    member = np.arange(24) % 2 == 0
    scores = rng.normal(size=(2, 24))
    assert randomisation_test(scores, member, law=Law.COINS, fprs=(0.01, 0.05, 0.1), redraws=99).fprs == (0.1,)
    none = randomisation_test(scores, member, law=Law.COINS, fprs=(0.01,), redraws=99)
    assert (none.fprs, none.tpr_p, none.tpr_adjusted.shape) == ((), 1.0, (2, 0))
    lopsided = np.arange(60) < 50
    by_size = randomisation_test(rng.normal(size=(1, 60)), lopsided, law=Law.PERMUTATION, fprs=(0.05, 0.1), redraws=99)
    assert by_size.fprs == (0.1,)


def test_equal_scores_say_nothing_and_one_side_is_refused():
    member = np.arange(20) % 2 == 0
    found = randomisation_test(np.ones((2, 20)), member, law=Law.COINS, fprs=(0.1,), redraws=99)
    assert (found.auroc_p, found.tpr_p) == (1.0, 1.0)
    with refused(by=randomisation_test):
        randomisation_test(np.ones((1, 5)), np.ones(5, dtype=bool), law=Law.COINS, fprs=())


def test_least_redraws_reach_a_level():
    assert [least_redraws(level) for level in (0.05, 0.04, 0.01, 0.001)] == [19, 24, 99, 999]
    assert all(1 / (1 + least_redraws(level)) <= level + 1e-12 for level in (0.03, 0.04, 0.007))


def test_p_values_among_redraws_count_ties_and_the_observed():
    assert p_values_among(np.array([[2.0], [1.0], [2.0], [3.0]])).ravel().tolist() == [0.75, 1.0, 0.75, 0.25]


def _family(rng, users, gaps, correlation=0.7):
    member = rng.random(users) < 0.5
    common = rng.normal(size=users)
    own = rng.normal(size=(len(gaps), users))
    return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own + np.outer(gaps, member), member


@pytest.mark.slow
def test_it_rejects_as_often_as_it_may_where_scores_say_nothing():
    """1,000 null families of seven correlated scores, discrete ones among them: each level is kept, and used."""
    rng = np.random.default_rng(5)
    by_auroc = by_tpr = 0
    for i in range(1000):
        scores, member = _family(rng, 120, np.zeros(7))
        scores[0] = np.round(scores[0])
        found = randomisation_test(scores, member, law=Law.COINS, fprs=(0.05, 0.1), redraws=199, seed=i)
        by_auroc += found.auroc_p <= 0.04
        by_tpr += found.tpr_p <= 0.01
    assert 15 < by_auroc <= stats.binom.ppf(1 - 1e-6, 1000, 0.04)
    assert by_tpr <= stats.binom.ppf(1 - 1e-6, 1000, 0.01)


def test_the_best_of_seven_without_paying_would_be_seen():
    """The rejection of a wrong answer: single p-values of the same families, the smallest taken, err far too often."""
    rng = np.random.default_rng(6)
    wrong = 0
    for i in range(300):
        scores, member = _family(rng, 120, np.zeros(7))
        single = [randomisation_test(row[None], member, law=Law.COINS, fprs=(), redraws=99, seed=i) for row in scores]
        wrong += min(found.auroc_p for found in single) <= 0.04
    assert wrong > stats.binom.ppf(1 - 1e-6, 300, 0.04)
