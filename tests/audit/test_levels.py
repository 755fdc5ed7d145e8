"""Levels of attackers: which one decides, how they share alpha, and what an audit below the release cannot say."""

import itertools

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from heldin.attacks.access import OF_RELEASE, Access, deciding_level, falls_short
from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import DEFAULT_BY_LEVEL
from heldin.attacks.protocol import TextStatistic
from heldin.audit.decision import Answer, AuditConfig, DecisionConfig
from heldin.audit.panels import judge_users
from heldin.audit.preregistration import COINS, Preregistration
from heldin.base.progress import SilentReporter
from heldin.bounds.verdict import Outcome, stated_claim
from heldin.words.answer import Headline

LEVELS = tuple(Access)
BY = DecisionConfig(redraws=999)
AUDIT = AuditConfig(resamples=100)
ATTACK = AttackConfig(
    access=LEVELS,
    names=("likelihood-ratio", "loss", "next-word", "coverage-mean", "coverage"),
    primary="likelihood-ratio",
    aggregations=("mean",),
)


def _judged(shifts, *, users=200, seed=0, released=None, claims=(), attack=ATTACK):
    """Judge made-up scores; a level's attacks are shifted for members."""
    rng = np.random.default_rng(seed)
    names = [f"user {i:03}" for i in range(users)]
    member = dict(zip(names, (rng.random(users) < 0.5).tolist(), strict=True))
    levels = {"likelihood-ratio": 0, "loss": 0, "next-word": 1, "coverage-mean": 2, "coverage": 2}
    scored = [
        TextStatistic(user, 0, name, float(rng.normal() + shifts[levels[name]] * member[user]))
        for name in attack.names
        for user in names
    ] + [TextStatistic(user, 0, "reference-alone", float(rng.normal())) for user in names]
    texts = {user: [f"some text of {i}"] for i, user in enumerate(names)}
    fixed = Preregistration(attack, AUDIT, BY, COINS, claims, seed).by_level(released)
    return judge_users(scored, texts, member, fixed, SilentReporter())[0]


def test_the_release_picks_the_weakest_level_that_covers_it():
    for count in (1, 2, 3):
        for levels in itertools.combinations(LEVELS, count):
            for released, level in OF_RELEASE.items():
                enough = [each for each in levels if LEVELS.index(each) <= LEVELS.index(level)]
                assert falls_short(levels, released) is (not enough)
                assert deciding_level(levels, released) is (max(enough, key=LEVELS.index) if enough else levels[0])
            assert deciding_level(levels, None) is levels[0]


def test_a_level_has_its_own_attacks_and_those_of_weaker_ones():
    assert ATTACK.at(Access.LOG_PROBABILITIES).names == ATTACK.names
    top_k, text = ATTACK.at(Access.TOP_K), ATTACK.at(Access.TEXT)
    assert (top_k.names, top_k.primary) == (("next-word", "coverage-mean", "coverage"), "next-word")
    assert (text.names, text.primary) == (("coverage-mean", "coverage"), "coverage-mean")


@pytest.mark.parametrize("level", LEVELS)
def test_naming_a_level_names_its_attacks(level):
    config = AttackConfig.model_validate({"access": str(level)})
    assert (config.names, config.primary) == (DEFAULT_BY_LEVEL[level], DEFAULT_BY_LEVEL[level][0])
    assert AttackConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"access": ["text", "text"]}, "'text' twice"),
        ({"names": ["samia"], "primary": "samia"}, "'samia'"),
        ({"access": ["log-probabilities", "text"], "names": ["likelihood-ratio"]}, "coverage-mean"),
        ({"access": ["log-probabilities", "text"], "primary": "samia"}, "'samia'"),
        ({"access": "text", "shadow_models": 4}, "shadow_models"),
        ({"access": []}, "access"),
        ({"access": "weights"}, "access"),
        ({"sampling": {"cuts": [0.5, 0.5]}}, "cuts"),
        ({"sampling": {"cuts": [1.0]}}, "cuts"),
    ],
)
def test_levels_that_cannot_be(section, named):
    with pytest.raises(ValidationError) as caught:
        AttackConfig.model_validate(section)
    assert named in str(caught.value)


def test_a_stronger_level_is_never_hidden_by_a_weaker_one():
    results = _judged((1.5, 0, 0), released="text")
    assert (results.access, results.decision.decision.answer) == (Access.TEXT, Answer.INCONCLUSIVE)
    answers = {level.access: level.decision.decision.answer for level in results.levels}
    assert answers == {Access.LOG_PROBABILITIES: Answer.LEAKS, Access.TOP_K: Answer.INCONCLUSIVE}


def test_who_sees_more_can_do_what_sees_less_does():
    results = _judged((0, 0, 1.5))
    assert (results.access, results.decision.decision.answer) == (Access.LOG_PROBABILITIES, Answer.LEAKS)
    assert all(level.decision.decision.answer is Answer.LEAKS for level in results.levels)


def test_the_levels_share_alpha():
    one = _judged((0, 0, 0), attack=ATTACK.at(Access.TEXT)).decision.by
    three = _judged((0, 0, 0)).decision.by
    assert (three.auroc_level, three.tpr_level) == (
        pytest.approx(one.auroc_level / 3),
        pytest.approx(one.tpr_level / 3),
    )


def test_a_claim_that_one_level_contradicts_is_contradicted():
    claims = [stated_claim(0.1, 1e-5)]
    results = _judged((0, 0, 3), users=400, claims=claims)
    outcomes = [verdict.outcome for verdict in results.judgement.verdicts]
    assert outcomes.count(Outcome.CONTRADICTED) == 1  # by text alone
    assert results.judgement.users == 400
    assert {str(bound.subjects) for bound in results.judgement.bounds} == {"real users"}


@pytest.mark.parametrize(("released", "answer"), [("text", Answer.NO_LEAK), ("weights", Answer.INCONCLUSIVE)])
def test_below_the_release_no_leak_found_is_never_the_answer(released, answer):
    results = _judged((0, 0, 0), users=3000, released=released, attack=ATTACK.at(Access.TEXT))
    decision = results.decision.decision
    assert (decision.answer, decision.weaker) == (answer, answer is not Answer.NO_LEAK)
    assert results.decision.statement.states(Headline.WEAKER) is decision.weaker
    # A leak that the weaker attacker finds is a leak.
    assert _judged((0, 0, 2), released=released, attack=ATTACK.at(Access.TEXT)).decision.decision.answer is Answer.LEAKS


@pytest.mark.slow
def test_null_audits_keep_their_level_at_every_level_and_over_all():
    """Each level errs at most at its share, and any of them at most at 5 %."""
    trials = 400
    wrong = dict.fromkeys(LEVELS, 0)
    anywhere = 0
    for seed in range(trials):
        results = _judged((0, 0, 0), users=60, seed=seed)
        answers = {results.access: results.decision, **{level.access: level.decision for level in results.levels}}
        leaks = [level for level, facts in answers.items() if facts.decision.answer is Answer.LEAKS]
        for level in leaks:
            wrong[level] += 1
        anywhere += bool(leaks)
    assert all(count <= stats.binom.ppf(1 - 1e-6, trials, 0.05 / 3) for count in wrong.values()), wrong
    assert 0 < anywhere <= stats.binom.ppf(1 - 1e-6, trials, 0.05)
