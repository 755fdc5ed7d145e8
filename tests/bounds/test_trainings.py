"""What independent trainings certify: the threshold, the bound, its coverage and its reach."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from heldin.bounds.thresholds import Counts, clopper_pearson
from heldin.bounds.trainings import (
    BOUND,
    COVERAGE,
    certify,
    forecast,
    pick_threshold,
    pilot_size,
    reach_line,
)
from heldin.bounds.verdict import stated_claim
from tests.coverage.measure import SLACK, most_wrong
from tests.coverage.mechanisms import DELTA, gaussian, randomised_response, subsampled
from tests.refusals import names, refused


def test_200_trainings_reach_328_and_the_line_says_so():
    assert names(reach_line(200), "200 training runs", "epsilon 3.28")
    # from the rates' exact limits, without the code under test: all 100 of 100 right at 2.5 % each
    low = 0.025 ** (1 / 100)
    assert np.log(low / (1 - low)) == pytest.approx(3.28, abs=5e-3)
    member = np.arange(200) % 2 == 0
    found = certify(member + 0.0, member, threshold=0.5, delta=1e-9)
    assert found.epsilon == pytest.approx(np.log(low / (1 - low)), rel=1e-6)
    assert found.counts == Counts(100, 100, 0, 100)
    assert found.reach == found.epsilon


def test_the_first_quarter_picks_and_is_not_tested():
    member = np.arange(80) % 2 == 0
    scores = np.where(member, 1.0, 0.0)
    scores[20:40] = 1.0 - scores[20:40]  # wrong where it is tested
    found = certify(scores, member, threshold=None, delta=DELTA)
    assert (found.pilot, found.threshold) == (20, 0.5)
    assert found.counts == Counts(20, 30, 10, 30)
    scores[:20] *= 9.0  # the first ones have a say in the threshold and in nothing else
    moved = certify(scores, member, threshold=None, delta=DELTA)
    assert (moved.threshold, moved.counts) == (4.5, Counts(0, 30, 0, 30))
    assert certify(-scores, member, threshold=None, delta=DELTA).epsilon == 0.0  # worse than guessing is no error
    one_sided = np.concatenate([np.ones(20, bool), member[20:]])
    assert pilot_size(one_sided, None) == 0
    assert certify(np.where(one_sided, 1.0, 0.0), one_sided, threshold=None, delta=DELTA).threshold is None


def test_the_threshold_is_the_one_a_search_over_all_finds():
    rng = np.random.default_rng(5)
    for _ in range(20):
        member = rng.random(40) < 0.5
        scores = rng.standard_normal(40).round(1) + member  # with ties
        picked = pick_threshold(scores, member, DELTA)

        def worth(threshold, scores=scores, member=member):
            held_in, held_out = scores[member], scores[~member]
            low = stats.beta.ppf(0.025, (held_in >= threshold).sum(), (held_in < threshold).sum() + 1)
            high = stats.beta.ppf(0.975, (held_out >= threshold).sum() + 1, (held_out < threshold).sum())
            low, high = np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=1.0)
            return max((low - DELTA) / high, (1 - high - DELTA) / (1 - low))

        inner = np.unique(scores)
        assert worth(picked) == pytest.approx(max(worth(t) for t in (inner[1:] + inner[:-1]) / 2))
    assert pick_threshold(np.array([0.0, 0.1, 5.0, 5.1]), np.array([False, False, True, True]), DELTA) == 2.55
    assert pick_threshold(np.ones(4), np.array([False, False, True, True]), DELTA) == 1.0


def test_the_bound_stands_first_and_bounds_that_need_no_threshold_use_all_trainings():
    rng = np.random.default_rng(0)
    member = rng.random(120) < 0.5
    found = certify(rng.standard_normal(120) + 3 * member, member, threshold=None, delta=DELTA)
    names = [bound.name for bound in found.judgement.bounds]
    assert names[0] == BOUND
    assert {"one-run", "ROC band", "AUROC"} <= set(names)
    assert "Clopper-Pearson, fixed" not in {r.name for r in found.judgement.refused}
    assert found.judgement.users == 120
    assert found.judgement.bounds[0].epsilon_lower == found.epsilon
    # the same limits pay for both directions: never below the bound that pays for each
    assert found.epsilon >= clopper_pearson(found.counts, DELTA, pairs=2)


def _wrong(known, audits: int, runs: int, seed: int) -> tuple[int, int]:
    """How often (the bound is above the true epsilon, the true curve is called contradicted)."""
    rng = np.random.default_rng(seed)
    above = rejected = 0
    for _ in range(audits):
        member = rng.random(runs) < 0.5
        scores = known.draw(member, rng)
        at = pick_threshold(scores[: runs // 4], member[: runs // 4], known.delta)
        tested = scores[runs // 4 :], member[runs // 4 :]
        k, n1 = int((tested[0][tested[1]] >= at).sum()), int(tested[1].sum())
        j, n0 = int((tested[0][~tested[1]] >= at).sum()), int((~tested[1]).sum())
        low, high = _limits(k, n1, j, n0)
        ratio = max((low - known.delta) / high, (1 - high - known.delta) / (1 - low))
        above += np.log(max(1.0, ratio)) > known.epsilon + SLACK
        rejected += low > known.ceiling.tpr_at(high)
    return above, rejected


def _limits(k, n1, j, n0):
    from heldin.bounds.thresholds import limits

    return limits(Counts(k, n1, j, n0), 0.025)


def test_the_simulation_is_of_the_code_that_certifies():
    rng = np.random.default_rng(4)
    known = gaussian(4.0)
    for _ in range(5):
        member = rng.random(100) < 0.5
        scores = known.draw(member, rng)
        found = certify(scores, member, threshold=None, delta=known.delta, claims=[known.claim])
        at = pick_threshold(scores[:25], member[:25], known.delta)
        assert found.threshold == at
        c = found.counts
        low, high = _limits(c.true_positives, c.members, c.false_positives, c.non_members)
        assert c.members + c.non_members == 75
        ratio = max((low - known.delta) / high, (1 - high - known.delta) / (1 - low))
        assert found.epsilon == pytest.approx(np.log(max(1.0, ratio)))
        assert (found.judgement.verdict.outcome == "contradicted") == (low > known.ceiling.tpr_at(high))


def test_a_true_mechanism_is_rarely_called_wrong_and_a_false_claim_often():
    above, rejected = _wrong(randomised_response(1.0), 400, 200, seed=2)
    assert above <= most_wrong(400)
    assert rejected <= most_wrong(400)
    liar = replace(randomised_response(3.0), epsilon=1.0, ceiling=randomised_response(1.0).ceiling)
    above, rejected = _wrong(liar, 400, 200, seed=2)
    assert above > 380
    assert rejected > 380


@pytest.mark.slow
def test_coverage_is_what_the_record_says():
    audits, shares = 2000, []
    for epsilon in (0.0, 0.5, 1.0, 4.0):
        for known in (
            randomised_response(epsilon),
            gaussian(epsilon),
            *([subsampled(epsilon)] if epsilon else []),
        ):
            for runs in (60, 200):
                above, rejected = _wrong(known, audits, runs, seed=9)
                assert above <= most_wrong(audits), (known.name, epsilon, runs)
                assert rejected <= most_wrong(audits), (known.name, epsilon, runs)
                shares.append(1 - above / audits)
    assert min(shares) == pytest.approx(COVERAGE, abs=2e-3)


def test_too_few_trainings_are_refused_before_they_are_paid_for():
    member = np.arange(8) % 2 == 0
    with refused(by=forecast, naming=("8", "--trainings")):
        forecast(member, None, DELTA, [])
    member = np.arange(16) % 2 == 0  # enough for a bound, and not for two claims that pay for each other
    assert forecast(member, None, DELTA, [stated_claim(1.0, 1e-5)])
    with refused(by=forecast, naming=("16", "6", "0.025")):
        forecast(member, None, DELTA, [stated_claim(1.0, 1e-5), stated_claim(2.0, 1e-5)])
    member = np.arange(200) % 2 == 0
    lines = forecast(member, None, DELTA, [stated_claim(2.0, 1e-5), stated_claim(3.1, 1e-5)])
    assert names(lines[0], "50", "75", "epsilon 2.99")
    assert [" not " in line for line in lines[1:]] == [False, True]
    assert names(lines[1], "epsilon 2 at delta 1e-05")
    assert names(lines[2], "epsilon 3.1 at delta 1e-05")
