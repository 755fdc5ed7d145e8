"""The annex follows from the record: another record, another row. And every kind of record has one that is typeset."""

import dataclasses

import pytest

from heldin.audit.results import CanaryGroup, TrainingsFacts
from heldin.record.document import read_record, write_record
from heldin.record.facts import CellFacts
from heldin.record.planted_facts import Condition, Known, PlantedFacts
from heldin.reports import annex
from heldin.reports.annex import list_scenarios
from heldin.reports.annex_parts import NOT_ANONYMITY
from heldin.reports.blocks import Reference, texts
from heldin.reports.record_report import report_record
from heldin.words.glossary import TERMS
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, Relation
from tests.made_facts import (
    NOTHING_SKIPPED,
    canary_facts,
    changed_record,
    decided_record,
    estimate,
    evidence,
    score,
    stated,
)
from tests.pdf_pages import pages, write_report
from tests.refusals import lacks, names
from tests.reports.conftest import GOLDEN_RECORD

LEAK = evidence(score(0.7, adjusted_p=0.001, tpr=0.3))
CHANCE = evidence(score(0.5, at_most=0.7), users=60)
OPEN = ["Attribute inference", "Reconstruction", "Inversion"]


@pytest.fixture(scope="module")
def record(plain):
    return plain


def _split(record, **changes):
    return record.split.model_copy(update=changes).model_dump()


def _private(record, guarantee, **changes):
    update = {"epsilon": 2.0, "delta": 1e-5, "unit": "user", "defense": "uls", "promise": guarantee, **changes}
    return changed_record(record, training=record.training.model_copy(update=update).model_dump())


def _trainings(record):
    facts = TrainingsFacts(
        runs=40, with_user=21, documents=2, target="defense", pilot=0, threshold=0.5, members=21, true_positives=12,
        non_members=19, false_positives=1, epsilon_lower=1.0, reach=1.7, seconds_each=0.1,
    )  # fmt: skip
    return decided_record(
        record, LEAK, kind="trainings", trainings=facts.model_dump(), canaries=None, exposure=None, blind=[]
    )


def _planted(record, look=1, **changes):
    condition = Condition(name="given_every_row", known_by="declared", reasons=["signed"])
    facts = PlantedFacts(
        planted="2026-11-23", plan="a" * 64, training_set="b" * 64, rows=90, skipped=NOTHING_SKIPPED, look=look,
        looks=3,
        evidence="declared", declared_by="R. Signer",
        conditions=[condition, condition.model_copy(update={"known_by": Known.CHECKED})],
    )  # fmt: skip
    made = {"kind": "planted", "planted": facts.model_dump(), "training": None, "exposure": None, **changes}
    return decided_record(record, LEAK, **made)


def _rows(record):
    return {its.name.split(":")[0]: its for its in list_scenarios(record)}


def test_what_was_run_and_what_was_not_follows_from_the_record(record, approved):
    rows = _rows(decided_record(record, LEAK))
    assert (rows["Membership of users"].status, rows["Extraction"].status) == ("run", "not run")
    assert [rows[name].status for name in OPEN] == ["out of scope"] * 3
    assert rows["Membership of users"].result.endswith("; leaks.")
    void = _rows(decided_record(record, evidence(score(0.7), flaws=(stated("the files are one"),))))
    assert void["Membership of users"].status == "run, not valid"
    assert "AUROC" not in void["Membership of users"].result
    entities = _rows(changed_record(record, split=_split(record, audited="entities")))
    assert "Membership of entities" in entities
    assert "Membership of users" not in entities
    for made in (_trainings(record), changed_record(record, split=_split(record, audited="canaries"))):
        assert _rows(made)["Membership of real users"].status == "not run"
        assert approved(f"residual risk, {made.kind}", "\n".join(annex.state_residual_risk(made)[0].lines))
    group = CanaryGroup(
        kind="rare_phrase", length=None, documents=9, held_in=9, held_out=9, auroc=estimate(0.83, 0.7, 0.9)
    )
    planted = _rows(changed_record(record, canaries=canary_facts([group]).model_dump()))
    of_canaries = planted["Membership of canary users"].result
    assert names(of_canaries, "20", "1 group", "0.830", "0.700", "0.900")
    assert approved("canary users", of_canaries)
    assert "Membership of canary users" not in rows


