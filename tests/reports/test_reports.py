"""Findings say what the record says; figures are vector; the PDF is made whole or not at all."""

import re
import shutil
import xml.etree.ElementTree as ET

import pytest
import typst

from heldin.audit.results import CanaryGroup
from heldin.record.document import read_record, write_record
from heldin.record.facts import AdapterFacts
from heldin.reports.attacks import show_curves
from heldin.reports.blocks import Paragraph
from heldin.reports.claims import describe_verdicts
from heldin.reports.findings import describe_canaries, state_limits, warn
from heldin.reports.page_one import lines, summary_facts, summary_lines
from heldin.reports.record_report import list_facts, report_record
from heldin.stages.train.training_facts import promise_facts
from heldin.words.answer import LeakFound, Note
from heldin.words.evidence import ClaimLabel, Subjects
from heldin.words.page_one import Label, LeftOut
from tests.made_facts import (
    canary_facts,
    changed_record,
    decision_of,
    evidence,
    private_plan,
    score,
    stated,
)
from tests.pdf_pages import write_report
from tests.refusals import names
from tests.statements import states, values_of


def figures(record):
    return {name: figure.draw() for name, figure in report_record(record).figures.items()}


@pytest.fixture
def record(plain):
    return plain


def test_it_is_stated_how_models_were_loaded_and_in_which_precision(record, approved):
    adapter = {"base": "models/base", "named": "unsloth/base-bnb-4bit", "beside": 2}
    target = record.target.model_copy(update={"stored": "bf16", "adapter": AdapterFacts(**adapter)})
    shift = {"statistic": "likelihood-ratio", "values": 32, "mean_shift": 0.01, "largest_shift": 0.2, "deviation": 3.0}
    for reason in ("asked", "own", "memory"):
        measured = shift if reason != "memory" else {**shift, "mean_shift": None}
        precision = {"precision": "bf16", "reason": reason, **measured}
        made = changed_record(record, target=target.model_dump(), precision=precision)
        rows = dict(list_facts(made).pairs)
        assert names(rows["target"], "bf16", *[f"'{name}'" for name in ("models/base", "unsloth/base-bnb-4bit")], 2)
        assert approved(f"scored in, {reason}", rows["scored in"])
    assert approved("target", rows["target"])
    assert record.target.loaded == ""


@pytest.mark.parametrize("code", LeftOut)
def test_attacks_that_did_not_run_are_a_line_of_page_one_on_every_surface(record, approved, code):
    assert Label.LEFT_OUT not in dict(lines(record))
    statement = code(attacks="likelihood-ratio-per-token, ez")
    made = changed_record(record, left_out=[statement.model_dump()])
    (label,) = [label for label, statements in lines(made) if statements == [statement]]
    assert label is Label.LEFT_OUT
    assert (label.sentence.lower(), str(statement)) in list(summary_lines(made))
    assert summary_facts(made)["page_one"]["left_out"] == [statement.model_dump(mode="json")]
    assert str(statement) in str(report_record(made))
    assert approved(code.name, str(statement))


def test_attacks_that_disagree_are_the_first_thing_said(record):
    facts = decision_of(evidence(score(0.5), score(0.7, name="loss", adjusted_p=0.001)), lengths=[0.9, 0.1])
    made = changed_record(record, decision=facts.model_dump())
    assert warn(made)[0] == str(facts.remarks[0])
    assert states(facts.remarks[0], Note.DISAGREE)
    assert values_of(facts.statement, LeakFound.BY_AUROC)["score"] == "loss"


def test_a_warning_of_the_plan_stands_before_the_answer(record):
    """A delta of 0.5 promises nothing: the sentence is not for plan.json alone."""
    promised = promise_facts(private_plan(delta=0.5))
    training = type(record.training).model_validate({**record.training.model_dump(), **promised})
    assert any("delta 0.5" in line for line in map(str, promised["cautions"]))
    warnings = warn(changed_record(record, training=training.model_dump()))
    assert any(names(line, "0.5", "1/1024") for line in warnings)


@pytest.mark.parametrize(
    ("areas", "first"),
    [
        # 0.95 * 0.8 = 0.76, which is reached at the second point for a while, and at the last for good.
        ([0.6, 0.77, 0.75, 0.8], 4),
        ([0.6, 0.75, 0.77, 0.8], 3),
        ([0.78, 0.9, 0.77, 0.8], 1),
        # 0.95 * 0.52 is below chance, where any model is.
        ([0.5, 0.51, 0.53, 0.52], None),
    ],
)
def test_when_the_auroc_had_almost_its_last_value(record, areas, first):
    curve = [point.model_copy(update={"auroc": area}) for point, area in zip(record.training.curve, areas, strict=True)]
    training = record.training.model_copy(update={"curve": curve})
    blocks = show_curves(changed_record(record, training=training.model_dump()))
    written = [block.text for block in blocks if isinstance(block, Paragraph)]
    step = record.training.curve[first - 1].step if first else 0
    nearly = [text for text in written if "95\u00a0%" in text]
    assert len(nearly) == (first is not None)
    assert all(names(text, step, record.training.steps, f"{100 * step / record.training.steps:.0f}") for text in nearly)


def test_how_sides_came_about_is_said_in_words(record, approved):
    for assignment in ("fixed", "unknown"):
        split = record.split.model_copy(update={"assignment": assignment})
        facts = list_facts(changed_record(record, split=split.model_dump()))
        (changed,) = set(facts.pairs) - set(list_facts(record).pairs)
        assert approved(assignment, ": ".join(changed))


