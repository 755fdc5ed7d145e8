"""The rule that names a defense to ship: against its tests one by one, and how often it is wrong or silent."""

import numpy as np
import pytest
from scipy import stats

from heldin.audit.requirement import Requirement
from heldin.audit.shipping import Candidate, judge_candidates, probability_of_passing

AUROC, GAIN = Requirement("auroc", at_most=0.6), Requirement("gain", at_least=0.05)
EPSILON = Requirement("epsilon", at_most=8.0)


def candidate(name, auroc, gain, epsilon=8.0, **changes):
    return Candidate(name, {"epsilon": epsilon}, {"auroc": auroc, "gain": [gain]}, **changes)


def test_against_one_sided_t_tests_and_holm_by_hand():
    rng = np.random.default_rng(1)
    for _ in range(50):
        its = [candidate(n, rng.normal(0.55, 0.03, (2, 5)).tolist(), rng.normal(0.1, 0.03, 5).tolist()) for n in "abc"]
        found = judge_candidates(its, [EPSILON, AUROC, GAIN], 0.05)
        p = [
            max(
                *(stats.ttest_1samp(row, 0.6, alternative="less").pvalue for row in one.measured["auroc"]),
                stats.ttest_1samp(one.measured["gain"][0], 0.05, alternative="greater").pvalue,
            )
            for one in its
        ]
        left, passing = dict(enumerate(p)), set()
        while left and min(left.values()) <= 0.05 / len(left):
            i = min(left, key=left.get)
            passing.add(i)
            del left[i]
        assert {i for i, one in enumerate(found) if one.passes} == passing
        for one, result in zip(its, found, strict=True):
            test = result.tests[1]
            worst = max(one.measured["auroc"], key=lambda row: stats.ttest_1samp(row, 0.6, alternative="less").pvalue)
            upper = stats.ttest_1samp(worst, 0.6, alternative="less").confidence_interval(0.95).high
            assert test.limit == pytest.approx(upper, abs=1e-4)
            assert test.value == pytest.approx(np.mean(worst), abs=1e-4)


def test_exact_measures_and_disqualification():
    good = ([[0.5, 0.51, 0.49, 0.5, 0.5]], [0.3, 0.31, 0.29, 0.3, 0.3])
    passes, above, without, contradicted = judge_candidates(
        [
            candidate("passes", *good),
            candidate("above", *good, epsilon=8.1),
            candidate("without", *good, epsilon=None),
            candidate("contradicted", *good, disqualified="block 1: a claim is contradicted"),
        ],
        [EPSILON, AUROC, GAIN],
        0.05,
    )
    assert (passes.passes, passes.breaks, passes.blocks_needed) == (True, False, None)
    for its in (above, without, contradicted):
        assert (its.passes, its.breaks, its.blocks_needed) == (False, True, None)
    assert above.tests[0].p_value == 1.0
    assert without.tests[0].value is None


def test_what_is_shown_to_break_a_limit_and_what_more_blocks_would_show():
    rng = np.random.default_rng(2)
    leaks = candidate("leaks", [(0.8 + 0.01 * rng.normal(size=5)).tolist()], [0.3, 0.31, 0.29, 0.3, 0.3])
    unsure = candidate("unsure", [[0.5, 0.66, 0.5, 0.62, 0.52]], [0.3, 0.31, 0.29, 0.3, 0.3])
    one, two = judge_candidates([leaks, unsure], [AUROC, GAIN], 0.05)
    assert (one.passes, one.breaks, one.blocks_needed) == (False, True, None)
    assert (two.passes, two.breaks) == (False, False)
    # Its gain is large enough: it is one limit that is broken, and none of the other's is.
    assert [[test.broken for test in its.tests] for its in (one, two)] == [[True, False], [False, False]]
    assert two.blocks_needed > 5
    # As many blocks of that mean and spread do pass, and one fewer do not.
    room = 0.6 - np.array([0.5, 0.66, 0.5, 0.62, 0.52])
    for blocks, passes in ((two.blocks_needed, True), (two.blocks_needed - 1, False)):
        t = room.mean() / room.std(ddof=1) * np.sqrt(blocks)
        assert (stats.t.sf(t, blocks - 1) <= 0.025) is np.bool_(passes)


def _rates(truths, runs, seed, *, spread=0.04):
    """How often somebody who breaks a limit passes, how often anybody passes, and how often all are shown to break one.

    Candidates of a block share its coins: their values are correlated.
    """
    rng = np.random.default_rng(seed)
    wrong = some = none = 0
    for _ in range(runs):
        shared = rng.normal(size=5)
        its = [
            candidate(
                str(i),
                [(auroc + spread * (0.6 * shared + 0.8 * rng.normal(size=5))).tolist()],
                (gain + spread * rng.normal(size=5)).tolist(),
            )
            for i, (auroc, gain) in enumerate(truths)
        ]
        found = judge_candidates(its, [EPSILON, AUROC, GAIN], 0.05)
        passing = [truth for truth, its in zip(truths, found, strict=True) if its.passes]
        wrong += any(auroc > 0.6 or gain < 0.05 for auroc, gain in passing)
        some += bool(passing)
        none += all(its.breaks for its in found)
    return wrong, some, none


RUNS = 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    "truths",
    [
        [(0.601, 0.5), (0.601, 0.5), (0.601, 0.5)],
        [(0.5, 0.049), (0.601, 0.9), (0.5, 0.049)],
        [(0.601, 0.049), (0.45, 0.9), (0.601, 0.9)],
    ],
    ids=["leak barely", "each breaks another", "one keeps all"],
)
def test_what_barely_breaks_a_limit_is_shipped_in_at_most_five_of_a_hundred_sweeps(truths):
    wrong, _, _ = _rates(truths, RUNS, 3)
    assert wrong <= stats.binom.isf(1e-6, RUNS, 0.05)


@pytest.mark.slow
def test_without_paying_for_candidates_more_would_be():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(RUNS):
        its = [candidate(str(i), [rng.normal(0.601, 0.04, 5).tolist()], [0.5, 0.51, 0.5, 0.49, 0.5]) for i in range(3)]
        wrong += any(judge_candidates([one], [AUROC, GAIN], 0.05)[0].passes for one in its)
    assert wrong > stats.binom.isf(1e-6, RUNS, 0.05)


def test_clear_cases_are_answered():
    _, some, _ = _rates([(0.5, 0.4), (0.75, 0.6), (0.5, 0.0)], 500, 5)
    assert some >= 0.8 * 500
    _, some, none = _rates([(0.8, 0.4), (0.85, 0.6), (0.5, -0.3)], 500, 6)
    assert some == 0
    assert none >= 0.8 * 500


@pytest.mark.slow
def test_the_probability_of_passing_is_that_of_simulated_sweeps():
    rng = np.random.default_rng(7)
    for room, blocks in ((0.1, 5), (0.05, 5), (0.1, 3)):
        p = [stats.ttest_1samp(rng.normal(room, 0.04, blocks), 0, alternative="greater").pvalue for _ in range(RUNS)]
        count = int(np.sum(np.array(p) <= 0.05 / 3))
        expected = probability_of_passing(room, 0.04, blocks, 0.05 / 3)
        low, high = stats.binom.ppf(5e-7, RUNS, expected), stats.binom.ppf(1 - 5e-7, RUNS, expected)
        assert low <= count <= high
