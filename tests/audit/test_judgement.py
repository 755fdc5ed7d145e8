"""The verdict in the record: claims met and broken, standing by how sides came about, small audits."""

import numpy as np
import pytest

from heldin.audit.judge import judge
from heldin.audit.results import Blind
from heldin.audit.sides import Sides
from heldin.bounds.verdict import Assignment, stated_claim

USERS = [f"u{i}" for i in range(400)]


def _scores(shift, users=USERS, seed=0):
    generator = np.random.default_rng(seed)
    member = {user: bool(generator.integers(2)) for user in users}
    return {user: generator.normal(shift if its else 0.0, 1.0) for user, its in member.items()}, member


def _judge(shift, *claims, users=USERS, assignment=Assignment.COIN, witnessed=True, blind=()):
    scores, member = _scores(shift, users)
    return judge(scores, member, sides=Sides(assignment, witnessed), blind=blind, claims=claims, delta=1e-5)


def test_a_leak_beyond_the_claim_is_a_certified_violation_and_one_within_it_is_not():
    broken = _judge(4.0, stated_claim(0.5, 1e-5))
    assert [(v.outcome, v.standing) for v in broken.verdicts] == [("violated", "certified")]
    assert broken.exit_code == 3
    kept = _judge(0.0, stated_claim(0.5, 1e-5))
    assert [v.outcome for v in kept.verdicts] == ["consistent"]
    assert kept.exit_code == 0
    out_of_reach = _judge(4.0, stated_claim(30.0, 1e-5))
    assert [v.outcome for v in out_of_reach.verdicts] == ["inconclusive"]
    assert 3 < out_of_reach.verdicts[0].max_certifiable_epsilon < 6


@pytest.mark.parametrize(
    ("assignment", "witnessed"), [(Assignment.FIXED, True), (Assignment.UNKNOWN, False), (Assignment.COIN, False)]
)
def test_sides_that_were_not_decided_by_witnessed_coins_are_indicative_only(assignment, witnessed):
    found = _judge(4.0, stated_claim(0.5, 1e-5), assignment=assignment, witnessed=witnessed)
    assert {v.standing for v in found.verdicts} == {"indicative"}
    assert not [b for b in found.bounds if b.standing == "certified"]
    assert found.exit_code in (0, 4)


def test_groups_that_differ_blindly_take_the_claim_back_where_no_coins_were_drawn():
    blind = [Blind(name="bag of words", auroc=0.9, p_value=1e-9, level=0.01, separates=True)]
    found = _judge(4.0, stated_claim(0.5, 1e-5), assignment=Assignment.UNKNOWN, witnessed=False, blind=blind)
    assert "the groups differ without the model" in found.verdicts[0].reason


def test_an_audit_too_small_for_any_statement_says_so_and_does_not_fail():
    found = judge(
        {"u0": 1.0, "u1": 0.0},
        {"u0": True, "u1": False},
        sides=Sides(Assignment.COIN, witnessed=True),
        blind=(),
        claims=(),
        delta=1e-5,
    )
    assert all(b.epsilon_lower == 0.0 for b in found.bounds) or found.refused
    constant = judge(
        dict.fromkeys(USERS, 1.0),
        {user: i % 2 == 0 for i, user in enumerate(USERS)},
        sides=Sides(Assignment.COIN, witnessed=True),
        blind=(),
        claims=(),
        delta=1e-5,
    )
    assert constant.bounds == []
    assert "they say nothing about membership" in constant.refused[0].reason
