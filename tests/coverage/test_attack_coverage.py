"""No statistic finds what is not there; one that is fitted to audited coins does, and is refused.

Nobody is trained on: the target differs from the reference by noise that knows no coins. Bounds are of the one-run test
with a guess for everybody, so that the price of several numbers of guesses hides nothing.
"""

import functools

import numpy as np
import pytest

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig
from heldin.attacks.joint_statistics import Pooled
from heldin.attacks.kinds import ATTACKS, get_attack
from heldin.attacks.protocol import Uses, lift_to_users
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.panels import judge
from heldin.audit.preregistration import Preregistration, Sides
from heldin.bounds import one_run
from heldin.bounds.design import Assignment
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import stated_claim
from heldin.models.token_scores import CutAnswers, TokenScores
from heldin.words.evidence import Refusal
from tests.coverage.measure import most_wrong
from tests.made_tokens import made_world, scored

USERS, WORLDS, DRAWS = 50, 30, 40
TRIALS = WORLDS * DRAWS
# More users and more trials, as what cross-fitting does wrong is small: 9 in 100 where 5 are allowed.
FITTED, FITS, FEATURES = 200, 5000, 8


def _rejects(scores, member):
    """Whether "nothing at all leaks" is rejected at 5 %."""
    game = one_run.guess(LabelledScores(scores, member), scores.size)
    return _rejected(game)


@functools.cache
def _rejected(game):
    return one_run.one_run_rejects(game, 0.0, 0.0, 0.05)


@functools.cache
def _worlds():
    """Worlds without training, each with numbers that break ties, and the coins of every trial."""
    rng = np.random.default_rng(1)
    worlds = []
    for _ in range(WORLDS):
        worlds.append((*scored(made_world(rng, users=USERS, most_tokens=20)), rng.random(USERS)))
    return worlds, [rng.random(USERS) < 0.5 for _ in range(TRIALS)]


def _user_scores(attack, owners, texts, target, reference, ties):
    """Every user's score in a world without training."""
    if attack.needs_moments:
        target = [
            TokenScores(its.logprobs, np.full_like(its.logprobs, -4.0), np.full_like(its.logprobs, 2.0))
            for its in target
        ]
    if attack.access is not Access.LOG_PROBABILITIES:
        target, reference = _answered(target, ties), _answered(reference, ties + 1)
    by_user = {user: [] for user in owners}
    for its in attack.statistics(owners, texts, target, reference):
        by_user[its.user].append(its.value)
    # Ties are broken at random, as no coin may break them.
    return lift_to_users(attack.name, by_user).values + 1e-9 * ties


def _answered(scores, ties):
    """Answers at two cuts of each text, drawn from a few words: many of them are alike."""
    rng = np.random.default_rng((ties[:4] * 1e9).astype(np.int64))

    def words(count):
        return " ".join(rng.choice(["a", "b", "c", "d"], count))

    return [
        TokenScores(
            its.logprobs[:0],
            answers=tuple(CutAnswers(words(8), (words(9), words(12)), float(its.logprobs[0])) for _ in range(2)),
        )
        for its in scores
    ]


@pytest.mark.parametrize("attack", list(map(get_attack, ATTACKS.ours)), ids=list(ATTACKS.ours))
def test_no_statistic_finds_a_leak_where_nobody_was_trained_on(attack):
    worlds, coins = _worlds()
    scores = [_user_scores(attack, *world) for world in worlds]
    wrong = sum(_rejects(scores[trial // DRAWS], member) for trial, member in enumerate(coins))
    assert wrong <= most_wrong(TRIALS)
    assert wrong > 0.01 * TRIALS, "the test is not idle"


def _fitted(features, member):
    """The direction in which the held-in users of a fold differ from its held-out ones."""
    return features[member].mean(axis=0) - features[~member].mean(axis=0)


def test_two_way_cross_fitting_on_audited_coins_breaks_the_level_and_one_way_keeps_it():
    """Each half's weights come from the other half's coins: then both halves are right, or both wrong, together."""
    rng = np.random.default_rng(2)
    crossed = one_way = 0
    first = np.arange(FITTED) < FITTED // 2
    for _ in range(FITS):
        features, member = rng.normal(size=(FITTED, FEATURES)), rng.random(FITTED) < 0.5
        of_first, of_second = _fitted(features[first], member[first]), _fitted(features[~first], member[~first])
        scores = np.where(first, features @ of_second, features @ of_first)
        crossed += _rejects(scores, member)
        # Half of the coins are given away, and the others are judged: no guess and no weight share a coin.
        one_way += _rejects(scores[~first], member[~first])
    assert one_way <= most_wrong(FITS) < 0.9 * crossed


def test_a_statistic_that_uses_coins_is_refused_for_bounds(monkeypatch):
    rng = np.random.default_rng(3)
    users = [str(user) for user in range(40)]
    scores = dict(zip(users, rng.normal(size=40).tolist(), strict=True))
    member = {user: i % 2 == 0 for i, user in enumerate(users)}

    def judged(uses):
        monkeypatch.setattr(Pooled, "uses", uses)
        fixed = Preregistration(
            AttackConfig(names=("pooled",), primary="pooled"),
            AuditConfig(),
            DecisionConfig(),
            Sides(Assignment.COIN, witnessed=True),
            [stated_claim(1.0, 1e-5)],
        )
        return judge(scores, member, fixed, blind=[])

    refused = judged(Uses.COINS)
    assert (refused.bounds, refused.verdicts) == ((), ())
    assert [its.name for its in refused.refused] == ["all bounds"]
    assert refused.refused[0].refusal.states(Refusal.FITTED_TO_COINS)
    for uses in Uses:
        if uses is not Uses.COINS:
            assert judged(uses).bounds
            assert judged(uses).verdicts
