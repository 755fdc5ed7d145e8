"""Page one says of every claim what became of it, and calls certified only what is."""

from dataclasses import replace

import pytest

from heldin.reports.claims import summarise
from heldin.reports.recommendation import next_step
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
    ("outcome", "standing", "words", "strength"),
    [
        ("violated", "certified", "violated", "certified"),
        ("violated", "indicative", "violated", "indicative only"),
        ("consistent", "certified", "not contradicted", ""),
        ("consistent", "indicative", "not contradicted", "indicative only"),
        ("inconclusive", "certified", "inconclusive", ""),
    ],
)
def test_a_claim_is_told_with_its_outcome_and_only_a_violation_is_called_certified(
    record, outcome, standing, words, strength
):
    claim, _, rest = summarise(_judged(record, [(ONE, outcome, standing)])).partition(": ")
    said = rest.split(".")[0]
    assert claim == "Epsilon 1 at delta 1e-05"
    assert said.startswith(words)
    assert {name for name in ("certified", "indicative only") if name in said} == ({strength} if strength else set())


def test_claims_are_told_one_by_one_and_whom_a_verdict_is_about_where_canary_users_are_judged_too(record):
    both = [(ONE, "violated", "certified"), (EIGHT, "consistent", "certified")]
    assert summarise(_judged(record, both)).startswith(
        "Epsilon 1 at delta 1e-05: violated, certified. Epsilon 8 at delta 1e-05: not contradicted,"
    )


def test_without_a_claim_that_is_said_whatever_the_verdict_without_one_stands_at(record, approved):
    said = summarise(_judged(record, [(ClaimLabel.NONE(), "inconclusive", "certified")]))
    assert approved("no claim", said)
    assert said == summarise(_judged(record))


@pytest.mark.parametrize(
    ("bounds", "numbers", "standing"),
    [
        ([(2.5, "certified")], ["2.50", "95 %"], "certified"),
        ([(2.5, "certified"), (1.5, "certified")], ["2.50", "95 %", "2 bounds"], "certified"),
        # What rests on conditions that nobody checks never stands above what is certified.
        ([(9.5, "conditional"), (9.0, "indicative"), (2.5, "certified")], ["2.50", "95 %"], "certified"),
        ([(2.5, "indicative")], ["2.50", "95 %"], "indicative only"),
        ([(0.004, "certified")], ["above 0."], "No certified"),
        ([(9.5, "estimate")], [], "is certified."),
        ([], [], "is certified."),
    ],
)
def test_the_highest_bound_of_the_best_standing_is_told_with_what_it_is_worth(
    record, approved, bounds, numbers, standing
):
    said = summarise(_judged(record, bounds=bounds))
    assert approved("bounds", said)
    assert all(number in said for number in numbers)
    assert standing in said
    assert not any(other in said for other in ("9.50", "9.00", "1.50"))


def test_a_design_that_supports_no_bound_says_why(record, approved):
    reason = "3 users are too few"
    said = summarise(_judged(record, refused=[reason]))
    assert approved("no bound", said)
    assert said.endswith(f"{reason}.")


def test_a_comparison_that_is_not_valid_is_the_reason_for_those_whom_it_is_about(record, approved):
    """Canary users are judged by themselves: what is found of them stays."""
    judged = _judged(record, [(ONE, "inconclusive", "indicative"), (ONE, "consistent", "certified")])
    real, canaries = judged.judgement.verdicts
    verdicts = (real, replace(canaries, subjects=stated("unseen-token canary users")))
    void = decided_record(judged, evidence(score(0.8, adjusted_p=0.001), flaws=(stated("x"),)))
    said = summarise(void.model_copy(update={"judgement": replace(void.judgement, verdicts=verdicts)}))
    assert approved("not valid", said)
    assert "not contradicted" in said


def test_a_comparison_that_is_not_valid_gives_no_bound_on_those_whom_it_is_about(record, approved):
    judged = _judged(record, bounds=[(2.5, "indicative"), (1.5, "indicative")])
    void = decided_record(judged, evidence(score(0.8, adjusted_p=0.001), flaws=(stated("x"),)))
    assert approved("real users", summarise(void))
    real, canaries = void.judgement.bounds
    bounds = (real, replace(canaries, subjects=stated("unseen-token canary users")))
    both = summarise(void.model_copy(update={"judgement": replace(void.judgement, bounds=bounds)}))
    assert approved("real users and canary users", both)
    assert "1.50" in both
    assert "2.50" not in both


@pytest.mark.parametrize(("kind", "named"), [("audit", "--texts training"), ("run", "attack.documents: [training]")])
def test_an_inconclusive_audit_of_two_files_is_told_an_option_that_it_has(record, kind, named):
    open_one = decided_record(record.model_copy(update={"kind": kind}), evidence(score(0.5, at_most=0.7)))
    assert named in next_step(open_one)


def test_exchanged_files_are_the_first_thing_to_check_where_there_are_files(record, approved):
    backwards = evidence(score(0.2, adjusted_p=1.0), reversed_p=1e-6)
    of_files = decided_record(record.model_copy(update={"kind": "audit"}), backwards)
    assert of_files.decision.decision.reversed
    assert approved("of files", next_step(of_files))
    drawn = decided_record(record, backwards)
    assert approved("drawn", next_step(drawn))
    assert next_step(of_files) != next_step(drawn)
