"""Findings say what the record says; figures are vector; the PDF is made whole or not at all."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import asdict

import pytest
import typst

from audit.record import Record, read_record
from audit.record_results import AttackResult, Blind, CanaryGroup, Estimate, Histogram, TprAt
from reports.figures import figures
from reports.findings import findings
from reports.pdf import write_report
from tests.made_facts import canary_facts


@pytest.fixture
def record(finished):
    return read_record(finished / "record.json")


def _estimate(value, lower, upper):
    return Estimate(value=value, mean=value, deviation=0.01, lower=lower, upper=upper, method="bootstrap percentile")


def _attack(value, lower, upper):
    return AttackResult(
        attack="likelihood-ratio",
        aggregation="mean",
        auroc=_estimate(value, lower, upper),
        tpr_at=[TprAt(fpr=0.001, estimate=None), TprAt(fpr=0.05, estimate=_estimate(0.25, 0.1, 0.4))],
        roc_fpr=[0.0, 0.5, 1.0],
        roc_tpr=[0.0, 0.75, 1.0],
        histogram=Histogram(edges=[0.0, 1.0, 2.0], held_in=[1, 3], held_out=[3, 1]),
    )


def _with(record, **changes):
    return Record.model_validate({**record.model_dump(), **changes})


@pytest.mark.parametrize(
    ("attack", "headline"),
    [
        (_attack(0.81, 0.74, 0.88), "Yes, this model tells who was held in, clearly better than chance: AUROC 0.81."),
        (
            _attack(0.61, 0.52, 0.70),
            "Yes, this model tells who was held in, noticeably better than chance: AUROC 0.61.",
        ),
        (_attack(0.53, 0.51, 0.55), "Yes, this model tells who was held in, slightly better than chance: AUROC 0.53."),
        (
            _attack(0.55, 0.48, 0.62),
            "This attack did not tell held-in from held-out users: AUROC 0.55, chance is 0.50.",
        ),
        (_attack(0.35, 0.25, 0.45), "The attack did worse than chance (AUROC 0.35): look for a mistake in the groups."),
    ],
)
def test_the_headline_follows_the_interval_not_the_point(record, attack, headline):
    said = findings(_with(record, attacks=[attack], blind=[]))
    assert said.headline == headline


def test_a_blind_baseline_that_separates_comes_first_and_takes_the_claim_back(record):
    blind = Blind(name="bag of words", auroc=0.9, p_value=1e-9, level=0.01, separates=True)
    said = findings(_with(record, attacks=[_attack(0.9, 0.8, 1.0)], blind=[blind]))
    assert said.headline.startswith("Inconclusive: the two groups of users differ even without the audited model")
    assert "'bag of words' separates the groups without the audited model (AUROC 0.90, p = 1e-09)" in said.warnings[0]
    assert "Nothing about the model yet" in dict(said.paragraphs)["What it means"]


def test_the_words_quote_the_records_numbers(record):
    said = dict(findings(_with(record, attacks=[_attack(0.71, 0.65, 0.77)], blind=[])).paragraphs)
    assert "AUROC of 0.710 (95 % interval 0.650 to 0.770)" in said["How well the attack did"]
    assert (
        "When 5.0 % of held-out users may be accused wrongly, it names 25.0 % of the held-in"
        in said["How well the attack did"]
    )
    assert "picks the right one about 71 times in 100" in said["What it means"]
    assert f"{record.split.held_in} held-in and {record.split.held_out} held-out users" in said["What was audited"]
    assert "not a DP guarantee" in said["What was audited"]


def test_a_violated_claim_is_the_headline_and_a_consistent_one_is_explained(record):
    verdict = {
        "claim": "epsilon 1 at delta 1e-05",
        "outcome": "violated",
        "standing": "certified",
        "reason": "it is rejected at 95 %",
        "max_certifiable_epsilon": 5.0,
        "warnings": [],
        "exit_code": 3,
    }
    bound = {"name": "one-run", "epsilon_lower": 2.5, "level": 0.95, "standing": "certified", "coverage": 0.97}
    judgement = {"delta": 1e-5, "bounds": [bound], "refused": [], "verdicts": [verdict]}
    said = findings(_with(record, judgement=judgement))
    assert said.headline == (
        "The claim is violated (certified): this model leaks more than epsilon 1 at delta 1e-05 allows."
    )
    certified = dict(said.paragraphs)["What is certified"]
    assert "On epsilon 1 at delta 1e-05: violated (certified). It is rejected at 95 %." in certified
    assert "No differential-privacy guarantee was claimed" not in dict(said.paragraphs)["What it does not say"]
    assert "the highest is 2.50 (one-run, 95 %, certified); it was picked after looking" in certified
    calm = {**judgement, "verdicts": [{**verdict, "outcome": "consistent", "exit_code": 0}]}
    assert "violated" not in findings(_with(record, judgement=calm)).headline
    assert _with(record, judgement=judgement).judgement.exit_code == 3
    assert _with(record, judgement=calm).judgement.exit_code == 0


def test_a_design_that_supports_no_bound_says_why(record):
    refused = [{"name": "all bounds", "reason": "3 users are too few"}]
    judgement = {"delta": 1e-5, "bounds": [], "refused": refused, "verdicts": []}
    said = dict(findings(_with(record, judgement=judgement)).paragraphs)["What is certified"]
    assert said == "No bound on epsilon can be given: 3 users are too few."


def test_overlaps_are_said_in_front(record):
    split = record.split.model_dump()
    split["overlaps"]["attacker_texts_in_same_users_training"] = 3
    warnings = findings(_with(record, split=split)).warnings
    assert any(w.startswith(f"3 of {record.attacker_texts} attacker texts stand word for word") for w in warnings)


def test_figures_are_vector_and_there_only_where_there_is_something_to_draw(record):
    drawn = figures(record)
    assert set(drawn) == {"roc", "histogram", "curves", "knowledge"}
    for svg in drawn.values():
        ET.fromstring(svg)
        assert "<path" in svg
        assert "<image" not in svg
    assert set(figures(_with(record, training=None, knowledge=[]))) == {"roc", "histogram"}


def test_figures_are_the_same_for_the_same_record(record):
    assert figures(record) == figures(record)


def test_held_in_and_held_out_differ_in_grey(record):
    """Not by hue alone: the two colours' luminances are apart, and one side is hatched."""
    svg = figures(record)["histogram"]

    def luminance(colour):
        r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    colours = set(re.findall(r"fill: (#[0-9a-f]{6})", svg)) - {"#ffffff", "#000000"}
    assert colours == {"#e69f00"}
    assert "url(#" in svg  # the hatch
    assert abs(luminance("#e69f00") - luminance("#0072b2")) > 0.2


