"""Outcome and standing of a claim, for every design and every reason to take a certificate back."""

import dataclasses

import numpy as np
import pytest

from heldin.bounds import verdict
from heldin.bounds.design import Assignment, Design, evenness
from heldin.bounds.scores import LabelledScores, labelled
from heldin.bounds.verdict import Outcome, Standing, Verdict, curve_claim, decide, stated_claim
from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.words import evidence as words
from heldin.words.evidence import Caution, CountedUnits, Finding, Flaw
from tests.made_facts import stated
from tests.refusals import names, refused
from tests.statements import states, values_of

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
    contradicted = decide(coin_scores(2.2), uls, COIN)
    assert (contradicted.outcome, contradicted.standing, contradicted.exit_code) == (
        Outcome.CONTRADICTED,
        Standing.CERTIFIED,
        3,
    )
    consistent = decide(coin_scores(0.7), uls, COIN)
    assert (consistent.outcome, consistent.standing, consistent.exit_code) == (
        Outcome.CONSISTENT,
        Standing.CERTIFIED,
        0,
    )
    assert states(consistent.finding, Finding.NOT_REJECTED)
    high = decide(coin_scores(0.7), stated_claim(8.0, 1e-6), COIN)
    assert high.outcome is Outcome.INCONCLUSIVE
    reached = values_of(high.finding, Finding.OUT_OF_REACH)
    assert (reached["count"], reached["reach"]) == (1000, pytest.approx(5.38, abs=0.01))
    assert high.max_certifiable_epsilon == pytest.approx(5.38, abs=0.01)
    assert contradicted.as_dict().keys() == {"outcome", "standing", "finding", "reason", "max_certifiable_epsilon"}


def test_stated_claim_violated_and_not():
    scores = coin_scores(3.0)
    assert decide(scores, stated_claim(1.0, 1e-5), COIN).outcome is Outcome.CONTRADICTED
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
    reached = values_of(few.finding, Finding.OUT_OF_REACH)
    assert (reached["count"], reached["units"]) == (40, CountedUnits.TRAININGS())
    claim = curve_claim(ceiling_of(UnamplifiedGaussian(2.0, 1), 1, 1e-5), 2.0, 1e-5)
    found = decide(trial_scores(1.0), claim, TRIALS)
    assert (found.outcome, found.standing) == (Outcome.CONTRADICTED, Standing.CERTIFIED)
    assert states(found.finding, Finding.REJECTED, words.Test.ROC_BANDS)
    assert decide(trial_scores(0.5), claim, TRIALS).outcome is Outcome.CONSISTENT
    fixed = dataclasses.replace(TRIALS, thresholds=(0.5,))
    assert states(decide(trial_scores(1.5), claim, fixed).finding, Finding.REJECTED, words.Test.FIXED_THRESHOLDS)
    assert decide(trial_scores(0.7, 20), stated_claim(4, 1e-5), TRIALS).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("design", "flaw"),
    [
        (FIXED, Flaw.SPLIT_FIXED),
        (UNKNOWN, Flaw.ASSIGNMENT_UNKNOWN),
        (dataclasses.replace(COIN, coins_witnessed=False), Flaw.COINS_ASSERTED),
        (dataclasses.replace(COIN, reference_on_one_side=True), Flaw.REFERENCE_ON_ONE_SIDE),
        (dataclasses.replace(FIXED, blind_p_value=1e-3), Flaw.BLIND_DIFFERS),
        (dataclasses.replace(TRIALS, blind_p_value=1e-3), Flaw.BLIND_DIFFERS),
    ],
)
def test_reasons_to_be_indicative(uls, design, flaw):
    found = decide(coin_scores(2.2), uls, design)
    assert (found.outcome, found.standing, found.exit_code) == (Outcome.CONTRADICTED, Standing.INDICATIVE, 4)
    assert values_of(found.finding, Finding.IF_CONDITIONS_HELD)["flaws"][0].states(flaw)
    if flaw is Flaw.BLIND_DIFFERS:
        assert values_of(found.finding, flaw)["p"] == 1e-3


def test_what_is_no_reason(uls):
    for design in (
        COIN,
        dataclasses.replace(COIN, blind_p_value=1e-9),
        dataclasses.replace(TRIALS, blind_p_value=0.2),
    ):
        assert decide(coin_scores(2.2), uls, design).standing is Standing.CERTIFIED
    warned = decide(coin_scores(2.2), uls, dataclasses.replace(COIN, blind_p_value=1e-9))
    assert values_of(warned.cautions[0], Caution.BLIND_UNDER_COINS)["p"] == 1e-9
    assert decide(coin_scores(2.2), uls, dataclasses.replace(COIN, blind_p_value=0.001)).cautions == ()


def test_coins_that_are_none(uls):
    rng = np.random.default_rng(0)
    scores = labelled(rng.normal(2.2, 1, 800), rng.normal(0, 1, 200))
    found = decide(scores, uls, COIN)
    assert found.standing is Standing.INDICATIVE
    assert values_of(found.finding, Flaw.COINS_IMPLAUSIBLE) == {"members": 800, "users": 1000}


