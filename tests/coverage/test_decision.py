"""How often the answer is right: simulated audits of seven dependent attacks, decided as a run decides."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.config import AttackConfig
from heldin.audit.answer import decision_facts
from heldin.audit.bootstrap import bootstrap
from heldin.audit.decision import Answer, AuditConfig, DecisionConfig
from heldin.audit.family import ScoreVariant, evaluate_family
from heldin.audit.preregistration import COINS, Preregistration

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

ATTACKS = 7
CORRELATION = 0.7
BY = DecisionConfig(redraws=499)
AUDIT = AuditConfig(resamples=200, fprs=(0.01, 0.05, 0.1))
VARIANTS = [ScoreVariant(f"attack {k}", "mean") for k in range(ATTACKS)]


def _audit(seed, users, leaking=None, auroc=0.5):
    """The decision on one simulated audit, and whether the rule before this one would have said "Yes"."""
    rng = np.random.default_rng(seed)
    member = rng.random(users) < 0.5
    common, own = rng.normal(size=users), rng.normal(size=(ATTACKS, users))
    values = np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * own
    if leaking is not None:
        values[leaking] += np.sqrt(2) * stats.norm.ppf(auroc) * member
    fixed = Preregistration(AttackConfig(), AUDIT, BY, COINS, seed=seed)
    family = evaluate_family(dict(zip(VARIANTS, values, strict=True)), member, fixed)
    leading = bootstrap(values[0][member], values[0][~member], (), resamples=200, seed=seed)
    return decision_facts(family, fixed), leading.auroc.lower > 0.5


def _counted(audits, **options):
    answers, before, decided = Counter(), 0, []
    for seed in range(audits):
        facts, yes = _audit(seed, **options)
        answers[facts.decision.answer] += 1
        before += yes
        decided.append(facts)
    print(f"{options}: {dict(answers)} of {audits}; the leading attack alone: {before}")
    return answers, before, decided


@pytest.mark.slow
def test_null_runs_leak_in_at_most_five_percent():
    """2,000 runs that trained on nobody, 320 users, seven attacks of correlation 0.7."""
    answers, _, _ = _counted(2000, users=320)
    assert 40 < answers[Answer.LEAKS] <= stats.binom.ppf(1 - 1e-6, 2000, 0.05)


def test_a_leak_that_one_other_attack_sees_is_found_and_named():
    """160 + 160 users in expectation, AUROC 0.63 in expectation, not by the leading attack, which sees nothing."""
    answers, before, decided = _counted(200, users=320, leaking=4, auroc=0.63)
    assert answers[Answer.LEAKS] >= 180
    assert before < 30
    leaks = [facts for facts in decided if facts.decision.answer is Answer.LEAKS]
    named = sum(facts.decision.strongest == 4 for facts in leaks)
    assert named >= 0.95 * len(leaks)
    assert sum(facts.notes[:1] != [] for facts in leaks) > 0.8 * len(leaks)  # the attacks disagree, and that is said


def test_few_users_are_never_given_an_all_clear():
    answers, _, _ = _counted(500, users=24)
    assert answers[Answer.NO_LEAK] == 0
    assert answers[Answer.INCONCLUSIVE] > 450


def test_many_users_at_chance_mostly_are():
    answers, _, decided = _counted(300, users=340)
    assert answers[Answer.NO_LEAK] > 150
    clear = [facts for facts in decided if facts.decision.answer is Answer.NO_LEAK]
    assert all(facts.decision.excluded_auroc <= BY.auroc for facts in clear)


@pytest.mark.slow
def test_as_many_users_as_are_said_to_settle_it_do_in_about_four_audits_of_five():
    _, _, decided = _counted(100, users=340)
    needed = int(np.median([facts.decision.users_needed for facts in decided]))
    answers, _, _ = _counted(300, users=needed)
    print(f"{needed} users")
    assert 0.7 < answers[Answer.NO_LEAK] / 300 < 0.95


@pytest.mark.slow
def test_what_is_excluded_is_seldom_true():
    """1,000 audits whose best attack has AUROC 0.58: how often "more than X is excluded" puts X below it."""
    _, _, decided = _counted(1000, users=320, leaking=2, auroc=0.58)
    wrong = sum(facts.decision.excluded_auroc < 0.58 for facts in decided)
    print(f"{wrong} of 1,000 exclude the truth")
    assert wrong <= stats.binom.ppf(1 - 1e-6, 1000, 0.05)
