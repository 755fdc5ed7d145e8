"""Users that "no leak found" takes: against simulated maxima, and against what simulated audits needed."""

import math

import numpy as np
import pytest

from heldin.audit.decision import DecisionConfig
from heldin.audit.exclusion import exclusion, lines, margins
from heldin.base.wording import at_most_counted
from tests.refusals import names, refused


@pytest.mark.parametrize(("scores", "correlation"), [(1, 0.7), (7, 0.7), (15, 0.7), (15, 0.0), (40, 0.95)])
def test_the_best_of_correlated_scores(scores, correlation):
    """AUROCs of many users are normal and as correlated as scores are, but for a little (Spearman's of Pearson's)."""
    rng = np.random.default_rng(3)
    alike = 6 / math.pi * math.asin(correlation / 2)
    own, shared = rng.standard_normal((200_000, scores)), rng.standard_normal((200_000, 1))
    best = (math.sqrt(alike) * shared + math.sqrt(1 - alike) * own).max(axis=1)
    assert margins(0.05, scores, correlation)[0] == pytest.approx(np.quantile(best, 0.85), abs=0.15)


def test_a_rate_that_a_thousand_users_cannot_show_has_a_margin_too():
    found = exclusion(5000, DecisionConfig(fpr=0.001), scores=7)
    assert found.users_needed > exclusion(5000, DecisionConfig(fpr=0.01), scores=7).users_needed


def test_alike_scores_are_one():
    assert margins(0.05, 20, 1.0) == margins(0.05, 1, 1.0)


def test_the_need_is_that_of_an_audit():
    """tests/coverage/test_decision.py: 475 for seven attacks of correlation 0.7, and 340 by AUROC alone."""
    found = exclusion(340, DecisionConfig(), scores=7)
    assert found.users_needed == pytest.approx(475, rel=0.1)
    assert found.users_auroc == pytest.approx(0.60, abs=0.01)
    assert exclusion(340, DecisionConfig(tpr=0.5), scores=7).users_needed == pytest.approx(340, rel=0.15)


def test_stricter_thresholds_more_scores_and_fewer_users():
    assert exclusion(100, DecisionConfig(auroc=0.55)).users_needed > exclusion(100, DecisionConfig()).users_needed
    assert exclusion(100, DecisionConfig(), scores=50).users_needed > exclusion(100, DecisionConfig()).users_needed
    assert exclusion(24, DecisionConfig()).users_auroc > exclusion(500, DecisionConfig()).users_auroc


def test_what_is_out_of_reach_is_not_counted_to_the_last_user():
    for by in (DecisionConfig(auroc=0.50001), DecisionConfig(tpr=0.050001)):
        assert lines(exclusion(340, by), 340)[1].endswith(f": {at_most_counted(1_000_001)}")
    assert lines(exclusion(340, DecisionConfig()), 340)[1].endswith(": 530")
    assert at_most_counted(1_000_000, before="about ") == "about 1,000,000"
    assert at_most_counted(1_000_001, before="about ") == "more than 1,000,000"


def test_one_score_has_no_correlation():
    alone, several = (lines(exclusion(340, DecisionConfig(), scores=n), 340)[0] for n in (1, 2))
    assert names(alone, "1 score")
    assert "correlation" not in alone
    assert names(several, "2 scores", "correlation")


@pytest.mark.parametrize(
    ("arguments", "by", "naming"),
    [
        ({"users": 1}, exclusion, ("1 user", "2")),
        ({"scores": 0}, margins, ("0 scores", "200")),
        ({"correlation": 1.5}, margins, ("correlation", "1.5", "[0, 1]")),
    ],
)
def test_bad_input(arguments, by, naming):
    given = {"users": 100, **arguments}
    with refused(by=by, naming=naming):
        exclusion(given.pop("users"), DecisionConfig(), **given)