def test_a_violated_claim_is_the_headline_and_a_consistent_one_is_explained(record, approved):
    verdict = {
        "claim": ClaimLabel.STATED(epsilon=1.0, delta=1e-5),
        "outcome": "contradicted",
        "standing": "certified",
        "finding": stated("it is rejected at 95 %"),
        "max_certifiable_epsilon": 5.0,
        "cautions": [],
    }
    bound = {"name": "one-run", "epsilon_lower": 2.5, "level": 0.95, "standing": "certified", "coverage": 0.97}
    judgement = {"users": 60, "delta": 1e-5, "bounds": [bound], "refused": [], "verdicts": [verdict]}
    contradicted = changed_record(record, judgement=judgement)
    certified = describe_verdicts(contradicted)
    assert "epsilon 1 at delta 1e-05: contradicted (certified)" in certified
    assert approved("limits", state_limits(contradicted))
    assert "2.50 (one-run, 95 %, certified)" in certified
    assert approved("contradicted", certified)
    both = [{**verdict, "outcome": "consistent"}, {**verdict, "subjects": Subjects.CANARIES()}]
    of_one = changed_record(record, judgement={**judgement, "verdicts": both})
    assert approved("contradicted of canary users", describe_verdicts(of_one))
    calm = {**judgement, "verdicts": [{**verdict, "outcome": "consistent"}]}
    told = describe_verdicts(changed_record(record, judgement=calm))
    assert "is contradicted" not in told
    assert "epsilon 1 at delta 1e-05: not contradicted" in told
    assert changed_record(record, judgement=judgement).judgement.exit_code == 3
    assert changed_record(record, judgement=calm).judgement.exit_code == 0


def test_overlaps_are_said_in_front(record):
    split = record.split.model_dump()
    split["overlaps"]["scored_texts_in_same_users_training"] = {"count": 3, "known_by": "measured"}
    warnings = warn(changed_record(record, split=split))
    assert any(w.startswith(f"3 of {record.attacker_texts} scored texts are word for word") for w in warnings)


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize(
    "without", [["held_in_loss"], pytest.param(["held_in_loss", "held_out_loss"], marks=pytest.mark.slow)]
)
def test_a_side_without_validation_texts_has_no_curve(record, without):
    training = record.training.model_dump()
    for point in training["curve"]:
        point.update(dict.fromkeys(without))
    drawn = figures(changed_record(record, training=training))["curves"]
    assert drawn != figures(record)["curves"]


@pytest.mark.usefixtures("typeset")
def test_figures_are_vector_and_there_only_where_there_is_something_to_draw(record):
    drawn = figures(record)
    assert set(drawn) == {"people", "scores", "roc", "curves", "knowledge"}
    for svg in drawn.values():
        ET.fromstring(svg)
        assert "<path" in svg
        assert "<image" not in svg
    assert set(figures(changed_record(record, training=None, knowledge=[]))) == {"people", "scores", "roc"}


def test_figures_are_the_same_for_the_same_record(record):
    assert figures(record) == figures(record)


def test_every_figure_has_words_and_the_histogram_s_are_its_numbers(record):
    drawn = report_record(record).figures
    assert all(figure.alt for figure in drawn.values())
    counts = record.counted_attack().curve.histogram
    assert f"{counts.held_in[-1]} of {counts.held_in[-1] + counts.held_out[-1]}" in drawn["scores"].alt


@pytest.mark.usefixtures("typeset")
def test_held_in_and_held_out_differ_in_grey(record):
    """Not by hue alone: the two colours' luminances are apart, and one side is hatched."""
    svg = figures(record)["people"] + figures(record)["scores"]

    def luminance(colour):
        r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    colours = set(re.findall(r"fill: (#[0-9a-f]{6})", svg)) - {"#ffffff", "#000000"}
    assert colours == {"#e69f00", "#0072b2"}  # the flagged dots are filled too
    assert "url(#" in svg  # the hatch
    assert abs(luminance("#e69f00") - luminance("#0072b2")) > 0.2


def test_a_report_without_training_leaves_no_hole(record, tmp_path):
    write_record(changed_record(record, training=None, blind=[]), tmp_path / "record.json")
    assert write_report(tmp_path).read_bytes().startswith(b"%PDF")


def test_a_report_that_fails_leaves_the_old_one(record, tmp_path, monkeypatch):
    write_record(record, tmp_path / "record.json")
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


def test_canary_users_that_defenses_thinned_or_coins_left_on_one_side_are_said(record):
    def group(kind, held_in, held_out):
        return CanaryGroup(kind=kind, length=None, documents=9, held_in=held_in, held_out=held_out, auroc=None)

    groups = [group("rare_phrase", 4, 3), group("unseen_token", 1, 0), group("unseen_token", 1, 0)]
    facts = canary_facts(groups, training_texts=54, trained_on=30)
    said = describe_canaries(changed_record(record, canaries=facts))
    assert "54 training texts" in said
    assert names(said, "30 of")
    assert "no unseen-token canary user" in said
    assert "rare-phrase" not in said
    whole = facts.model_copy(update={"trained_on": 54})
    assert "data side" not in describe_canaries(changed_record(record, canaries=whole))
