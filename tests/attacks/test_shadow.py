"""The shadow-model attack against its definition user by user, and that it finds what it is made to find."""

import numpy as np
import pytest

from heldin.attacks.shadow import MOST_FREEDOM, shadow_likelihood_ratio, shadow_prior
from heldin.bounds.roc import auroc
from tests.oracles.shadow import pooled_variance_ratio, predictive_ratio
from tests.refusals import refused


def _world(users, models, gap, seed=0, *, freedom=None, react=0.0):
    """Scores whose middle differs from user to user, as difficulty does; and noise and reaction where asked for."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(0, 5, users)
    noise = np.ones(users) if freedom is None else np.sqrt(freedom / rng.chisquare(freedom, users))
    gaps = gap + react * rng.normal(size=users)
    included = np.array([rng.permutation(models) < models // 2 for _ in range(users)]).T
    member = rng.random(users) < 0.5
    shadows = middle + gaps * included + noise * rng.normal(0, 1, (models, users))
    return middle + gaps * member + noise * rng.normal(0, 1, users), shadows, included, member


@pytest.mark.parametrize("models", [2, 4, 8])
@pytest.mark.parametrize("react", [0.0, 1.0])
def test_it_is_the_ratio_of_two_predictive_densities_of_each_user(models, react):
    target, shadows, included, _ = _world(40, models, 1.0, freedom=5, react=react)
    found, prior = shadow_likelihood_ratio(target, shadows, included), shadow_prior(shadows, included)
    assert (prior.trust > 0) is (models > 2)
    twins = [predictive_ratio(target[u], shadows[:, u], included[:, u], prior) for u in range(40)]
    assert found == pytest.approx(twins, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("models", [4, 8])
def test_the_prior_is_the_one_that_drew_the_scores(models):
    _, shadows, included, _ = _world(20_000, models, 1.5, freedom=6, react=0.8)
    prior = shadow_prior(shadows, included)
    assert prior.gap == pytest.approx(1.5, abs=0.05)
    assert prior.freedom == pytest.approx(6, rel=0.25)
    assert prior.variance == pytest.approx(1, rel=0.1)
    # Half of the reaction is the shift; noise has the mean 6 / 4 of scaled inverse chi-squares.
    own = (0.8 / 2) ** 2
    assert prior.trust == pytest.approx(models * own / (6 / 4 + models * own), rel=0.15)


def test_users_who_are_alike_share_variance_and_reaction():
    _, shadows, included, _ = _world(3000, 8, 1.0)
    prior = shadow_prior(shadows, included)
    assert prior.trust < 0.1
    assert prior.freedom > 50
    assert prior.variance == pytest.approx(1, rel=0.05)
    assert prior.freedom <= MOST_FREEDOM


def test_it_sees_through_differences_between_users_that_hide_members_from_the_plain_score():
    target, shadows, included, member = _world(2000, 16, 2.0)
    found = shadow_likelihood_ratio(target, shadows, included)
    assert auroc(found[member], found[~member]) > 0.85
    assert auroc(target[member], target[~member]) < 0.65
    swapped = shadow_likelihood_ratio(target, shadows, ~included)
    assert auroc(swapped[member], swapped[~member]) < 0.15


def test_two_shadow_models_tell_more_than_the_score_alone():
    target, shadows, included, member = _world(2000, 2, 2.0)
    found = shadow_likelihood_ratio(target, shadows, included)
    assert auroc(found[member], found[~member]) > auroc(target[member], target[~member]) + 0.15


@pytest.mark.parametrize("models", [4, 8])
@pytest.mark.parametrize("freedom", [None, 4])
def test_users_own_variances_find_at_least_what_one_of_all_finds(models, freedom):
    """TPR at 5 % FPR, pooled over ten worlds: equal where users are alike, more where they are not."""
    rates = []
    for seed in range(10):
        target, shadows, included, member = _world(300, models, 2.0, seed, freedom=freedom)
        row = []
        for scores in (shadow_likelihood_ratio, pooled_variance_ratio):
            its = scores(target, shadows, included)
            row.append((its[member] > np.quantile(its[~member], 0.95)).mean())
        rates.append(row)
    ours, before = np.mean(rates, axis=0)
    assert ours > before - 0.005
    assert ours > before + 0.03 or freedom is None


def test_without_a_trace_it_says_nothing():
    target, shadows, included, member = _world(4000, 8, 0.0)
    area = auroc(*(shadow_likelihood_ratio(target, shadows, included)[side] for side in (member, ~member)))
    assert abs(area - 0.5) < 5 / np.sqrt(12 * 1000)  # five standard deviations of an AUROC of 2,000 by 2,000 and more


def test_the_order_of_users_and_of_models_does_not_matter():
    target, shadows, included, _ = _world(30, 8, 1.0, freedom=4, react=1.0)
    found = shadow_likelihood_ratio(target, shadows, included)
    rng = np.random.default_rng(0)
    users, models = rng.permutation(30), rng.permutation(8)
    again = shadow_likelihood_ratio(target[users], shadows[models][:, users], included[models][:, users])
    assert again == pytest.approx(found[users], rel=1e-9)


@pytest.mark.parametrize("broken", ["all in", "three of four", "one model", "alike", "two alike"])
def test_shadow_models_that_say_nothing_are_refused(broken):
    target, shadows, included, _ = _world(10, 4, 1.0)
    if broken == "all in":
        included[:, 3] = True
    if broken == "three of four":
        included[:, 3] = [True, True, True, False]
    if broken == "one model":
        shadows, included = shadows[:1], included[:1]
    if broken == "alike":
        shadows = np.zeros_like(shadows)
    if broken == "two alike":
        shadows, included = np.zeros((2, 10)), np.array([[True] * 10, [False] * 10])
    alike = broken in ("alike", "two alike")
    with refused(by="shadow_prior" if alike else "_fits"):
        shadow_likelihood_ratio(target, shadows, included)
