"""Page one states the same facts in PDF, web page, terminal and JSON, and none of its lines contradicts another."""

import itertools
import json
from dataclasses import replace
from string import Formatter

import numpy as np
import pytest

from heldin.attacks.kinds import get_attack
from heldin.audit.coarse import share_limits
from heldin.audit.decision import Answer
from heldin.audit.flagged import AttackChoice, flagged_by
from heldin.audit.results import TrainingsFacts
from heldin.commands.finish import labelled
from heldin.record.facts import Ceiling, TrainingFile
from heldin.record.planted_facts import Condition, ControlFacts, ControlOutcome, Known, PlantedFacts, Reason
from heldin.reports import page_one
from heldin.reports.blocks import Banner, FactList, Paragraph, Place, Table
from heldin.reports.limits import limit_rows, propose_limits
from heldin.reports.page_one import lines, state_answer, state_data, summary_facts, summary_lines, written
from heldin.reports.recommendation import Grade, grade_of, recommend
from heldin.reports.record_report import report_record
from heldin.reports.sweep_report import report_sweep
from heldin.words.answer import ComparisonFlaw
from heldin.words.evidence import ClaimLabel
from heldin.words.guarantee import GuaranteeText, NoGuaranteeReason, Relation
from heldin.words.page_one import (
    Advice,
    AskedOfModels,
    Attacking,
    AttackNeeds,
    Evidence,
    Found,
    Guaranteed,
    HowOften,
    Label,
    Learned,
    LimitOutcome,
    Next,
    NotTested,
    People,
    PlainFlaw,
    Texts,
)
from heldin.words.rows import SkippedText
from heldin.words.split import ConditionStated, SplitReason
from tests.made_facts import (
    NOTHING_SKIPPED,
    attack_result,
    canary_facts,
    changed_record,
    counted_attack,
    decided_record,
    decision_of,
    evidence,
    score,
    stated,
)
from tests.made_sweeps import made_sweep
from tests.refusals import names
from tests.reports.golden_pages import made_cases, report_of, reports
from tests.statements import states, values_of

LEAK = score(0.71, adjusted_p=0.001, tpr=0.25)
OPEN, CALM = score(0.5, at_most=0.7), score(0.5, at_most=0.55)
BACKWARDS = evidence(score(0.2, adjusted_p=1.0), reversed_p=1e-6)
FLAWED = evidence(LEAK, flaws=(ComparisonFlaw.NO_EFFECT(),))
MOST_WORDS = 240


@pytest.fixture(scope="module")
def record(plain):
    """A leak of AUROC 0.71 (0.65 to 0.77), TPR 0.25 at FPR 0.05, of a model that learned."""
    attacks = [attack_result(0.71, 0.65, 0.77).model_dump()]
    gain = {"value": 0.2, "lower": 0.1, "upper": 0.3, "per": "token"}
    return changed_record(decided_record(plain, evidence(LEAK)), attacks=attacks, dials=[], gain=gain)


def _line(record, label):
    return dict(lines(record))[label]


def _limited(record, *limits):
    decision = record.decision.model_dump()
    return changed_record(record, decision={**decision, "by": {**decision["by"], "require": list(limits)}})


def _private(record, epsilon=2.0, tpr=0.4):
    promise = GuaranteeText.EPSILON(epsilon=epsilon, delta=1e-5, unit="user", relation=Relation.ADD_REMOVE())
    ceiling = Ceiling(auroc=0.8, fpr=[0.0, 0.05, 0.1, 1.0], tpr=[0.0, tpr, 0.5, 1.0])
    update = {"epsilon": epsilon, "delta": 1e-5, "unit": "user", "defense": "uls", "ceiling": ceiling}
    return changed_record(
        record, training=record.training.model_copy(update={**update, "promise": promise}).model_dump()
    )


def _judged(record, *verdicts):
    """The record with (claimed epsilon or None, outcome, standing, reach) verdicts."""
    whole = [
        {
            "claim": ClaimLabel.NONE() if epsilon is None else ClaimLabel.STATED(epsilon=epsilon, delta=1e-5),
            "outcome": outcome,
            "standing": standing,
            "finding": stated("why"),
            "max_certifiable_epsilon": reach,
        }
        for epsilon, outcome, standing, reach in verdicts
    ]
    judgement = {"users": 60, "delta": 1e-5, "bounds": [], "refused": [], "verdicts": whole}
    return changed_record(record, judgement=judgement)


def _with_canaries(record, its):
    """The record with this evidence on canary users."""
    return changed_record(record, canaries=canary_facts([], decision=decision_of(its)).model_dump())


def _flagging(record, members, others=10, of=200):
    """The record in which the primary attack flags so many of 200 members and 200 non-members."""
    sides = np.array([members, of - members]), np.array([others, of - others])
    people = flagged_by(counted_attack("likelihood-ratio (mean over texts)", *sides), 0.05, AttackChoice.PRIMARY)
    return changed_record(record, decision=record.decision.model_copy(update={"flagged": people}).model_dump())


