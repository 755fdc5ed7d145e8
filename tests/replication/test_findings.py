"""Verdicts on published findings, and how often they are wrong."""

from typing import get_args

import numpy as np
import pytest

from heldin.audit.blocks import over_blocks
from replication.findings import Seen, alike, less, more, seen

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
