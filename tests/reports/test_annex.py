"""The annex follows from the record: another record, another row. And every kind of record has one that is typeset."""

import dataclasses
import json
from pathlib import Path

import pytest

from heldin.audit.results import CanaryGroup, TrainingsFacts
from heldin.record.document import read_record, write_record
from heldin.record.facts import CellFacts
from heldin.record.planted_facts import Condition, Known, PlantedFacts
from heldin.reports import annex
from heldin.reports.annex import list_scenarios
from heldin.reports.annex_parts import NOT_ANONYMITY
from heldin.reports.blocks import Reference, texts
from heldin.reports.record_report import report_record, write_report
from heldin.reports.wording import TERMS
from heldin.words.guarantee import GuaranteeCondition, GuaranteeText, Relation
from tests.made_facts import canary_facts, changed_record, decided_record, estimate, evidence, score, stated
from tests.pdf_pages import pages

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "run" / "record.json"
LEAK = evidence(score(0.7, adjusted_p=0.001, tpr=0.3))
CHANCE = evidence(score(0.5, at_most=0.7), users=60)
OPEN = ["Attribute inference", "Reconstruction", "Inversion"]


@pytest.fixture(scope="module")
def record(finished):
    return read_record(finished / "record.json")


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
        planted="2026-11-23", plan="a" * 64, training_set="b" * 64, rows=90, skipped=0, look=look, looks=3,
        evidence="declared", declared_by="R. Signer",
        conditions=[condition, condition.model_copy(update={"known_by": Known.CHECKED})],
    )  # fmt: skip
    made = {"kind": "planted", "planted": facts.model_dump(), "training": None, "exposure": None, **changes}
    return decided_record(record, LEAK, **made)


def _rows(record):
    return {its.name.split(":")[0]: its for its in list_scenarios(record)}


def test_what_was_run_and_what_was_not_follows_from_the_record(record):
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
        assert "membership of real users" in json.dumps(annex.state_residual_risk(made)[0].lines)
    group = CanaryGroup(
        kind="rare_phrase", length=None, documents=9, held_in=9, held_out=9, auroc=estimate(0.83, 0.7, 0.9)
    )
    planted = _rows(changed_record(record, canaries=canary_facts([group]).model_dump()))
    assert (
        planted["Membership of canary users"].result
        == "20 canary users: the highest AUROC of 1 group is 0.830 (0.700 to 0.900, of this group alone)."
    )
    assert "Membership of canary users" not in rows


def test_the_rows_of_the_opinion_name_what_was_run(record):
    def paragraph(made, number):
        return next(row[2] for row in annex.answer_opinion(made).rows if row[0] == number)

    said = paragraph(record, "55")
    assert said.startswith("run: membership of users; not run: extraction; out of scope: attribute inference")
    assert paragraph(_trainings(record), "55").startswith(
        "run: membership of one worst-case user; not run: membership of"
    )
    assert paragraph(record, "46") == "not stated in the config; lines above"
    released = changed_record(record, config={**record.config, "release": {"access": "text"}})
    assert paragraph(released, "46") == "text; above, as declared"
    assert "no promise bounds the odds of each person" in paragraph(record, "43")
    promised = _private(record, _epsilon("user", Relation.ADD_REMOVE))
    assert "a promise to every user" in paragraph(promised, "43")
    assert record.target.fingerprint[:8] in paragraph(record, "58")


@pytest.mark.parametrize(
    ("access", "meaning"),
    [
        ("weights", "cannot be called back"),
        ("log-probabilities", "what these people will have"),
        ("text", "had more than"),
    ],
)
def test_the_release_is_what_the_config_declares_or_lines_to_fill_in(record, access, meaning):
    assert [value for _, value in annex.state_release(record).pairs] == ["", "", ""]
    for limit, words in (
        (10000, "10,000 queries a day"),
        ("ten a minute", "ten a minute"),
        (None, "no limit is stated"),
    ):
        block = {"access": access, "rate_limit": limit, "who": "the staff of one hospital"}
        rows = dict(annex.state_release(changed_record(record, config={**record.config, "release": block})).pairs)
        assert rows["what they can have of the model"] == f"{access} (as declared)"
        assert rows["how much they can ask"] == words
        assert rows["who gets it"] == "the staff of one hospital"
        assert meaning in rows["what this means for the tests"]