@pytest.mark.parametrize(
    ("its", "answer", "found"),
    [
        (evidence(LEAK), "leaks", Found.USERS),
        (evidence(LEAK, ceiling=0.9), "leaks", Found.USERS),
        (evidence(LEAK, ceiling=0.6), "leaks", Found.USERS),
        (evidence(CALM), Answer.NO_LEAK, Found.NO_LEAK),
        (evidence(CALM, learned=True), Answer.NO_LEAK, Found.NO_LEAK),
        (evidence(CALM, learned=False), "inconclusive", Found.LEARNED_NOTHING),
        (evidence(OPEN), "inconclusive", Found.TOO_FEW),
        (BACKWARDS, "inconclusive", Found.REVERSED_BY_COINS),
        (FLAWED, "not valid", Found.NOT_VALID),
    ],
)
def test_the_banner_has_one_of_four_words_and_a_sentence(record, its, answer, found):
    made = decided_record(record, its)
    (sentence,) = state_answer(made)
    assert sentence.states(found)
    banner = report_record(made).section("answer").first(Banner)
    assert (banner.answer, banner.title.lower(), banner.text) == (answer, answer, str(sentence))
    assert summary_facts(made)["answer"] == answer


@pytest.mark.parametrize(
    ("members", "others", "often"),
    [
        (120, 10, HowOften.USUALLY),
        (60, 10, HowOften.OFTEN),
        (20, 10, HowOften.SOMETIMES),
        (120, 100, HowOften.SOMETIMES),
    ],
)
def test_how_often_an_attacker_succeeds_follows_from_the_people_that_are_flagged(record, members, others, often):
    """Beyond non-members: of few users a threshold may flag half of both groups."""
    made = _flagging(record, members, others)
    assert values_of(state_answer(made)[0], Found.USERS)["how_often"].states(often)


def test_no_leak_found_says_which_leak_is_ruled_out(record):
    values = values_of(state_answer(decided_record(record, evidence(CALM)))[0], Found.NO_LEAK)
    assert (values["auroc"], values["rate"], values["fpr"]) == (0.55, 11.0, 5.0)


def test_two_files_may_be_swapped_and_coins_of_heldin_cannot(record):
    audit = changed_record(decided_record(record, BACKWARDS), kind="audit", training=None)
    assert state_answer(audit)[0].states(Found.REVERSED)
    assert states(recommend(audit), Next.SWAPPED)
    for kind in ("run", "planted"):
        drawn = decided_record(record, BACKWARDS).model_copy(update={"kind": kind})
        assert state_answer(drawn)[0].states(Found.REVERSED_BY_COINS)
        assert states(recommend(drawn), Next.SWAPPED_COINS)


def test_all_reasons_of_an_inconclusive_audit_are_said_the_strongest_first(record):
    """More users would not help an audit of a model that learned nothing."""
    nothing = {"value": 0.0, "lower": -0.1, "upper": 0.1, "per": "token"}
    made = changed_record(decided_record(record, evidence(OPEN, users=60, held_out=30)), gain=nothing)
    assert state_answer(made)[0].states(Found.LEARNED_NOTHING_TOO_FEW)
    steps = recommend(made).values["next"]
    assert [step.code for step in steps] == [Next.LEARN_MORE.code, Next.MORE_USERS.code]


@pytest.mark.parametrize(("audited", "found"), [("canaries", Found.CANARIES), ("entities", Found.ENTITIES)])
def test_a_leak_is_about_the_people_who_were_audited(record, audited, found):
    made = changed_record(record, split=record.split.model_copy(update={"audited": audited}).model_dump())
    assert state_answer(made)[0].states(found)


@pytest.mark.parametrize(
    ("kind", "texts"), [("fresh", Texts.FRESH), ("training", Texts.TRAINING), ("mixed", Texts.ANY)]
)
def test_the_answer_says_which_texts_the_attacker_has(record, kind, texts):
    scored = record.scored_texts.model_copy(update={"kind": kind}).model_dump()
    assert values_of(state_answer(changed_record(record, scored_texts=scored))[0], Found.USERS)["texts"].states(texts)


@pytest.mark.parametrize("flaw", list(ComparisonFlaw))
def test_a_page_that_is_not_valid_names_the_flaw_and_nothing_else(record, flaw):
    values = {name: 1 for _, name, _, _ in Formatter().parse(flaw.sentence) if name}
    made = decided_record(record, evidence(LEAK, flaws=(flaw(**values),)))
    made = _judged(made, (None, "inconclusive", "certified", 3.0))
    assert values_of(state_answer(made)[0], Found.NOT_VALID)["flaw"].states(PlainFlaw[flaw.name])
    assert report_record(made).section("picture") is None
    assert [s.code for s in _line(made, Label.GUARANTEE)] in ([Guaranteed.NONE.code], [Guaranteed.NO_GUARANTEE.code])
    assert made.flagged() is None


def test_a_leak_of_canary_users_is_part_of_the_answer(record):
    made = _with_canaries(decided_record(record, evidence(OPEN)), evidence(LEAK))
    assert [s.code for s in state_answer(made)] == [Found.CANARIES_LEAK.code, Found.TOO_FEW.code]
    (line,) = _line(made, Label.CANARIES)
    values = values_of(line, People.CANARIES)
    assert (values["answer"], values["count"], values["of"], values["wrong_count"]) == ("Leaks", 50, 200, 10)
    assert recommend(made).states(Advice.CANARIES_LEAK)
    calm = _with_canaries(decided_record(record, evidence(OPEN)), evidence(CALM))
    assert not states(state_answer(calm), Found.CANARIES_LEAK)
    assert _line(calm, Label.CANARIES)[0].states(People.CANARIES_NOT_COUNTED)
    # Real users leak anyway: nothing is added.
    assert len(state_answer(_with_canaries(record, evidence(LEAK)))) == 1