def test_the_rows_of_the_opinion_name_what_was_run(record, approved):
    def paragraph(made, number):
        return next(row[2] for row in annex.answer_opinion(made).rows if row[0] == number)

    # By status, the scenarios of the table of tests.
    statuses = ["run", "not run", "out of scope"]
    assert [part.partition(": ")[0] for part in paragraph(record, "55").split("; ")][:3] == statuses
    for scenario in list_scenarios(record):
        assert scenario.name.split(":")[0].lower() in paragraph(record, "55")
    released = changed_record(record, config={**record.config, "release": {"access": "text"}})
    promised = _private(record, _epsilon("user", Relation.ADD_REMOVE))
    cases = {"plain": record, "trainings": _trainings(record), "released": released, "promised": promised}
    for case, made in cases.items():
        for number in ("55", "46", "43"):
            assert approved(f"{case}, {number}", paragraph(made, number))
    assert record.target.fingerprint[:8] in paragraph(record, "58")


@pytest.mark.parametrize(
    "access",
    ["weights", "log-probabilities", "text"],
)
def test_the_release_is_what_the_config_declares_or_lines_to_fill_in(record, approved, access):
    assert [value for _, value in annex.state_release(record).pairs] == ["", "", ""]
    who = "the staff of one hospital"
    for limit in (10000, "ten a minute", None):
        block = {"access": access, "rate_limit": limit, "who": who}
        facts = annex.state_release(changed_record(record, config={**record.config, "release": block}))
        assert who in dict(facts.pairs).values()
        assert approved(f"limit {limit}", "\n".join(": ".join(pair) for pair in facts.pairs))


def test_weights_cannot_be_called_back_so_that_the_next_audit_comes_before(record, approved):
    stays = annex.list_occasions(record).lines
    gone = annex.list_occasions(
        changed_record(record, config={**record.config, "release": {"access": "weights"}})
    ).lines
    assert (len(stays), len(gone)) == (len(gone), len(set(stays) & set(gone)) + 1)
    made = {"release not stated": record, "leak": decided_record(record, LEAK), "open": decided_record(record, CHANCE)}
    made |= {f"look {look} of 3": _planted(record, look) for look in (1, 2, 3)}
    occasions = {case: annex.list_occasions(its).lines for case, its in made.items()}
    for case, lines in {**occasions, "weights": gone}.items():
        assert approved(case, "\n".join(lines))
    # How many users would settle an open answer, and whether a look is left.
    assert len(occasions["open"]) == len(occasions["leak"]) + 1
    assert len(occasions["look 1 of 3"]) == len(occasions["look 2 of 3"]) == len(occasions["look 3 of 3"]) + 1


def _epsilon(unit, relation):
    promise = GuaranteeText.EPSILON(epsilon=2.0, delta=1e-5, unit=unit, relation=relation())
    return GuaranteeText.HOLDS(promise=promise, conditions=[GuaranteeCondition.NOISE(generator="Philox")])


def test_unit_delta_and_neighbours_in_sentences_that_follow_from_the_guarantee(record, approved):
    def told(case, made):
        rows = dict(annex.explain_promise(made).pairs)
        assert all(1 <= text.count(". ") + 1 <= 3 for text in rows.values()), rows
        assert approved(case, "\n".join(f"{name}: {text}" for name, text in rows.items()))
        return rows

    def said(guarantee, unit="user"):
        relation = guarantee.values.get("promise", guarantee).values.get("relation", guarantee).code
        return told(f"{unit}, {relation}", _private(record, guarantee, unit=unit))

    user = said(_epsilon("user", Relation.ADD_REMOVE))
    assert names(user["delta"], "1e-05", f"{record.training.users:,} users")
    said(_epsilon("example", Relation.ADD_REMOVE), unit="example")
    said(_epsilon("example", Relation.REPLACE), unit="example")
    said(_epsilon("user", Relation.ZERO_OUT))
    slots = _epsilon("user-entity", Relation.FIXED_INCIDENCE)
    said(slots, unit="user-entity")
    said(stated("epsilon 2 for every user"))
    entities = {"kind": "patterns", "which": ["email", "credit_card"]}
    its = _private(record, slots, unit="user-entity")
    its = changed_record(its, config={**its.config, "defense": {"kind": "user-entity", "entities": entities}})
    assert names(told("entities of patterns", its)["unit"], "email", "credit card")
    assert record.training.promise.states(GuaranteeText.NO_PROTECTION)
    told("no protection", record)
    told("trained elsewhere", changed_record(record, training=None))


