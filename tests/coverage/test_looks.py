"""Several looks at models of one planted training set: how often a true claim is contradicted in any of them."""

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.config import AttackConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.panels import judge
from heldin.audit.preregistration import Preregistration, Sides
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import stated_claim

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes


def _wrong(rng, *, looks, paid, leaked=False, users=120, rounds=500):
    """Rounds in which any of several looks at randomised-response models of epsilon 1 violates that true claim."""
    fixed = Preregistration(
        AttackConfig(),
        AuditConfig(),
        DecisionConfig(),
        Sides(Assignment.COIN, True),
        [stated_claim(1.0, 1e-5)],
        judged=paid,
    )
    names = [str(i) for i in range(users)]
    wrong = 0
    for _ in range(rounds):
        member = rng.random(users) < 0.5
        sides = dict(zip(names, member.tolist(), strict=True))
        contradicted = False
        for _ in range(looks):
            # Each coin is told truly with probability e / (1 + e): exactly epsilon = 1.
            told = np.where(rng.random(users) < np.e / (1 + np.e), member, ~member)
            scores = (member if leaked else told) + 1e-9 * rng.random(users)
            verdicts = judge(dict(zip(names, scores.tolist(), strict=True)), sides, fixed, blind=[]).verdicts
            contradicted |= any(v.exit_code == 3 for v in verdicts)
        wrong += contradicted
    return wrong


def test_in_500_rounds_with_three_looks_a_true_claim_is_violated_in_at_most_one_of_twenty():
    rng = np.random.default_rng(0)
    # Above this with probability under 1e-6 at a rate of 5 %.
    limit = stats.binom.isf(1e-6, 500, 0.05)
    assert _wrong(rng, looks=3, paid=3) <= limit
    assert _wrong(rng, looks=1, paid=1) <= limit
    # With coins leaked into the scores the same count says so.
    assert _wrong(rng, looks=1, paid=1, leaked=True, rounds=50) == 50


def test_looks_that_are_not_paid_for_reject_too_often():
    rng, limit = np.random.default_rng(1), stats.binom.isf(1e-6, 100, 0.05)
    assert _wrong(rng, looks=10, paid=1, rounds=100) > limit
    assert _wrong(rng, looks=10, paid=10, rounds=100) <= limit