def test_a_contradicted_guarantee_alone_is_not_called_an_attack_that_succeeds(record):
    its = evidence(CALM, contradicted="certified", ceiling=0.6)
    made = _judged(decided_record(record, its), (1.0, "contradicted", "certified", 5.0))
    assert state_answer(made)[0].states(Found.BY_CLAIM_ALONE)
    assert states(_line(made, Label.EVIDENCE), Evidence.CERTIFIED)
    # As with an exact half of the users, whose leaks are tested exactly and whose claims are not.
    weaker = _judged(decided_record(record, its), (1.0, "contradicted", "indicative", 5.0))
    assert states(_line(weaker, Label.EVIDENCE), Evidence.NOT_BY_COINS)


def test_people_are_counted_and_the_attack_is_named(record):
    """One number and one name in text, picture, terminal and JSON."""
    people = record.flagged()
    assert (people.members, people.of_members, people.others, people.of_others) == (50, 200, 10, 200)
    assert people.members_limits == share_limits(50, 200)
    values = values_of(_line(record, Label.PEOPLE), People.COUNTED)
    assert (values["rate"], values["wrong"], values["audited"]) == (25, 5, "users")
    assert values["which"].states(Attacking.DECIDING)
    assert values["which"].values["attack"] == people.label == LEAK.name
    assert record.allowed_share(0.05) is None
    assert _private(record).allowed_share(0.05) == 0.4
    assert states(_line(_private(record), Label.PEOPLE), People.ALLOWED)
    assert "25 of 100 members" in report_record(record).figures["people"].alt
    assert summary_facts(record)["people"]["members"] == 50


def test_where_no_leak_is_found_the_best_attack_is_named_too_and_chance_explains_it(record):
    primary, other = score(0.5, at_most=0.55), score(0.55, name="zlib (max over texts)", at_most=0.58, tpr=0.11)
    made = decided_record(record, evidence(primary, other))
    values = values_of(_line(made, Label.PEOPLE), People.COUNTED)
    assert values["which"].states(Attacking.PRIMARY)
    assert values["rate"] == 5
    best = values_of(_line(made, Label.PEOPLE), People.BEST)
    assert (best["among"], best["rate"], best["wrong"]) == (2, 11, 5)
    assert summary_facts(made)["best_attack"]["attack"] == "zlib"
    # Chance does not explain an attack that passes the test of all of them.
    strong = replace(other, adjusted_p=0.001)
    leak = decided_record(record, evidence(primary, strong))
    assert not states(_line(leak, Label.PEOPLE), People.BEST)
    assert values_of(_line(leak, Label.PEOPLE), People.COUNTED)["which"].values["attack"] == other.name
    assert summary_facts(leak)["best_attack"] is None


def test_fewer_than_fifty_people_are_counted_themselves(record):
    few = _flagging(record, 6, others=4, of=20)
    values = values_of(_line(few, Label.PEOPLE), People.COUNTED_FEW)
    assert (values["count"], values["of"], values["wrong_count"], values["wrong_of"]) == (6, 20, 4, 20)
    assert names(report_record(few).figures["people"].alt, "6 of 20", "4 of 20")
    none = changed_record(record, decision=record.decision.model_copy(update={"flagged": None}).model_dump())
    assert _line(none, Label.PEOPLE)[0].states(People.TOO_FEW)
    assert "people" not in report_record(none).figures
    assert _line(decided_record(record, FLAWED), Label.PEOPLE)[0].states(People.NOT_VALID)


@pytest.mark.parametrize(
    ("access", "attack", "code"),
    [
        ("text", "likelihood-ratio", AttackNeeds.MORE_THAN_RELEASED),
        ("log-probabilities", "likelihood-ratio", AttackNeeds.AS_RELEASED),
        ("log-probabilities", "min-k++", AttackNeeds.MORE_THAN_RELEASED),
        ("weights", "min-k++", AttackNeeds.AS_RELEASED),
    ],
)
def test_what_the_attack_needs_is_held_against_what_is_released(record, access, attack, code):
    changes = {"attack": attack, "asks": get_attack(attack).facts()}
    attacks = [record.attacks[0].model_copy(update=changes).model_dump()]
    made = changed_record(
        record, attacks=attacks, primary_attack=attack, config={**record.config, "release": {"access": access}}
    )
    assert states(_line(made, Label.ATTACK), code)
    assert states(
        _line(made, Label.ATTACK), AskedOfModels.OF_VOCABULARY if attack == "min-k++" else AskedOfModels.OF_TEXT
    )
    for without in (AttackNeeds.AS_RELEASED, AttackNeeds.MORE_THAN_RELEASED):
        assert not states(_line(record, Label.ATTACK), without)


