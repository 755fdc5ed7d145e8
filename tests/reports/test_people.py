"""Page one counts in people what the record has, and recommends by the limits, on either side of each."""

import math
from dataclasses import replace

import pytest

from heldin.audit.attack_results import Curve, TprAt
from heldin.audit.extraction import Emitted, ExtractionFacts, ExtractionGroup
from heldin.audit.results import TrainingsFacts
from heldin.record.document import read_record
from heldin.record.facts import ByExposure, Ceiling
from heldin.record.planted_facts import Condition, Known, PlantedFacts
from heldin.reports import annex
from heldin.reports.attacks import tabulate_attacks, tabulate_rates
from heldin.reports.extraction import most_left, written_out
from heldin.reports.findings import ATTACKER, BEFORE_FIGURE, NEXT, RECOMMENDED, findings
from heldin.reports.people import (
    count_people,
    describe_attacker,
    describe_worst_off,
    explain_groups,
    explain_people,
    named_people,
)
from heldin.reports.recommendation import limit_rows, recommendation
from heldin.words.evidence import ClaimLabel
from tests.made_facts import attack_result, changed_record, decision_of, estimate, evidence, score, stated

LEAK = evidence(score(0.71, adjusted_p=0.001, tpr=0.25))
NAMED = "named by the attack"
BROKEN = 'the limit "AUROC of every attack at most 0.64" is broken (measured 0.710, and at least 0.650 with 95 %)'
FLAW = evidence(score(0.7), flaws=(stated("the two files are one"),))


@pytest.fixture(scope="module")
def record(finished):
    """A leak of AUROC 0.71 (0.65 to 0.77), TPR 0.25 at FPR 0.05."""
    its = read_record(finished / "record.json")
    return changed_record(
        its, decision=decision_of(LEAK).model_dump(), attacks=[attack_result(0.71, 0.65, 0.77).model_dump()]
    )


def _curve(record, *rates, held_in=(10, 30), held_out=(30, 10)):
    """The record with these true-positive rates: (FPR, value or None for too few held out)."""
    at = [TprAt(fpr=f, estimate=None if v is None else estimate(v, v - 0.1, v + 0.1)) for f, v in rates]
    its = record.attacks[0]
    histogram = its.curve.histogram.model_copy(update={"held_in": list(held_in), "held_out": list(held_out)})
    curve = Curve.model_validate({**its.curve.model_dump(), "tpr_at": at, "histogram": histogram.model_dump()})
    return changed_record(record, attacks=[its.model_copy(update={"curve": curve}).model_dump()])


def _limited(record, *limits, its=LEAK):
    decision = decision_of(its).model_dump()
    return changed_record(record, decision={**decision, "by": {**decision["by"], "require": list(limits)}})


def _promised(record, epsilon, **changes):
    ceiling = Ceiling(auroc=0.8, fpr=[0.0, 0.05, 0.1, 1.0], tpr=[0.0, 0.4, 0.5, 1.0])
    update = {"epsilon": epsilon, "delta": 1e-5, "unit": "user", "defense": "uls", "ceiling": ceiling, **changes}
    return changed_record(record, training=record.training.model_copy(update=update).model_dump())


def test_people_are_those_of_the_rate_that_the_thresholds_state(record):
    its = named_people(record)
    assert (its.rightly, its.wrongly, its.allowed) == (250.0, 50.0, None)
    assert count_people(record) == [
        [NAMED, "250 (100 to 400), rightly", "50, wrongly"],
        ["named by guessing", "50", "50"],
    ]
    assert explain_people(record).startswith("Of those named, 83 of 100 were held in")
    assert "guessing reaches" not in explain_people(record)
    assert "guessing reaches" in explain_people(_curve(record, (0.05, 0.12)))
    assert count_people(_promised(record, 2.0))[2] == ["expected at most, if the promise holds", "400", "50"]


def test_a_headline_of_a_dial_is_told_apart_from_the_people_that_are_counted(record):
    # The strongest score of the family comes after those of the attacks, and the record keeps no curve of it.
    decision = decision_of(LEAK)
    beyond = decision.model_copy(update={"decision": replace(decision.decision, strongest=len(record.attacks))})
    its = changed_record(record, decision=beyond.model_dump())
    assert count_people(its)[0][0] == NAMED
    assert "a stronger score" in explain_people(its)
    assert "one setting more" in describe_attacker(its)
    # The leading attack was fixed beforehand, and page one shows another score's interval.
    area = record.primary().auroc
    said = annex._membership(its)[0].result
    assert f"AUROC {area.value:.3f}, {area.lower:.3f} to {area.upper:.3f}; with another setting of a dial, " in said
    assert "picked among" not in said
    assert "a stronger score" not in explain_people(record)
    assert "one setting more" not in describe_attacker(record)


