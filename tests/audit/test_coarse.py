"""One grouping of users by score, of ten or more each; what a whole record's numbers tell together of single users."""

import numpy as np
import pytest

from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import ATTACKS
from heldin.audit.attack_results import attack_results
from heldin.audit.coarse import LEAST_IN_GROUP, brief, coarse_percentiles, grouped, significant
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.family import ScoreVariant, evaluate_family
from heldin.audit.preregistration import COINS, Preregistration
from heldin.bounds.roc import roc_curve, tpr_at_fpr


def _sides(users=200, gap=0.7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(gap, 1, users // 2), rng.normal(0, 1, users // 2)


@pytest.mark.parametrize("users", [4, 24, 200, 3000])
def test_a_curve_s_points_are_the_exact_ones_ten_users_apart(users):
    held_in, held_out = _sides(users)
    coarse, exact = grouped(held_in, held_out).roc, roc_curve(held_in, held_out)
    points = set(zip(exact.fpr.tolist(), exact.tpr.tolist(), strict=True))
    assert set(zip(coarse.fpr.tolist(), coarse.tpr.tolist(), strict=True)) <= points
    named = coarse.fpr * held_out.size + coarse.tpr * held_in.size
    assert (named[0], named[-1]) == (0, pytest.approx(users))
    assert (np.diff(named) >= LEAST_IN_GROUP - 1e-9).all() or len(named) == 2
    assert len(coarse.fpr) <= 25


def test_every_point_is_kept_where_single_scores_are_no_people():
    held_in, held_out = _sides(60)
    fine, exact = grouped(held_in, held_out, least=1).roc, roc_curve(held_in, held_out)
    np.testing.assert_allclose(fine.fpr, exact.fpr)
    np.testing.assert_allclose(fine.tpr, exact.tpr)


@pytest.mark.parametrize("users", [4, 24, 200, 3000])
def test_the_histogram_is_of_the_same_groups_with_everybody_in_one(users):
    held_in, held_out = _sides(users)
    groups = grouped(held_in, held_out)
    both = groups.held_in + groups.held_out
    assert both.sum() == users
    assert both.min() >= min(users, LEAST_IN_GROUP)
    assert (np.diff(groups.edges) > 0).all()
    inner = [-np.inf, *groups.edges[1:-1], np.inf]
    assert np.histogram(held_in, inner)[0].tolist() == groups.held_in[::-1].tolist()
    assert np.histogram(held_out, inner)[0].tolist() == groups.held_out[::-1].tolist()


def test_one_outlier_stretches_nothing_and_edges_are_short_numbers_of_nobody():
    held_in, held_out = _sides(200)
    held_in[0] = 1e6
    groups = grouped(held_in, held_out)
    assert groups.edges[-1] < 10
    scores = np.concatenate([held_in, held_out])
    assert np.abs(scores[:, None] - np.array(groups.edges)).min() > 1e-6
    assert all(len(f"{edge:g}") <= 8 for edge in groups.edges)
    same = grouped(np.ones(30), np.ones(30))
    assert (same.held_in.tolist(), same.held_out.tolist()) == ([30], [30])
    assert same.edges[0] < 1 < same.edges[1]


def test_equal_scores_are_never_apart():
    held_in, held_out = np.repeat([1.0, 2.0, 3.0], [30, 5, 25]), np.repeat([1.0, 2.0, 3.0], [40, 6, 10])
    groups = grouped(held_in, held_out)
    assert groups.held_in.tolist() == [25, 5, 30]
    assert groups.edges[1:-1] == (1.5, 2.5)


@pytest.mark.parametrize("fpr", [0.01, 0.05, 0.1, 0.5])
def test_rates_are_read_off_the_groups_near_the_exact_ones(fpr):
    held_in, held_out = _sides(2000)
    assert grouped(held_in, held_out).tpr(fpr) == pytest.approx(tpr_at_fpr(held_in, held_out, fpr), abs=0.03)
    assert grouped(held_in, held_out).tpr(1.0) == 1.0
    perfect = grouped(np.arange(100.0, 200.0), np.arange(100.0))
    assert perfect.tpr(fpr) == 1.0


def test_numbers_have_few_digits():
    assert (brief(0.123456), brief(0.5, 2), significant(0.000123456), significant(123.4)) == (
        0.123,
        0.5,
        0.00012,
        120.0,
    )


def test_percentiles_have_ten_users_beyond_them():
    assert coarse_percentiles(range(100)) == [10, 25, 50, 74, 89]
    assert coarse_percentiles([5] * 9 + [1000] + list(range(100, 120))) == [101, 101, 105, 110, 110]
    assert coarse_percentiles([1, 2, 3]) == [2]
    assert coarse_percentiles([]) == []
    assert max(coarse_percentiles([*range(40), 10**6])) < 40


def _family(users, scores, seed):
    """Scores that tell nothing, correlated at 0.7, of fair coins."""
    rng = np.random.default_rng(seed)
    member = rng.random(users) < 0.5
    values = np.sqrt(0.7) * rng.normal(size=users) + np.sqrt(0.3) * rng.normal(size=(scores, users))
    variants = [ScoreVariant(name, how) for how in ("mean", "min", "max") for name in ATTACKS.ours][:scores]
    fixed = Preregistration(AttackConfig(), AuditConfig(resamples=100), DecisionConfig(redraws=199), COINS, seed=seed)
    return evaluate_family(dict(zip(variants, values, strict=True)), member, fixed)


def _equations(family, results):
    """What a record says of who was held in, as linear equations in the n unknown sides: (A, b)."""
    n, n1 = family.member.size, int(family.member.sum())
    rows, right = [np.ones(n)], [float(n1)]
    for score, result in zip(family.scores, results, strict=True):
        ranks = np.argsort(np.argsort(score.values)) + 1.0
        rows.append(ranks)
        right.append(result.auroc.value * n1 * (n - n1) + n1 * (n1 + 1) / 2)
        if result.curve:
            named = np.round(np.array(result.curve.fpr) * (n - n1) + np.array(result.curve.tpr) * n1).astype(int)
            place = n - ranks
            for low, high, inside in zip(named[:-1], named[1:], np.diff(result.curve.tpr) * n1, strict=True):
                rows.append(((place >= low) & (place < high)).astype(float))
                right.append(inside)
    return np.array(rows), np.array(right)


def _told(family, results):
    """Share of users whose side the nearest solution of these equations tells; a half is guessing."""
    a, b = _equations(family, results)
    scale = np.linalg.norm(a, axis=1)
    solution = 0.5 + np.linalg.lstsq(a / scale[:, None], (b - a @ np.full(a.shape[1], 0.5)) / scale, rcond=0.01)[0]
    return float(((solution > 0.5) == family.member).mean())


def test_a_record_s_numbers_together_tell_little_of_single_users_to_whoever_holds_the_scores():
    """320 users, 15 scores at chance: curves of all scores would give everybody's side back."""
    told, with_all = [], []
    for seed in range(6):
        family = _family(320, 15, seed)
        told.append(_told(family, attack_results(family, (0.05,), shown={0, 3})))
        with_all.append(_told(family, attack_results(family, (0.05,), shown=range(15))))
    print(f"right: {np.mean(told):.3f}, with curves of all 15 scores {np.mean(with_all):.3f}")
    assert np.mean(told) < 0.68
    assert np.mean(with_all) > 0.8


def test_nobody_s_side_follows_from_curve_and_histogram_to_whoever_holds_the_scores():
    """The join that full curves allow: sort by score, and read each user's side off the steps."""
    held_in, held_out = _sides(400, gap=0.3, seed=1)
    scores, member = np.concatenate([held_in, held_out]), np.repeat([True, False], 200)
    order = np.argsort(-scores)
    full, groups = roc_curve(held_in, held_out), grouped(held_in, held_out)
    read = np.diff(full.tpr) > 0  # one step a user
    assert (read == member[order]).all()
    sizes = groups.held_in + groups.held_out
    share = groups.held_in / sizes
    guess = np.concatenate([np.full(size, s >= 0.5) for size, s in zip(sizes, share, strict=True)])
    within = np.average(np.maximum(share, 1 - share), weights=sizes)  # what the share of a group alone tells
    assert (guess == member[order]).mean() == pytest.approx(within)
    assert (guess == member[order]).mean() < 0.65
