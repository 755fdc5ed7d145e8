"""The report of a sweep as a reader sees it: page one decides, numbers are the document's, nothing runs off a page."""

import json
import re

import numpy as np
import pytest

from heldin.audit.blocks import Summary
from heldin.audit.requirement import Requirement
from heldin.audit.shipping import Candidate, Shipping, judge_candidates
from heldin.record.sweep import SweepResult
from heldin.reports import sweep_charts, sweep_findings
from heldin.reports.blocks import Figure, Report, Section, texts
from heldin.reports.html import load_altair, render, write_page
from heldin.reports.sweep_report import report_sweep
from heldin.reports.typesetting import write_pdf
from tests.drafts import typesetting
from tests.made_sweeps import made_sweep
from tests.pdf_pages import lines_lie_apart, pages
from tests.refusals import names, refused

MARGIN = 62.0  # points, of 2.2 cm
LONG = "a-name-that-somebody-typed-without-a-thought-for-whoever-must-print-it-in-a-narrow-column-of-a-table-0123"[:100]
CASES = {
    "rule": made_sweep(shipped="uls"),
    "no rule": made_sweep(dominated=("cap10",)),
    "one block": made_sweep(blocks=1),
    "violated": made_sweep(shipped="uls", violated=True),
    "fifty": made_sweep(names=("none", LONG, *(f"{LONG[:90]}-{i}" for i in range(8))), shipped=LONG),
}