def test_what_an_attack_asks_of_which_models_is_its_own(record):
    """Min-K%++ needs the whole vocabulary and no reference, which log-probabilities of texts do not give."""
    result = attack_result(0.7, 0.6, 0.8, attack="min-k++", curve=record.attacks[0].curve)
    config = {**record.config, "release": {"access": "log-probabilities"}}
    its = changed_record(record, attacks=[result.model_dump()], primary_attack="min-k++", config=config)
    assert describe_attacker(its).startswith(
        "Somebody who can ask for the probabilities of all tokens at each place of a text under this model, and who has"
    )
    assert "this attack asks for more, those of all tokens" in describe_attacker(its)
    assert annex._membership(its)[0].attacker.startswith("the probabilities of all tokens at each place")
    plain = changed_record(record, config=config)
    assert "under this model and a reference model" in describe_attacker(plain)
    assert "that is what this attack asks for" in describe_attacker(plain)


def test_where_the_stated_rate_cannot_be_seen_the_lowest_that_can_is_counted(record):
    its = _curve(record, (0.01, 0.02), (0.05, None), (0.1, 0.4))
    assert count_people(its)[0] == [NAMED, "400 (300 to 500), rightly", "100, wrongly"]
    assert "Counted is the next rate, 10.0 %: the stated rate of 5.0 % cannot be seen with" in explain_people(its)
    none = _curve(record, (0.01, 0.02), (0.05, None))
    assert count_people(none) == []
    assert explain_people(none).startswith(
        "How many could be named cannot be said: the stated rate of 5.0 % cannot be seen"
    )
    unasked = _curve(record, (0.01, 0.02), (0.1, 0.4))
    assert "Counted is the next rate, 10.0 %: the stated rate of 5.0 % is not among audit.fprs." in explain_people(
        unasked
    )
    void = changed_record(record, decision=decision_of(FLAW).model_dump())
    assert (count_people(void), "not valid" in explain_people(void)) == ([], True)


def test_the_worst_off_by_the_promise_and_by_the_group_with_the_highest_scores(record):
    assert "the 40 users with the highest scores 30 were held in and 10 held out" in describe_worst_off(record)
    assert describe_worst_off(record).startswith("No promise")
    assert "of the 12 users with the highest scores 11 were held in and 1 held out" in describe_worst_off(
        _curve(record, (0.05, 0.3), held_in=(29, 11), held_out=(39, 1))
    )
    e2 = math.exp(2.0)
    said = describe_worst_off(_promised(record, 2.0))
    public = record.corpus.public_users
    assert public > 0
    assert said.startswith(f"The promise is for every user but the {public} public ones, the worst-off too:")
    alone = changed_record(record, corpus=record.corpus.model_copy(update={"public_users": 0}).model_dump())
    assert describe_worst_off(_promised(alone, 2.0)).startswith("The promise is for every user, the worst-off too:")
    assert f"is at most {e2:.3g} times as likely after they were in training as after they were not" in said
    assert "plus a probability of 1e-05." in said
    assert "too large" in describe_worst_off(_promised(record, 20.0))
    assert "its epsilon is for example" in describe_worst_off(_promised(record, 2.0, unit="example", ceiling=None))
    assert "how the model was trained is not known here" in describe_worst_off(changed_record(record, training=None))


def test_user_entity_dp_leaves_other_odds_to_users_to_entities_and_to_both(record):
    curve = [{"exposed": m, "epsilon": its} for m, its in ((4, 1.0), (16, 5.0), (20, 8.0))]
    by = {"counted": "records", "exposed": 20, "curve": curve, "group_size": 16, "entity_cap": 4}
    its = _promised(record, 8.0, unit="user_entity", by_exposure=ByExposure.model_validate(by))
    said = describe_worst_off(its)
    assert "is at most 148 times as likely with what one user wrote in training as without, plus a prob" in said
    assert "; with the texts that name one recognised entity at most 2.72 times; with a user's and an en" in said
    assert "texts together at most 2,981 times." in said
    assert "A name that was not recognised is promised less" in said
    split = its.split.model_copy(update={"audited": "entities"}).model_dump()
    assert "at most 2.72 times as likely with the texts that name one" in describe_worst_off(
        changed_record(its, split=split)
    )
    holders = {**by, "counted": "holders", "group_size": None, "entity_cap": None}
    holders["curve"] = [{"exposed": 0, "epsilon": 0.5}, {"exposed": 20, "epsilon": 18.0}]
    said = describe_worst_off(
        _promised(record, 18.0, unit="user_entity", by_exposure=ByExposure.model_validate(holders))
    )
    assert "at most 1.65 times as likely with what one user wrote" in said
    # Not of every entity: the more users name one, the less is promised to it.
    assert "every recognised entity" not in said
    assert "and an entity that 20 other users may name, the worst-off too" in said
    assert "may name so many times that it says nothing (epsilon 18). Measured" in said


