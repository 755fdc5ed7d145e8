"""Numbers over blocks: Student's t, its coverage where runs vary, and what one pair of models cannot say."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from heldin.audit.blocks import over_blocks
from heldin.audit.limits import auroc_difference
from heldin.audit.utility import UserLoss, mean_difference, utility_of


def test_against_scipys_paired_interval():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 7))
    found = mean_difference(first, second)
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(np.mean(second - first))
    assert mean_difference(first[:1], second[:1]) is None


def test_fewer_than_three_blocks_have_no_interval_over_blocks():
    one = over_blocks([0.61234], (0.55555, 0.67777))
    assert (one.value, one.lower, one.upper, one.over) == (0.612, 0.556, 0.678, "users")
    two = over_blocks([0.6, 0.7], (0.5, 0.7))
    assert (two.value, two.lower, two.upper) == (0.65, None, None)
    three = over_blocks([0.6, 0.7, 0.8])
    low, high = stats.t.interval(0.95, 2, 0.7, stats.sem([0.6, 0.7, 0.8]))
    assert (three.value, three.over) == (0.7, "blocks")
    assert (three.lower, three.upper) == pytest.approx((low, high), abs=1e-3)


def _blocks(rng, blocks, users=120, spread=0.25):
    """AUROC differences of two variants, by block, and DeLong's interval of the first: trainings vary by ``spread``.

    The mean over trainings is 0: both variants leak alike.
    """
    values, within = [], None
    for _ in range(blocks):
        member = rng.random(users) < 0.5
        person = rng.normal(size=users)
        scores = [member * (0.5 + spread * rng.normal()) + person + 0.3 * rng.normal(size=users) for _ in range(2)]
        found = auroc_difference(*[(its[member], its[~member]) for its in scores])
        values.append(found.value)
        within = within or (found.lower, found.upper)
    return values, within


@pytest.mark.parametrize("blocks", [3, 5])
def test_intervals_over_blocks_hold_where_trainings_vary(blocks):
    rng = np.random.default_rng(blocks)
    runs, covered = 2000, 0
    for _ in range(runs):
        its = over_blocks(_blocks(rng, blocks)[0], digits=9)
        covered += its.lower <= 0 <= its.upper
    # Chance alone leaves this band once in a million.
    assert stats.binom.isf(1 - 1e-6, runs, 0.94) <= covered <= stats.binom.isf(1e-6, runs, 0.96)


def test_an_interval_over_one_pair_of_models_does_not_hold_over_trainings():
    """Why one block speaks of these models: DeLong's 95 % interval covers far less once trainings vary."""
    rng = np.random.default_rng(9)
    runs, covered = 600, 0
    for _ in range(runs):
        _, (low, high) = _blocks(rng, 1)
        covered += low <= 0 <= high
    assert covered < 0.8 * runs


def test_utility_is_a_mean_over_users_and_needs_ten_of_them():
    rng = np.random.default_rng(2)
    losses = {f"u{i}": UserLoss(f"u{i}", 1 + i % 3, 5 + 10 * i, *rng.uniform(2, 4, 2)) for i in range(12)}
    found = utility_of(losses)
    its = list(losses.values())
    assert (found.users, found.texts) == (12, 24)
    assert found.loss == pytest.approx(np.mean([u.loss for u in its]), abs=5e-5)
    # Perplexity is of all tokens together: a user of few counts for few.
    for level, own in ((found.perplexity, [u.loss for u in its]), (found.base_perplexity, [u.base_loss for u in its])):
        every_token = np.repeat(own, [u.tokens for u in its])
        assert level == pytest.approx(np.exp(every_token.mean()), abs=1e-4)
        assert abs(level - np.exp(np.mean(own))) > 1e-2
    gains = [u.base_loss - u.loss for u in its]
    assert found.gain.value == pytest.approx(np.mean(gains), abs=5e-5)
    low, high = stats.t.interval(0.95, 11, np.mean(gains), stats.sem(gains))
    assert (found.gain.lower, found.gain.upper) == pytest.approx((low, high), abs=1e-4)
    assert utility_of(dict(list(losses.items())[:9])) is None
    assert utility_of({}) is None
    # A model that diverged has no perplexity that a document could hold.
    worse = {user: dataclasses.replace(one, loss=1e4) for user, one in losses.items()}
    assert (utility_of(worse).perplexity, utility_of(worse).base_perplexity) == (None, found.base_perplexity)


def test_an_interval_ends_where_the_measure_does_and_blocks_that_do_not_differ_have_none():
    near_one = over_blocks([0.99, 1.0, 0.97], least=0.0, most=1.0)
    assert over_blocks([0.99, 1.0, 0.97]).upper > 1.0 == near_one.upper
    assert near_one.lower == over_blocks([0.99, 1.0, 0.97]).lower
    separated = over_blocks([1.0, 1.0, 1.0, 1.0, 1.0])
    assert (separated.value, separated.lower, separated.upper) == (1.0, None, None)
