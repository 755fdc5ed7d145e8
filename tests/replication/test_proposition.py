"""Propositions 1 and 2 of Kandpal et al. where every probability is known."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from replication import proposition as prop
from replication import proposition_sweeps as study
from replication.markov import Chain, MarkovCorpus, draw
from replication.mean_estimation_sweeps import Interval
from replication.proposition import Pair, by_enumeration, by_sampling, mixed, mixing_bound, user_against_rest
from replication.proposition_sweeps import Size
from tests.oracles.proposition import chain_rule_kl, naive_divergences
from tests.refusals import refused

SPEC = MarkovCorpus(users=4, vocabulary=5, length=5, distinctiveness=0.6, seed=2)
FEW = Size(SPEC, 0.25, (0.3, 0.9))
MANY = Size(dataclasses.replace(SPEC, vocabulary=8, length=12, distinctiveness=0.3), 0.1, (0.2, 0.5))

shares = st.floats(0.0, 1.0)
specs = st.builds(
    MarkovCorpus,
    users=st.integers(2, 4),
    vocabulary=st.integers(2, 4),
    length=st.integers(1, 4),
    distinctiveness=st.floats(0.05, 1.0),
    seed=st.integers(0, 10_000),
)


@given(spec=specs, alpha=st.floats(1e-4, 0.999), kept_p=shares, kept_q=shares)
@settings(max_examples=40, deadline=None)
def test_enumeration_is_the_sum_over_every_sequence(spec, alpha, kept_p, kept_q):
    pair = mixed(user_against_rest(spec), kept_p, kept_q)
    found = by_enumeration(pair, [alpha])
    kl, chi, statistic = naive_divergences(pair, alpha)
    assert found.kl.value == pytest.approx(kl, rel=1e-8, abs=1e-11)
    assert found.chi_squared.estimate.value == pytest.approx(chi, rel=1e-8, abs=1e-11)
    assert found.points[0].statistic.value == pytest.approx(statistic, rel=1e-8, abs=1e-11)
    assert found.draws is None


@given(spec=specs, alphas=st.lists(st.floats(1e-4, 0.999), min_size=2, max_size=5, unique=True))
@settings(max_examples=60, deadline=None)
def test_the_bounds_bracket_and_the_statistic_grows(spec, alphas):
    found = by_enumeration(user_against_rest(spec), sorted(alphas))
    for point in found.points:
        for distance in (point.over_lower, point.over_jensen, point.under_upper, point.under_jensen):
            assert distance.value >= -1e-12
        # Jensen's two are inside the paper's two.
        assert point.over_lower.value >= point.over_jensen.value - 1e-12
        assert point.under_upper.value >= point.under_jensen.value - 1e-12
    assert all(rise.value >= -1e-12 for rise in found.growth)
    chi = found.chi_squared
    assert chi.floor * (1 - 1e-9) <= chi.estimate.value + 1e-9
    assert chi.estimate.value * (1 - 1e-9) <= chi.ceiling + 1e-9


@given(spec=specs, kept_p=shares, kept_q=shares, alpha=st.floats(0.01, 0.9))
@settings(max_examples=60, deadline=None)
def test_mixing_brings_users_as_close_as_corrected_proposition_2_says(spec, kept_p, kept_q, alpha):
    pair = user_against_rest(spec)
    forwards, backwards, after = (
        by_enumeration(mixed(pair, *kept), [alpha]) for kept in ((1, 1), (0, 0), (kept_p, kept_q))
    )
    for of in (
        lambda its: its.kl.value,
        lambda its: its.chi_squared.estimate.value,
        lambda its: its.points[0].statistic.value,
    ):
        most = mixing_bound(kept_p, kept_q, of(forwards), of(backwards))
        assert of(after) <= most * (1 + 1e-9) + 1e-9
        proofs = kept_p * kept_q * of(forwards) + (1 - kept_p) * (1 - kept_q) * of(backwards)
        assert most <= proofs * (1 + 1e-9) + 1e-9


def _coin(heads):
    """A law of one token of two."""
    return Chain(np.array([heads, 1 - heads]), np.full((2, 2), 0.5))


def test_proposition_2_as_printed_has_a_counterexample():
    """P = (0.99, 0.01), Q = (0.5, 0.5), all labels wrong: KL is 1.614 after mixing and was 0.637 before."""
    pair = Pair((_coin(0.99), _coin(0.5)), np.array([1.0, 0.0]), np.array([0.0, 1.0]), 1)
    before = by_enumeration(pair, []).kl.value
    assert before == pytest.approx(0.99 * math.log(1.98) + 0.01 * math.log(0.02))
    assert by_enumeration(mixed(pair, 0, 0), []).kl.value == pytest.approx(0.5 * math.log(0.25 / 0.0099))
    assert by_enumeration(mixed(pair, 0.02, 0.02), []).kl.value > 1.5 * before  # nor is it the corner alone
    assert by_enumeration(mixed(pair, 0.9, 0.2), []).kl.value < 0.1 * before + 1e-12


def _misses(truth, found):
    return sum(not its.low <= truth <= its.high for its in found)


def test_sampled_intervals_cover_the_enumerated_truth_and_no_other():
    pair, alphas, trials = user_against_rest(SPEC), (0.01, 0.3), 120
    truth = by_enumeration(pair, alphas)
    sampled = [by_sampling(pair, alphas, 3000, np.random.default_rng(seed)) for seed in range(trials)]
    few = stats.binom.isf(1e-7, trials, 0.05)

    def series(its):
        points = [value for point in its.points for value in (point.statistic, point.over_lower, point.over_jensen)]
        return [its.kl, its.chi_squared.estimate, *its.growth, *points]

    for right, found in zip(series(truth), zip(*map(series, sampled), strict=True), strict=True):
        assert _misses(right.value, found) <= few
        assert _misses(right.value * 1.2, found) > few
        widths = np.mean([its.high - its.low for its in found]) / (2 * 1.96)
        assert 0.7 < widths / np.std([its.value for its in found]) < 1.4  # nor is any wider than it need be


def _two(length, distinctiveness=0.25):
    spec = MarkovCorpus(users=2, vocabulary=8, length=length, distinctiveness=distinctiveness, seed=3)
    return user_against_rest(spec)


@pytest.mark.parametrize("distinctiveness", [0.25, 0.6])
def test_of_two_chains_the_exact_values_are_known_at_any_length(distinctiveness):
    """KL by the chain rule, chi2 (up to 2e21) by matrix powers: far beyond enumeration the samplers find them."""
    pair = _two(48, distinctiveness)
    found = by_sampling(pair, [0.1], 40_000, np.random.default_rng(1))
    kl, chi = chain_rule_kl(*pair.chains, 48), prop.chi_squared_ceiling(pair)
    assert abs(found.kl.value - kl) < 1.5 * (found.kl.high - found.kl.low)  # about six standard errors
    assert found.kl.value == pytest.approx(kl, rel=0.02)
    estimate = found.chi_squared.estimate
    assert abs(estimate.value - chi) < 1.5 * (estimate.high - estimate.low) < 0.4 * chi


def test_the_ceiling_of_two_chains_is_exact():
    pair = _two(6)
    assert by_enumeration(pair, []).chi_squared.estimate.value == pytest.approx(prop.chi_squared_ceiling(pair))


def test_the_plain_mean_of_the_ratio_would_be_confidently_wrong():
    """Why chi2 is not the mean of D_u / D_-u over D_u: its 95 % interval lies far below the truth."""
    pair = _two(48)
    ratio = np.exp(prop.log_ratios(pair, draw(pair.chains[0], 40_000, 48, np.random.default_rng(1))))
    assert ratio.mean() + 1.96 * ratio.std() / math.sqrt(ratio.size) < 0.7 * prop.chi_squared_ceiling(pair)


def test_an_interval_of_filters_that_disagree_is_refused():
    pair = user_against_rest(dataclasses.replace(SPEC, vocabulary=16, length=48, distinctiveness=1.0))
    found = by_sampling(pair, [0.1], 2000, np.random.default_rng(0))
    chi = found.chi_squared
    assert chi.estimate is None
    assert chi.spread > prop.LARGEST_SPREAD
    assert 0 < chi.floor < chi.ceiling
    assert chi.limits == (chi.floor, chi.ceiling)
    assert found.points[0].under_upper.low == 0.1 * chi.floor - found.points[0].statistic.high


def test_what_cannot_be_measured_is_one_clear_line():
    pair = user_against_rest(SPEC)
    with refused(by="_measured", naming=("alpha_u", "1", "(0, 1)")):
        by_enumeration(pair, [1.0])
    with refused(by="by_sampling", naming=("draws", "1")):
        by_sampling(pair, [0.5], 1, np.random.default_rng(0))
    with refused(by="by_enumeration", naming="9,765,625"):
        by_enumeration(dataclasses.replace(pair, length=10), [])
    with refused(by="user_against_rest", naming=("users", "1")):
        user_against_rest(dataclasses.replace(SPEC, users=1))


@pytest.fixture(scope="module")
def small():
    return study.run_study(4000, 1, sizes=(FEW, MANY))


def test_the_study_confirms_all_but_proposition_2_as_printed(small):
    assert [finding.confirmed for finding in small.findings] == [True, True, True, True, False, True]
    assert [result.over_alpha.draws for result in small.results] == [None, 4000]
    apart = [mix for its in small.results for mix in its.mixes if mix.kl.low > its.forwards.high]
    assert apart
    assert all(mix.kept_p + mix.kept_q < 1 for mix in apart)  # with most labels right it holds


def test_findings_would_notice_wrong_numbers(small):
    """T lower at the largest share, so below its lower bound and no longer growing; mixes further apart."""
    result = small.results[0]
    *before, last = result.over_alpha.points
    shift = -0.3 * last.statistic.value

    def moved(its, by):
        return Interval(its.value + by, its.low + by, its.high + by)

    wrong = dataclasses.replace(
        last,
        statistic=moved(last.statistic, shift),
        over_lower=moved(last.over_lower, shift),
        over_jensen=moved(last.over_jensen, shift),
    )
    growth = (*result.over_alpha.growth[:-1], moved(result.over_alpha.growth[-1], shift))
    measured = dataclasses.replace(result.over_alpha, points=(*before, wrong), growth=growth)
    mixes = tuple(dataclasses.replace(mix, kl=moved(mix.kl, 0.4)) for mix in result.mixes)
    values = result.over_distinctiveness[::-1]
    findings = study.judge([dataclasses.replace(result, over_alpha=measured, mixes=mixes, over_distinctiveness=values)])
    assert not any(finding.confirmed for finding in findings)


def test_table_and_numbers_say_what_was_found(small):
    text = study.table(small)
    assert "4 users, 5 words, 5 tokens: 3,125 sequences, all enumerated" in text
    assert "4 users, 8 words, 12 tokens: 7e+10 sequences, 4,000 drawn" in text
    assert text.count("\nconfirmed: ") == 5
    assert text.count("\nnot confirmed: ") == 1
    numbers = json.loads(json.dumps(small.as_dict(), allow_nan=False))
    point = numbers["results"][0]["over_alpha"]["points"][3]
    assert f"{point['statistic']['value']:.4g}" in text
    assert [its["confirmed"] for its in numbers["findings"]] == [True, True, True, True, False, True]
    steps = []
    study.run_study(200, 1, sizes=(FEW,), advance=steps.append)
    assert sum(steps) == study.pairs_of((FEW,)) == 1 + 2 + 81


def test_a_refused_chi_squared_is_said(small):
    size = dataclasses.replace(MANY, distinctiveness=(0.2, 1.0))
    text = study.table(study.run_study(1200, 1, sizes=(size,)))
    assert "refused (" in text
    assert " by proof" in text
