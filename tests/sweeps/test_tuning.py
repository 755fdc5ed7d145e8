"""Tuning: judged by public users' loss alone, in blocks of its own, before the coins of what is compared."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import heldin.sweeps.driver as driver
import heldin.sweeps.processes as processes
from heldin.base.errors import ResumableError
from heldin.jobs.purge import purge
from heldin.record.document import read_record
from heldin.record.sweep import read_sweep
from heldin.reports.sweep_findings import comparison_text
from heldin.stages.sides.ledger import load_ledger
from heldin.sweeps.cell_plan import placed_cells, plan_of, require_sweep, tries, tuning_cells, with_choices
from heldin.sweeps.check_sweep import check_sweep, lines
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.load import load_sweep
from heldin.sweeps.processes import Ended
from heldin.words.sweep_page import SweepNote
from tests.conftest import SMALL
from tests.refusals import refused
from tests.tiny_sweeps import QUIET, ULS, in_process, written

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

USERS = {
    "corpus": {
        "users": {"min_records": 8, "fraction": 0.5, "max_users": None},
        "public_validation": {"min_records": 4, "fraction": 0.5},
    },
    "finetune": {"select": "last", "evaluations": 1},
}
TUNE = {"over": {"none": {"finetune.learning_rate": [1.0e-6, 0.003]}}}


@pytest.fixture(scope="module")
def tuned(make_once):
    variants = {"none": USERS, "uls": {**USERS, "defense": ULS}}

    def build(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "run_process", in_process)
            sweep = load_sweep(written(folder, variants=variants, tune=TUNE))
            run_sweep(sweep, folder / "out", QUIET, command="heldin sweep")

    folder = make_once("tuned", build)
    return load_sweep(folder / "sweep.yaml"), folder / "out", read_sweep(folder / "out")


def test_the_least_loss_of_public_users_is_chosen_and_enters_the_plan(tuned):
    sweep, out, result = tuned
    by_hand = {}
    for cell in tuning_cells(sweep, out):
        training = read_record(cell.folder / "record.json").training
        (point,) = [its for its in training.curve if its.step == training.chosen_step]
        by_hand[cell.config.finetune.learning_rate] = point.public_loss
    best = min(by_hand, key=by_hand.get)
    assert len(by_hand) == 2
    # Standing still learns nothing: the test would else not see which was taken.
    assert best == 0.003
    assert {its.values["finetune.learning_rate"]: its.public_loss for its in result.tried} == pytest.approx(by_hand)
    assert [its.values["finetune.learning_rate"] for its in result.tried if its.chosen] == [best]
    plan = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert plan["cells"][0]["config"]["finetune"]["learning_rate"] == best
    assert read_record(out / "cells/1/none/record.json").config["finetune"]["learning_rate"] == best
    # What is not tuned stays, and so does what is tuned but for the grid's keys.
    assert plan["cells"][1]["config"]["finetune"]["learning_rate"] == SMALL["finetune"]["learning_rate"]
    assert "tuned: none: finetune.learning_rate 0.003" in comparison_text(result, 300)


def test_tuning_has_coins_of_its_own_drawn_before_those_of_the_blocks(tuned):
    sweep, out, _ = tuned
    first = load_ledger(tuning_cells(sweep, out)[0].folder / "ledger")
    later = load_ledger(placed_cells(sweep, out)[0].folder / "ledger")
    assert first.coins_key != later.coins_key
    assert first.roles != later.roles
    assert (out / "tuning" / "comparison.json").stat().st_mtime <= (out / "ledger" / "coins.json").stat().st_mtime


def test_what_tuning_cost_is_composed_with_the_rest(tuned):
    _, _, result = tuned
    composed = result.composed
    # One private cell; the plain one and two tries promise nothing.
    assert (composed.private, composed.others) == (1, 3)
    assert composed.epsilon == pytest.approx(result.variants[1].epsilon, rel=0.01)
    # None of them is example DP, and so it is not named.
    (note,) = (note for note in result.notes if note.states(SweepNote.COMPOSED))
    assert note.values["others"] == SweepNote.OTHERS(others=3)


def test_a_second_call_chooses_the_same_and_a_missing_try_is_told(tuned, monkeypatch):
    sweep, out, result = tuned
    monkeypatch.setattr(processes, "run_process", lambda *_, **__: pytest.fail("there is nothing to do"))
    again = run_sweep(sweep, out, QUIET, command="heldin sweep")
    assert again.tried == result.tried
    assert again.variants == result.variants
    record = tuning_cells(sweep, out)[0].folder / "record.json"
    kept = record.read_bytes()
    record.unlink()
    with refused(naming=("tuning", "cell 1/none-learning_rate-1e-06"), kind=ResumableError):
        tries(sweep, out)
    record.write_bytes(kept)


def test_a_try_that_fails_stops_the_sweep_before_any_coin_of_its_blocks(tmp_path, monkeypatch):
    def failing(task, slot):
        return Ended(0) if task.module != "heldin" else Ended(1, "no memory")

    monkeypatch.setattr(processes, "run_process", failing)
    sweep = load_sweep(written(tmp_path, variants={"none": USERS}, tune=TUNE))
    with refused(naming=("tuning", "cell 1/none-learning_rate-1e-06", "no memory"), kind=ResumableError):
        run_sweep(sweep, tmp_path / "out", QUIET, command="heldin sweep")
    assert not (tmp_path / "out" / "ledger").exists()


def test_a_grid_multiplies_and_covers_what_axes_made(tmp_path):
    variants = {"none": USERS, "uls": {**USERS, "defense": ULS}}
    grid = {"finetune.learning_rate": [0.001, 0.002], "defense.group_size": [1, 2]}
    sweep = load_sweep(
        written(
            tmp_path,
            variants=variants,
            axes={"uls": {"defense.steps": [4, 6]}},
            tune={"over": {"uls": grid}, "blocks": 2},
        )
    )
    assert [its.name for its in sweep.variants] == ["none", "uls-steps-4", "uls-steps-6"]
    assert len(sweep.tried) == len(sweep.tuning.variants) == 8
    assert sweep.tuning.config.blocks == 2
    # Until it is tuned a variant has the first values, so that --check has something to say.
    assert {its.config.finetune.learning_rate for its in sweep.variants[1:]} == {0.001}
    said = lines(check_sweep(sweep, tmp_path / "out"), sweep)
    assert any("16 cells more" in line for line in said)


def test_of_equal_losses_the_first_is_chosen_and_means_over_blocks_decide(tuned, monkeypatch):
    sweep, out, _ = tuned
    monkeypatch.setattr("heldin.sweeps.cell_plan.public_loss_of", lambda *_: 1.0)
    assert [its.chosen for its in tries(sweep, out)] == [True, False]
    chosen = with_choices(sweep, tries(sweep, out))
    assert chosen.variants[0].config.finetune.learning_rate == 1.0e-6
    assert np.isclose(chosen.variants[1].config.finetune.learning_rate, SMALL["finetune"]["learning_rate"])


@pytest.mark.parametrize(
    ("content", "naming"),
    [
        ({"tune": {"over": {"els": {"finetune.epochs": [1]}}}}, "tune.over.els"),
        ({"tune": {"over": {"none": {"split.seed": [1, 2]}}}}, "'split.seed'"),
        ({"tune": TUNE, "variants": {"none": None}}, "corpus.public_validation"),
        ({"tune": {"over": {"none": {"finetune.epoch": [1]}}}}, "finetune.epoch"),
    ],
)
def test_what_cannot_be_tuned_is_told_before_anything_runs(tmp_path, content, naming):
    with refused(naming=naming):
        load_sweep(written(tmp_path, **{"variants": {"none": USERS}, **content}))


def test_a_purge_of_the_sweep_purges_what_tuned_it(tuned, tmp_path):
    import shutil

    shutil.copytree(tuned[1], tmp_path / "copy")
    found = purge(tmp_path / "copy", ("record", "report"))
    assert len(found.folders) == 2 + 2 + 2
    assert not list((tmp_path / "copy").rglob("*.safetensors")) + list((tmp_path / "copy").rglob("ledger"))
    assert read_sweep(tmp_path / "copy" / "tuning").name == "two-tuning"


def test_a_try_that_a_filter_halts_is_no_choice_and_no_dead_end(tuned, monkeypatch):
    sweep, out, _ = tuned
    kept = read_sweep(out / "tuning")
    # The better of the two has no model: the other one is chosen.
    halted = [its.model_copy(update={"state": "halted"}) if "0.003" in its.variant else its for its in kept.cells]
    monkeypatch.setattr("heldin.sweeps.cell_plan.read_sweep", lambda _: kept.model_copy(update={"cells": halted}))
    found = tries(sweep, out)
    assert [(its.public_loss is None, its.chosen) for its in found] == [(False, True), (True, False)]


def test_a_violation_among_the_tries_is_told_and_decides_the_exit_code(tuned, tmp_path, monkeypatch):
    import shutil

    sweep, out, result = tuned
    shutil.copytree(out, tmp_path / "out")
    monkeypatch.setattr(processes, "run_process", lambda *_, **__: pytest.fail("there is nothing to do"))
    monkeypatch.setattr(driver, "ExitCode", SimpleNamespace(CERTIFIED=0))  # as if the sweep that tunes had ended so
    again = run_sweep(sweep, tmp_path / "out", QUIET, command="heldin sweep")
    assert (result.exit_code, again.exit_code) == (0, 3)
    assert again.notes[0] == SweepNote.TUNING_CONTRADICTED(folder=str(tmp_path / "out" / "tuning"))
    assert again.notes[1:] == result.notes


def test_check_knows_what_was_chosen_and_looks_at_every_try(tuned, tmp_path):
    sweep, out, _ = tuned
    assert not check_sweep(sweep, out).problems
    uls = {**USERS, "defense": ULS}
    grid = {"over": {"uls": {"attack.reference": ["/no/such/model"]}}}
    with refused(naming="'attack.reference'"):
        load_sweep(written(tmp_path, variants={"uls": uls}, tune=grid))
    grid = {"over": {"uls": {"defense.cohort": [8, 40]}}}
    problems = check_sweep(load_sweep(written(tmp_path, variants={"uls": uls}, tune=grid)), tmp_path / "out").problems
    assert any(its.startswith("tune: uls-cohort-40: ") for its in problems)


def test_the_grid_is_part_of_the_plan(tuned):
    sweep, out, _ = tuned
    plan = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert plan["tune"]["over"] == TUNE["over"]
    # Without it the cells would be the same, and what tuning cost would be forgotten.
    without = with_choices(sweep, tries(sweep, out))
    without = dataclasses.replace(without, config=sweep.config.model_copy(update={"tune": None}), tuning=None)
    with refused(by=require_sweep, naming=out):
        require_sweep(plan_of(without), out)


def test_a_value_that_stands_twice_in_a_grid_is_one_line(tmp_path):
    with refused(naming=("tune.over", "none")):
        load_sweep(written(tmp_path, variants={"none": USERS}, tune={"over": {"none": {"finetune.epochs": [1, 1]}}}))
    with refused(naming="tune.over.none"):
        load_sweep(written(tmp_path, variants={"none": USERS}, tune={"over": {"none": {}}}))