def test_a_report_without_training_leaves_no_hole(record, tmp_path):
    (tmp_path / "record.json").write_text(_with(record, training=None, blind=[]).model_dump_json(), encoding="utf-8")
    assert write_report(tmp_path).read_bytes().startswith(b"%PDF")


def test_a_report_that_fails_leaves_the_old_one(record, tmp_path, monkeypatch):
    (tmp_path / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    before = write_report(tmp_path).read_bytes()

    def fail(*arguments, **options):
        raise RuntimeError("typst broke")

    monkeypatch.setattr(typst, "compile", fail)
    with pytest.raises(RuntimeError, match="typst broke"):
        write_report(tmp_path)
    assert (tmp_path / "report.pdf").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"record.json", "report.pdf"}


def test_a_record_survives_writing_and_reading(finished, tmp_path):
    record = read_record(finished / "record.json")
    shutil.copy(finished / "record.json", tmp_path)
    assert read_record(tmp_path / "record.json") == record
    assert json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))["schema_version"] == 2
    assert asdict(findings(record))["headline"]


def test_canary_users_that_defenses_thinned_or_coins_left_on_one_side_are_said(record):
    def group(kind, held_in, held_out):
        return CanaryGroup(kind=kind, length=None, documents=9, held_in=held_in, held_out=held_out, auroc=None)

    groups = [group("rare_phrase", 4, 3), group("unseen_token", 1, 0), group("unseen_token", 1, 0)]
    facts = canary_facts(groups, training_texts=54, trained_on=30)
    said = dict(findings(_with(record, canaries=facts)).paragraphs)["Canary users"]
    assert "Of the 54 training texts of those held in, defenses on the data side left 30;" in said
    assert "The coins left no unseen-token canary user on one side: nothing is judged of them." in said
    assert "rare-phrase" not in said
    whole = facts.model_copy(update={"trained_on": 54})
    assert "data side" not in dict(findings(_with(record, canaries=whole)).paragraphs)["Canary users"]
