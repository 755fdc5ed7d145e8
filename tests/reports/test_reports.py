"""Findings say what the record says; figures are vector; the PDF is made whole or not at all."""

import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace

import pytest
import typst

from heldin.audit.results import CanaryGroup
from heldin.bounds.verdict import Outcome, Standing, Verdict
from heldin.record.document import read_record, write_record
from heldin.reports.findings import AUDITED, BOUNDS, HOW_WELL, LIMITS, NEXT, answer_line, findings
from heldin.reports.recommendation import next_step
from heldin.reports.record_report import list_facts, report_record, write_report
from heldin.stages.train.training_facts import promise_facts
from heldin.words.answer import GuaranteeComparison, Headline
from heldin.words.evidence import ClaimLabel, Subjects
from heldin.words.guarantee import GuaranteeText, NoGuaranteeReason
from tests.made_facts import (
    attack_result,
    canary_facts,
    changed_record,
    decided_record,
    decision_of,
    evidence,
    private_plan,
    score,
    stated,
)
from tests.refusals import names
from tests.statements import states


def figures(record):
    return {name: figure.draw() for name, figure in report_record(record).figures.items()}


@pytest.fixture
def record(plain):
    return plain


def test_the_headline_is_the_records_and_what_to_do_follows_from_it(record, approved):
    leak = score(0.81, adjusted_p=0.001)
    cases = {
        "leaks": (evidence(leak), Headline.LEAKS, None),
        "within": (evidence(leak, ceiling=0.9), Headline.LEAKS, GuaranteeComparison.WITHIN),
        "above": (evidence(leak, ceiling=0.7), Headline.LEAKS, GuaranteeComparison.ABOVE),
        "beyond": (
            evidence(leak, ceiling=0.7, violated="certified"),
            Headline.LEAKS,
            GuaranteeComparison.BEYOND,
        ),
        "no leak": (evidence(score(0.5, at_most=0.55)), Headline.NO_LEAK, None),
        "open": (evidence(score(0.5, at_most=0.7)), Headline.INCONCLUSIVE, None),
        "not valid": (evidence(leak, flaws=(stated("x"),)), Headline.NOT_VALID, None),
    }
    steps = []
    for case, (its, code, promise) in cases.items():
        decided = decided_record(record, its)
        assert states(decided.decision.statement, code)
        assert [p for p in GuaranteeComparison if states(decided.decision.statement, p)] == [promise][: bool(promise)]
        said = findings(decided)
        assert said.headline == decided.decision.headline
        steps.append(dict(said.paragraphs)[NEXT])
        assert approved(case, steps[-1])
    assert len(set(steps)) == len(cases)
    claim = {
        "claim": stated("epsilon 1"),
        "finding": stated("x"),
        "max_certifiable_epsilon": 5.0,
        "subjects": stated("users"),
    }
    sure = Verdict(outcome=Outcome.VIOLATED, standing=Standing.CERTIFIED, **claim)
    certified = record.model_copy(update={"judgement": replace(record.judgement, verdicts=(sure,))})
    beyond = decided_record(certified, evidence(leak, ceiling=0.7, violated="certified"))
    assert approved("beyond, certified", next_step(beyond))
    within = decided_record(record, evidence(leak, ceiling=0.9)).decision
    assert approved("answer, within", answer_line(within))


def test_a_claim_about_a_training_that_nobody_saw_is_not_taken_for_its_promise(record, approved):
    stated = decided_record(changed_record(record, training=None), evidence(score(0.81, adjusted_p=0.001), ceiling=0.9))
    step = dict(findings(stated).paragraphs)[NEXT]
    assert approved("next", step)
    assert "epsilon" not in step


def test_attacks_that_disagree_are_the_first_thing_said(record):
    facts = decision_of(evidence(score(0.5), score(0.7, name="loss", adjusted_p=0.001)), lengths=[0.9, 0.1])
    said = findings(changed_record(record, decision=facts.model_dump()))
    assert said.warnings[0].startswith("The attacks disagree: loss tells held-in from held-out users")
    assert said.headline.startswith("Leaks: loss tells")


