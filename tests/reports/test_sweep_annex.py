"""The annex of a sweep follows from its document: another document, another row; PDF and page have the same words."""

from html import unescape

import pytest

from heldin.record.sweep import Composed
from heldin.reports import sweep_annex
from heldin.reports.annex_parts import NOT_ANONYMITY
from heldin.reports.blocks import Reference, Signature, texts
from heldin.reports.html import render
from heldin.reports.sweep_annex import VARIES, count_extracted, list_scenarios
from heldin.reports.sweep_report import report_sweep
from heldin.reports.typesetting import write_pdf
from tests.drafts import typesetting
from tests.made_sweeps import made_sweep, with_extraction
from tests.pdf_pages import pages
from tests.refusals import lacks, names

OPEN = ["Attribute inference", "Reconstruction", "Inversion"]


def rows(result):
    return {its.name.split(":")[0]: its for its in list_scenarios(result)}


def answered(result, answer, blocks=(1,)):
    cells = [its.model_copy(update={"answer": answer}) if its.block in blocks else its for its in result.cells]
    return result.model_copy(update={"cells": cells})


def with_tests(result, **changes):
    cells = [its.model_copy(update={"tests": its.tests.model_copy(update=changes)}) for its in result.cells]
    return result.model_copy(update={"cells": cells})


def test_what_was_run_and_what_was_not_follows_from_the_cells(approved):
    result = made_sweep()
    its = rows(result)
    assert (its["Membership of users"].status, its["Extraction"].status) == ("run", "not run")
    assert [its[name].status for name in OPEN] == ["out of scope"] * 3
    assert its["Membership of canary users"].status == "run"
    for letter, variant in zip("abc", result.variants, strict=True):
        assert f"{letter} {variant.auroc.value:.3f}" in its["Membership of users"].result
    entities = result.model_copy(update={"attacker": result.attacker.model_copy(update={"audited": "entities"})})
    assert "Membership of entities" in rows(entities)
    void = rows(answered(result, "not valid", blocks=range(1, 6)))["Membership of users"]
    assert void.status == "run, not valid"
    some = rows(answered(result, "not valid"))["Membership of users"]
    assert some.status == "run"
    assert names(some.result, "3 of 15 training runs")
    assert approved("not valid in a block", some.result)
    none = result.model_copy(update={"cells": [c.model_copy(update={"state": "failed"}) for c in result.cells]})
    assert rows(none)["Membership of users"].status == "not run"
    bare = result.model_copy(update={"variants": [v.model_copy(update={"canaries": []}) for v in result.variants]})
    assert "Membership of canary users" not in rows(bare)


def test_extraction_is_counted_over_the_blocks_and_says_in_how_many_cells_it_was_asked(approved):
    whole = with_extraction(made_sweep())
    its = rows(whole)["Extraction"]
    assert its.status == "run"
    assert names(its.result, "a 15 of 300", "0 of 290")
    assert approved("every cell", its.result)
    assert count_extracted(whole)[2] == ["c  uls", "5 of 5", "15 of 300", "0 of 290", "45 of 50", "0 of 60"]
    part = with_extraction(made_sweep(), blocks=(2, 3))
    assert names(rows(part)["Extraction"].result, "6 of 15 training runs")
    assert approved("some cells", rows(part)["Extraction"].result)
    assert count_extracted(part)[0][1:3] == ["2 of 5", "6 of 120"]
    assert sweep_annex.answer_opinion(whole).rows[0][2].startswith("run; ")
    assert sweep_annex.answer_opinion(made_sweep()).rows[0][2].startswith("not run; ")


def test_the_release_is_that_of_the_plan_or_said_to_differ(approved):
    result = made_sweep()
    assert [value for _, value in sweep_annex.state_release(result).pairs] == ["", "", ""]
    block = {"access": "weights", "who": "the public"}
    released = result.model_copy(update={"config": {**result.config, "release": block}})
    assert block["who"] in dict(sweep_annex.state_release(released).pairs).values()
    occasions = [sweep_annex.list_occasions(its).lines for its in (result, released)]
    (added,) = set(occasions[1]) - set(occasions[0])
    assert approved("weights", added)
    variant = result.variants[1].model_copy(update={"differs": {"release.access": "text"}})
    varies = released.model_copy(update={"variants": [result.variants[0], variant, result.variants[2]]})
    assert [value for _, value in sweep_annex.state_release(varies).pairs] == [VARIES]
    stated = [sweep_annex.answer_opinion(its).rows[2][2] for its in (varies, released)]
    assert stated[0] != stated[1]
    assert approved("variants differ", stated[0])


