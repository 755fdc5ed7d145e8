"""The annex of a sweep follows from its document: another document, another row; PDF and page have the same words."""

import pytest

from heldin.record.sweep import Composed
from heldin.reports.annex_parts import NOT_ANONYMITY
from heldin.reports.sweep_annex import VARIES, extraction_rows, scenarios, sweep_annex
from heldin.reports.sweep_html import page
from heldin.reports.sweep_pdf import typeset_sweep
from tests.made_sweeps import made_sweep, with_extraction
from tests.pdf_pages import pages

OPEN = ["Attribute inference", "Reconstruction", "Inversion"]


def rows(result):
    return {its.name.split(":")[0]: its for its in scenarios(result)}


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
        assert f"{letter} {variant.auroc.value:.3f}" in its["Membership of users"].found
    entities = result.model_copy(update={"attacker": result.attacker.model_copy(update={"audited": "entities"})})
    assert "Membership of entities" in rows(entities)
    void = rows(answered(result, "not valid", blocks=range(1, 6)))["Membership of users"]
    assert void.status == "run, not valid"
    some = rows(answered(result, "not valid"))["Membership of users"]
    assert some.status == "run"
    assert "not valid in 3 of 15 cells" in some.found
    none = result.model_copy(update={"cells": [c.model_copy(update={"state": "failed"}) for c in result.cells]})
    assert rows(none)["Membership of users"].status == "not run"
    bare = result.model_copy(update={"variants": [v.model_copy(update={"canaries": []}) for v in result.variants]})
    assert "Membership of canary users" not in rows(bare)


def test_extraction_is_counted_over_the_blocks_and_says_in_how_many_cells_it_was_asked():
    whole = with_extraction(made_sweep())
    its = rows(whole)["Extraction"]
    assert its.status == "run"
    assert "a 15 of 300 held in and 0 of 290 held out" in its.found
    assert "Asked in" not in its.found
    assert extraction_rows(whole)[2] == ["c  uls", "5 of 5", "15 of 300", "0 of 290", "45 of 50", "0 of 60"]
    part = with_extraction(made_sweep(), blocks=(2, 3))
    assert rows(part)["Extraction"].found.startswith("Asked in 6 of 15 cells.")
    assert extraction_rows(part)[0][1:3] == ["2 of 5", "6 of 120"]
    assert sweep_annex(whole)["opinion"][0][2] == "run; see the table of tests"
    assert sweep_annex(made_sweep())["opinion"][0][2] == "not run; see the table of tests"


def test_the_release_is_that_of_the_plan_or_said_to_differ():
    result = made_sweep()
    assert [value for _, value in sweep_annex(result)["release"]] == ["", "", ""]
    block = {"access": "weights", "who": "the public"}
    released = result.model_copy(update={"config": {**result.config, "release": block}})
    assert dict(sweep_annex(released)["release"])["who gets it"] == "the public"
    assert any(line.startswith("Before the weights are given away") for line in sweep_annex(released)["repeat"])
    variant = result.variants[1].model_copy(update={"differs": {"release.access": "text"}})
    varies = released.model_copy(update={"variants": [result.variants[0], variant, result.variants[2]]})
    assert sweep_annex(varies)["release"] == [["of all variants", VARIES]]
    assert sweep_annex(varies)["opinion"][2][2] == "not stated in the config; lines above"


def test_promises_in_words_once_for_all_variants_that_promise_the_same():
    result = made_sweep(names=("none", "cap10", "uls", "els"))
    found = dict(sweep_annex(result)["promise"])
    assert set(found) == {"a  none, b  cap10", "c  uls, d  els"}
    assert found["a  none, b  cap10"] == "No protection was applied. The audit counts by user."
    said = found["c  uls, d  els"]
    for part in ("Whatever one user wrote", "delta is 1e-05", "150 users trained on", "(add/remove)"):
        assert part in said
    assert "a promise to every user by c, d" in sweep_annex(result)["opinion"][1][2]


