"""The section on claims names the bound of the best standing, and calls certified only what is."""

from dataclasses import replace

import pytest

from heldin.reports.claims import describe_verdicts
from heldin.words.evidence import ClaimLabel
from tests.made_facts import changed_record, decided_record, evidence, score, stated

ONE, EIGHT = (ClaimLabel.STATED(epsilon=epsilon, delta=1e-5) for epsilon in (1.0, 8.0))


@pytest.fixture(scope="module")
def record(plain):
    return plain


def _judged(record, verdicts=(), bounds=(), refused=()):
    """The record with (claim, outcome, standing) verdicts, (epsilon, standing) bounds and reasons of refused bounds."""
    why = stated("why")
    whole = [
        {"claim": claim, "outcome": outcome, "standing": standing, "finding": why, "max_certifiable_epsilon": 5.0}
        for claim, outcome, standing in verdicts
    ]
    of = [
        {"name": "one-run", "epsilon_lower": epsilon, "level": 0.95, "standing": standing, "coverage": 0.97}
        for epsilon, standing in bounds
    ]
    without = [{"name": "all bounds", "refusal": stated(reason)} for reason in refused]
    judgement = {"users": 60, "delta": 1e-5, "bounds": of, "refused": without, "verdicts": whole}
    return changed_record(record, judgement=judgement)


@pytest.mark.parametrize(
    ("bounds", "best"),
    [
        ([(2.5, "certified")], "2.50"),
        ([(2.5, "certified"), (1.5, "certified")], "2.50"),
        # What rests on conditions that nobody checks is never named before what is certified.
        ([(9.5, "conditional"), (9.0, "indicative"), (2.5, "certified")], "2.50"),
        ([(9.5, "conditional"), (2.5, "indicative")], "2.50"),
        ([(9.5, "conditional"), (9.0, "estimate")], None),
        ([], None),
    ],
)
def test_the_bound_that_is_named_is_the_highest_of_the_best_standing(record, bounds, best):
    said = describe_verdicts(_judged(record, bounds=bounds))
    assert [number for number in ("9.50", "9.00", "2.50", "1.50") if number in said] == ([best] if best else [])


def test_a_design_that_supports_no_bound_says_why(record, approved):
    reason = "3 users are too few"
    said = describe_verdicts(_judged(record, refused=[reason]))
    assert approved("no bound", said)
    assert said.endswith(f"{reason}.")


def test_a_comparison_that_is_not_valid_gives_no_bound_on_those_whom_it_is_about(record, approved):
    """Canary users are judged by themselves: what is found of them stays."""
    judged = _judged(record, bounds=[(2.5, "indicative"), (1.5, "indicative")])
    void = decided_record(judged, evidence(score(0.8, adjusted_p=0.001), flaws=(stated("x"),)))
    assert approved("real users", describe_verdicts(void))
    real, canaries = void.judgement.bounds
    bounds = (real, replace(canaries, subjects=stated("unseen-token canary users")))
    both = describe_verdicts(void.model_copy(update={"judgement": replace(void.judgement, bounds=bounds)}))
    assert approved("real users and canary users", both)
    assert "1.50" in both
    assert "2.50" not in both


def test_claims_are_told_one_by_one_and_a_violation_with_its_standing(record, approved):
    both = [(ONE, "contradicted", "certified"), (EIGHT, "consistent", "certified")]
    assert approved("two claims", describe_verdicts(_judged(record, both)))
    assert approved("indicative", describe_verdicts(_judged(record, [(ONE, "contradicted", "indicative")])))