def test_people_of_a_dial_are_counted_like_those_of_an_attack(record):
    """A setting of a dial may be the strongest score; the record has no curve of it."""
    dial = score(0.71, name="likelihood-ratio (mean over texts; documents: 4)", adjusted_p=0.001, tpr=0.61)
    made = decided_record(record, evidence(score(0.55), dial))
    assert made.decides_by_a_dial()
    assert (made.flagged().members, made.flagged().label) == (122, dial.name)
    assert values_of(state_answer(made)[0], Found.USERS)["how_often"].states(HowOften.USUALLY)


def _planted(*conditions):
    return PlantedFacts(
        planted="2026-11-23", plan="a" * 64, training_set="b" * 64, rows=90, skipped=NOTHING_SKIPPED, look=1, looks=1,
        evidence="callback", declared_by="R. Signer", conditions=list(conditions),
    )  # fmt: skip


def test_evidence_is_certified_only_for_a_leak_that_coins_of_heldin_show(record):
    assert _line(record, Label.EVIDENCE)[0].states(Evidence.CERTIFIED)
    assert values_of(_line(record, Label.EVIDENCE), Evidence.CERTIFIED)["percent"] == 5
    assert _line(decided_record(record, evidence(CALM)), Label.EVIDENCE)[0].states(Evidence.ESTIMATE)
    assert states(_line(record, Label.EVIDENCE), Evidence.BY_COINS)
    half = record.split.model_copy(update={"reason": SplitReason.EXACT_HALF(audited="users"), "certifiable": False})
    drawn = _line(changed_record(record, split=half.model_dump()), Label.EVIDENCE)
    assert states(drawn, Evidence.CERTIFIED, Evidence.BY_HALVES)
    asserted = decided_record(record, evidence(LEAK, exact=False))
    for reason, code in (
        (SplitReason.ASSERTED_BY_FILES(), Evidence.STATED),
        (SplitReason.ASSERTED_COINS(), Evidence.STATED),
        (SplitReason.ASSERTED_NO_COINS(), Evidence.NOT_BY_COINS),
    ):
        split = asserted.split.model_copy(update={"reason": reason})
        assert _line(changed_record(asserted, split=split.model_dump()), Label.EVIDENCE)[0].states(code)


def test_evidence_states_what_the_training_file_shows_and_what_nobody_checked(record, approved):
    asserted = decided_record(record, evidence(LEAK, exact=False))
    split = asserted.split.model_dump() | {"reason": SplitReason.ASSERTED_BY_FILES().model_dump(), "held_in": 150}
    split["held_out"] = 150
    nobody = {"held_out_texts_in_training": 0, "held_out_users_in_training": 0}
    for case, file, others in (
        ("all texts", TrainingFile(texts=3171, texts_there=3171, members_there=150), nobody),
        ("some texts", TrainingFile(texts=3171, texts_there=12, members_there=150), nobody),
        ("no text", TrainingFile(texts=3171, texts_there=0, members_there=149), nobody),
        ("non-members too", TrainingFile(texts=3171, texts_there=3171, members_there=150),
         {"held_out_texts_in_training": 3, "held_out_users_in_training": 2}),
    ):  # fmt: skip
        counted = {name: {"count": count, "known_by": "measured"} for name, count in others.items()}
        named = {**split, "training_file": file.model_dump(), "overlaps": {**split["overlaps"], **counted}}
        made = changed_record(asserted, split=named)
        line = _line(made, Label.EVIDENCE)
        assert states(line, Evidence.PARTLY_CHECKED, Evidence.FILE_STATED)
        assert approved(case, written(line))
    # Without a count of non-members nothing is said of the file: unknown is no zero.
    unknown = {**split, "training_file": file.model_dump()}
    unknown["overlaps"] = {name: {"count": None, "known_by": "not known"} for name in split["overlaps"]}
    assert states(_line(changed_record(asserted, split=unknown), Label.EVIDENCE), Evidence.STATED)


def test_evidence_of_a_planted_audit_names_who_declared_the_deciding_condition(record):
    declared = Condition(name="given_every_row", known_by="declared", reasons=["signed"])
    checked = Condition(name="fair_coins", known_by="checked", reasons=["drawn_again"])
    made = changed_record(record, kind="planted", training=None, planted=_planted(checked, declared).model_dump())
    values = values_of(_line(made, Label.EVIDENCE), Evidence.DECLARED_ONE)
    assert (values["declared_by"], values["count"], values["of_all"]) == ("R. Signer", 1, 2)
    both = checked.model_copy(update={"known_by": Known.DECLARED})
    two = changed_record(made, planted=_planted(both, declared).model_dump())
    values = values_of(_line(two, Label.EVIDENCE), Evidence.DECLARED)
    assert (values["count"], values["of_all"]) == (2, 2)
    assert values["condition"].states(ConditionStated.GIVEN_EVERY_ROW)
    for reason, code in ((Reason.ROWS_MISSING, Evidence.NOT_MET), (Reason.UNDECLARED, Evidence.NOT_DECLARED)):
        condition = declared.model_copy(update={"known_by": Known.NOT_MET, "reasons": [reason]})
        unmet = changed_record(made, planted=_planted(checked, condition).model_dump())
        assert _line(unmet, Label.EVIDENCE)[0].states(code)
        # A leak without limits is graver than a condition that is not met.
        assert recommend(unmet).states(Advice.LEAKS)
        assert recommend(decided_record(unmet, evidence(CALM))).states(Advice.CONDITION)


