"""The report of a sweep as a reader sees it: page one decides, numbers are the document's, nothing runs off a page."""

import json

import numpy as np
import pytest

from heldin.audit.blocks import Summary
from heldin.audit.decision import Answer
from heldin.audit.requirement import Requirement
from heldin.audit.shipping import Candidate, Shipping, judge_candidates
from heldin.base.kinds import Origin
from heldin.record.sweep import SweepResult
from heldin.reports import sweep_findings
from heldin.reports.blocks import Banner, Figure, Report, ReportSection, texts
from heldin.reports.figures import figure
from heldin.reports.page_one import written
from heldin.reports.sweep_figures import extent_of, marks_in, place_labels
from heldin.reports.sweep_report import report_sweep, tabulate_kinds
from heldin.reports.typesetting import write_pdf
from heldin.words.sweep_page import Chosen, Compared, RuleReason, SweepAdvice, SweepLabel
from tests.drafts import typesetting
from tests.made_sweeps import made_sweep
from tests.pdf_pages import lines_lie_apart, pages
from tests.refusals import names, refused
from tests.statements import states, values_of

MARGIN = 62.0  # points, of 2.2 cm
LONG = "a-name-that-somebody-typed-without-a-thought-for-whoever-must-print-it-in-a-narrow-column-of-a-table-0123"[:100]
MANY = ("none", *(f"uls-eps-{i}" for i in range(7)))
CASES = {
    "rule": made_sweep(shipped="uls"),
    "no rule": made_sweep(dominated=("cap10",)),
    "one block": made_sweep(blocks=1),
    "contradicted": made_sweep(shipped="uls", contradicted=True),
    "many": made_sweep(MANY, shipped=MANY[-1], dominated=MANY[1:3], contradicted=True),
    "fifty": made_sweep(names=("none", LONG, *(f"{LONG[:90]}-{i}" for i in range(8))), shipped=LONG),
}