def test_weights_cannot_be_called_back_so_that_the_next_audit_comes_before(record):
    stays = annex.list_occasions(record).lines
    gone = annex.list_occasions(
        changed_record(record, config={**record.config, "release": {"access": "weights"}})
    ).lines
    assert "When more people get the model, or more of it." in stays
    assert any(line.startswith("Before the weights are given away") for line in gone)
    assert not any("would settle" in line for line in annex.list_occasions(decided_record(record, LEAK)).lines)
    assert any("would settle" in line for line in annex.list_occasions(decided_record(record, CHANCE)).lines)
    left = [
        any("further look" in line for line in annex.list_occasions(_planted(record, look)).lines) for look in (1, 2, 3)
    ]
    assert left == [True, True, False]


def _epsilon(unit, relation):
    promise = GuaranteeText.EPSILON(epsilon=2.0, delta=1e-5, unit=unit, relation=relation())
    return GuaranteeText.HOLDS(promise=promise, conditions=[GuaranteeCondition.NOISE(generator="Philox")])


def test_unit_delta_and_neighbours_in_sentences_that_follow_from_the_guarantee(record):
    def said(guarantee, **changes):
        rows = dict(annex.explain_promise(_private(record, guarantee, **changes)).pairs)
        assert all(1 <= text.count(". ") + 1 <= 3 for text in rows.values()), rows
        return rows

    user = said(_epsilon("user", Relation.ADD_REMOVE))
    assert "whatever one user wrote" in user["unit"].lower()
    assert user["delta"].startswith("delta is 1e-05:")
    assert f"{record.training.users:,} users" in user["delta"]
    assert "(add/remove)" in user["neighbours"]
    example = said(_epsilon("example", Relation.ADD_REMOVE), unit="example")
    assert "one record, not a person" in example["unit"]
    assert "one record is exchanged" in said(_epsilon("example", Relation.REPLACE), unit="example")["neighbours"]
    assert "(zero-out)" in said(_epsilon("user", Relation.ZERO_OUT))["neighbours"]
    slots = _epsilon("user_entity", Relation.FIXED_INCIDENCE)
    incidence = said(slots, unit="user_entity")["neighbours"]
    assert "same slots, which say who wrote a record and whom it names" in incidence
    assert "That a slot exists, and whom it names, is not hidden." in incidence
    assert "as the guarantee says (facts)" in said(stated("epsilon 2 for every user"))["neighbours"]
    entities = {"kind": "patterns", "which": ["email", "credit_card"]}
    its = _private(record, slots, unit="user_entity")
    its = changed_record(its, config={**its.config, "defense": {"kind": "user_entity", "entities": entities}})
    assert dict(annex.explain_promise(its).pairs)["unit"].endswith(
        " An entity here is what Presidio's patterns find (email, credit card), and names of people are none of them."
    )
    assert record.training.promise.states(GuaranteeText.NO_PROTECTION)
    assert dict(annex.explain_promise(record).pairs)["unit"] == "No protection was applied. The audit counts by user."
    assert dict(annex.explain_promise(changed_record(record, training=None)).pairs)["unit"].startswith(
        "Not known: the model was trained elsewhere."
    )


def test_other_releases_as_far_as_the_record_knows_them(record):
    assert annex.list_other_models(record) == [
        "The record knows of none; heldin looks at no model or statistic but those of this audit."
    ]
    cell = CellFacts(sweep="c" * 64, block=2, group="none", variant="uls")
    shadows = {**record.config, "attack": {**record.config["attack"], "shadow_models": 4}}
    made = changed_record(record, cell=cell.model_dump(), config=shadows)
    first, second = annex.list_other_models(made)
    assert "(block 2, uls)" in first
    assert second.startswith("4 shadow models")
    assert annex.list_other_models(_planted(record, 2))[0].startswith(
        "Of the models trained on the planted set this is look 2 of 3"
    )
    assert annex.list_other_models(_trainings(record)) == ["40 models were trained, scored and thrown away."]


