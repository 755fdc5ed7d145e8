"""Clopper-Pearson bounds against docs/theory.md#independent-trainings and slow twins, and what every bound refuses."""

import math

import numpy as np
import pytest
from scipy import special

from heldin.base.errors import ConstantScores, NothingToSay, TooFewUsers
from heldin.bounds import bands
from heldin.bounds import thresholds as bounds
from heldin.bounds.one_run import Guesses, one_run_p_value
from heldin.bounds.scores import LabelledScores, join
from heldin.bounds.thresholds import Counts, clopper_pearson, gaussian_conversion
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.events import UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from tests.drawn_scores import gaussian_scores
from tests.oracles import bounds as slow
from tests.refusals import raised_apart, refused
from tests.theory_tables import numbers


@pytest.mark.parametrize("row", numbers("table-of-largest-certifiable-epsilons"))
def test_largest_certifiable_by_clopper_pearson(row):
    half, epsilon = int(row[0]) // 2, row[-1]
    found = clopper_pearson(Counts(half, half, 0, half), 0.0, pairs=1)
    assert found == pytest.approx(epsilon, abs=6e-3)


def test_clopper_pearson_limits():
    for k, n in [(0, 10), (1, 10), (7, 10), (10, 10), (40, 60)]:
        lower = float(bounds.rate_at_least(k, n, 0.0125))
        assert lower == pytest.approx(slow.clopper_pearson_lower(k, n, 0.0125), abs=1e-10)
        assert float(bounds.rate_at_most(n - k, n, 0.0125)) == pytest.approx(1 - lower, abs=1e-10)


def test_clopper_pearson_by_hand():
    counts = Counts(70, 100, 20, 100)
    tpr, fpr = slow.clopper_pearson_lower(70, 100, 0.0125), 1 - slow.clopper_pearson_lower(80, 100, 0.0125)
    expected = max(math.log((tpr - 1e-3) / fpr), math.log((1 - fpr - 1e-3) / (1 - tpr)))
    assert clopper_pearson(counts, 1e-3) == pytest.approx(expected, rel=1e-9)
    assert clopper_pearson(counts, 0.9) == 0.0
    mirrored = Counts(80, 100, 30, 100)
    assert clopper_pearson(mirrored, 0.0) == pytest.approx(clopper_pearson(counts, 0.0), rel=1e-9)
    assert clopper_pearson(counts, 0.0, pairs=20) < clopper_pearson(counts, 0.0)


def test_gaussian_conversion():
    counts = Counts(70, 100, 20, 100)
    tpr, fpr = slow.clopper_pearson_lower(70, 100, 0.025), 1 - slow.clopper_pearson_lower(80, 100, 0.025)
    epsilon, mu = gaussian_conversion(counts, 1e-5)
    assert mu == pytest.approx(special.ndtri(tpr) - special.ndtri(fpr), rel=1e-9)
    assert epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert gaussian_conversion(Counts(20, 100, 70, 100), 1e-5) == (0.0, 0.0)


def test_several_thresholds_and_attacks_are_paid_for():
    scores = gaussian_scores(1.5, 200)
    one = bounds.threshold_bound(scores, [1.0], 1e-5)
    assert one.epsilon == clopper_pearson(bounds.counts_at(scores, 1.0), 1e-5, pairs=2)
    three = bounds.threshold_bound(scores, [1.0, 50.0, 60.0], 1e-5)
    assert three.epsilon == clopper_pearson(bounds.counts_at(scores, 1.0), 1e-5, pairs=6) < one.epsilon
    assert bounds.threshold_bound(scores, [1.0], 1e-5, attacks=3).epsilon == pytest.approx(three.epsilon)
    assert bounds.threshold_gaussian_bound(scores, [1.0, 9.0], 1e-5).mu == pytest.approx(
        gaussian_conversion(bounds.counts_at(scores, 1.0), 1e-5, thresholds=2)[1]
    )
    with refused(by="threshold_bound"):
        bounds.threshold_bound(scores, [], 1e-5)


def test_split_halves_choose_and_test_on_different_trials():
    scores = gaussian_scores(2.0, 400)
    found = bounds.split_bound(scores, 1e-5)
    choose, test = bounds.halves(scores, 0)
    assert found.counts == bounds.counts_at(test, found.threshold)
    assert found.threshold in choose.scores
    assert sorted([*choose.held_in, *test.held_in]) == sorted(scores.held_in)
    assert 0.5 < found.epsilon < gaussian_epsilon(2.0, 1e-5)
    assert 1.4 < bounds.split_gaussian_bound(scores, 1e-5).mu < 2.0
    assert bounds.split_bound(gaussian_scores(-2.0, 400), 1e-5).epsilon == 0.0
    with refused(by="halves", naming=("1", "2")):
        bounds.halves(LabelledScores(np.array([1.0, 2, 3]), np.array([True, False, False])), 0)


def test_thresholds_against_a_ceiling():
    ceiling = ceiling_of(UnamplifiedGaussian(1.0, 1), 1, 1e-5)
    assert bounds.thresholds_violate(gaussian_scores(2.0, 300), [1.0], ceiling)
    assert not bounds.thresholds_violate(gaussian_scores(1.0, 300), [1.0], ceiling)


def test_labelled_scores_refuse():
    good, member = np.array([1.0, 2, 3]), np.array([True, False, True])
    with refused(by="LabelledScores.__post_init__", naming=("row 1", "nan")):
        LabelledScores(np.array([1.0, math.nan, 3]), member, ("al", "bo", "cy"))
    with refused(by="LabelledScores.__post_init__", naming=("row 2", "inf")):
        LabelledScores(np.array([1.0, 2, math.inf]), member)
    with refused(by="LabelledScores.__post_init__", kind=TooFewUsers):
        LabelledScores(good, np.ones(3, dtype=bool))
    with refused(by="LabelledScores.__post_init__", naming=("3", "7"), kind=ConstantScores):
        LabelledScores(np.full(3, 7.0), member)
    with refused(by="LabelledScores.__post_init__") as repeated:
        LabelledScores(good, member, ("al", "al", "cy"))
    with refused(by="LabelledScores.__post_init__", naming=("(3,)", "(2,)")) as uneven:
        LabelledScores(good, member[:2])
    assert raised_apart(repeated, uneven)
    assert not isinstance(repeated.value, NothingToSay)


def test_join_refuses():
    scores = {"al": 1.0, "bo": 2.0}
    assert join(scores, {"al"}, {"bo"}).users == ("al", "bo")
    with refused(by=join, naming="1 user"):
        join(scores, {"al"}, {"al", "bo"})
    with refused(by=join, naming="1 user"):
        join(scores, {"al"}, set())
    with refused(by=join, naming="1 user"):
        join(scores, {"al"}, {"bo", "cy"})


def test_levels_and_deltas_refuse():
    with refused(by="check_alpha", naming=("1.5", "(0, 1)")):
        bands.dkw_band(gaussian_scores(1, 10), alpha=1.5)
    with refused(by="check_alpha", naming="0 attacks"):
        bands.dkw_band(gaussian_scores(1, 10), attacks=0)
    with refused(by="check_bound_delta", naming=("1.0", "[0, 1)")):
        one_run_p_value(Guesses(10, 10, 5), 1.0, 1.0)
    with refused(by="Guesses.__post_init__", naming=("11", "10")):
        Guesses(10, 10, 11)
    with refused(by="Counts.__post_init__", naming=("true_positives=3", "members=2")):
        Counts(3, 2, 0, 2)
