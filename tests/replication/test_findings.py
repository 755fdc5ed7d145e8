"""Verdicts on published findings, and how often they are wrong."""

import numpy as np
import pytest

from heldin.audit.blocks import over_blocks
from replication.findings import alike, less, more, seen


@pytest.mark.parametrize(
    ("change", "rises", "falls", "stays"),
    [
        ((0.2, 0.1, 0.3), "confirmed", "not confirmed", "cannot be judged"),
        ((0.3, 0.15, 0.45), "confirmed", "not confirmed", "not confirmed"),
        ((-0.2, -0.3, -0.15), "not confirmed", "confirmed", "not confirmed"),
        ((0.01, -0.04, 0.06), "not confirmed", "not confirmed", "confirmed"),
        ((0.05, -0.05, 0.15), "cannot be judged", "cannot be judged", "cannot be judged"),
        ((0.05, 0.01, 0.09), "confirmed", "not confirmed", "confirmed"),
    ],
)
def test_verdicts(change, rises, falls, stays):
    assert (more(change), less(change), alike(change)) == (rises, falls, stays)


def test_what_is_expected_names_the_test_and_without_an_interval_there_is_none():
    change = (0.2, 0.1, 0.3)
    assert [seen(its, change) for its in ("less", "more", "alike")] == [less(change), more(change), alike(change)]
    assert seen("more", None) == "cannot be judged"
    assert seen("alike", (0.005, -0.01, 0.02), 0.05) == "confirmed"
    assert seen("alike", (0.005, -0.01, 0.02), 0.001) == "cannot be judged"


@pytest.mark.parametrize(("truth", "expected"), [(0.0, "more"), (0.0, "less"), (0.1, "alike"), (-0.1, "alike")])
def test_a_finding_that_is_just_not_true_is_confirmed_in_at_most_one_of_forty(truth, expected):
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(2000):
        its = over_blocks(list(truth + 0.02 * rng.standard_normal(5)))
        wrong += seen(expected, (its.value, its.lower, its.upper)) == "confirmed"
    # 2.5 % are expected; above this with a probability under 1e-6.
    assert wrong <= 90


def test_a_finding_that_is_true_is_confirmed():
    rng = np.random.default_rng(8)
    found = [over_blocks(list(0.1 + 0.02 * rng.standard_normal(5))) for _ in range(200)]
    assert sum(more((its.value, its.lower, its.upper)) == "confirmed" for its in found) > 180
