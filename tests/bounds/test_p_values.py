"""p-values of the one-run test: the verdict's own, valid at every level, and jointly by Holm under any dependence."""

import itertools

import numpy as np
import pytest
from scipy import stats

from heldin.bounds import one_run
from heldin.bounds.design import Assignment, Design
from heldin.bounds.one_run import Guesses
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import curve_claim, decide, holm, p_value, stated_claim
from heldin.defenses.accounting.events import UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of

DESIGN = Design(Assignment.COIN)
FEW = Design(Assignment.COIN, guesses=40)


def told(rng, epsilon, users=80, cells=1):
    """Scores of cells that share coins: each tells every coin by randomised response of this epsilon, on its own."""
    member = rng.random(users) < 0.5
    right = rng.random((cells, users)) < np.exp(epsilon) / (1 + np.exp(epsilon))
    # Sizes of their own, so that which are guessed first is chance.
    return [LabelledScores(np.where(its == member, 1.0, -1.0) * rng.uniform(1, 2, users), member) for its in right]


def test_the_p_value_agrees_with_the_verdict_at_every_level_of_the_design():
    rng = np.random.default_rng(1)
    seen = set()
    for epsilon, claimed, attacks in itertools.product((0.0, 1.0, 3.0), (0.2, 1.0), (1, 3)):
        (scores,) = told(rng, epsilon, users=200)
        design = Design(Assignment.COIN, attacks=attacks)
        claim = stated_claim(claimed, 1e-5)
        p, level = p_value(scores, claim, design), design.alpha / attacks
        outcome = decide(scores, claim, design).outcome
        seen.add(outcome)
        if outcome == "contradicted":
            assert p <= level * 1.01
        else:
            assert p > level
    assert len(seen) >= 2


def test_against_every_level_of_a_fine_grid():
    rng = np.random.default_rng(2)
    claim = stated_claim(0.5, 1e-5)
    (scores,) = told(rng, 1.5)
    (one,) = one_run.paid_tries(80, 40, 0.05, 1)
    game = one_run.guess(scores, one.made)
    levels = np.geomspace(1e-12, 1 - 1e-6, 4000)
    rejecting = [level for level in levels if claim.rejected_by(game, level)]
    # Every level above the smallest rejects too.
    assert len(rejecting) == (levels >= rejecting[0]).sum()
    assert rejecting[0] / 1.01 <= p_value(scores, claim, FEW) <= rejecting[0] * 1.02


def gaussian(noise):
    return ceiling_of(UnamplifiedGaussian(noise, 1), 1, 1e-5)


CLAIMS = [stated_claim(0.0, 1e-5), stated_claim(2.0, 1e-3), curve_claim(gaussian(1.4), 3.0, 1e-5)]


@pytest.mark.parametrize("claim", CLAIMS)
def test_tests_reject_at_every_level_above_one_at_which_they_reject(claim):
    for made, share in itertools.product((5, 40, 200), np.linspace(0.5, 1, 12)):
        game = Guesses(400, made, round(made * share))
        rejected = [claim.rejected_by(game, level) for level in np.geomspace(1e-10, 0.999, 60)]
        assert rejected == sorted(rejected)


def test_no_test_has_no_p_value_and_perfect_ones_are_bounded():
    scores = LabelledScores(np.arange(12.0), np.arange(12) >= 6)
    claim = stated_claim(1.0, 1e-5)
    assert p_value(scores, claim, Design(Assignment.COIN, independent_trainings=True)) is None
    assert 0 < p_value(scores, claim, DESIGN) <= 1
    member = np.arange(2000) % 2 == 0
    assert p_value(LabelledScores(member + np.linspace(0, 0.1, 2000), member), stated_claim(1.0, 1e-15), DESIGN) < 1e-10


# At most 5 % of audits may err; the alarm is beyond what chance gives once in a million.
RUNS = 600
MOST = stats.binom.isf(1e-6, RUNS, 0.05)


@pytest.mark.slow
def test_true_claims_are_rejected_at_most_as_often_as_the_level_says_and_false_ones_often():
    rng = np.random.default_rng(3)
    true, false = stated_claim(1.0, 1e-9), stated_claim(0.3, 1e-9)
    p = np.array([[p_value(told(rng, 1.0)[0], claim, FEW) for claim in (true, false)] for _ in range(RUNS)])
    for level in (0.01, 0.05, 0.3):
        assert (p[:, 0] <= level).sum() <= stats.binom.isf(1e-6, RUNS, level)
    assert (p[:, 1] <= 0.05).mean() > 0.3


def test_holm_against_its_steps_one_by_one():
    rng = np.random.default_rng(4)
    for _ in range(300):
        p = rng.choice([rng.random(6) ** 4, np.round(rng.random(6), 1)])
        for alpha in (0.01, 0.05, 0.5):
            left, rejected = dict(enumerate(p)), set()
            while left and min(left.values()) <= alpha / len(left):
                i = min(left, key=left.get)
                rejected.add(i)
                del left[i]
            assert {i for i, a in enumerate(holm(list(p))) if a <= alpha} == rejected
    assert holm([]) == []


@pytest.mark.slow
def test_cells_that_share_coins_err_jointly_at_most_as_said_and_without_the_correction_more_often():
    """Eight true promises: any of them is called contradicted in at most 5 % of sweeps, and by own p-values in more."""
    rng = np.random.default_rng(5)
    claim = stated_claim(1.0, 1e-9)
    joint = alone = 0
    for _ in range(RUNS):
        p = [p_value(cell, claim, FEW) for cell in told(rng, 1.0, cells=8)]
        joint += min(holm(p)) <= 0.05
        alone += min(p) <= 0.05
    assert joint <= MOST
    assert alone > MOST


def test_a_score_of_several_cells_of_one_block_breaks_the_test():
    """docs/theory.md#cells-that-share-coins: one Gaussian output keeps the level, the mean of eight does not."""
    rng = np.random.default_rng(6)
    claim = curve_claim(gaussian(1.0), 4.38, 1e-5)
    design = Design(Assignment.COIN, guesses=120)
    lone = mixed = 0
    for _ in range(200):
        member = rng.random(400) < 0.5
        outputs = member + rng.normal(size=(8, 400))
        lone += p_value(LabelledScores(outputs[0], member), claim, design) <= 0.05
        mixed += p_value(LabelledScores(outputs.mean(axis=0), member), claim, design) <= 0.05
    assert lone <= stats.binom.isf(1e-6, 200, 0.05)
    assert mixed > 150