def test_a_warning_of_the_plan_stands_before_the_answer(record):
    """A delta of 0.5 promises nothing: the sentence is not for plan.json alone."""
    promised = promise_facts(private_plan(delta=0.5))
    training = type(record.training).model_validate({**record.training.model_dump(), **promised})
    assert any("delta 0.5" in line for line in map(str, promised["cautions"]))
    said = findings(changed_record(record, training=training.model_dump()))
    assert any(line.startswith("Delta 0.5 is above 1/1024") for line in said.warnings)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [("best", 40), ("best", 10), ("last", 40)],
)
def test_which_step_was_chosen_reads_as_it_was(record, approved, selection, chosen):
    training = record.training.model_copy(update={"selection": selection, "steps": 40, "chosen_step": chosen})
    said = dict(findings(changed_record(record, training=training.model_dump())).paragraphs)[AUDITED]
    assert names(said, "40 steps")
    assert approved("audited", said)


def test_how_sides_came_about_is_said_in_words(record, approved):
    for assignment in ("fixed", "unknown"):
        split = record.split.model_copy(update={"assignment": assignment})
        facts = list_facts(changed_record(record, split=split.model_dump()))
        (changed,) = set(facts.pairs) - set(list_facts(record).pairs)
        assert approved(assignment, ": ".join(changed))


def test_the_words_quote_the_records_numbers(record):
    said = dict(findings(changed_record(record, attacks=[attack_result(0.71, 0.65, 0.77)], blind=[])).paragraphs)
    assert names(said[HOW_WELL], "0.710", "95 %", "0.650", "0.770", "5.0 %", "25.0 %")
    assert names(said[AUDITED], f"{record.split.held_in} held-in", f"{record.split.held_out} held-out")


def test_a_run_without_a_defense_is_said_to_be_unprotected_and_a_broken_promise_is_quoted(record):
    assert record.training.defense == "none"
    unprotected = str(GuaranteeText.NO_PROTECTION())
    assert f"defense: none; {unprotected})" in dict(findings(record).paragraphs)[AUDITED]
    broken = GuaranteeText.NO_GUARANTEE(reasons=[NoGuaranteeReason.PROTECTED_VALIDATION()])
    training = record.training.model_copy(update={"defense": "uls", "promise": broken})
    said = dict(findings(changed_record(record, training=training.model_dump())).paragraphs)[AUDITED]
    assert f"defense: uls; {broken})" in said


def test_a_violated_claim_is_the_headline_and_a_consistent_one_is_explained(record, approved):
    verdict = {
        "claim": ClaimLabel.STATED(epsilon=1.0, delta=1e-5),
        "outcome": "violated",
        "standing": "certified",
        "finding": stated("it is rejected at 95 %"),
        "max_certifiable_epsilon": 5.0,
        "cautions": [],
    }
    bound = {"name": "one-run", "epsilon_lower": 2.5, "level": 0.95, "standing": "certified", "coverage": 0.97}
    judgement = {"users": 60, "delta": 1e-5, "bounds": [bound], "refused": [], "verdicts": [verdict]}
    said = findings(changed_record(record, judgement=judgement))
    certified = dict(said.paragraphs)[BOUNDS]
    assert "epsilon 1 at delta 1e-05: violated (certified)" in certified
    assert approved("limits", dict(said.paragraphs)[LIMITS])
    assert "2.50 (one-run, 95 %, certified)" in certified
    assert approved("violated", certified)
    both = [{**verdict, "outcome": "consistent"}, {**verdict, "subjects": Subjects.CANARIES()}]
    of_one = findings(changed_record(record, judgement={**judgement, "verdicts": both}))
    assert approved("violated of canary users", dict(of_one.paragraphs)[BOUNDS])
    calm = {**judgement, "verdicts": [{**verdict, "outcome": "consistent"}]}
    told = dict(findings(changed_record(record, judgement=calm)).paragraphs)[BOUNDS]
    assert "violated" not in told
    assert "epsilon 1 at delta 1e-05: consistent" in told
    assert changed_record(record, judgement=judgement).judgement.exit_code == 3
    assert changed_record(record, judgement=calm).judgement.exit_code == 0


def test_a_design_that_supports_no_bound_says_why(record, approved):
    reason = "3 users are too few"
    refused = [{"name": "all bounds", "refusal": stated(reason)}]
    judgement = {"users": 3, "delta": 1e-5, "bounds": [], "refused": refused, "verdicts": []}
    said = dict(findings(changed_record(record, judgement=judgement)).paragraphs)[BOUNDS]
    assert said.endswith(f"{reason}.")
    assert approved("no bound", said)