@pytest.mark.parametrize(
    ("its", "lower", "code"),
    [(LEAK, 0.1, None), (LEAK, -0.1, Learned.NOTHING_FOR_OTHERS), (OPEN, -0.1, Learned.NOTHING), (CALM, 0.01, None),
     (OPEN, 0.0, Learned.NOTHING)],
)  # fmt: skip
def test_a_model_that_learned_nothing_is_said_to_show_nothing(record, its, lower, code):
    gain = {"value": lower + 0.1, "lower": lower, "upper": lower + 0.2, "per": "token"}
    made = changed_record(decided_record(record, evidence(its)), gain=gain)
    elsewhere = changed_record(made, training=None, kind="audit")
    for each, expected in ((made, code), (elsewhere, code and Learned.NOT_SHOWN)):
        assert (expected is None) == (Label.LEARNED not in dict(lines(each)))
        assert expected is None or _line(each, Label.LEARNED)[0].states(expected)
        row = limit_rows(each)[1]
        assert row[1:] == [
            f"{lower + 0.1:.3g}",
            f"{lower:.3g}",
            str((LimitOutcome.MET if lower > 0 else LimitOutcome.NOT_SHOWN)()),
        ]
    unmeasured = changed_record(made, gain=None, utility=None)
    assert _line(unmeasured, Label.LEARNED)[0].states(Learned.NOT_MEASURED)


def test_the_control_of_a_planted_audit_says_whether_anything_was_learned(record):
    """The rows that it compares are a measurement too, and its outcome is next to the evidence."""
    control = ControlFacts(
        outcome=ControlOutcome.PASSED, trained_rows=400, untrained_rows=400, rows_auroc=0.81, rows_lower=0.77,
        held_in=30, held_out=30, canary_auroc=0.8, canary_lower=0.7, difference_lower=-0.1, level=0.01,
    )  # fmt: skip
    planted = _planted(Condition(name="fair_coins", known_by="checked", reasons=["drawn_again"]))

    def with_control(**changes):
        its = ControlFacts.model_validate({**control.model_dump(), **changes})
        measured = {"gain": None, "utility": None, "training": None}
        facts = planted.model_copy(update={"control": its}).model_dump()
        return changed_record(record, kind="planted", planted=facts, **measured)

    learned = with_control()
    assert Label.LEARNED not in dict(lines(learned))
    assert limit_rows(learned)[1][1:] == ["0.81", "0.77", "met"]
    nothing = with_control(rows_auroc=0.52, rows_lower=0.48, outcome="unusable")
    assert _line(nothing, Label.LEARNED)[0].states(Learned.ROWS_NOT_SHOWN)
    weak = {"undecided": Evidence.UNDECIDED, "unusable": Evidence.UNUSABLE, "not_measured": Evidence.NOT_CONTROLLED}
    for outcome, code in weak.items():
        assert states(_line(with_control(outcome=outcome), Label.EVIDENCE), code)
    # Real rows were learned so plainly that known filters would have been noticed.
    noticed = with_control(outcome="undecided", noticed_from=0.7)
    assert not any(states(_line(made, Label.EVIDENCE), *weak.values()) for made in (learned, noticed))


def test_a_claim_that_this_audit_could_not_contradict_says_nothing(record):
    beyond = _judged(changed_record(record, training=None, kind="audit"), (8.0, "inconclusive", "indicative", 3.8))
    claimed, judged = _line(beyond, Label.GUARANTEE)
    assert (claimed.code, judged.code) == (Guaranteed.CLAIMED.code, Guaranteed.OUT_OF_REACH.code)
    assert judged.values["reach"] == 3.8
    within = _judged(record, (2.0, "consistent", "certified", 3.8))
    assert states(_line(within, Label.GUARANTEE), Guaranteed.WITHIN_REACH)
    void = decided_record(within, FLAWED)
    assert states(_line(void, Label.GUARANTEE), Guaranteed.NOT_VALID)
    unclaimed = _judged(changed_record(record, training=None, kind="audit"), (None, "inconclusive", "certified", 1.6))
    assert [s.code for s in _line(unclaimed, Label.GUARANTEE)] == [Guaranteed.NONE.code]
    accounted = _judged(_private(record), (2.0, "consistent", "certified", 3.8))
    assert _line(accounted, Label.GUARANTEE)[0].states(Guaranteed.PLANNED)
    # A claim that somebody typed is not the accountant's, even where there is a plan.
    typed = accounted.model_copy(update={"kind": "trainings"})
    assert _line(typed, Label.GUARANTEE)[0].states(Guaranteed.CLAIMED)