def test_trainings_speak_of_one_user(record):
    facts = TrainingsFacts(
        runs=40, with_user=21, documents=2, target="defense", pilot=0, threshold=0.5, members=21, true_positives=12,
        non_members=19, false_positives=1, epsilon_lower=1.0, reach=1.7, seconds_each=0.1,
    )  # fmt: skip
    its = changed_record(record, trainings=facts.model_dump())
    assert count_people(its) == []
    assert "into 21 of 40 trainings" in explain_people(its)
    assert "at least 2.72 times as likely" in describe_worst_off(its)
    assert "every document of one user" in describe_attacker(its)


def test_who_attacks_depends_on_texts_and_release(record):
    said = describe_attacker(record)
    texts = round(record.attacker_texts / (record.split.held_in + record.split.held_out))
    assert f"about {texts} text" in said
    assert "kept out of training" in said
    assert "To whom the model will be given is not stated (release)." in said
    scored = record.scored_texts.model_copy(update={"kind": "training"})
    assert "in the training set if that one was held in" in describe_attacker(
        changed_record(record, scored_texts=scored.model_dump())
    )
    ways = {"weights": "attacks on these were not run", "text": "less than this attack asks for"}
    for access, words in ways.items():
        assert words in describe_attacker(
            changed_record(record, config={**record.config, "release": {"access": access}})
        )


@pytest.mark.parametrize(
    ("limit", "begins"),
    [(0.78, "Release, by the organisation's own limits:"), (0.77, "Release"), (0.76, "Do not release yet:"),
     (0.66, "Do not release yet:"), (0.64, f"Do not release: {BROKEN}")],
)  # fmt: skip
def test_the_recommendation_flips_where_the_interval_crosses_the_limit(record, limit, begins):
    its = changed_record(_limited(record, {"of": "auroc", "at_most": limit}), dials=[])
    assert recommendation(its).startswith(begins)
    assert ("of a size that these limits allow" in recommendation(its)) == begins.startswith("Release")
    # Of a broken limit the end of the interval that is nearest to it.
    assert limit_rows(its)[0][1:3] == ["0.71", "0.65" if "broken" in begins else "0.77"]
    if begins.startswith("Release"):
        assert "What was measured is an estimate from this one training, its interval included." in recommendation(its)
        unsure = record.split.model_copy(update={"certifiable": False, "reason": stated("sides as declared")})
        said = recommendation(changed_record(its, split=unsure.model_dump()))
        assert "its interval included, and indicative only: sides as declared." in said


def test_what_was_not_audited_as_planned_is_not_released(record):
    condition = Condition(name="given_every_row", known_by="not met", reasons=["rows_missing"])
    facts = PlantedFacts(
        planted="2026-11-23", plan="a" * 64, training_set="b" * 64, rows=90, skipped=0, look=1, looks=1,
        evidence="callback", declared_by="R. Signer", conditions=[condition],
    )  # fmt: skip
    limit = {"of": "auroc", "at_most": 0.99}
    its = changed_record(_limited(record, limit), dials=[], kind="planted", planted=facts.model_dump(), training=None)
    assert recommendation(its).startswith("None: a condition of the audit is not met (the model was given every row")
    met = facts.model_copy(update={"conditions": [condition.model_copy(update={"known_by": Known.CHECKED})]})
    assert recommendation(changed_record(its, planted=met.model_dump())).startswith("Release")


def test_every_limit_must_be_kept_and_a_violated_claim_outweighs_them(record):
    auroc, epsilon = {"of": "auroc", "at_most": 0.8}, {"of": "epsilon_per_user", "at_most": 8.0}
    both = changed_record(_limited(record, auroc, epsilon), dials=[])
    assert recommendation(both) == (
        'Do not release: the limit "epsilon per user at most 8" is broken (there is no such promise).'
    )
    assert recommendation(_promised(both, 2.0)).startswith("Release, by the organisation's own limits:")
    loss = {"of": "loss", "at_most": 99.0}
    unmeasured = changed_record(_limited(record, auroc, loss), dials=[], utility=None)
    assert recommendation(unmeasured).startswith("Do not release yet: the limit \"loss on held-out users' test texts")
    assert "This audit did not measure it." in recommendation(unmeasured)
    verdict = {
        "claim": ClaimLabel.STATED(epsilon=1.0, delta=1e-5), "outcome": "violated", "standing": "certified",
        "finding": stated("rejected"),
        "max_certifiable_epsilon": 5.0, "cautions": [],
    }  # fmt: skip
    judgement = {"users": 60, "delta": 1e-5, "bounds": [], "refused": [], "verdicts": [verdict]}
    assert recommendation(changed_record(_limited(record, auroc), dials=[], judgement=judgement)) == (
        "Do not release: epsilon 1 at delta 1e-05 is violated (certified), whatever limits say."
    )
    above = evidence(score(0.71, adjusted_p=0.001, tpr=0.25), ceiling=0.6)
    assert recommendation(_limited(record, auroc, its=above)) == (
        "Do not release yet: the leak looks larger than the promise allows, whatever limits say."
    )
    assert recommendation(_limited(record, auroc, its=FLAW)).startswith("None: the comparison is not valid")


