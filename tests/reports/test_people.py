"""The result in people, in detail: how a count is to be read, the worst-affected, and who attacks."""

import math
from dataclasses import replace

import pytest

from heldin.audit.attack_results import Curve
from heldin.audit.results import Emitted, ExtractionFacts, ExtractionGroup, TrainingsFacts
from heldin.record.facts import ByExposure, Ceiling
from heldin.reports import annex
from heldin.reports.attacks import tabulate_attacks, tabulate_rates
from heldin.reports.extraction import most_left, written_out
from heldin.reports.findings import describe_success
from heldin.reports.people import (
    describe_attacker,
    describe_worst_off,
    explain_people,
)
from tests.made_facts import attack_result, changed_record, decision_of, evidence, score, stated
from tests.refusals import names

LEAK = evidence(score(0.71, adjusted_p=0.001, tpr=0.25))
FLAW = evidence(score(0.7), flaws=(stated("the two files are one"),))


@pytest.fixture(scope="module")
def record(plain):
    """A leak of AUROC 0.71 (0.65 to 0.77), TPR 0.25 at FPR 0.05."""
    return changed_record(
        plain, decision=decision_of(LEAK).model_dump(), attacks=[attack_result(0.71, 0.65, 0.77).model_dump()]
    )


def _histogram(record, held_in, held_out):
    """The record with so many members and non-members of low and of high scores."""
    its = record.attacks[0]
    histogram = its.curve.histogram.model_copy(update={"held_in": list(held_in), "held_out": list(held_out)})
    curve = Curve.model_validate({**its.curve.model_dump(), "histogram": histogram.model_dump()})
    return changed_record(record, attacks=[its.model_copy(update={"curve": curve}).model_dump()])


def _limited(record, *limits, its=LEAK):
    decision = decision_of(its).model_dump()
    return changed_record(record, decision={**decision, "by": {**decision["by"], "require": list(limits)}})


def _promised(record, epsilon, **changes):
    ceiling = Ceiling(auroc=0.8, fpr=[0.0, 0.05, 0.1, 1.0], tpr=[0.0, 0.4, 0.5, 1.0])
    update = {"epsilon": epsilon, "delta": 1e-5, "unit": "user", "defense": "uls", "ceiling": ceiling, **changes}
    return changed_record(record, training=record.training.model_copy(update=update).model_dump())


def test_how_many_flagged_people_are_members_depends_on_how_rare_members_are(record, approved):
    assert names(explain_people(record), "83 of every 100")
    assert approved("explained", explain_people(record))
    # An interval that guessing reaches.
    near = decision_of(evidence(score(0.55, adjusted_p=0.001, tpr=0.06)))
    assert approved("near guessing", explain_people(changed_record(record, decision=near.model_dump())))
    nobody = decision_of(FLAW)
    assert explain_people(changed_record(record, decision=nobody.model_dump())) == ""


def test_the_annex_names_the_attack_that_was_fixed_beforehand_beside_a_stronger_setting_of_a_dial(record, approved):
    # The strongest score of the family comes after those of the attacks, and the record keeps no curve of it.
    decision = decision_of(LEAK)
    beyond = decision.model_copy(update={"decision": replace(decision.decision, strongest=len(record.attacks))})
    its = changed_record(record, decision=beyond.model_dump())
    assert approved("attacker", describe_attacker(its))
    area = record.primary().auroc
    said = annex.membership_scenarios(its)[0].result
    assert names(said, f"{area.value:.3f}", f"{area.lower:.3f}", f"{area.upper:.3f}")
    assert approved("membership", said)
    assert describe_attacker(record) != describe_attacker(its)


def test_what_an_attack_asks_of_which_models_is_its_own(record, approved):
    """Min-K%++ needs the whole vocabulary and no reference, which log-probabilities of texts do not give."""
    result = attack_result(0.7, 0.6, 0.8, attack="min-k++", curve=record.attacks[0].curve)
    config = {**record.config, "release": {"access": "log-probabilities"}}
    its = changed_record(record, attacks=[result.model_dump()], primary_attack="min-k++", config=config)
    assert approved("whole vocabulary", describe_attacker(its))
    assert approved("whole vocabulary, annex", annex.membership_scenarios(its)[0].attacker)
    assert approved("log-probabilities", describe_attacker(changed_record(record, config=config)))