@pytest.mark.parametrize("audit", ["not run", "passed", "inconclusive", "failed"])
def test_page_one_says_whose_word_a_guarantee_is(record, approved, audit):
    numbers = {"epsilon": 3.0, "delta": 1e-3, "unit": "example", "relation": Relation.ADD_REMOVE()}
    promise = GuaranteeText.DECLARED(**numbers, package="heldin_mine 0.3")
    epsilon = 3.0
    if audit == "failed":
        epsilon, reason = None, NoGuaranteeReason.WHITE_BOX_FAILED(package="heldin_mine 0.3")
        promise = GuaranteeText.NO_GUARANTEE(reasons=[reason])
    declared = {"package": "heldin_mine", "version": "0.3", "sha256": "0" * 64, "audit": audit}
    own = {"promise": promise.model_dump(), "epsilon": epsilon, "unit": "example", "declared_by": declared}
    private = _judged(_private(record), (None, "inconclusive", "certified", 1.6))
    made = changed_record(private, training={**private.training.model_dump(), **own})
    line = _line(made, Label.GUARANTEE)
    assert approved(audit, written(line))
    assert states(line, Guaranteed.DECLARED) == (epsilon is not None)
    # Also where a test looked at the epsilon.
    tested = _judged(made, (3.0, "consistent", "certified", 3.8))
    assert states(_line(tested, Label.GUARANTEE), Guaranteed.DECLARED)
    assert not states(_line(private, Label.GUARANTEE), Guaranteed.DECLARED)


@pytest.mark.parametrize("standing", ["certified", "indicative"])
def test_a_contradicted_guarantee_is_never_released(record, standing):
    made = _limited(_judged(record, (1.0, "contradicted", standing, 5.0)), {"of": "auroc", "at_most": 0.99})
    assert values_of(_line(made, Label.GUARANTEE), Guaranteed.CONTRADICTED)["evidence"] == standing
    assert recommend(made).states(Advice.RELEASE_NEVER)


@pytest.mark.parametrize(
    ("limit", "advice"),
    [(0.77, Advice.RELEASE_LEAKS), (0.76, Advice.RELEASE_LEAKS), (0.75, Advice.NOT_SHOWN), (0.67, Advice.NOT_SHOWN),
     (0.65, Advice.BROKEN)],
)  # fmt: skip
def test_the_recommendation_flips_where_the_interval_crosses_the_limit(record, limit, advice):
    made = _limited(record, {"of": "auroc", "at_most": limit})
    assert recommend(made).states(advice)
    # Of a broken limit the confidence limit that is nearest to it; else the one-sided upper limit of the answer.
    assert limit_rows(made)[-1][1:3] == ["0.71", "0.66" if advice is Advice.BROKEN else "0.76"]


def test_the_table_of_limits_has_those_of_the_answer_and_of_the_organisation(record):
    """The same rows in PDF, web page, terminal and JSON."""
    calm = decided_record(record, evidence(CALM))
    rows = report_record(calm).section("limits-table").first(Table).rows
    assert [row[1:] for row in rows] == [
        ["0 of 2", "", "met"], ["0.2", "0.1", "met"], ["0.5", "0.55", "met"], ["5", "11", "met"], ["", "", "not set"],
    ]  # fmt: skip
    limit = {"of": "loss_gain_over_base", "at_least": 0.5}
    assert limit_rows(_limited(calm, limit))[-1][-1] != "not set"
    shown = [text for label, text in summary_lines(calm) if label == "limit"]
    assert all(text.startswith(f"{row[3]}; {row[0]}") for text, row in zip(shown, rows, strict=True))
    facts = summary_facts(calm)["limits"]
    assert [(each["status"], each["confidence_limit"]) for each in facts] == [("met", 0.55), ("met", 0.11)]
    separating = [record.blind[0].model_copy(update={"separates": True}).model_dump()]
    assert limit_rows(changed_record(record, blind=separating))[0][1:] == [
        f"1 of 1: {record.blind[0].name}", "", "broken",
    ]  # fmt: skip
    assert limit_rows(changed_record(record, blind=[]))[0][1:] == ["", "", "not measured"]


_ANSWERS = {"no leak": evidence(CALM), "inconclusive": evidence(OPEN), "leaks": evidence(LEAK)}
_AUROC_LIMITS = {"met": 0.99, "not shown": None, "broken": 0.4}


def test_a_worse_finding_never_gets_milder_advice(record):
    """All combinations: along each finding from better to worse, the grade of the recommendation never falls."""
    unmet = _planted(Condition(name="given_every_row", known_by="not met", reasons=["rows_missing"]))
    axes = {
        "answer": list(_ANSWERS),
        "limits": ["none", "met", "not shown", "broken"],
        "canaries": ["calm", "leaks"],
        "condition": ["met", "unmet"],
        "claim": ["kept", "contradicted"],
        "promise": ["within", "above"],
        "epsilon": ["kept", "broken"],
    }
    grades = {}
    for case in itertools.product(*axes.values()):
        answer, limits, canaries, condition, claim, promise, epsilon = case
        its = replace(_ANSWERS[answer], ceiling=0.6 if promise == "above" else None)
        made = decided_record(record, its)
        required = [] if epsilon == "kept" else [{"of": "epsilon_per_user", "at_most": 8.0}]
        if limits != "none":
            decided = made.decision.decision
            limit = _AUROC_LIMITS[limits] or (decided.shown_auroc + decided.excluded_auroc) / 2
            required.append({"of": "auroc", "at_most": limit})
        made = _limited(made, *required)
        if canaries == "leaks":
            made = _with_canaries(made, evidence(LEAK))
        if condition == "unmet":
            made = changed_record(made, planted=unmet.model_dump())
        if claim == "contradicted":
            made = _judged(made, (1.0, "contradicted", "certified", 5.0))
        grades[case] = grade_of(recommend(made))
    for case, grade in grades.items():
        for axis, (name, levels) in enumerate(axes.items()):
            for worse in levels[levels.index(case[axis]) + 1 :]:
                # Setting limits is not worse than setting none: they say how much is accepted.
                if name == "limits" and case[axis] == "none":
                    continue
                # Likewise a limit on epsilon, where there was none at all.
                if name == "epsilon" and case[1] == "none":
                    continue
                assert grades[(*case[:axis], worse, *case[axis + 1 :])] >= grade, (case, name, worse)
    assert len(set(grades.values())) == len(Grade)