@pytest.fixture(scope="module", params=["violated", "fifty"])
def case(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.pdf"
    with typesetting():
        write_pdf(report_sweep(CASES[request.param]), path)
    return CASES[request.param], pages(path)


def test_page_one_answers_and_is_signed(case):
    result, printed = case
    assert printed[0].says(sweep_findings.state_answer(result))
    whole = printed[0].text + printed[1].text
    for key in ("rule", "attacker", "next"):
        assert report_sweep(result).section(key).title in whole, key
    assert "Read and decided" in whole
    for its in result.variants:
        assert any(page.says(its.name) for page in printed[:2])


def test_every_number_of_the_main_table_is_the_documents(case):
    result, printed = case
    for its in result.variants:
        area, gain = its.auroc, its.gain
        first = [f"{area.value:.2f}"]
        if area.lower is not None:
            first = [f"{area.value:.2f} ({area.lower:.2f} to {area.upper:.2f})"]
            first.append(f"{gain.value:+.3f} ({gain.lower:+.3f} to {gain.upper:+.3f})")
        # Ten names of a hundred letters take more than a page.
        assert all(any(page.says(number) for page in printed[:2]) for number in first)
    text = " ".join(page.text for page in printed)
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


def test_no_line_of_text_lies_on_another(case):
    for page in case[1]:
        assert lines_lie_apart(page), page.text[:200]


def test_a_report_of_many_cells_has_no_more_pages_than_a_reader_takes(case):
    # Two or three of them are the annex, which can be printed alone.
    assert 6 <= len(case[1]) <= 14


def test_a_violation_stands_on_page_one(approved):
    said = sweep_findings.list_notes(CASES["violated"])
    assert "violated in 1/uls" in said[0]
    assert approved("note", said[0])


def test_who_is_beaten_and_by_whom_stands_in_the_table(approved):
    rows = {row[0].split("  ")[1]: row[-1] for row in sweep_findings.tabulate_variants(CASES["no rule"]).rows}
    assert rows["cap10"] == "beaten by a"
    assert rows["none"] == "beats b"
    assert approved("neither", rows["uls"])
    assert names(sweep_findings.state_answer(CASES["no rule"]), "cap10", "AUROC")
    assert approved("answer", sweep_findings.state_answer(CASES["no rule"]))


def test_a_limit_that_is_not_shown_to_be_kept_is_not_called_broken(approved):
    rng = np.random.default_rng(4)
    unsure, short = [0.5, 0.66, 0.5, 0.62, 0.52], (0.01 + 0.001 * rng.normal(size=5)).tolist()
    candidate = Candidate("cap10", {}, {"auroc": [unsure], "loss_gain_over_base": [short]})
    asked = [Requirement("auroc", at_most=0.6), Requirement("loss_gain_over_base", at_least=0.05)]
    judged = judge_candidates([candidate], asked, 0.05)
    shipping = Shipping(answer="none passes", variant=None, block=None, level=0.05, candidates=judged, said="none")
    result = CASES["rule"].model_copy(update={"shipping": shipping})
    rows = {row[0].split("  ")[1]: row[-1] for row in sweep_findings.tabulate_variants(result).rows}
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
        return {row[0].split("  ")[1]: row[-1] for row in sweep_findings.tabulate_variants(result).rows}

    rows = rows_of(with_failed(named))
    assert approved("candidate", rows[named])
    others = [row for name, row in rows.items() if name != named]
    assert approved("others", "\n".join(others))
    assert rows[named] not in others
    assert approved("advice", sweep_findings.advise(with_failed(named)))
    # To run again helps only where a candidate waits for it; one whose cells are all done has a loss that nobody has.
    other = with_failed(next(its.name for its in done.variants if its.name != named))
    assert approved("advice, other cell", sweep_findings.advise(other))
    assert sweep_findings.advise(other) != sweep_findings.advise(with_failed(named))
    assert approved("candidate, other cell", rows_of(other)[named])
    assert rows_of(other)[named] != rows[named]


def test_one_block_speaks_of_models_and_of_no_defense():
    assert "these models" in sweep_findings.state_answer(CASES["one block"])


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("alt", ["", "nothing"])
def test_a_figure_without_words_is_refused(tmp_path, alt):
    # The standard PDF/UA-1 asks for them: without it nobody would notice that they are missing.
    figure = Figure("picture", lambda: "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", alt)
    report = Report("t", "s", "today", "internal", (Section("figure", "Figure", (figure,)),))
    if alt:
        assert write_pdf(report, tmp_path / "report.pdf").is_file()
        return
    with refused(by=write_pdf, naming=("report.pdf", "alt")):
        write_pdf(report, tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()


def test_unfinished_cells_and_missing_numbers_are_shown_as_such():
    result = made_sweep()
    cells = [cell.model_copy(update={"state": "failed", "said": "no memory"}) for cell in result.cells]
    nothing = {"auroc": None, "gain": None, "loss": None, "named": None, "cells": 0, "promise": None}
    bare = [its.model_copy(update=nothing) for its in result.variants]
    failed = result.model_copy(update={"cells": cells, "variants": bare, "attacker": None})
    assert report_sweep(failed).figures.keys() <= {"curves"}
    assert "failed: no memory" in "\n".join(texts(report_sweep(failed).section("cells")))
    assert sweep_findings.tabulate_variants(failed).rows[0][-1] == "0 of 5 cells"


@pytest.mark.parametrize("name", CASES)
def test_every_chart_of_the_page_can_be_drawn_and_hover_shows_the_cell(name):
    vl_convert = pytest.importorskip("vl_convert")
    charts = {key: figure.chart() for key, figure in report_sweep(CASES[name]).figures.items() if figure.chart}
    assert set(charts) == {"frontier", "roc-1", "canaries", "exposure"}
    for chart in charts.values():
        specification = json.dumps(chart)
        assert len(vl_convert.vegalite_to_svg(specification)) > 5000
        assert '"tooltip"' in specification


def test_the_page_needs_no_network_and_is_small(tmp_path):
    pytest.importorskip("vl_convert")
    path = write_page(report_sweep(CASES["fifty"]), tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 3_000_000
    assert not re.search(r"<script[^>]+src=", text)
    # Within scripts such words are strings that Vega never uses here.
    marked_up = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'<(link|img)[^>]+(src|href)="(?!data:)', marked_up)
    assert sweep_findings.state_answer(CASES["fifty"]) in text
    assert text.index("charset") < 1024
    for name in ("frontier", "roc-1", "canaries", "exposure"):
        assert f'<div id="chart-{name}"></div>' in text
        assert f'vegaEmbed("#chart-{name}", ' in text


def test_names_are_text_and_never_markup():
    pytest.importorskip("vl_convert")
    result = CASES["no rule"].model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script>alert(1)" not in render(report_sweep(result))


def test_without_altair_the_page_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with refused(by=load_altair, naming="'heldin[html]'"):
        load_altair()


def test_a_curve_of_many_points_is_thinned_with_its_ends():
    points = [i / 999 for i in range(1000)]
    kept = sweep_charts._thinned(CASES["rule"].cells[0].roc.model_copy(update={"fpr": points, "tpr": points}))
    assert len(kept) == sweep_charts.ROC_POINTS
    assert kept[0] == (0, 0)
    assert kept[-1] == (1, 1)


def test_the_document_comes_back_as_it_was():
    for result in CASES.values():
        assert SweepResult.model_validate(json.loads(result.model_dump_json())) == result
    assert isinstance(CASES["rule"].variants[0].auroc, Summary)
