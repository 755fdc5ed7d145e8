"""Several trainings on the same users: one epsilon for all of them."""

import pytest

from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.mechanism import composed_epsilon
from tests.made_mechanisms import els, example, shuffled, uls

DELTA = 1e-5


def test_a_training_in_two_halves_costs_what_the_whole_costs():
    whole = uls(steps=60)
    half = uls(steps=30)
    exact = epsilon(whole.user_event, 60, DELTA)
    found = composed_epsilon([half, half], DELTA)
    # From above, and close: the grid rounds upwards.
    assert exact <= found <= exact * 1.01
    assert composed_epsilon([whole], DELTA) == pytest.approx(found, rel=0.01)
    assert composed_epsilon([half], DELTA) < exact


def test_different_mechanisms_cost_more_than_each_and_no_more_than_their_sum():
    one, other = uls(steps=60), uls(steps=40, noise_multiplier=1.5)
    alone = [composed_epsilon([its], DELTA) for its in (one, other)]
    shared = [composed_epsilon([its], DELTA / 2) for its in (one, other)]
    together = composed_epsilon([one, other], DELTA)
    assert max(alone) < together < sum(shared)
    # The order of trainings is no matter.
    assert composed_epsilon([other, one], DELTA) == pytest.approx(together, rel=1e-6)


def test_whoever_promises_users_nothing_has_no_epsilon_with_others():
    for its in (example(), shuffled()):
        assert composed_epsilon([uls(), its], DELTA) is None


def test_example_level_sampling_is_composed_for_all_of_a_users_records():
    whole, half = els(steps=200), els(steps=100)
    exact = epsilon(whole.user_event, 200, DELTA)
    assert exact <= composed_epsilon([half, half], DELTA) <= exact * 1.02
    assert composed_epsilon([els(steps=100), uls(steps=100)], DELTA) > composed_epsilon([uls(steps=100)], DELTA)


def test_what_says_nothing_any_more_is_not_composed_and_takes_no_time():
    # With so little noise the grid of losses would not fit into memory.
    assert composed_epsilon([uls(steps=40, noise_multiplier=0.001)], DELTA) is None
    assert composed_epsilon([uls(steps=40, noise_multiplier=0.03)], DELTA) is None
