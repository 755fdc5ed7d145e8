"""Several trainings on the same users: one epsilon for all of them."""

import pytest

from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.releases import users_epsilon
from tests.made_mechanisms import els, example, shuffled, uls

DELTA = 1e-5


def test_a_training_in_two_halves_costs_what_the_whole_costs():
    whole = uls(steps=60)
    half = uls(steps=30)
    exact = epsilon(whole.user_event, 60, DELTA)
    found = users_epsilon([half, half], DELTA)
    assert found == exact
    assert users_epsilon([whole], DELTA) == found
    assert users_epsilon([half], DELTA) < exact


def test_different_mechanisms_cost_more_than_each_and_no_more_than_their_sum():
    one, other = uls(steps=60), uls(steps=40, noise_multiplier=1.5)
    alone = [users_epsilon([its], DELTA) for its in (one, other)]
    shared = [users_epsilon([its], DELTA / 2) for its in (one, other)]
    together = users_epsilon([one, other], DELTA)
    assert max(alone) < together < sum(shared)
    # The order of trainings is no matter.
    assert users_epsilon([other, one], DELTA) == pytest.approx(together, rel=1e-6)


def test_whoever_promises_users_nothing_has_no_epsilon_with_others():
    for its in (example(), shuffled()):
        assert users_epsilon([uls(), its], DELTA) is None


def test_example_level_sampling_is_composed_for_all_of_a_users_records():
    whole, half = els(steps=200), els(steps=100)
    exact = epsilon(whole.user_event, 200, DELTA)
    assert exact <= users_epsilon([half, half], DELTA) <= exact * 1.02
    assert users_epsilon([els(steps=100), uls(steps=100)], DELTA) > users_epsilon([uls(steps=100)], DELTA)


def test_little_noise_has_a_number_in_little_time():
    # The sums of epsilons above 100, at which an earlier version gave none.
    for noise in (0.001, 0.03):
        its = uls(steps=40, noise_multiplier=noise)
        assert users_epsilon([its], DELTA) == epsilon(its.user_event, 40, DELTA) > 1000.0
