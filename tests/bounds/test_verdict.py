"""Outcome and standing of a claim, for every design and every reason to take a certificate back."""

import dataclasses
import re

import numpy as np
import pytest

from heldin.base.errors import InputError
from heldin.bounds import verdict
from heldin.bounds.design import Assignment, Design, evenness
from heldin.bounds.scores import LabelledScores, labelled
from heldin.bounds.verdict import Outcome, Standing, Verdict, curve_claim, decide, stated_claim
from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from tests.made_facts import stated

COIN, FIXED, UNKNOWN = Design(Assignment.COIN), Design(Assignment.FIXED), Design(Assignment.UNKNOWN)
TRIALS = Design(Assignment.FIXED, independent_trainings=True)


def coin_scores(mu, m=1000, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.random(m) < 0.5
    return LabelledScores(rng.standard_normal(m) + mu * member, member)


def trial_scores(mu, n=500, seed=0):
    rng = np.random.default_rng(seed)
    return labelled(rng.normal(mu, 1, n), rng.normal(0, 1, n))


@pytest.fixture(scope="module")
def uls():
    """ULS at epsilon 4: no attacker above AUROC 0.691."""
    return curve_claim(ceiling_of(PoissonGaussian(0.92826, 16 / 1024), 1000, 1e-6), 4.0, 1e-6)


def test_outcomes_under_coins(uls):
    violated = decide(coin_scores(2.2), uls, COIN)
    assert (violated.outcome, violated.standing, violated.exit_code) == (Outcome.VIOLATED, Standing.CERTIFIED, 3)
    consistent = decide(coin_scores(0.7), uls, COIN)
    assert (consistent.outcome, consistent.standing, consistent.exit_code) == (
        Outcome.CONSISTENT,
        Standing.CERTIFIED,
        0,
    )
    assert "perfect guessing would have been" in consistent.reason
    high = decide(coin_scores(0.7), stated_claim(8.0, 1e-6), COIN)
    assert high.outcome is Outcome.INCONCLUSIVE
    assert "1000 users could have certified at most epsilon = 5.38" in high.reason
    assert high.max_certifiable_epsilon == pytest.approx(5.38, abs=0.01)
    assert violated.as_dict().keys() == {"outcome", "standing", "finding", "reason", "max_certifiable_epsilon"}


def test_stated_claim_violated_and_not():
    scores = coin_scores(3.0)
    assert decide(scores, stated_claim(1.0, 1e-5), COIN).outcome is Outcome.VIOLATED
    assert decide(scores, stated_claim(5.0, 1e-5), COIN).outcome is Outcome.CONSISTENT


def test_reach_and_consistency_agree():
    """A claim just below the largest certifiable epsilon can be rejected, one just above cannot."""
    for design in (
        COIN,
        dataclasses.replace(COIN, guesses=100),
        TRIALS,
        dataclasses.replace(TRIALS, thresholds=(0.0,)),
    ):
        reach = verdict.max_certifiable_epsilon(250, 250, 1e-5, design)
        assert verdict.could_reject(250, 250, stated_claim(reach - 0.01, 1e-5), design)
        assert not verdict.could_reject(250, 250, stated_claim(reach + 0.01, 1e-5), design)


def test_registered_numbers_and_attacks_change_the_reach():
    paid = verdict.max_certifiable_epsilon(500, 500, 1e-5, COIN)
    registered = verdict.max_certifiable_epsilon(500, 500, 1e-5, dataclasses.replace(COIN, guesses=1000))
    many = verdict.max_certifiable_epsilon(500, 500, 1e-5, dataclasses.replace(COIN, attacks=10))
    assert registered == pytest.approx(5.81, abs=0.01)
    assert many < paid < registered
    one = dataclasses.replace(TRIALS, thresholds=(1.0,))
    assert verdict.max_certifiable_epsilon(100, 100, 1e-9, one) == pytest.approx(3.28, abs=0.01)


def test_independent_trainings(uls):
    few = decide(trial_scores(0.7, n=20), stated_claim(8.0, 1e-6), TRIALS)
    assert "40 trainings could have certified at most epsilon" in few.reason
    claim = curve_claim(ceiling_of(UnamplifiedGaussian(2.0, 1), 1, 1e-5), 2.0, 1e-5)
    found = decide(trial_scores(1.0), claim, TRIALS)
    assert (found.outcome, found.standing) == (Outcome.VIOLATED, Standing.CERTIFIED)
    assert "the ROC bands" in found.reason
    assert decide(trial_scores(0.5), claim, TRIALS).outcome is Outcome.CONSISTENT
    fixed = dataclasses.replace(TRIALS, thresholds=(0.5,))
    assert "Clopper-Pearson at thresholds fixed beforehand" in decide(trial_scores(1.5), claim, fixed).reason
    assert decide(trial_scores(0.7, 20), stated_claim(4, 1e-5), TRIALS).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("design", "why"),
    [
        (FIXED, "the split was fixed, not drawn by independent fair coins"),
        (UNKNOWN, "how membership was assigned is not stated"),
        (dataclasses.replace(COIN, coins_witnessed=False), "the coins are only asserted"),
        (dataclasses.replace(COIN, reference_on_one_side=True), "the reference model was trained on one side"),
        (dataclasses.replace(FIXED, blind_p_value=1e-3), r"the groups differ without the model .*p = 0.001"),
        (dataclasses.replace(TRIALS, blind_p_value=1e-3), "the groups differ without the model"),
    ],
)
def test_reasons_to_be_indicative(uls, design, why):
    found = decide(coin_scores(2.2), uls, design)
    assert (found.outcome, found.standing, found.exit_code) == (Outcome.VIOLATED, Standing.INDICATIVE, 4)
    assert re.match(why, found.reason)
    assert "; if the conditions held: " in found.reason