def test_overlaps_are_said_in_front(record):
    split = record.split.model_dump()
    split["overlaps"]["scored_texts_in_same_users_training"] = {"count": 3, "known_by": "measured"}
    warnings = findings(changed_record(record, split=split)).warnings
    assert any(w.startswith(f"3 of {record.attacker_texts} scored texts are word for word") for w in warnings)


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("without", [["held_in_loss"], ["held_in_loss", "held_out_loss"]])
def test_a_side_without_validation_texts_has_no_curve(record, without):
    training = record.training.model_dump()
    for point in training["curve"]:
        point.update(dict.fromkeys(without))
    drawn = figures(changed_record(record, training=training))["curves"]
    assert drawn != figures(record)["curves"]


@pytest.mark.usefixtures("typeset")
def test_figures_are_vector_and_there_only_where_there_is_something_to_draw(record):
    drawn = figures(record)
    assert set(drawn) == {"roc", "histogram", "curves", "knowledge"}
    for svg in drawn.values():
        ET.fromstring(svg)
        assert "<path" in svg
        assert "<image" not in svg
    assert set(figures(changed_record(record, training=None, knowledge=[]))) == {"roc", "histogram"}


def test_figures_are_the_same_for_the_same_record(record):
    assert figures(record) == figures(record)


def test_every_figure_has_words_and_the_histogram_s_are_its_numbers(record):
    drawn = report_record(record).figures
    assert all(figure.alt and figure.caption for figure in drawn.values())
    counts = record.named().curve.histogram
    assert f"{counts.held_in[-1]} of {counts.held_in[-1] + counts.held_out[-1]}" in drawn["histogram"].alt


@pytest.mark.usefixtures("typeset")
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
    assert asdict(findings(record))["headline"]


def test_canary_users_that_defenses_thinned_or_coins_left_on_one_side_are_said(record):
    def group(kind, held_in, held_out):
        return CanaryGroup(kind=kind, length=None, documents=9, held_in=held_in, held_out=held_out, auroc=None)

    groups = [group("rare_phrase", 4, 3), group("unseen_token", 1, 0), group("unseen_token", 1, 0)]
    facts = canary_facts(groups, training_texts=54, trained_on=30)
    said = dict(findings(changed_record(record, canaries=facts)).paragraphs)["Canary users"]
    assert "54 training texts" in said
    assert "left 30;" in said
    assert "no unseen-token canary user" in said
    assert "rare-phrase" not in said
    whole = facts.model_copy(update={"trained_on": 54})
    assert "data side" not in dict(findings(changed_record(record, canaries=whole)).paragraphs)["Canary users"]


def test_what_was_audited_says_so_where_nobody_wrote_the_corpus(record, approved):
    synthetic = {**record.config, "corpus": {"source": {"kind": "synthetic"}}}
    said = dict(findings(changed_record(record, config=synthetic)).paragraphs)[AUDITED]
    assert approved("synthetic", said)
    assert "synthetic" in said
    mail = {**record.config, "corpus": {"source": {"kind": "jsonl", "path": "mail.jsonl"}}}
    assert "synthetic" not in dict(findings(changed_record(record, config=mail)).paragraphs)[AUDITED]


def test_a_model_that_learned_nothing_is_not_called_one_that_leaks_little(record, approved):
    worse = {"users": 40, "texts": 90, "loss": 2.01, "base_loss": 2.0}
    calm = decision_of(evidence(score(0.5, at_most=0.56))).model_dump()

    def limits(gain, decision=calm):
        utility = {**worse, "gain": {"value": gain, "lower": gain - 0.01, "upper": gain + 0.01}}
        its = changed_record(record, utility=utility, decision=decision)
        return dict(findings(its).paragraphs)[LIMITS]

    assert names(limits(-0.006), "-0.0060 nats")
    assert approved("learned nothing", limits(-0.006))
    assert approved("learned", limits(0.2))
    leak = decision_of(evidence(score(0.71, adjusted_p=0.001, tpr=0.25))).model_dump()
    assert approved("leaks", limits(-0.006, leak))
    assert not any("nats" in said for said in (limits(0.2), limits(-0.006, leak)))
