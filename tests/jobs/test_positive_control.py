"""The positive control: its level where canary rows were learned like other rows, and its power where they were not."""

import numpy as np
import pytest
from scipy import stats

from heldin.jobs.planted.positive_control import detectable_auroc, positive_control
from heldin.record.planted_facts import ControlOutcome

# Of 2,000 audits 44 may fail if one in a hundred does; if one in twenty does, 44 or fewer do with probability 1e-10.
ROUNDS = 2000


def _shift(area):
    """Distance of two normal populations of deviation 1 with this AUROC."""
    return float(np.sqrt(2) * stats.norm.ppf(area))


def _outcomes(rows, canaries, *, seed, sizes=(400, 200, 40, 40), rounds=ROUNDS):
    dice = np.random.default_rng(seed)
    of_rows, of_canaries = _shift(rows), _shift(canaries)
    found = []
    for _ in range(rounds):
        trained, untrained, held_in, held_out = (dice.normal(size=size) for size in sizes)
        trained, held_in = trained + of_rows, held_in + of_canaries
        found.append(positive_control(trained, untrained, held_in, held_out).outcome)
    return found


@pytest.mark.parametrize("area", [0.5, 0.7, 0.99])
def test_rows_that_were_learned_alike_fail_in_one_audit_of_a_hundred_at_most(area):
    failed = sum(outcome.contradicts for outcome in _outcomes(area, area, seed=int(100 * area)))
    assert failed <= stats.binom.ppf(1 - 1e-6, ROUNDS, 0.01)


@pytest.mark.parametrize(("rows", "canaries"), [(0.7, 0.9), (0.51, 0.5)])
def test_a_private_training_that_learns_little_does_not_fail(rows, canaries):
    failed = sum(outcome.contradicts for outcome in _outcomes(rows, canaries, seed=7))
    assert failed <= stats.binom.ppf(1 - 1e-6, ROUNDS, 0.01)


@pytest.mark.parametrize("sizes", [(1000, 200, 90, 90), (400, 60, 20, 20), (1000, 1000, 300, 300)])
def test_canary_rows_without_effect_are_noticed_as_often_as_is_said(sizes):
    area = detectable_auroc(sizes[0], sizes[1], sizes[2] + sizes[3])
    outcomes = _outcomes(area, 0.5, seed=sizes[2], sizes=sizes)
    noticed = sum(outcome is ControlOutcome.NO_EFFECT for outcome in outcomes)
    # Of those noticed, a few have canary users that chance put above a half.
    assert sum(outcome.contradicts for outcome in outcomes) >= stats.binom.ppf(1e-6, ROUNDS, 0.93)
    assert noticed >= 0.9 * ROUNDS
    # Weaker learning is noticed less: the statement of power is no mere lower limit.
    weaker = _outcomes(0.5 + (area - 0.5) / 2, 0.5, seed=sizes[2], sizes=sizes)
    assert sum(outcome.contradicts for outcome in weaker) < 0.6 * ROUNDS


def test_outcomes_follow_from_what_was_learned():
    every = dict.fromkeys(ControlOutcome, 0)
    for rows, canaries in ((0.9, 0.95), (0.9, 0.5), (0.95, 0.75), (0.5, 0.5), (0.6, 0.5)):
        for outcome in _outcomes(rows, canaries, seed=3, rounds=50):
            every[outcome] += 1
    assert all(every[outcome] for outcome in ControlOutcome if outcome is not ControlOutcome.NOT_MEASURED)
    few = positive_control(np.zeros(10), np.zeros(300), np.zeros(30), np.zeros(30))
    assert (few.outcome, few.rows_auroc) == (ControlOutcome.NOT_MEASURED, None)


def test_canaries_that_were_learned_pass_although_real_rows_were_not():
    outcomes = _outcomes(0.5, 0.9, seed=1, rounds=100)
    assert outcomes.count(ControlOutcome.PASSED) >= 95
