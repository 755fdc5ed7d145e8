"""The paired difference of AUROCs against pairs counted one by one, the bootstrap, and its coverage."""

import numpy as np
import pytest
from scipy import special

from heldin.audit.bootstrap import bootstrap
from heldin.audit.limits import auroc_difference, independent_difference
from heldin.bounds.roc import auroc


def _two_attacks(rng, n1=60, n0=50, common=1.0, gain=0.3):
    """Scores that share each user's difficulty; the second separates better by ``gain``."""
    held_in, held_out = rng.normal(0.5, common, n1), rng.normal(0, common, n0)
    first = held_in + rng.normal(0, 0.5, n1), held_out + rng.normal(0, 0.5, n0)
    return first, (held_in + gain + rng.normal(0, 0.5, n1), held_out + rng.normal(0, 0.5, n0))


def _variance_by_pairs(first, second):
    """DeLong's variance from the definition: every placement by its own loop."""

    def placements(held_in, held_out):
        kernel = [[1.0 if a > b else 0.5 if a == b else 0.0 for b in held_out] for a in held_in]
        return np.mean(kernel, axis=1), np.mean(kernel, axis=0)

    (v10, v01), (w10, w01) = placements(*first), placements(*second)
    return np.var(w10 - v10, ddof=1) / len(v10) + np.var(w01 - v01, ddof=1) / len(v01)


def test_value_and_limits_are_those_of_pairs_counted_one_by_one():
    first, second = _two_attacks(np.random.default_rng(0))
    first = tuple(np.round(part, 1) for part in first)  # with ties
    found = auroc_difference(first, second)
    value, lower, upper = found.value, found.lower, found.upper
    assert value == pytest.approx(auroc(*second) - auroc(*first))
    reach = 1.959963984540054 * np.sqrt(_variance_by_pairs(first, second))
    assert (lower, upper) == pytest.approx((value - reach, value + reach))


def test_without_an_error_to_estimate_there_is_no_interval():
    first, second = _two_attacks(np.random.default_rng(1))
    assert auroc_difference(first, first) is None
    assert auroc_difference((first[0][:1], first[1]), (second[0][:1], second[1])) is None
    perfect, constant = (np.ones(3), np.zeros(3)), (np.zeros(3), np.zeros(3))
    assert auroc_difference(perfect, constant) is None
    separating = np.arange(60) + 100.0, np.arange(50) * 1.0
    assert auroc_difference(first, separating) is None
    assert auroc_difference(separating, first) is None


def test_the_interval_covers_the_truth_and_an_interval_for_unpaired_scores_is_needlessly_wide():
    """2,000 repeats; at 95 % at most 145 misses happen by chance with probability 1 - 1e-6, and not under half."""
    rng = np.random.default_rng(2)
    truth = np.mean([auroc(*b) - auroc(*a) for a, b in (_two_attacks(rng, 4000, 4000) for _ in range(30))])
    repeats = [auroc_difference(*_two_attacks(rng)) for _ in range(2000)]
    missed = sum(not its.lower <= truth <= its.upper for its in repeats)
    assert 55 < missed < 150
    halved = sum(not (its.value + its.lower) / 2 <= truth <= (its.value + its.upper) / 2 for its in repeats)
    assert halved > 300


def test_independent_limits_join_and_keep_what_is_asymmetric():
    value, lower, upper = independent_difference((0.6, 0.57, 0.63), (0.7, 0.66, 0.74))
    assert (value, lower, upper) == pytest.approx((0.1, 0.05, 0.15))
    value, lower, upper = independent_difference((0.85, 0.73, 0.95), (1.0, 0.83, 1.0))  # told apart completely
    assert (value, upper) == pytest.approx((0.15, 0.27))
    assert lower == pytest.approx(0.15 - np.hypot(0.17, 0.1))


def test_the_interval_of_independent_runs_covers_the_truth_even_where_one_is_told_apart_completely():
    """2,000 pairs of 12 users a side; an error of zero for those told apart completely misses far more."""
    rng = np.random.default_rng(3)
    truth = float(special.ndtr(4.0 / np.sqrt(2)) - special.ndtr(2.8 / np.sqrt(2)))
    missed = careless = 0
    for _ in range(2000):
        limits = []
        for mu in (2.8, 4.0):
            found = bootstrap(rng.normal(mu, 1, 12), rng.normal(0, 1, 12), (), resamples=200, seed=0).auroc
            limits.append(found)
        a, b = limits
        _, lower, upper = independent_difference((a.value, a.lower, a.upper), (b.value, b.lower, b.upper))
        reach = 1.96 * np.hypot(a.deviation, b.deviation)
        missed += not lower <= truth <= upper
        careless += abs(b.value - a.value - truth) > reach
    assert missed < 160  # nominally 100; more than 160 by chance with probability 1e-8
    assert careless > 400