@pytest.mark.parametrize("answer", list(_ANSWERS))
@pytest.mark.parametrize("limits", ["none", "met"])
def test_groups_that_lost_rows_unevenly_are_no_evidence_for_a_release(record, answer, limits):
    """Also where the answer is good: people who are gone were not audited."""
    made = decided_record(record, _ANSWERS[answer])
    made = made if limits == "none" else _limited(made, {"of": "auroc", "at_most": _AUROC_LIMITS[limits]})
    lost = {"rows": 90, "without_text": 20, "unusable": 0, "users": 60, "users_with": 9, "users_lost": 9}
    groups = [{"group": "held-in", **lost}, {"group": "held-out", **lost, "users_with": 0, "users_lost": 0}]
    grades, warned = {}, {}
    for p in (0.02, 0.005):
        corpus = {**made.corpus.model_dump(), "skipped": groups, "skipped_alike": p}
        of_p = changed_record(made, corpus=corpus)
        grades[p] = grade_of(recommend(of_p))
        warned[p] = states(state_data(of_p), SkippedText.UNEVEN)
    assert warned == {0.02: False, 0.005: True}
    assert grades[0.02] == grade_of(recommend(made))
    assert grades[0.005] == max(grades[0.02], Grade.NOT_ON_THIS_EVIDENCE)


def test_without_limits_a_leak_gets_graver_advice_than_an_open_question(record):
    leak, unsure, calm = (grade_of(recommend(decided_record(record, its))) for its in map(evidence, (LEAK, OPEN, CALM)))
    assert leak > unsure > calm


def test_a_release_says_in_the_same_sentence_what_speaks_against_it(record):
    limit = {"of": "auroc", "at_most": 0.99}
    cases = {
        evidence(LEAK): Advice.RELEASE_LEAKS,
        evidence(OPEN): Advice.RELEASE_INCONCLUSIVE,
        evidence(CALM): Advice.RELEASE,
    }
    for its, advice in cases.items():
        made = _limited(decided_record(record, its), limit)
        assert recommend(made).states(advice)
        canaries = _with_canaries(made, evidence(LEAK))
        assert recommend(canaries).states(Advice.RELEASE_LEAKS if its.scores[0] is LEAK else Advice.RELEASE_CANARIES)


def test_every_limit_must_be_kept(record):
    auroc, epsilon = {"of": "auroc", "at_most": 0.8}, {"of": "epsilon_per_user", "at_most": 8.0}
    both = _limited(record, auroc, epsilon)
    assert states(recommend(both), Advice.BROKEN, Next.GET_GUARANTEE)
    assert recommend(_private(both)).states(Advice.RELEASE_LEAKS)
    assert states(recommend(_private(both, epsilon=9.0)), Advice.BROKEN, Next.SMALLER_EPSILON)
    unmeasured = changed_record(_limited(record, auroc, {"of": "loss", "at_most": 99.0}), utility=None)
    assert states(recommend(unmeasured), Advice.NOT_SHOWN, Next.NOT_MEASURED)
    above = decided_record(record, evidence(LEAK, ceiling=0.6))
    assert recommend(_limited(above, auroc)).states(Advice.ABOVE)
    assert recommend(_limited(decided_record(record, FLAWED), auroc)).states(Advice.COMPARISON)
    assert limit_rows(_limited(_private(record), epsilon))[-1][1:] == ["2", "", "met"]


def test_what_was_not_audited_as_planned_is_not_released(record):
    condition = Condition(name="given_every_row", known_by="not met", reasons=["rows_missing"])
    made = changed_record(
        _limited(record, {"of": "auroc", "at_most": 0.99}),
        kind="planted",
        planted=_planted(condition).model_dump(),
        training=None,
    )
    assert recommend(made).states(Advice.CONDITION)
    met = _planted(condition.model_copy(update={"known_by": Known.CHECKED}))
    assert recommend(changed_record(made, planted=met.model_dump())).states(Advice.RELEASE_LEAKS)


