"""The positive control: its level where canary rows were learned like other rows, and its power where they were not."""

import numpy as np
import pytest
from scipy import stats

from heldin.planting.positive_control import LEFT, canaries_needed, noticed_from, positive_control
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


def _filtered(area, sizes, *, seed, rounds=ROUNDS):
    """Outcomes where the filter that leaves most leaves its share of a canary user's effect."""
    left = float(stats.norm.cdf(max(LEFT.values()) * stats.norm.ppf(area)))
    return _outcomes(area, left, seed=seed, sizes=sizes, rounds=rounds)


@pytest.mark.parametrize(
    "sizes",
    [
        (400, 400, 100, 100),
        pytest.param((1000, 1000, 300, 300), marks=pytest.mark.slow),
        pytest.param((1000, 200, 500, 500), marks=pytest.mark.slow),
    ],
)
def test_filters_are_noticed_as_often_as_is_said_from_the_auroc_on_that_is_said(sizes):
    area = noticed_from(sizes[0], sizes[1], sizes[2] + sizes[3])
    noticed = sum(outcome.contradicts for outcome in _filtered(area, sizes, seed=sizes[2]))
    # Of 2,000 audits with a probability of 0.78.
    assert noticed >= stats.binom.ppf(1e-6, ROUNDS, 0.78)
    # The next smaller AUROC but one is not enough: the figure is no mere limit.
    weaker = _filtered(area - 0.02, sizes, seed=sizes[2])
    assert sum(outcome.contradicts for outcome in weaker) <= stats.binom.ppf(1 - 1e-6, ROUNDS, 0.8)
    # Of models that learned more the control is seldom undecided.
    for more in (area + 0.05, (area + 1) / 2):
        undecided = _filtered(more, sizes, seed=sizes[2]).count(ControlOutcome.UNDECIDED)
        assert undecided <= stats.binom.ppf(1 - 1e-6, ROUNDS, 0.22)


def test_too_few_rows_or_canary_users_notice_no_filter():
    assert noticed_from(19, 1000, 1000) is None
    assert noticed_from(1000, 1000, 7) is None
    assert noticed_from(1000, 1000, 20) is None
    assert canaries_needed(1000, 20, 0.65) is None


@pytest.mark.parametrize(("rows", "area"), [(1000, 0.65), (200, 0.7), (300, 0.8)])
def test_the_proposed_number_of_canary_users_is_the_smallest_that_suffices(rows, area):
    wanted = canaries_needed(1000, rows, area)
    assert noticed_from(1000, rows, wanted) <= area + 1e-9
    before = noticed_from(1000, rows, wanted - 1)
    assert before is None or before > area


def test_an_undecided_control_shows_an_effect_only_from_the_auroc_on_that_was_planned():
    dice = np.random.default_rng(0)
    # Canary users between chance and real rows, so that chance may explain either.
    gains = dice.normal(_shift(0.75), size=1000), dice.normal(size=1000)
    many = np.linspace(-2, 2, 300) + 0.16, np.linspace(-2, 2, 300)
    few = np.linspace(-2, 2, 30) + 0.3, np.linspace(-2, 2, 30)
    for planned in (0.5, 0.6, 0.99, None):
        facts = positive_control(*gains, *few, planned)
        assert (facts.outcome, facts.noticed_from, facts.shows_effect) == (ControlOutcome.UNDECIDED, None, False)
    assert positive_control(*gains, *many, 0.6).outcome.contradicts
    # As many as are needed, which chance left undecided.
    facts = positive_control(*gains, *few, 0.6).model_copy(update={"noticed_from": 0.7})
    assert facts.shows_effect is (facts.rows_lower >= 0.7)
    assert not facts.model_copy(update={"noticed_from": 0.74}).shows_effect
    for outcome in ControlOutcome:
        shown = facts.model_copy(update={"outcome": outcome, "rows_lower": 0.7}).shows_effect
        assert shown is (outcome in (ControlOutcome.PASSED, ControlOutcome.UNDECIDED))
    # Fewer rows than were planned for notice less, whatever the plan says.
    fewer = positive_control(gains[0][:100], gains[1][:100], many[0], many[1], 0.6)
    assert fewer.noticed_from == noticed_from(100, 100, 600)


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
