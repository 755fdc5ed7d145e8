"""The annex of a sweep follows from its document: another document, another row; PDF and page have the same words."""

from html import escape

import pytest

from heldin.record.sweep import Composed
from heldin.reports import sweep_annex
from heldin.reports.annex_parts import NOT_ANONYMITY
from heldin.reports.blocks import Signature, texts
from heldin.reports.html import render
from heldin.reports.sweep_annex import VARIES, count_extracted, list_scenarios
from heldin.reports.sweep_report import report_sweep
from heldin.reports.typesetting import write_pdf
from tests.drafts import typesetting
from tests.made_sweeps import made_sweep, with_extraction
from tests.pdf_pages import pages

OPEN = ["Attribute inference", "Reconstruction", "Inversion"]


def rows(result):
    return {its.name.split(":")[0]: its for its in list_scenarios(result)}


def answered(result, answer, blocks=(1,)):
    cells = [its.model_copy(update={"answer": answer}) if its.block in blocks else its for its in result.cells]
    return result.model_copy(update={"cells": cells})


def with_tests(result, **changes):
    cells = [its.model_copy(update={"tests": its.tests.model_copy(update=changes)}) for its in result.cells]
    return result.model_copy(update={"cells": cells})


def test_what_was_run_and_what_was_not_follows_from_the_cells():
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
    assert "not valid in 3 of 15 cells" in some.result
    none = result.model_copy(update={"cells": [c.model_copy(update={"state": "failed"}) for c in result.cells]})
    assert rows(none)["Membership of users"].status == "not run"
    bare = result.model_copy(update={"variants": [v.model_copy(update={"canaries": []}) for v in result.variants]})
    assert "Membership of canary users" not in rows(bare)


def test_extraction_is_counted_over_the_blocks_and_says_in_how_many_cells_it_was_asked():
    whole = with_extraction(made_sweep())
    its = rows(whole)["Extraction"]
    assert its.status == "run"
    assert "a 15 of 300 held in and 0 of 290 held out" in its.result
    assert "Asked in" not in its.result
    assert count_extracted(whole)[2] == ["c  uls", "5 of 5", "15 of 300", "0 of 290", "45 of 50", "0 of 60"]
    part = with_extraction(made_sweep(), blocks=(2, 3))
    assert rows(part)["Extraction"].result.startswith("Asked in 6 of 15 cells.")
    assert count_extracted(part)[0][1:3] == ["2 of 5", "6 of 120"]
    assert sweep_annex.answer_opinion(whole).rows[0][2] == "run; see the table of tests"
    assert sweep_annex.answer_opinion(made_sweep()).rows[0][2] == "not run; see the table of tests"


def test_the_release_is_that_of_the_plan_or_said_to_differ():
    result = made_sweep()
    assert [value for _, value in sweep_annex.state_release(result).pairs] == ["", "", ""]
    block = {"access": "weights", "who": "the public"}
    released = result.model_copy(update={"config": {**result.config, "release": block}})
    assert dict(sweep_annex.state_release(released).pairs)["who gets it"] == "the public"
    assert any(
        line.startswith("Before the weights are given away") for line in sweep_annex.list_occasions(released).lines
    )
    variant = result.variants[1].model_copy(update={"differs": {"release.access": "text"}})
    varies = released.model_copy(update={"variants": [result.variants[0], variant, result.variants[2]]})
    assert sweep_annex.state_release(varies).pairs == [("of all variants", VARIES)]
    assert sweep_annex.answer_opinion(varies).rows[2][2] == "not stated in the config; lines above"


def test_promises_in_words_once_for_all_variants_that_promise_the_same():
    result = made_sweep(names=("none", "cap10", "uls", "els"))
    found = dict(sweep_annex.explain_promises(result).pairs)
    assert set(found) == {"a  none, b  cap10", "c  uls, d  els"}
    assert found["a  none, b  cap10"] == "No protection was applied. The audit counts by user."
    said = found["c  uls, d  els"]
    for part in ("Whatever one user wrote", "delta is 1e-05", "150 users trained on", "(add/remove)"):
        assert part in said
    assert "a promise to every user by c, d" in sweep_annex.answer_opinion(result).rows[1][2]