def test_coins_that_come_out_even(uls):
    """Exactly one of each pair, or an exact half, passes for coins where nobody looks: 2.5 % at 1,000 users."""
    stated = dataclasses.replace(COIN, coins_stated=True)

    def warned(members, others, design=stated):
        rng = np.random.default_rng(0)
        scores = labelled(rng.normal(0.5, 1, members), rng.normal(0, 1, others))
        return decide(scores, uls, design).cautions

    (even,) = warned(500, 500)
    assert even.states(Caution.EVEN_SPLIT)
    assert names(str(even), "500", "2.5 %", "--assignment fixed")
    asserted = dataclasses.replace(COIN, coins_witnessed=False)
    assert len(warned(500, 500, asserted)) == 1
    (odd,) = warned(1000, 1001)
    assert odd.states(Caution.ODD_SPLIT)
    assert names(str(odd), "3.6 %")
    assert warned(501, 499) == warned(30, 30) == warned(500, 500, COIN) == warned(500, 500, FIXED) == ()
    both = dataclasses.replace(stated, blind_p_value=1e-9)
    assert [each.code for each in warned(500, 500, both)] == [
        Caution.BLIND_UNDER_COINS.code,
        Caution.EVEN_SPLIT.code,
    ]
    assert evenness(5, 10) == pytest.approx(252 / 1024)
    assert evenness(5, 11) == pytest.approx(2 * 462 / 2048)
    assert evenness(4, 10) is None


def test_a_true_claim_is_rarely_called_violated():
    """At most 12 alarms in 200 at the 5 % level, on a mechanism on its own curve."""
    claim = curve_claim(ceiling_of(UnamplifiedGaussian(1.0, 1), 1, 1e-5), 4.38, 1e-5)
    alarms = sum(decide(coin_scores(1.0, 300, s), claim, COIN).outcome is Outcome.CONTRADICTED for s in range(200))
    assert alarms <= 12
    caught = sum(decide(coin_scores(3.0, 300, s), claim, COIN).outcome is Outcome.CONTRADICTED for s in range(50))
    assert caught >= 45


def test_gravest():
    def made(outcome, standing):
        return Verdict(stated("c"), outcome, standing, stated("r"), 1.0)

    certified = made(Outcome.CONTRADICTED, Standing.CERTIFIED)
    indicative = made(Outcome.CONTRADICTED, Standing.INDICATIVE)
    fine, unknown = made(Outcome.CONSISTENT, Standing.CERTIFIED), made(Outcome.INCONCLUSIVE, Standing.CERTIFIED)
    assert verdict.gravest((fine, indicative, certified)) is certified
    assert verdict.gravest((fine, indicative, unknown)) is indicative
    assert verdict.gravest((fine, unknown)) is unknown


def test_bad_input(uls):
    with refused(by=stated_claim, naming=("delta 0", "(0, 1)")):
        stated_claim(4, 0)
    with refused(by=stated_claim, naming=("delta 1.5", "(0, 1)")):
        stated_claim(4, 1.5)
    with refused(by=stated_claim, naming="epsilon -1"):
        stated_claim(-1, 1e-5)
    with refused(by="paid_tries", naming="4"):
        decide(labelled(np.array([1.0, 2]), np.array([0.0, 3])), uls, COIN)
    with refused(by="max_certifiable_epsilon", naming="2"):
        decide(labelled(np.array([1.0, 2]), np.array([0.0, 3])), uls, TRIALS)
    with refused(by="paid_tries", naming=("2000", "1000")):
        decide(coin_scores(1.0), uls, dataclasses.replace(COIN, guesses=2000))
    with refused(by="Design.__post_init__", naming="2"):
        Design(Assignment.COIN, blind_p_value=2)


@pytest.mark.parametrize("flaw", [Flaw.CONTROL_UNDECIDED(), Flaw.CONTROL_UNUSABLE(), Flaw.CONTROL_NOT_MEASURED()])
def test_what_is_not_shown_takes_the_certificate_from_not_contradicted_and_from_nothing_else(flaw):
    design = dataclasses.replace(COIN, unshown=(flaw,))
    leaking, quiet = coin_scores(3.0), coin_scores(0.0)
    claim, far = stated_claim(1.0, 1e-5), stated_claim(20.0, 1e-5)
    consistent = decide(quiet, claim, design)
    assert (consistent.outcome, consistent.standing) == (Outcome.CONSISTENT, Standing.INDICATIVE)
    assert values_of(consistent.finding, Finding.IF_CONDITIONS_HELD)["flaws"] == [flaw]
    assert decide(quiet, claim, COIN).standing is Standing.CERTIFIED
    contradicted = decide(leaking, claim, design)
    assert (contradicted.outcome, contradicted.standing) == (Outcome.CONTRADICTED, Standing.CERTIFIED)
    assert decide(quiet, far, design) == decide(quiet, far, COIN)


def test_the_control_is_about_canary_users():
    canaries = words.Subjects.CANARIES_OF_KIND(kind="unseen-token")
    for subjects in (words.Subjects.CANARIES(), canaries, words.Subjects.WITH_ONE_EXAMPLE(subjects=canaries)):
        assert words.about_canaries(subjects)
    for subjects in (words.REAL_USERS, words.Subjects.WITH_ONE_EXAMPLE(subjects=words.REAL_USERS)):
        assert not words.about_canaries(subjects)