@pytest.mark.parametrize(
    ("kind", "its", "following"),
    [
        ("audit", BACKWARDS, Next.SWAPPED),
        ("run", BACKWARDS, Next.SWAPPED_COINS),
        ("run", evidence(OPEN, users=60, held_out=30), Next.MORE_USERS),
        ("run", evidence(CALM, learned=False), Next.LEARN_MORE),
        ("run", evidence(CALM), Next.WITHOUT_GUARANTEE),
        ("run", evidence(LEAK), Next.MITIGATE),
        ("audit", FLAWED, Next.COINS),
        ("audit", evidence(LEAK, flaws=(ComparisonFlaw.HELD_IN_USERS_ABSENT(count=3, users=30),)), Next.TRAINING_FILE),
    ],
)
def test_what_to_do_next_follows_from_the_answer(record, kind, its, following):
    assert states(recommend(decided_record(record.model_copy(update={"kind": kind}), its)), following)


def test_another_planted_set_is_needed_to_audit_a_planted_training_again(record):
    checked = Condition(name="fair_coins", known_by="checked", reasons=["drawn_again"])
    made = changed_record(decided_record(record, evidence(OPEN)), planted=_planted(checked).model_dump(), training=None)
    assert states(recommend(made), Next.PLANT_AGAIN)


def test_trainings_speak_of_one_user(record):
    facts = TrainingsFacts(
        runs=40, with_user=21, documents=2, target="defense", pilot=0, threshold=0.5, members=21, true_positives=12,
        non_members=19, false_positives=1, epsilon_lower=1.0, reach=1.7, seconds_each=0.1,
    )  # fmt: skip
    made = changed_record(record, trainings=facts.model_dump())
    assert made.flagged() is None
    assert values_of(_line(made, Label.PEOPLE), People.OF_TRAININGS) == {"with_user": 21, "runs": 40}
    assert state_answer(made)[0].states(Found.OF_TRAININGS)
    calm = changed_record(decided_record(record, evidence(CALM)), trainings=facts.model_dump())
    assert values_of(_line(calm, Label.EVIDENCE), Evidence.OF_TRAININGS) == {"trainings": 40}
    assert states(_line(made, Label.NOT_TESTED), NotTested.REAL_USERS)


def test_limits_that_could_be_set_are_proposed_with_what_the_record_holds(record):
    proposed = propose_limits(changed_record(record, utility=None))
    assert "0.76" in proposed
    assert "epsilon" not in proposed
    assert "2" in propose_limits(_private(record))
    assert propose_limits(_limited(record, {"of": "auroc", "at_most": 0.8})) == ""


def test_the_release_names_owner_and_purpose(record):
    stated_release = {"access": "weights", "who": "all staff", "owner": "R. Owner", "purpose": "drafts of mails"}
    made = changed_record(record, config={**record.config, "release": stated_release})
    shown = " ".join(value for _, value in report_record(made).section("answer").first(FactList).pairs)
    assert all(part in shown for part in ("R. Owner", "drafts of mails", "all staff", page_one.report_id(made)))
    assert page_one.report_id(made) != page_one.report_id(record)
    assert page_one.written_date("2026-11-07T05:29:28+00:00") == "7 November 2026"


def test_terminal_pdf_and_json_have_the_same_lines(record):
    report = report_record(record)
    on_paper = {
        block.lead.rstrip("."): block.text for block in report.section("lines").blocks if isinstance(block, Paragraph)
    }
    in_terminal = dict(summary_lines(record))
    facts = json.loads(json.dumps(summary_facts(record)))
    for label, statements in lines(record):
        assert on_paper[label.sentence] == in_terminal[label.sentence.lower()] == written(statements)
        assert [s["code"] for s in facts["page_one"][label.name.lower()]] == [s.code for s in statements]
    assert facts["recommendation"] == in_terminal["recommendation"]
    assert facts["grade"] == "not"


def test_who_audited_is_on_page_one(record):
    stated_release = {"access": "weights", "auditor": "R. Auditor"}
    made = changed_record(record, config={**record.config, "release": stated_release})
    assert "R. Auditor" in dict(report_record(made).section("answer").first(FactList).pairs)["Audit"]


def test_a_line_is_wrapped_at_the_width_of_the_terminal_and_words_are_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = labelled("recommendation", "word " * 60 + "--an-option-that-is-copied-whole")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith("recommendation:   word")
    assert all(line.startswith(" " * 18) for line in shown.splitlines()[1:])
    assert "--an-option-that-is-copied-whole" in shown


def _words(block):
    match block:
        case Paragraph(text, lead):
            return f"{lead} {text}".split()
        case Banner(_, title, text):
            return f"{title} {text}".split()
        case FactList(pairs):
            return " ".join(itertools.chain.from_iterable(pairs)).split()
    return []


def test_page_one_is_short_in_every_case_and_with_many_defenses():
    many = ("none", *(f"uls-{i}" for i in range(9)))
    made = {**reports(), **{name: report_of(case) for name, case in made_cases().items()}}
    made["many defenses"] = report_sweep(made_sweep(many, shipped=many[-1], dominated=many[1:3]))
    for name, report in made.items():
        front = [section for section in report.sections if section.place is Place.FRONT]
        assert sum(len(_words(block)) for section in front for block in section.blocks) <= MOST_WORDS, name


def test_only_the_four_answers_have_a_banner():
    from heldin.reports.html import ICONS
    from heldin.reports.typesetting import TEMPLATE

    assert set(ICONS) == {answer.value for answer in Answer}
    assert all(f'"{answer.value}": (' in TEMPLATE.read_text(encoding="utf-8") for answer in Answer)
