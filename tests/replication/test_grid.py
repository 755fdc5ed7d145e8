"""Views of finished sweeps: grids over two keys, rules that split a budget, and what each record selection takes."""

import json
import math

import pytest

from heldin.record.sweep import read_sweep
from replication.grid import GRADIENTS, grid_figure, grid_of, table
from replication.selected_records import Measured, selected
from replication.strategies import DOUBLE, MAX_COHORT, MAX_GROUP, ORACLE, RANDOM, shortfalls
from tests.refusals import names, refused
from tests.tiny_sweeps import ULS


def test_a_grid_has_the_means_over_blocks_at_their_places(swept):
    _, out, result = swept
    cells = [cell for cell in result.cells if cell.variant == "uls"]
    grid = grid_of(out, "loss", GRADIENTS, "defense.kind")
    (panel,) = grid.panels
    assert panel.measured == {(ULS["cohort"], "uls"): pytest.approx(sum(its.loss for its in cells) / 2)}
    assert panel.best == frozenset()  # nothing else has this budget
    assert f"{sum(its.loss for its in cells) / 2:.4f}" in table(grid)
    assert grid_figure(grid).startswith("<?xml")


def test_a_grid_refuses_two_variants_in_one_place_and_keys_that_are_not_there(swept):
    _, out, _ = swept
    with refused(by="grid_of", naming=("'none'", "'uls'", "--each")):
        grid_of(out, "loss", "finetune.epochs", "split.attacker_fraction")
    assert len(grid_of(out, "auroc", "finetune.epochs", "split.attacker_fraction", "defense.kind").panels) == 2
    with refused(by="grid_of", naming="finetune.nothing"):
        grid_of(out, "loss", "finetune.nothing", "defense.kind")
    with refused(by="grid_of", naming="--of"):
        grid_of(out, "f1", "finetune.epochs", "defense.kind")


def test_a_sweep_that_is_not_finished_is_no_damaged_one(replicate, tmp_path):
    (tmp_path / "sweep.json").write_text("{}", encoding="utf-8")
    code, _, err = replicate("grid", tmp_path, "--over", "defense.cohort", "--by", "defense.kind")
    assert (code, names(err, "not finished", "log.txt"), "damaged" in err, err.count("\n")) == (2, True, False, 1)


def test_the_command_writes_figure_and_numbers(replicate, swept, tmp_path):
    _, out, _ = swept
    code, printed, err = replicate(
        "grid", out, "--over", "gradients", "--by", "defense.kind", "--of", "perplexity", "--out", tmp_path
    )
    assert code == 0, err
    found = json.loads((tmp_path / "grid.json").read_text(encoding="utf-8"))
    mean = [its.perplexity for its in read_sweep(out).cells if its.variant == "uls"]
    assert found["cells"] == [
        {"each": None, "over": 8, "by": "uls", "perplexity": pytest.approx(sum(mean) / 2), "best": False}
    ]
    assert f"{sum(mean) / 2:.2f}" in printed


def test_rules_that_split_a_budget_against_a_table_by_hand():
    # group size, cohort: loss
    losses = {
        (1, 8): 5.0,
        (2, 8): 4.8,
        (4, 8): 4.9,
        (1, 16): 4.9,
        (2, 16): 4.4,
        (1, 32): 4.5,
        (4, 16): 4.3,
        (2, 32): 4.2,
    }
    noise = {8: 1.0, 16: 1.2, 32: 1.4}

    def norm(group):  # halving with each doubling: larger groups reduce the noise more than larger cohorts
        return 1.0 / group

    found = {(its.budget, its.rule): its for its in shortfalls(losses, noise, norm, 4.0)}
    assert {budget for budget, _ in found} == {16, 32, 64}  # 8 has one split
    # Budget 32: the oracle goes to (2, 8), whose loss is below that of (1, 16), and on to (2, 16).
    assert found[32, ORACLE].chosen == (2, 16)
    assert found[32, ORACLE].loss == 0.0
    assert found[32, DOUBLE].chosen == (4, 8)
    assert found[32, DOUBLE].loss == pytest.approx(0.5)
    assert found[32, RANDOM].loss == pytest.approx((4.9 + 4.4 + 4.5) / 3 - 4.4)
    assert found[32, MAX_COHORT].chosen == (1, 32)
    assert found[32, MAX_GROUP].loss == pytest.approx(0.5)
    # Norms that do not fall with the group size: cohorts are doubled, and the grid ends at 32.
    flat = {(its.budget, its.rule): its for its in shortfalls(losses, noise, lambda group: 1.0, 4.0)}
    assert flat[32, DOUBLE].chosen == (1, 32)


def test_what_each_rule_selects_by_hand():
    first = [Measured("a", 10, 1.0), Measured("b", 4, 3.0), Measured("c", 7, 2.0)]
    second = [Measured("d", 6, 0.5)]
    found = {its.rule: its for its in selected([first, second], 2, 10, b"key")}
    assert (found["longest"].records, found["longest"].length) == (3, pytest.approx((10 + 7 + 6) / 3))
    assert found["longest"].short == pytest.approx(2 / 3)
    assert found["shortest"].length == pytest.approx((4 + 7 + 6) / 3)
    assert found["highest_perplexity"].perplexity == pytest.approx((math.e**3 + math.e**2 + math.e**0.5) / 3)
    assert found["lowest_perplexity"].perplexity == pytest.approx((math.e + math.e**2 + math.e**0.5) / 3)
    assert found["random"].records == 3