def test_quantity_and_quality_are_the_cells():
    result = made_sweep()
    its = dict(sweep_annex.state_quality(result).pairs)
    assert its["how many models"] == "15 of 15 cells, in 5 blocks"
    assert "100 held-in users and 100 held-out users" in its["how many were tested in a block"]
    assert its["with how much"] == "1,200 texts; 15 scores of 5 attacks"
    assert its["who is on which side"] == ("each user was held in by an independent fair coin (certifiable)")
    assert its["by chance alone"].startswith('a false "leaks" by the attacks in 5 % of audits of one cell')
    assert "none of which separated" in its["controls"]
    changed = dict(
        sweep_annex.state_quality(with_tests(result, certifiable=False, false_alarms=None, separating=["words"])).pairs
    )
    assert "(indicative only)" in changed["who is on which side"]
    assert "nothing bounds how often" in changed["by chance alone"]
    assert changed["controls"].startswith("words of 2 separated")
    cells = [
        c.model_copy(update={"tests": c.tests.model_copy(update={"texts": 9})}) if c.block == 1 else c
        for c in result.cells
    ]
    mixed = dict(sweep_annex.state_quality(result.model_copy(update={"cells": cells})).pairs)["with how much"]
    assert mixed.startswith("in 12 cells 1,200 texts")
    assert "in 3 cells 9 texts" in mixed


def test_what_is_left_names_leaks_promises_and_what_nobody_looked_at():
    result = made_sweep(shipped="uls")
    calm = sweep_annex.state_residual_risk(result)[0].lines
    assert "No leak was found in 15 of 15 cells; other attacks were not tried." in calm
    assert any("in 5 % of sweeps" in line for line in calm)
    assert "Nothing is known about: extraction, attribute inference, reconstruction, inversion." in calm
    assert any(line.endswith("not tried on: a, b.") for line in calm)
    leaks = sweep_annex.state_residual_risk(answered(result, "leaks"))[0].lines
    assert leaks[0].startswith(
        "Membership leaks to the attacker described in 1 of 5 cells of a, 1 of 5 cells of b, 1 of 5 cells of c."
    )
    unsure = sweep_annex.state_residual_risk(answered(result, "inconclusive"))[0].lines
    assert any("Too little was tested" in line for line in unsure)
    assert not any("in 5 % of sweeps" in line for line in sweep_annex.state_residual_risk(made_sweep())[0].lines)
    assert "extraction" not in next(
        line
        for line in sweep_annex.state_residual_risk(with_extraction(result))[0].lines
        if line.startswith("Nothing is known")
    )


def test_other_models_of_the_same_people_and_what_they_cost_together():
    result = made_sweep()
    assert sweep_annex.list_other_models(result)[0].startswith("15 models of this sweep")
    its = Composed(private=5, others=10, epsilon=21.3, delta=1e-4, adjacency="add_remove")
    said = sweep_annex.list_other_models(result.model_copy(update={"composed": its}))
    assert "The epsilon of the 5 private trainings together is 21.3 at delta 0.0001." in said
    assert any(line.startswith("10 trainings without a promise") for line in said)
    assert any("from 3 blocks on" in line for line in sweep_annex.list_occasions(made_sweep(blocks=1)).lines)
    assert not any("from 3 blocks on" in line for line in sweep_annex.list_occasions(result).lines)


def test_page_and_pdf_have_the_texts_of_the_annex_and_lines_to_sign(tmp_path):
    pytest.importorskip("vl_convert")
    made = with_extraction(made_sweep(shipped="uls"))
    with typesetting():
        printed = pages(write_pdf(report_sweep(made), tmp_path / "report.pdf"))
    written = render(report_sweep(made))
    (number,) = [i for i, page in enumerate(printed, start=1) if page.says("Annex for those who sign")]
    assert any(page.says(f"stand in the annex (page {number})") for page in printed[:2])
    report = report_sweep(made)
    for key in ("tests", "others", "when-to-repeat", "residual", "promise-terms", "quality", "opinion"):
        for text in texts(report.section(key)):
            assert any(page.says(text) for page in printed[number - 1 :]), text
            assert escape(text) in written, text
    for line in ("decision", "name", "date"):
        assert f"<div>{line}</div>" in written
    assert '"description": "Scatter plots of' in written


@pytest.mark.parametrize(
    ("made", "tested"), [(with_extraction(made_sweep(shipped="uls")), True), (made_sweep(blocks=1), False)]
)
def test_extraction_has_a_section_where_a_cell_tested_it(made, tested):
    assert (report_sweep(made).section("extraction") is not None) is tested
    assert report_sweep(made).section("residual").first(Signature).basis == f"this report, sweep {made.sweep[:16]}"
    assert report_sweep(made).section("residual").text == NOT_ANONYMITY
