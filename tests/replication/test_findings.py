"""Verdicts on published findings, and how often they are wrong."""

from typing import get_args

import numpy as np
import pytest

from heldin.audit.blocks import over_blocks
from replication.findings import SPREAD_OF_TRAININGS, Seen, alike, less, more, of_one_training, seen

YES, NO, OPEN = get_args(Seen)


@pytest.mark.parametrize(
    ("change", "rises", "falls", "stays"),
    [
        ((0.2, 0.1, 0.3), YES, NO, OPEN),
        ((0.3, 0.15, 0.45), YES, NO, NO),
        ((-0.2, -0.3, -0.15), NO, YES, NO),
        ((0.01, -0.04, 0.06), NO, NO, YES),
        ((0.05, -0.05, 0.15), OPEN, OPEN, OPEN),
        ((0.05, 0.01, 0.09), YES, NO, YES),
    ],
)
def test_verdicts(change, rises, falls, stays):
    assert (more(change), less(change), alike(change)) == (rises, falls, stays)


def test_what_is_expected_names_the_test_and_without_an_interval_there_is_none():
    change = (0.2, 0.1, 0.3)
    assert [seen(its, change) for its in ("less", "more", "alike")] == [less(change), more(change), alike(change)]
    assert seen("more", None) == OPEN
    assert seen("alike", (0.005, -0.01, 0.02), 0.05) == YES
    assert seen("alike", (0.005, -0.01, 0.02), 0.001) == OPEN


@pytest.mark.parametrize(("truth", "expected"), [(0.0, "more"), (0.0, "less"), (0.1, "alike"), (-0.1, "alike")])
def test_a_finding_that_is_just_not_true_is_confirmed_in_at_most_one_of_forty(truth, expected):
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(2000):
        its = over_blocks(list(truth + 0.02 * rng.standard_normal(5)))
        wrong += seen(expected, (its.value, its.lower, its.upper)) == YES
    # 2.5 % are expected; above this with a probability under 1e-6.
    assert wrong <= 90


def test_a_finding_that_is_true_is_confirmed():
    rng = np.random.default_rng(8)
    found = [over_blocks(list(0.1 + 0.02 * rng.standard_normal(5))) for _ in range(200)]
    assert sum(more((its.value, its.lower, its.upper)) == YES for its in found) > 180


def test_one_training_cannot_bear_a_difference_below_twice_the_spread_of_trainings():
    # The five that were confirmed by their users' interval alone (log of 2026-11-27); the last has four trainings.
    five = [
        (-0.0130, -0.0188, -0.0071),
        (-0.0145, -0.0241, -0.0049),
        (-0.0131, -0.0224, -0.0038),
        (0.0112, 0.0028, 0.0196),
    ]
    eight = (-0.0113, -0.0222, -0.0004)
    for change in [*five, eight]:
        assert YES in (less(change, 0.005), more(change, 0.005))
        pairs = 2 if change == eight else 1
        wide = of_one_training(change, pairs)
        assert (less(wide, 0.005), more(wide, 0.005), alike(wide, 0.005)) == (OPEN, OPEN, OPEN)
    # A difference that no other training would undo stays one, on either side.
    assert less(of_one_training((-0.0335, -0.043, -0.0271)), 0.005) == YES
    assert less(of_one_training((0.0464, 0.0366, 0.0562)), 0.005) == NO
    low, high = of_one_training((0.0, -0.0, 0.0))[1:]
    assert (low, high) == pytest.approx((-2 * SPREAD_OF_TRAININGS, 2 * SPREAD_OF_TRAININGS))


@pytest.mark.parametrize("pairs", [1, 2])
def test_trainings_that_differ_by_chance_are_seldom_confirmed(pairs):
    """Two plans of one loss, one training each: the users' interval alone confirms a difference in most of them."""
    rng = np.random.default_rng(9)
    alone = widened = 0
    for _ in range(2000):
        training = SPREAD_OF_TRAININGS * pairs**0.5 * rng.standard_normal()
        value = training + 0.002 * rng.standard_normal()
        change = (value, value - 0.004, value + 0.004)
        alone += YES in (less(change), more(change))
        widened += YES in (less(of_one_training(change, pairs)), more(of_one_training(change, pairs)))
    assert alone > 1000
    # About 5 % are expected, on both sides together; above this with a probability under 1e-6.
    assert widened <= 155