def test_what_is_no_reason(uls):
    for design in (
        COIN,
        dataclasses.replace(COIN, blind_p_value=1e-9),
        dataclasses.replace(TRIALS, blind_p_value=0.2),
    ):
        assert decide(coin_scores(2.2), uls, design).standing is Standing.CERTIFIED
    warned = decide(coin_scores(2.2), uls, dataclasses.replace(COIN, blind_p_value=1e-9))
    assert "a blind baseline tells the groups apart (p = 1e-09)" in warned.warnings[0]
    assert decide(coin_scores(2.2), uls, dataclasses.replace(COIN, blind_p_value=0.001)).warnings == ()


def test_coins_that_are_none(uls):
    rng = np.random.default_rng(0)
    scores = labelled(rng.normal(2.2, 1, 800), rng.normal(0, 1, 200))
    found = decide(scores, uls, COIN)
    assert found.standing is Standing.INDICATIVE
    assert "800 members of 1000 users are not what fair coins give" in found.reason


def test_coins_that_come_out_even(uls):
    """Exactly one of each pair, or an exact half, passes for coins where nobody looks: 2.5 % at 1,000 users."""
    stated = dataclasses.replace(COIN, coins_stated=True)

    def warned(members, others, design=stated):
        rng = np.random.default_rng(0)
        scores = labelled(rng.normal(0.5, 1, members), rng.normal(0, 1, others))
        return decide(scores, uls, design).warnings

    assert warned(500, 500) == (
        "500 held in and 500 held out: fair coins give exactly equal numbers with probability 2.5 %; if the split was "
        "an exact half or one of each pair, say --assignment fixed",
    )
    asserted = dataclasses.replace(COIN, coins_witnessed=False)
    assert len(warned(500, 500, asserted)) == 1
    assert "numbers one apart with probability 3.6 %" in warned(1000, 1001)[0]
    assert warned(501, 499) == warned(30, 30) == warned(500, 500, COIN) == warned(500, 500, FIXED) == ()
    both = dataclasses.replace(stated, blind_p_value=1e-9)
    assert [text.split()[0] for text in warned(500, 500, both)] == ["a", "500"]
    assert evenness(5, 10) == pytest.approx(252 / 1024)
    assert evenness(5, 11) == pytest.approx(2 * 462 / 2048)
    assert evenness(4, 10) is None


def test_a_true_claim_is_rarely_called_violated():
    """At most 12 alarms in 200 at the 5 % level, on a mechanism on its own curve."""
    claim = curve_claim(ceiling_of(UnamplifiedGaussian(1.0, 1), 1, 1e-5), 4.38, 1e-5)
    alarms = sum(decide(coin_scores(1.0, 300, s), claim, COIN).outcome is Outcome.VIOLATED for s in range(200))
    assert alarms <= 12
    caught = sum(decide(coin_scores(3.0, 300, s), claim, COIN).outcome is Outcome.VIOLATED for s in range(50))
    assert caught >= 45


def test_gravest():
    def made(outcome, standing):
        return Verdict(stated("c"), outcome, standing, stated("r"), 1.0)

    certified = made(Outcome.VIOLATED, Standing.CERTIFIED)
    indicative = made(Outcome.VIOLATED, Standing.INDICATIVE)
    fine, unknown = made(Outcome.CONSISTENT, Standing.CERTIFIED), made(Outcome.INCONCLUSIVE, Standing.CERTIFIED)
    assert verdict.gravest((fine, indicative, certified)) is certified
    assert verdict.gravest((fine, indicative, unknown)) is indicative
    assert verdict.gravest((fine, unknown)) is unknown


def test_bad_input(uls):
    with pytest.raises(InputError, match=r"claimed delta 0 is outside \(0, 1\)"):
        stated_claim(4, 0)
    with pytest.raises(InputError, match=r"claimed delta 1.5 is outside \(0, 1\)"):
        stated_claim(4, 1.5)
    with pytest.raises(InputError, match="claimed epsilon -1 is not a number >= 0"):
        stated_claim(-1, 1e-5)
    with pytest.raises(InputError, match="4 users cannot support any statement"):
        decide(labelled(np.array([1.0, 2]), np.array([0.0, 3])), uls, COIN)
    with pytest.raises(InputError, match="2 members and 2 non-members cannot support any statement"):
        decide(labelled(np.array([1.0, 2]), np.array([0.0, 3])), uls, TRIALS)
    with pytest.raises(InputError, match="2000 guesses registered on 1000 users"):
        decide(coin_scores(1.0), uls, dataclasses.replace(COIN, guesses=2000))
    with pytest.raises(InputError, match="p-value 2 of the blind baseline"):
        Design(Assignment.COIN, blind_p_value=2)
