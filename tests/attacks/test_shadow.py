"""The shadow-model attack against its definition user by user, and that it finds what it is made to find."""

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.shadow import shadow_likelihood_ratio
from heldin.base.errors import InputError
from heldin.bounds.roc import auroc


def _world(users, models, gap, seed=0):
    """Scores whose middle and reaction differ from user to user, as difficulty does."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(0, 5, users)
    included = np.array([rng.permutation(models) < models // 2 for _ in range(users)]).T
    member = rng.random(users) < 0.5
    shadows = middle + gap * included + rng.normal(0, 1, (models, users))
    return middle + gap * member + rng.normal(0, 1, users), shadows, included, member


def test_it_is_the_ratio_of_two_normal_densities_around_each_users_own_means():
    target, shadows, included, _ = _world(30, 8, 1.0)
    found = shadow_likelihood_ratio(target, shadows, included)
    left = [
        shadows[k, u] - np.mean([shadows[j, u] for j in range(8) if included[j, u] == included[k, u]])
        for k in range(8)
        for u in range(30)
    ]
    deviation = np.sqrt(sum(x**2 for x in left) / (8 * 30 - 2 * 30))
    for u in range(30):
        inside = stats.norm(np.mean(shadows[included[:, u], u]), deviation).logpdf(target[u])
        outside = stats.norm(np.mean(shadows[~included[:, u], u]), deviation).logpdf(target[u])
        assert found[u] == pytest.approx(inside - outside)


def test_it_sees_through_differences_between_users_that_hide_members_from_the_plain_score():
    target, shadows, included, member = _world(2000, 16, 2.0)
    found = shadow_likelihood_ratio(target, shadows, included)
    assert auroc(found[member], found[~member]) > 0.85
    assert auroc(target[member], target[~member]) < 0.65
    swapped = shadow_likelihood_ratio(target, shadows, ~included)
    assert auroc(swapped[member], swapped[~member]) < 0.15


def test_without_a_trace_it_says_nothing():
    target, shadows, included, member = _world(4000, 8, 0.0)
    area = auroc(*(shadow_likelihood_ratio(target, shadows, included)[side] for side in (member, ~member)))
    assert abs(area - 0.5) < 5 / np.sqrt(12 * 1000)  # five standard deviations of an AUROC of 2,000 by 2,000 and more


@pytest.mark.parametrize("broken", ["all in", "two models", "alike"])
def test_shadow_models_that_say_nothing_are_refused(broken):
    target, shadows, included, _ = _world(10, 4, 1.0)
    if broken == "all in":
        included[:, 3] = True
    if broken == "two models":
        shadows, included = shadows[:2], included[:2]
    if broken == "alike":
        shadows = np.zeros_like(shadows)
    with pytest.raises(InputError, match="shadow models"):
        shadow_likelihood_ratio(target, shadows, included)