def test_quantity_and_quality_are_the_cells():
    result = made_sweep()
    its = dict(sweep_annex(result)["quality"])
    assert its["how many models"] == "15 of 15 cells, in 5 blocks"
    assert "100 held-in users and 100 held-out users" in its["how many were tested in a block"]
    assert its["with how much"] == "1,200 texts; 15 scores of 5 attacks"
    assert its["who is on which side"] == ("each user was held in by an independent fair coin (certifiable)")
    assert its["by chance alone"].startswith('a false "leaks" by the attacks in 5 % of audits of one cell')
    assert "none of which separated" in its["controls"]
    changed = dict(
        sweep_annex(with_tests(result, certifiable=False, false_alarms=None, separating=["words"]))["quality"]
    )
    assert "(indicative only)" in changed["who is on which side"]
    assert "nothing bounds how often" in changed["by chance alone"]
    assert changed["controls"].startswith("words of 2 separated")
    cells = [
        c.model_copy(update={"tests": c.tests.model_copy(update={"texts": 9})}) if c.block == 1 else c
        for c in result.cells
    ]
    mixed = dict(sweep_annex(result.model_copy(update={"cells": cells}))["quality"])["with how much"]
    assert mixed.startswith("in 12 cells 1,200 texts")
    assert "in 3 cells 9 texts" in mixed


def test_what_is_left_names_leaks_promises_and_what_nobody_looked_at():
    result = made_sweep(shipped="uls")
    calm = sweep_annex(result)["residual"]
    assert "No leak was found in 15 of 15 cells; other attacks were not tried." in calm
    assert any("in 5 % of sweeps" in line for line in calm)
    assert "Nothing is known about: extraction, attribute inference, reconstruction, inversion." in calm
    assert any(line.endswith("not tried on: a, b.") for line in calm)
    leaks = sweep_annex(answered(result, "leaks"))["residual"]
    assert leaks[0].startswith(
        "Membership leaks to the attacker described in 1 of 5 cells of a, 1 of 5 cells of b, 1 of 5 cells of c."
    )
    unsure = sweep_annex(answered(result, "inconclusive"))["residual"]
    assert any("Too little was tested" in line for line in unsure)
    assert not any("in 5 % of sweeps" in line for line in sweep_annex(made_sweep())["residual"])
    assert "extraction" not in next(
        line for line in sweep_annex(with_extraction(result))["residual"] if line.startswith("Nothing is known")
    )


def test_other_models_of_the_same_people_and_what_they_cost_together():
    result = made_sweep()
    assert sweep_annex(result)["others"][0].startswith("15 models of this sweep")
    its = Composed(private=5, others=10, epsilon=21.3, delta=1e-4, adjacency="add_remove")
    said = sweep_annex(result.model_copy(update={"composed": its}))["others"]
    assert "The epsilon of the 5 private trainings together is 21.3 at delta 0.0001." in said
    assert any(line.startswith("10 trainings without a promise") for line in said)
    assert any("from 3 blocks on" in line for line in sweep_annex(made_sweep(blocks=1))["repeat"])
    assert not any("from 3 blocks on" in line for line in sweep_annex(result)["repeat"])


@pytest.mark.usefixtures("typeset")
@pytest.mark.parametrize("made", [with_extraction(made_sweep(shipped="uls")), made_sweep(blocks=1)])
def test_pdf_and_page_have_the_words_of_the_annex_and_lines_to_sign(made, tmp_path):
    pytest.importorskip("vl_convert")
    from html import escape

    printed = pages(typeset_sweep(made, tmp_path / "report.pdf"))
    written = page(made)
    (number,) = [i for i, one in enumerate(printed, start=1) if one.says("Annex for those who sign")]
    assert any(one.says(f"stand in the annex (page {number})") for one in printed[:2])
    its = sweep_annex(made)
    words = [cell for row in its["tests"] for cell in row] + its["others"] + its["repeat"] + its["residual"]
    words += [value for _, value in its["promise"] + its["quality"]] + [row[2] for row in its["opinion"]]
    for said in words:
        assert any(one.says(said) for one in printed[number - 1 :]), said
        assert escape(said) in written, said
    assert NOT_ANONYMITY in written
    for line in ("decision", "name", "date"):
        assert f"<div>{line}</div>" in written
    assert ("Extraction</h2>" in written) is bool(extraction_rows(made))
    assert '"description": "Charts of' in written