def test_promises_in_words_once_for_all_variants_that_promise_the_same(approved):
    result = made_sweep(names=("none", "cap10", "uls", "els"))
    found = dict(sweep_annex.explain_promises(result).pairs)
    assert set(found) == {"a  plain training, b  cap10", "c  uls, d  els"}
    assert names(found["c  uls, d  els"], "1e-05", "150 users")
    for variants, said in found.items():
        assert approved(variants, said)
    opinion = sweep_annex.answer_opinion(result).rows[1][2]
    assert names(opinion, "c, d")
    assert approved("opinion", opinion)


def test_quantity_and_quality_are_the_cells(approved):
    result = made_sweep()
    its = "\n".join(": ".join(pair) for pair in sweep_annex.state_quality(result).pairs)
    numbers = (
        "15 of 15 training runs",
        "5 repetitions",
        "100 members",
        "100 non-members",
        "1,200 texts",
        "15 scores",
        "5 attacks",
    )
    assert names(its, *numbers, "(certifiable)", "5 %")
    assert approved("made", its)
    changed = with_tests(result, certifiable=False, false_alarms=None, separating=["words"])
    said = "\n".join(": ".join(pair) for pair in sweep_annex.state_quality(changed).pairs)
    assert names(said, "(indicative only)", "words of 2")
    assert approved("changed", said)
    cells = [
        c.model_copy(update={"tests": c.tests.model_copy(update={"texts": 9})}) if c.block == 1 else c
        for c in result.cells
    ]
    mixed = dict(sweep_annex.state_quality(result.model_copy(update={"cells": cells})).pairs)["with how much"]
    assert names(mixed, "12 training runs", "1,200 texts", "3 training runs", "9 texts")


def test_what_is_left_names_leaks_promises_and_what_nobody_looked_at(approved):
    result = answered(made_sweep(shipped="uls"), "no leak found", blocks=range(1, 6))
    made = {"calm": result, "leaks": answered(result, "leaks"), "unsure": answered(result, "inconclusive")}
    made |= {
        "none shipped": answered(made_sweep(), "no leak found", blocks=range(1, 6)),
        "extraction tested": with_extraction(result),
    }
    lines = {case: sweep_annex.state_residual_risk(its)[0].lines for case, its in made.items()}
    for case, said in lines.items():
        assert approved(case, "\n".join(said))
    assert any("15 of 15" in line for line in lines["calm"])
    # A rule that ships a defense has an error of its own.
    assert any("5 %" in line for line in lines["calm"])
    assert not any("5 %" in line for line in lines["none shipped"])
    assert names(lines["leaks"][0], "1 of 5 training runs of a", "of b", "of c")
    open_ones = [next(line for line in lines[case] if "inversion" in line) for case in ("calm", "extraction tested")]
    assert ["extraction" in line for line in open_ones] == [True, False]


def test_other_models_of_the_same_people_and_what_they_cost_together(approved):
    result = made_sweep()
    assert sweep_annex.list_other_models(result)[0].startswith("15 models of this sweep")
    its = Composed(private=5, others=10, epsilon=21.3, delta=1e-4, adjacency="add_remove")
    said = sweep_annex.list_other_models(result.model_copy(update={"composed": its}))
    assert any(not lacks(line, "5 private", "21.3", "0.0001") for line in said)
    assert any(line.startswith("10 training ") for line in said)
    assert approved("composed", "\n".join(said))
    occasions = [sweep_annex.list_occasions(made).lines for made in (made_sweep(blocks=1), result)]
    (more_blocks,) = set(occasions[0]) - set(occasions[1])
    assert names(more_blocks, "3 repetitions")


def test_page_and_pdf_have_the_texts_of_the_annex_and_lines_to_sign(tmp_path):
    made = with_extraction(made_sweep(shipped="uls"))
    with typesetting():
        printed = pages(write_pdf(report_sweep(made), tmp_path / "report.pdf"))
    written = render(report_sweep(made))
    report = report_sweep(made)
    (number,) = [i for i, page in enumerate(printed, start=1) if page.says(report.section("annex").title)]
    reference = report.section("annex-reference").first(Reference).text
    assert any(page.says(f"{reference} (page {number})") for page in printed[:2])
    for key in ("tests", "others", "when-to-repeat", "residual", "promise-terms", "quality", "opinion"):
        for text in texts(report.section(key)):
            assert any(page.says(text) for page in printed[number - 1 :]), text
            assert text in unescape(written.replace("<wbr>", "")), text
    for line in ("decision", "name", "date"):
        assert f'<div class="label">{line}</div>' in written


@pytest.mark.parametrize(
    ("made", "tested"), [(with_extraction(made_sweep(shipped="uls")), True), (made_sweep(blocks=1), False)]
)
def test_extraction_has_a_section_where_a_cell_tested_it(made, tested):
    assert (report_sweep(made).section("extraction") is not None) is tested
    assert report_sweep(made).section("residual").first(Signature).basis == f"this report, sweep {made.sweep[:16]}"
    assert report_sweep(made).section("residual").text == NOT_ANONYMITY
