"""Simultaneous intervals and upper limits: exact cases, and how often they miss."""

import numpy as np
import pytest
from scipy import stats

from heldin.audit.limits import auroc_limits, tpr_at_most
from heldin.bounds.roc import auroc

SCORES = 7
CORRELATION = 0.7


def _family(rng, users, shift):
    """Scores of held-in users, (7, n), dependent among each other."""
    common = rng.normal(size=users)
    own = rng.normal(size=(SCORES, users))
    return np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * own + np.reshape(shift, (-1, 1))


def test_values_are_aurocs_and_one_score_has_the_interval_of_delong():
    rng = np.random.default_rng(0)
    held_in, held_out = rng.normal(0.5, 1, (1, 80)), rng.normal(0, 1, (1, 70))
    found = auroc_limits(held_in, held_out)
    assert found.auroc[0] == pytest.approx(auroc(held_in[0], held_out[0]))
    placed = [(held_in[0][:, None] > held_out[0]).mean(axis=1), (held_in[0] > held_out[0][:, None]).mean(axis=1)]
    deviation = np.sqrt(sum(p.var(ddof=1) / p.size for p in placed))
    slope = found.auroc[0] * (1 - found.auroc[0])
    logit = np.log(found.auroc[0] / (1 - found.auroc[0]))
    expected = 1 / (1 + np.exp(-(logit - 1.96 * deviation / slope)))
    assert found.lower[0] == pytest.approx(expected, abs=0.003)
    by_chance = np.sqrt(151 / (12 * 80 * 70))
    assert found.at_most[0] == pytest.approx(found.auroc[0] + 1.645 * max(deviation, by_chance), abs=0.003)


def test_more_scores_have_wider_intervals_and_copies_of_one_do_not():
    rng = np.random.default_rng(1)
    held_in, held_out = _family(rng, 100, 0.3), _family(rng, 100, 0.0)
    alone = auroc_limits(held_in[:1], held_out[:1])
    together = auroc_limits(held_in, held_out)
    copies = auroc_limits(np.repeat(held_in[:1], 7, axis=0), np.repeat(held_out[:1], 7, axis=0))
    width = alone.upper[0] - alone.lower[0]
    assert 1.1 * width < together.upper[0] - together.lower[0] < 1.4 * width
    assert copies.upper[0] - copies.lower[0] == pytest.approx(width, rel=0.02)


def test_complete_separation_has_an_exact_limit_and_one_user_on_a_side_none():
    high, low = np.ones((2, 10)) + np.arange(10), -np.ones((2, 12)) - np.arange(12)
    found = auroc_limits(high, low)
    assert found.auroc.tolist() == [1.0, 1.0]
    assert found.lower.tolist() == pytest.approx([(0.025 / 2) ** (1 / 10)] * 2)
    assert found.upper.tolist() == found.at_most.tolist() == [1.0, 1.0]
    turned = auroc_limits(low, high)
    assert (turned.lower[0], turned.upper[0]) == pytest.approx((0.0, 1 - (0.025 / 2) ** (1 / 10)))
    one = auroc_limits(high[:, :1], low)
    assert (one.lower[0], one.upper[0], one.at_most[0]) == (0.0, 1.0, 1.0)


def test_upper_limits_stand_around_chance_where_a_score_strays_below_it():
    rng = np.random.default_rng(2)
    below = auroc_limits(rng.normal(-0.5, 1, (1, 170)), rng.normal(0, 1, (1, 170)))
    assert below.auroc[0] < 0.45
    assert below.at_most[0] == pytest.approx(0.5 + 1.645 * np.sqrt(341 / (12 * 170 * 170)), abs=0.004)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.6, 1.8])
def test_they_cover_all_scores_at_once(shift):
    """600 audits of 60 + 60 users: at most as many misses as 5 % and chance allow; single intervals miss far more."""
    rng = np.random.default_rng(3)
    true = stats.norm.cdf(shift / np.sqrt(2))
    missed = alone = excluded = 0
    for _ in range(600):
        held_in, held_out = _family(rng, 60, shift), _family(rng, 60, 0.0)
        found = auroc_limits(held_in, held_out)
        missed += bool(((found.lower > true) | (found.upper < true)).any())
        excluded += bool(found.at_most.max() < true)
        single = [auroc_limits(a[None], b[None]) for a, b in zip(held_in, held_out, strict=True)]
        alone += any(s.lower[0] > true or s.upper[0] < true for s in single)
    assert missed <= stats.binom.ppf(1 - 1e-6, 600, 0.05)
    assert alone > stats.binom.ppf(1 - 1e-6, 600, 0.05)
    assert excluded <= stats.binom.ppf(1 - 1e-6, 600, 0.05)


def test_a_rate_s_limit_is_above_the_estimate_and_above_what_so_few_can_exclude():
    assert tpr_at_most(0.2, 0.27, 0.05, 1000) == pytest.approx(0.27)
    assert tpr_at_most(0.0, 0.0, 0.05, 40) == pytest.approx(stats.beta.ppf(0.95, 3, 38))  # two of forty by chance
    assert tpr_at_most(0.02, 0.05, 0.05, 10_000) == pytest.approx(0.08)
    assert tpr_at_most(1.0, 1.0, 0.05, 20) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_largest_rate_is_excluded_as_seldom_as_it_may():
    """400 audits in which one score in seven names a quarter at 5 % FPR: how often more than its truth is excluded."""
    from heldin.audit.bootstrap import bootstrap

    rng = np.random.default_rng(4)
    shift = np.zeros(SCORES)
    shift[3] = stats.norm.ppf(0.25) - stats.norm.ppf(0.05)
    wrong = 0
    for i in range(400):
        held_in, held_out = _family(rng, 100, shift), _family(rng, 100, 0.0)
        limits = []
        for a, b in zip(held_in, held_out, strict=True):
            ((_, its),) = bootstrap(a, b, (0.05,), resamples=200, seed=i).tpr_at
            limits.append(tpr_at_most(its.value, its.at_most, 0.05, 100))
        wrong += max(limits) < 0.25
    assert wrong <= stats.binom.ppf(1 - 1e-6, 400, 0.05)