def test_limits_that_are_kept_leave_an_inconclusive_answer_inconclusive(record):
    limit = {"of": "auroc", "at_most": 0.99}
    stays = "The answer stays inconclusive"
    open_ = evidence(score(0.5, at_most=0.7), users=60)
    assert stays in recommendation(_limited(record, limit, its=open_))
    assert stays not in recommendation(_limited(record, limit, its=evidence(score(0.5, at_most=0.56))))


def test_a_promise_has_no_interval_beside_its_limit(record):
    limited = _limited(_promised(record, 2.0), {"of": "epsilon_per_user", "at_most": 8.0})
    assert limit_rows(limited)[0][1:] == ["2", "-", "kept"]


def test_without_limits_the_report_says_what_one_would_have_to_say(record):
    its = recommendation(changed_record(record, dials=[], utility=None))
    assert its.startswith("None: no limit was set before the audit (decision.require).")
    assert "AUROC of every attack at most ... (here, with 95 %, up to 0.77)" in its
    assert "epsilon per user" not in its
    assert "epsilon per user at most ... (this plan: 2)" in recommendation(_promised(record, 2.0))
    assert limit_rows(record) == []


def test_what_stands_before_the_first_figure_is_what_a_reader_decides_by(record):
    titles = tuple(entry.title for entry in BEFORE_FIGURE)
    assert titles == (RECOMMENDED, NEXT, ATTACKER) == tuple(title for title, _ in findings(record).paragraphs[:3])


def test_one_value_of_each_user_is_not_called_a_mean(record):
    both = [attack_result(0.6, 0.5, 0.7), attack_result(0.7, 0.6, 0.8, attack="pooled", curve=record.attacks[0].curve)]
    its = changed_record(record, attacks=[a.model_dump() for a in both])
    assert [row[:2] for row in tabulate_attacks(its).rows] == [["likelihood-ratio", "mean"], ["pooled", "together"]]
    assert [row[0] for row in tabulate_rates(its).rows] == ["likelihood-ratio, mean", "pooled, together"]
    led = changed_record(its, primary_attack="pooled", attacks=[both[1].model_dump()])
    said = dict(findings(led).paragraphs)
    assert "The leading attack, pooled (all texts together), reached" in said["How well the attacks did"]
    assert "The attack is pooled (all texts together); it needs no other user's texts." in said[ATTACKER]


def test_page_one_says_what_its_words_mean(record):
    users = explain_groups(record)
    assert users.startswith("Held-in users: their texts were trained on. Held-out users: comparable ones, left out")
    assert "0.5 (guessing) to 1 (certainty)" in users
    entities = record.split.model_copy(update={"audited": "entities"})
    assert explain_groups(changed_record(record, split=entities.model_dump())).startswith(
        "Held-in entities: texts that name them were trained on."
    )


def test_page_one_has_extraction_in_people_or_that_nobody_looked(record):
    assert record.extraction is None
    assert written_out(record) == "Not tested: nothing is known, and membership does not bound it."
    assert most_left(record) == ""
    groups = [
        ExtractionGroup(
            group=name, users=40, measured=38, texts=90, too_short=2, in_others=None, in_public=None,
            emitted=[Emitted(queries=9, users=n, lower=0.0, upper=0.0925, only_theirs=None, reference=None)],
        )
        for name, n in (("held in", 3), ("held out", 1))
    ]  # fmt: skip
    facts = ExtractionFacts(prefix=50, suffix=50, temperature=1.0, top_k=40, probability=0.5, groups=groups)
    its = changed_record(record, extraction=facts.model_dump())
    assert "within 9 queries: held-in users 3 of 38; held-out users 1 of 38." in written_out(its)
    assert written_out(its).endswith("Neither this nor membership bounds the other.")
    known = [g.model_copy(update={"emitted": [g.emitted[0].model_copy(update={"reference": 2})]}) for g in groups]
    both = changed_record(record, extraction=facts.model_copy(update={"groups": known}).model_dump())
    assert "held-out users 1 of 38. Under the reference model: 2 and 2." in written_out(both)
    assert most_left(its).startswith("By these queries, up to 9.25 % of held-in users may have a text")
