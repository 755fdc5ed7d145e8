"""The verdict in the record: claims met and broken, standing by how sides came about, small audits."""

from dataclasses import replace

import numpy as np
import pytest

from heldin.attacks.config import AttackConfig
from heldin.audit.blind import Blind
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.panels import judge
from heldin.audit.preregistration import COINS, Panel, Preregistration, Sides
from heldin.bounds.design import Assignment
from heldin.bounds.judgement import joined, nothing_judged
from heldin.bounds.verdict import stated_claim
from heldin.words.evidence import Flaw, Refusal, Subjects
from tests.made_facts import stated
from tests.refusals import refused
from tests.statements import states

USERS = [f"u{i}" for i in range(400)]


def _scores(shift, users=USERS, seed=0):
    generator = np.random.default_rng(seed)
    member = {user: bool(generator.integers(2)) for user in users}
    return {user: generator.normal(shift if its else 0.0, 1.0) for user, its in member.items()}, member


def _fixed(*claims, sides=COINS):
    return Preregistration(AttackConfig(), AuditConfig(delta=1e-5), DecisionConfig(), sides, claims)


def _judge(shift, *claims, users=USERS, assignment=Assignment.COIN, witnessed=True, blind=()):
    scores, member = _scores(shift, users)
    return judge(scores, member, _fixed(*claims, sides=Sides(assignment, witnessed)), blind=blind)


def test_a_leak_beyond_the_claim_is_a_certified_violation_and_one_within_it_is_not():
    broken = _judge(4.0, stated_claim(0.5, 1e-5))
    assert [(v.outcome, v.standing) for v in broken.verdicts] == [("contradicted", "certified")]
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
    assert states(found.verdicts[0].finding, Flaw.BLIND_DIFFERS)


def test_an_audit_too_small_for_any_statement_says_so_and_does_not_fail():
    found = judge({"u0": 1.0, "u1": 0.0}, {"u0": True, "u1": False}, _fixed(), blind=())
    assert found.bounds == found.verdicts == ()
    assert states(found.refused[0].refusal, Refusal.TOO_FEW_USERS)
    assert found.as_dict()["verdict"] is None
    claimed = judge({"u0": 1.0, "u1": 0.0}, {"u0": True, "u1": False}, _fixed(stated_claim(1.0, 1e-3)), blind=())
    assert claimed.delta == 1e-3
    alike = dict.fromkeys(USERS, 1.0)
    constant = judge(alike, {user: i % 2 == 0 for i, user in enumerate(USERS)}, _fixed(), blind=())
    assert constant.bounds == ()
    assert states(constant.refused[0].refusal, Refusal.ALL_EQUAL)


def test_a_mistake_of_the_caller_is_no_refused_bound():
    scores, member = _scores(1.0)
    with refused(by="join", naming="1 user"):
        judge({user: its for user, its in scores.items() if user != "u3"}, member, _fixed(), blind=())
    with refused(by="LabelledScores.__post_init__", naming="nan"):
        judge({**scores, "u3": float("nan")}, member, _fixed(), blind=())
    wrong_delta = replace(stated_claim(1.0, 1e-5), delta=1e-15)
    with refused(by="check_delta", naming="1e-15"):
        judge(scores, member, _fixed(wrong_delta), blind=())


def test_bounds_of_several_groups_are_at_one_delta():
    """What is claimed of canary users decides where nothing is claimed of real ones."""
    claim = stated_claim(1.0, 1e-7)
    fixed = Preregistration(
        AttackConfig(),
        AuditConfig(delta=1e-3),
        DecisionConfig(),
        COINS,
        panels=[Panel(Subjects.CANARIES(), ["a canary user"], [claim], "named_person")],
    )
    assert fixed.delta == 1e-7
    assert replace(fixed, claims=[stated_claim(1.0, 1e-5)]).delta == 1e-5
    assert Preregistration(AttackConfig(), AuditConfig(delta=1e-3), DecisionConfig(), COINS).delta == 1e-3
    one, other = (nothing_judged(9, delta, stated("too few"), stated("somebody")) for delta in (1e-5, 1e-6))
    with pytest.raises(ValueError, match="several deltas"):
        joined([one, other])