def test_other_releases_as_far_as_the_record_knows_them(record, approved):
    assert len(annex.list_other_models(record)) == 1
    cell = CellFacts(sweep="c" * 64, block=2, group="none", variant="uls")
    shadows = {**record.config, "attack": {**record.config["attack"], "shadow_models": 4}}
    made = changed_record(record, cell=cell.model_dump(), config=shadows)
    first, second = annex.list_other_models(made)
    assert names(first, "2, uls")
    assert second.startswith("4 shadow models")
    assert names(annex.list_other_models(_planted(record, 2))[0], "look 2 of 3")
    assert names(*annex.list_other_models(_trainings(record)), "40 models")
    cases = {
        "none": record,
        "sweep and shadow models": made,
        "look": _planted(record, 2),
        "trainings": _trainings(record),
    }
    for case, its in cases.items():
        assert approved(case, "\n".join(annex.list_other_models(its)))


def test_quantity_and_quality_are_the_record_s(record, approved):
    rows = dict(annex.state_quality(record).pairs)
    s = record.split
    assert names(rows["how many were tested"], f"{s.held_in} members", f"{s.held_out} non-members")
    assert names(rows["by chance alone"], "5 %")
    decided = dataclasses.replace(record.decision.decision, exact=False)
    unsure = changed_record(record, decision=record.decision.model_copy(update={"decision": decided}).model_dump())
    blind = [its.model_copy(update={"separates": i == 0}).model_dump() for i, its in enumerate(record.blind)]
    separated = changed_record(record, blind=blind)
    assert dict(annex.state_quality(separated).pairs)["controls"].startswith(f"{record.blind[0].name} of ")
    planted = dict(annex.state_quality(_planted(record)).pairs)
    assert any(not lacks(value, "1 checked", "1 declared") for value in planted.values())
    void = changed_record(record, split=_split(record, certifiable=False))
    cases = {"plain": record, "not exact": unsure, "separated": separated, "void": void}
    for case, its in {**cases, "trainings": _trainings(record), "planted": _planted(record)}.items():
        assert approved(case, "\n".join(": ".join(pair) for pair in annex.state_quality(its).pairs))


KINDS = {
    "run": lambda its: its,
    "audit": lambda its: changed_record(its, kind="audit", training=None, exposure=None, utility=None),
    "trainings": _trainings,
    "planted": _planted,
    "canaries alone": lambda its: _planted(its, split=_split(its, audited="canaries")),
    "golden": lambda its: read_record(GOLDEN_RECORD),
    "limits and release": lambda its: _released(its),
}


def _released(record):
    limits = [{"of": "auroc", "at_most": 0.6}, {"of": "epsilon_per_user", "at_most": 8.0}]
    by = {**record.decision.model_dump()["by"], "require": limits}
    block = {"access": "weights", "who": "_nobody_ #else $x$ *at* all", "rate_limit": None}
    decision = {**record.decision.model_dump(), "by": by}
    return changed_record(record, decision=decision, config={**record.config, "release": block})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_has_an_annex_that_page_two_points_to(record, kind):
    made = KINDS[kind](record)
    report = report_record(made)
    keys = [section.key for section in report.sections]
    assert len(set(keys)) == len(keys)
    assert report.section("annex-reference").first(Reference).section == "annex"
    after = keys[keys.index("annex") :]
    assert after == [
        *("annex", "tests", "own-limits", "release", "promise-terms", "others", "quality", "when-to-repeat"),
        *("opinion", "residual"),
    ]
    assert keys[:7] == ["answer", "picture", "limits-table", "lines", "terms", "decision", "annex-reference"]
    whole = "\n".join(texts(report.sections))
    assert whole.count(NOT_ANONYMITY) == 1
    assert "a DP guarantee" not in whole
    for scenario in list_scenarios(made):
        assert scenario.name in whole
        assert scenario.result in whole


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("kind", ["limits and release", "trainings", "planted"])
def test_the_annex_is_typeset_with_names_as_text(record, kind, tmp_path):
    made = KINDS[kind](record)
    write_record(made, tmp_path / "record.json")
    printed = pages(write_report(tmp_path))
    report = report_record(made)
    (number,) = [i for i, page in enumerate(printed, start=1) if page.says(report.section("annex").title)]
    reference = report.section("annex-reference").first(Reference).text
    assert any(page.says(f"{reference} (page {number})") for page in printed[:3])
    annex = printed[number - 1 :]
    assert any(page.says("_nobody_ #else $x$ *at* all") for page in annex) == (kind == "limits and release")
    for key in ("tests", "own-limits"):
        for text in texts(report.section(key)):
            assert any(page.says(text) for page in annex), text


def test_the_glossary_has_at_most_twenty_terms():
    assert 10 < len(TERMS) <= 20
