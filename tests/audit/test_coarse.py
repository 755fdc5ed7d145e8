"""Curves, histograms and percentiles: no step of fewer than ten users, and nothing in them that names one."""

import numpy as np
import pytest

from audit.coarse import LEAST_IN_GROUP, coarse_percentiles, coarse_roc, histogram
from audit.roc import roc_curve


def _sides(users=200, gap=0.7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(gap, 1, users // 2), rng.normal(0, 1, users // 2)


@pytest.mark.parametrize("users", [4, 24, 200, 3000])
def test_a_curve_s_points_are_the_exact_ones_ten_users_apart(users):
    held_in, held_out = _sides(users)
    coarse, exact = coarse_roc(held_in, held_out), roc_curve(held_in, held_out)
    points = set(zip(exact.fpr.tolist(), exact.tpr.tolist(), strict=True))
    assert set(zip(coarse.fpr.tolist(), coarse.tpr.tolist(), strict=True)) <= points
    named = coarse.fpr * held_out.size + coarse.tpr * held_in.size
    assert (named[0], named[-1]) == (0, users)
    assert (np.diff(named) >= LEAST_IN_GROUP - 1e-9).all() or len(named) == 2
    assert len(coarse.fpr) <= 1000


def test_every_point_is_kept_where_single_scores_are_no_people():
    held_in, held_out = _sides(60)
    fine, exact = coarse_roc(held_in, held_out, least=1), roc_curve(held_in, held_out)
    np.testing.assert_allclose(fine.fpr, exact.fpr)
    np.testing.assert_allclose(fine.tpr, exact.tpr)


@pytest.mark.parametrize("users", [4, 24, 200, 3000])
def test_a_histogram_has_ten_users_in_each_bin_and_everybody_in_some(users):
    held_in, held_out = _sides(users)
    bins = histogram(held_in, held_out)
    both = np.add(bins.held_in, bins.held_out)
    assert both.sum() == users
    assert both.min() >= min(users, LEAST_IN_GROUP)
    assert (np.diff(bins.edges) > 0).all()
    assert len(bins.held_in) == len(bins.edges) - 1


def test_one_outlier_stretches_nothing_and_edges_are_round_numbers_of_nobody():
    held_in, held_out = _sides(200)
    held_in[0] = 1e6
    bins = histogram(held_in, held_out)
    assert bins.edges[-1] < 10
    scores = np.concatenate([held_in, held_out])
    assert np.abs(scores[:, None] - np.array(bins.edges)).min() > 1e-6
    assert all(len(f"{edge:g}") <= 4 for edge in bins.edges)
    same = histogram(np.ones(30), np.ones(30))
    assert (same.held_in, same.held_out) == ((30,), (30,))


def test_percentiles_have_ten_users_beyond_them():
    assert coarse_percentiles(range(100)) == [10, 25, 50, 74, 89]
    assert coarse_percentiles([5] * 9 + [1000] + list(range(100, 120))) == [101, 101, 105, 110, 110]
    assert coarse_percentiles([1, 2, 3]) == [2]
    assert coarse_percentiles([]) == []
    assert max(coarse_percentiles([*range(40), 10**6])) < 40


def test_nobody_s_side_follows_from_curve_and_histogram_to_whoever_holds_the_scores():
    """The join that full curves allow: sort by score, and read each user's side off the steps."""
    held_in, held_out = _sides(400, gap=0.3, seed=1)
    scores, member = np.concatenate([held_in, held_out]), np.repeat([True, False], 200)
    order = np.argsort(-scores)
    full, coarse = roc_curve(held_in, held_out), coarse_roc(held_in, held_out)
    read = np.diff(full.tpr) > 0  # one step a user
    assert (read == member[order]).all()
    named = np.round(coarse.fpr * 200 + coarse.tpr * 200).astype(int)
    share = np.diff(coarse.tpr) * 200 / np.diff(named)
    guess = np.concatenate([np.full(size, s >= 0.5) for size, s in zip(np.diff(named), share, strict=True)])
    within = np.mean([max(s, 1 - s) for s in share])  # what the share of a group alone tells
    assert (guess == member[order]).mean() == pytest.approx(within, abs=0.02)
    assert (guess == member[order]).mean() < 0.75