@pytest.fixture(scope="module", params=[pytest.param("many", marks=pytest.mark.slow), "fifty"])
def case(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.pdf"
    with typesetting():
        write_pdf(report_sweep(CASES[request.param]), path)
    return CASES[request.param], pages(path)


def test_page_one_answers_and_is_signed(case):
    result, printed = case
    # Ten names of a hundred letters take more than a page.
    first = printed[0].text + (printed[1].text if result is CASES["fifty"] else "")
    assert printed[0].says(written(sweep_findings.state_answer(result)))
    for label, statements in sweep_findings.lines(result):
        assert label.sentence in first
        if result is not CASES["fifty"]:
            assert printed[0].says(written(statements)), label
    assert "Decision, based on" in first
    for its in result.variants:
        assert any(page.says(its.name) for page in printed[:2])


def test_every_number_of_the_main_table_is_the_documents(case):
    result, printed = case
    for its in result.variants:
        gain, flagged = its.gain, its.flagged
        first = [f"{gain.value:+.3f} ({gain.lower:+.3f} to {gain.upper:+.3f})"]
        first.append(f"{flagged.value:.0f} ({flagged.lower:.0f} to {flagged.upper:.0f}) / {its.wrongly:.0f}")
        # Ten names of a hundred letters take more than a page.
        assert all(any(page.says(number) for page in printed[:2]) for number in first)
    text = " ".join(page.text for page in printed)
    for its in result.variants:
        assert f"{its.auroc.value:.2f}" in text
    for cell in result.cells:
        assert f"{cell.auroc:.3f}" in text
        assert f"{cell.loss:.4f}" in text


def test_nothing_runs_off_the_paper(case):
    for page in case[1]:
        for _, left, bottom, right, top in page.boxes:
            assert left > MARGIN - 3, page.text[:80]
            assert right < page.width - MARGIN + 3, page.text[:80]
            assert bottom > 20
            assert top < page.height - 20


def test_only_the_last_page_may_be_less_than_half_full(case):
    result, printed = case
    # Ten names of a hundred letters take a part of the second page.
    for page in printed[2 if result is CASES["fifty"] else 0 : -1]:
        # Without the line at the foot of every page.
        assert min(bottom for _, _, bottom, _, top in page.boxes if top > 60) < page.height / 2, page.text[:80]


def test_no_line_of_text_lies_on_another(case):
    for page in case[1]:
        assert lines_lie_apart(page), page.text[:200]


def test_a_report_of_many_cells_has_no_more_pages_than_a_reader_takes(case):
    # Two or three of them are the annex, which can be printed alone.
    assert 6 <= len(case[1]) <= 16


def _lines(result):
    return dict(sweep_findings.lines(result))


def test_a_contradicted_guarantee_is_on_page_one_and_its_model_is_not_released(approved):
    contradicted = CASES["contradicted"]
    assert states(_lines(contradicted)[SweepLabel.GUARANTEE], Compared.SUSPECTED)
    variants = [v.model_copy(update={"jointly_contradicted": v.name == "uls"}) for v in contradicted.variants]
    certified = contradicted.model_copy(update={"variants": variants})
    assert values_of(_lines(certified)[SweepLabel.GUARANTEE], Compared.CONTRADICTED)["variants"] == "uls"
    assert sweep_findings.recommend(certified).states(SweepAdvice.BEYOND)
    assert states(_lines(CASES["rule"])[SweepLabel.GUARANTEE], Compared.NOT_CONTRADICTED)
    said = sweep_findings.list_notes(contradicted)[1].text
    assert "1/uls" in said
    assert approved("note", said)


def test_each_defense_has_an_answer_over_its_repetitions():
    result = CASES["rule"]
    assert [sweep_findings.answer_of(result, v.name) for v in result.variants] == [
        Answer.LEAKS,
        Answer.INCONCLUSIVE,
        Answer.NO_LEAK,
    ]

    def of(*answers):
        given = iter(answers)
        cells = [c.model_copy(update={"answer": next(given)}) if c.variant == "uls" else c for c in result.cells]
        return sweep_findings.answer_of(result.model_copy(update={"cells": cells}), "uls")

    leak, none, unsure, void = Answer.LEAKS, Answer.NO_LEAK, Answer.INCONCLUSIVE, Answer.NOT_VALID
    # A false alarm in one of several does not decide, and is no all-clear either.
    assert of(leak, none, none, none, none) == unsure
    assert of(leak, leak, leak, none, none) == leak
    assert of(none, none, none, none, unsure) == unsure
    assert of(leak, leak, leak, leak, void) == void
    assert of(None, None, None, None, None) is None


def test_nobody_is_counted_where_the_comparison_is_not_valid():
    cells = [c.model_copy(update={"answer": "not valid"}) if c.variant == "uls" else c for c in CASES["rule"].cells]
    void = CASES["rule"].model_copy(update={"cells": cells})
    people = values_of(_lines(void)[SweepLabel.PEOPLE], Compared.FLAGGED)["people"]
    assert [each.values["variant"] for each in people] == ["plain training", "cap10"]
    assert sweep_findings.tabulate_defenses(void).rows[2][2] == "-"
    assert "uls" in report_sweep(CASES["rule"]).figures["defenses"].alt
    assert "uls" not in report_sweep(void).figures["defenses"].alt


def test_the_banner_is_the_answer_for_the_selected_defense_or_the_gravest():
    assert sweep_findings.answer_of_sweep(CASES["rule"]) == Answer.NO_LEAK
    assert sweep_findings.state_answer(CASES["rule"])[0].states(Chosen.ONLY_CANDIDATE)
    assert sweep_findings.answer_of_sweep(CASES["no rule"]) == "leaks"
    (answer,) = sweep_findings.state_answer(CASES["no rule"])
    assert values_of(answer, Chosen.LEAKING)["variants"] == "plain training"
    assert answer.states(Chosen.NO_RULE)


def test_a_selected_defense_whose_canary_users_leak_is_said_so_in_the_same_sentence():
    cells = [
        c.model_copy(update={"canaries_answer": "leaks" if c.variant == "uls" else "inconclusive"})
        for c in CASES["rule"].cells
    ]
    answer = sweep_findings.state_answer(CASES["rule"].model_copy(update={"cells": cells}))[0]
    assert states(values_of(answer, Chosen.ONLY_CANDIDATE)["although"].values["against"], Chosen.CANARIES_LEAK)
    assert sweep_findings.state_answer(CASES["rule"])[0].values["although"] is None


def test_the_banner_names_the_model_to_release_and_what_the_others_do():
    """A green banner over models that leak names the one model that it is about."""
    banner = report_sweep(CASES["rule"]).section("answer").first(Banner)
    assert (banner.answer, banner.title) == (Answer.NO_LEAK, "Release uls")
    stated = sweep_findings.state_answer(CASES["rule"])
    others = values_of(stated, Chosen.OTHERS)["answers"]
    assert [(each.values["variants"], each.code) for each in others] == [
        ("plain training", Chosen.OTHER_LEAKS.code), ("cap10", Chosen.OTHER_INCONCLUSIVE.code),
    ]  # fmt: skip
    plain, selected = CASES["rule"].variants[0], CASES["rule"].variants[2]
    kept = 100 * selected.gain.value / plain.gain.value
    assert values_of(stated, Chosen.KEEPS)["percent"] == pytest.approx(kept)
    assert values_of(stated, Chosen.DELTA)["product"] == pytest.approx(1e-5 * 150)
    many = [v.model_copy(update={"trained_users": 15_000}) for v in CASES["rule"].variants]
    large = CASES["rule"].model_copy(update={"variants": many})
    assert values_of(sweep_findings.state_answer(large), Chosen.LARGE_DELTA)["product"] == pytest.approx(0.15)
    assert report_sweep(CASES["no rule"]).section("answer").first(Banner).title == "Leaks"
    none = CASES["rule"].shipping.model_copy(update={"answer": "none passes", "variant": None, "block": None})
    nothing = report_sweep(CASES["rule"].model_copy(update={"shipping": none}))
    assert nothing.section("answer").first(Banner).title == str(Chosen.RELEASE_NONE())


def test_no_leak_of_canary_users_is_said_of_that_answer_only():
    """Canary users that are too few for an answer are inconclusive."""
    answers = {"none": "leaks", "cap10": "inconclusive", "uls": "no leak found"}
    cells = [c.model_copy(update={"canaries_answer": answers[c.variant]}) for c in CASES["rule"].cells]
    lines = _lines(CASES["rule"].model_copy(update={"cells": cells}))[SweepLabel.CANARIES]
    assert [(line.values["answer"], line.values["variants"]) for line in lines] == [
        ("Leaks", "plain training"), ("Inconclusive", "cap10"), ("No leak found", "uls"),
    ]  # fmt: skip


def test_without_a_rule_models_that_leak_are_not_released():
    advice = sweep_findings.recommend(CASES["no rule"])
    assert values_of(advice, SweepAdvice.LEAKING)["variants"] == "plain training"
    assert states(advice, SweepAdvice.SET_RULE)


def test_a_released_model_whose_own_audit_leaks_is_said_so_in_the_same_sentence():
    def against(*leaking):
        cells = [
            c.model_copy(update={"answer": "leaks" if c.block in leaking else "no leak found"})
            if c.variant == "uls"
            else c
            for c in CASES["rule"].cells
        ]
        answer = sweep_findings.state_answer(CASES["rule"].model_copy(update={"cells": cells}))
        return values_of(answer, Chosen.ONLY_CANDIDATE)["although"].values["against"]

    assert values_of(against(2, 3), Chosen.INCONCLUSIVE) == {"leaking": 2, "count": 5}
    assert not states(against(2, 3), Chosen.OWN_LEAK)
    assert values_of(against(1), Chosen.OWN_LEAK) == {"folder": "runs/made-up/cells/1/uls"}


def test_missing_repetitions_are_counted_beside_the_answer():
    variants = [v.model_copy(update={"cells": 3}) if v.name == "uls" else v for v in CASES["rule"].variants]
    rows = sweep_findings.tabulate_defenses(CASES["rule"].model_copy(update={"variants": variants})).rows
    assert ["3 of 5" in row[-1] for row in rows] == [False, False, True]


def test_who_leaks_who_learned_and_who_is_dominated_is_on_page_one():
    lines = _lines(CASES["no rule"])
    assert [s.values["variants"] for s in lines[SweepLabel.LEAKS]] == ["plain training", "cap10", "uls"]
    assert lines[SweepLabel.CANARIES][0].values["variants"] == "plain training, cap10"
    assert values_of(lines[SweepLabel.LEARNED], Compared.LEARNED)["variants"] == "plain training, cap10, uls"
    assert values_of(lines[SweepLabel.BEATEN], Compared.BEATEN)["variants"] == "cap10"
    variants = [
        v.model_copy(update={"gain": v.gain.model_copy(update={"lower": -0.1})}) if v.name == "uls" else v
        for v in CASES["no rule"].variants
    ]
    unlearned = _lines(CASES["no rule"].model_copy(update={"variants": variants}))
    assert values_of(unlearned[SweepLabel.LEARNED], Compared.LEARNED_NOTHING)["variants"] == "uls"


def test_a_limit_that_is_not_shown_to_be_kept_is_not_called_broken(approved):
    rng = np.random.default_rng(4)
    unsure, short = [0.5, 0.66, 0.5, 0.62, 0.52], (0.01 + 0.001 * rng.normal(size=5)).tolist()
    candidate = Candidate("cap10", {}, {"auroc": [unsure], "loss_gain_over_base": [short]})
    asked = [Requirement("auroc", at_most=0.6), Requirement("loss_gain_over_base", at_least=0.05)]
    judged = judge_candidates([candidate], asked, 0.05)
    reason = RuleReason.NONE_PASSES(broken=[])
    shipping = Shipping(answer="none passes", variant=None, block=None, level=0.05, candidates=judged, reason=reason)
    result = CASES["rule"].model_copy(update={"shipping": shipping})
    rows = dict(sweep_findings.show_rule(result)[1].rows)
    broken, not_shown = rows["cap10"].split("; ")
    assert names(broken, "loss gained")
    assert names(not_shown, "AUROC")
    assert approved("row", rows["cap10"])


def test_a_sweep_that_is_not_done_is_run_again(approved):
    done = CASES["rule"]
    shipping = done.shipping.model_copy(update={"answer": "cannot be judged", "variant": None, "candidates": []})
    named = done.rule.candidates[0]

    def with_failed(variant):
        failed = next(cell for cell in done.cells if cell.variant == variant)
        cells = [its.model_copy(update={"state": "failed"}) if its is failed else its for its in done.cells]
        variants = [v.model_copy(update={"cells": v.cells - (v.name == variant)}) for v in done.variants]
        return done.model_copy(update={"shipping": shipping, "cells": cells, "variants": variants})

    def rows_of(result):
        return dict(sweep_findings.show_rule(result)[1].rows)

    rows = rows_of(with_failed(named))
    assert approved("candidate", rows[named])
    others = [row for name, row in rows.items() if name != named]
    assert approved("others", "\n".join(others))
    assert rows[named] not in others
    assert sweep_findings.recommend(with_failed(named)).states(SweepAdvice.RUN_AGAIN)
    # To run again helps only where a candidate waits for it; one whose cells are all done has a loss that nobody has.
    other = with_failed(next(its.name for its in done.variants if its.name != named))
    assert sweep_findings.recommend(other).states(SweepAdvice.MORE_USERS)
    assert approved("candidate, other cell", rows_of(other)[named])
    assert rows_of(other)[named] != rows[named]


def test_one_repetition_says_how_many_are_needed():
    assert values_of(_lines(CASES["one block"])[SweepLabel.EVIDENCE], Compared.ONCE) == {"blocks": 1, "least": 3}
    assert states(_lines(CASES["rule"])[SweepLabel.EVIDENCE], Compared.REPEATED)
    assert values_of(sweep_findings.recommend(CASES["one block"]), SweepAdvice.SET_RULE)["blocks"] == 5


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("spread", [1.0, 0.1, 0.0], ids=["apart", "near each other", "all at one point"])
def test_names_in_the_picture_overlap_no_other_name_and_no_edge(spread, monkeypatch):
    """Names of ten defenses, however near their points are to each other."""
    names = [f"defense number {i}" for i in range(8)]
    rng = np.random.default_rng(1)
    points = [
        (0.5 + spread * x, 0.6 + spread * y, name) for (x, y), name in zip(rng.normal(size=(8, 2)), names, strict=True)
    ]
    with figure(6.6, 2.8) as (drawn, _):
        axes = drawn.subplots()
        for x, y, _ in points:
            axes.errorbar([x], [y], xerr=0.03 * spread, yerr=0.03 * spread, fmt="o")
        axes.margins(0.3)
        notes = place_labels(axes, points)
        frame, marks = axes.get_window_extent(), marks_in(axes)
        boxes = [extent_of(note) for note in notes]
        assert [note.get_text() for note in notes] == names
        assert len(marks) == 3 * len(points)
        for box in boxes:
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1
            assert frame.y0 <= box.y0 < box.y1 <= frame.y1
            assert not any(box.overlaps(mark) for mark in marks)
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("alt", ["", "nothing"])
def test_a_figure_without_words_is_refused(tmp_path, alt):
    # The standard PDF/UA-1 asks for them: without it nobody would notice that they are missing.
    figure = Figure("picture", lambda: "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", alt)
    report = Report("t", "0.1.0", "internal", (ReportSection("figure", "Figure", (figure,)),))
    if alt:
        assert write_pdf(report, tmp_path / "report.pdf").is_file()
        return
    with refused(by=write_pdf, naming=("report.pdf", "alt")):
        write_pdf(report, tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()


def test_a_single_evaluation_is_not_drawn_as_a_course_of_training():
    result = made_sweep()
    once = [cell.model_copy(update={"curve": cell.curve[-1:]}) for cell in result.cells]
    assert "curves" in report_sweep(result).figures
    assert "curves" not in report_sweep(result.model_copy(update={"cells": once})).figures


def test_unfinished_cells_and_missing_numbers_are_shown_as_such():
    result = made_sweep()
    lost = {"state": "failed", "reason": "no memory", "answer": None, "canaries_answer": None, "tests": None}
    cells = [cell.model_copy(update=lost) for cell in result.cells]
    nothing = {"auroc": None, "gain": None, "loss": None, "flagged": None, "cells": 0, "promise": None}
    bare = [its.model_copy(update=nothing) for its in result.variants]
    failed = result.model_copy(update={"cells": cells, "variants": bare, "attacker": None})
    assert report_sweep(failed).figures.keys() <= {"curves"}
    assert "failed: no memory" in "\n".join(texts(report_sweep(failed).section("cells")))
    assert sweep_findings.state_answer(failed)[0].states(Chosen.NOTHING_DONE)
    assert sweep_findings.recommend(failed).states(SweepAdvice.RUN_AGAIN)


def test_the_document_comes_back_as_it_was():
    for result in CASES.values():
        content = json.loads(result.model_dump_json())
        assert "folder" not in content
        assert SweepResult.model_validate({**content, "folder": result.folder}) == result
    assert isinstance(CASES["rule"].variants[0].auroc, Summary)


def test_the_code_of_other_packages_is_named_with_its_variants():
    result = CASES["rule"]
    origin = Origin(family="defenses", kind="digits", package="heldin-digits", version="1.0", sha256="ab" * 32)
    cells = [
        cell.model_copy(update={"kinds": [origin] if cell.variant in ("cap10", "uls") else []}) for cell in result.cells
    ]
    (row,) = tabulate_kinds(result.model_copy(update={"cells": cells})).rows
    assert row == ["digits (defenses)", origin.code, "cap10, uls"]
    assert tabulate_kinds(result) is None