def test_the_worst_off_by_the_promise_and_by_the_group_with_the_highest_scores(record, approved):
    assert names(describe_worst_off(record), "40 users", "30 members", "10 non-members")
    assert approved("no promise", describe_worst_off(record))
    few = describe_worst_off(_histogram(record, (29, 11), (39, 1)))
    assert names(few, "12 users", "11 members", "1 non-member")
    e2 = math.exp(2.0)
    said = describe_worst_off(_promised(record, 2.0))
    public = record.corpus.public_users
    assert public > 0
    assert names(said, f"{public} public", f"{e2:.3g} times", "1e-05")
    assert approved("promise", said)
    alone = changed_record(record, corpus=record.corpus.model_copy(update={"public_users": 0}).model_dump())
    assert approved("promise, no public users", describe_worst_off(_promised(alone, 2.0)))
    assert approved("too large", describe_worst_off(_promised(record, 20.0)))
    assert approved("of examples", describe_worst_off(_promised(record, 2.0, unit="example", ceiling=None)))
    assert approved("trained elsewhere", describe_worst_off(changed_record(record, training=None)))


def test_user_entity_dp_leaves_other_odds_to_users_to_entities_and_to_both(record, approved):
    curve = [{"exposed": m, "epsilon": its} for m, its in ((4, 1.0), (16, 5.0), (20, 8.0))]
    by = {"counted": "records", "exposed": 20, "curve": curve, "group_size": 16, "entity_cap": 4}
    its = _promised(record, 8.0, unit="user-entity", by_exposure=ByExposure.model_validate(by))
    said = describe_worst_off(its)
    # e to the epsilon of a user, of an entity and of both.
    assert names(said, "148 times", "2.72 times", "2,981 times")
    assert approved("capped", said)
    split = its.split.model_copy(update={"audited": "entities"}).model_dump()
    of_entities = describe_worst_off(changed_record(its, split=split))
    assert of_entities.index("2.72 times") < of_entities.index("148 times")
    assert approved("capped, entities audited", of_entities)
    holders = {**by, "counted": "holders", "group_size": None, "entity_cap": None}
    holders["curve"] = [{"exposed": 0, "epsilon": 0.5}, {"exposed": 20, "epsilon": 18.0}]
    said = describe_worst_off(
        _promised(record, 18.0, unit="user-entity", by_exposure=ByExposure.model_validate(holders))
    )
    # Not of every entity: the more users name one, the less is promised to it.
    assert names(said, "1.65 times", "20 other", "epsilon 18")
    assert approved("by holders", said)


def test_trainings_speak_of_one_user(record, approved):
    facts = TrainingsFacts(
        runs=40, with_user=21, documents=2, target="defense", pilot=0, threshold=0.5, members=21, true_positives=12,
        non_members=19, false_positives=1, epsilon_lower=1.0, reach=1.7, seconds_each=0.1,
    )  # fmt: skip
    its = changed_record(record, trainings=facts.model_dump())
    assert explain_people(its) == ""
    assert names(describe_worst_off(its), "2.72 times")
    assert approved("worst off", describe_worst_off(its))
    assert approved("attacker", describe_attacker(its))


def test_who_attacks_depends_on_texts_and_release(record, approved):
    said = describe_attacker(record)
    texts = round(record.attacker_texts / (record.split.held_in + record.split.held_out))
    assert f"about {texts} text" in said
    assert approved("fresh texts, no release stated", said)
    scored = record.scored_texts.model_copy(update={"kind": "training"})
    assert approved("training texts", describe_attacker(changed_record(record, scored_texts=scored.model_dump())))
    for access in ("weights", "text"):
        released = changed_record(record, config={**record.config, "release": {"access": access}})
        assert approved(f"release of {access}", describe_attacker(released))


def test_one_value_of_each_user_is_not_called_a_mean(record, approved):
    pooled = attack_result(0.7, 0.6, 0.8, attack="pooled", aggregation="together", curve=record.attacks[0].curve)
    both = [attack_result(0.6, 0.5, 0.7), pooled]
    its = changed_record(record, attacks=[a.model_dump() for a in both])
    assert [row[:2] for row in tabulate_attacks(its).rows] == [["likelihood-ratio", "mean"], ["pooled", "together"]]
    assert [row[0] for row in tabulate_rates(its).rows] == ["likelihood-ratio, mean", "pooled, together"]
    led = changed_record(its, primary_attack="pooled", attacks=[both[1].model_dump()])
    assert approved("success", describe_success(led))
    assert approved("attacker", describe_attacker(led))


def test_page_one_has_extraction_in_people_or_that_nobody_looked(record, approved):
    assert record.extraction is None
    assert approved("not tested", written_out(record))
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
    assert names(written_out(its), "9 queries", "3 of 38", "1 of 38")
    assert approved("tested", written_out(its))
    known = [g.model_copy(update={"emitted": [g.emitted[0].model_copy(update={"reference": 2})]}) for g in groups]
    both = changed_record(record, extraction=facts.model_copy(update={"groups": known}).model_dump())
    assert names(written_out(both), "1 of 38", "2 and 2")
    assert approved("with a reference", written_out(both))
    assert names(most_left(its), "9.25 %")
    assert approved("most left", most_left(its))