def test_quantity_and_quality_are_the_record_s(record):
    rows = dict(annex.state_quality(record).pairs)
    s = record.split
    assert rows["how many were tested"] == f"{s.held_in} held-in users and {s.held_out} held-out users"
    assert rows["by chance alone"] == 'a false "leaks" by the attacks in 5 % of audits at most'
    decided = dataclasses.replace(record.decision.decision, exact=False)
    unsure = changed_record(record, decision=record.decision.model_copy(update={"decision": decided}).model_dump())
    assert "nothing bounds how often" in dict(annex.state_quality(unsure).pairs)["by chance alone"]
    assert "none of which separated" in rows["controls"]
    blind = [its.model_copy(update={"separates": i == 0}).model_dump() for i, its in enumerate(record.blind)]
    assert dict(annex.state_quality(changed_record(record, blind=blind)).pairs)["controls"].startswith(
        f"{record.blind[0].name} of "
    )
    assert "trainings with the user" in dict(annex.state_quality(_trainings(record)).pairs)["how many were tested"]
    planted = dict(annex.state_quality(_planted(record)).pairs)
    assert planted["conditions of certified statements"] == "1 checked, 1 declared"
    void = _split(record, certifiable=False)
    assert (
        "(indicative only)"
        in dict(annex.state_quality(changed_record(record, split=void)).pairs)["who is on which side"]
    )


KINDS = {
    "run": lambda its: its,
    "audit": lambda its: changed_record(its, kind="audit", training=None, exposure=None, utility=None),
    "trainings": _trainings,
    "planted": _planted,
    "canaries alone": lambda its: _planted(its, split=_split(its, audited="canaries")),
    "golden": lambda its: read_record(GOLDEN),
    "limits and release": lambda its: _released(its),
}


def _released(record):
    limits = [{"of": "auroc", "at_most": 0.6}, {"of": "epsilon_per_user", "at_most": 8.0}]
    by = {**record.decision.model_dump()["by"], "require": limits}
    block = {"access": "weights", "who": "_nobody_ #else $x$ *at* all", "rate_limit": None}
    decision = {**record.decision.model_dump(), "by": by}
    return changed_record(record, decision=decision, config={**record.config, "release": block})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_has_an_annex_that_the_first_page_points_to(record, kind):
    made = KINDS[kind](record)
    report = report_record(made)
    keys = [section.key for section in report.sections]
    assert len(set(keys)) == len(keys)
    assert report.section("annex-reference").first(Reference).section == "annex"
    after = keys[keys.index("annex") :]
    assert [key for key in after if key != "own-limits"] == [
        *("annex", "tests", "release", "promise-terms", "others", "quality", "when-to-repeat", "opinion", "residual"),
        "configuration",
    ]
    assert ("own-limits" in after) == (kind == "limits and release")
    assert keys[:5] == ["answer", "people", "recommended", "next", "attacker"]
    whole = "\n".join(texts(report.sections))
    assert whole.count(NOT_ANONYMITY) == 1
    assert "not a DP guarantee" not in whole
    for scenario in list_scenarios(made):
        assert scenario.name in whole
        assert scenario.result in whole


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("kind", ["limits and release", "trainings", "planted"])
def test_the_annex_is_typeset_with_names_as_text(record, kind, tmp_path):
    made = KINDS[kind](record)
    write_record(made, tmp_path / "record.json")
    printed = pages(write_report(tmp_path))
    (number,) = [i for i, page in enumerate(printed, start=1) if page.says("Annex for those who sign")]
    assert any(page.says(f"stand in the annex (page {number})") for page in printed[:3])
    assert printed[number - 1].says("_nobody_ #else $x$ *at* all") == (kind == "limits and release")
    for key in ("tests", "own-limits"):
        for text in texts(report_record(made).section(key)):
            assert printed[number - 1].says(text), text


def test_the_glossary_has_at_most_twenty_terms():
    assert 10 < len(TERMS) <= 20
