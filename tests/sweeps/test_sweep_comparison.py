"""What a sweep compares: like with like, in pairs within a group, with what each statement costs."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import heldin.sweeps.processes as processes
from heldin.audit.limits import auroc_difference
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Standing, holm
from heldin.jobs.purge import purge
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import read_record, write_record
from heldin.record.plan_fit import differences_of
from heldin.record.sweep import read_sweep
from heldin.reports.sweep_findings import comparison_text
from heldin.stages.measures.tables import read_losses
from heldin.sweeps.cell_plan import kept_hash, placed_cells
from heldin.sweeps.comparison import about_machines, joint_bound, joint_verdicts
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.finished import finished_cells, read_finished
from heldin.sweeps.variants import auroc_change, bands, loss_change
from heldin.words.sweep_page import SweepNote
from tests.refusals import names
from tests.tiny_sweeps import QUIET, in_process


def test_what_is_compared_follows_from_scores_and_losses_of_the_same_users(swept):
    _, out, result = swept
    assert result == read_sweep(out)
    its = {variant.name: variant for variant in result.variants}
    assert (its["none"].group, its["uls"].group, its["apart"].group) == ("none", "none", "apart")
    assert its["none"].auroc_difference is its["apart"].auroc_difference is None
    aurocs, losses, perplexities = [], [], []
    for block in "12":
        one, two = (leading_scores(out / "cells" / block / name) for name in ("none", "uls"))
        assert [(s.user, s.member) for s in one] == [(s.user, s.member) for s in two]
        sides = [
            tuple(np.array([s.score for s in scores if s.member is side]) for side in (True, False))
            for scores in (one, two)
        ]
        aurocs.append(auroc_difference(*sides).value)
        first, other = (read_losses(out / "cells" / block / name) for name in ("none", "uls"))
        assert first.keys() == other.keys() == {s.user for s in one if not s.member}
        losses.append(np.mean([other[user].loss - first[user].loss for user in first]))
        record = read_record(out / "cells" / block / "uls" / "record.json")
        assert record.utility.loss == pytest.approx(np.mean([u.loss for u in other.values()]), abs=1e-4)
        assert record.utility.base_loss == pytest.approx(np.mean([u.base_loss for u in other.values()]), abs=1e-4)
        everyone = list(other.values())
        levels = np.average([u.loss for u in everyone], weights=[u.tokens for u in everyone])
        assert record.utility.perplexity == pytest.approx(np.exp(levels), rel=1e-6)
        perplexities.append(record.utility.perplexity)
    found = its["uls"]
    # How far the plan of 30 users, 8 of them a step, fits who was there; plain training has no plan to fit.
    fits = [read_record(out / "cells" / block / "uls" / "record.json").training.fit for block in "12"]
    assert found.units_of_plan == pytest.approx(np.mean([fit.units / 30 for fit in fits]), abs=1e-3)
    assert found.gradients_of_plan == pytest.approx(np.mean([fit.gradients / 8 for fit in fits]), abs=1e-3)
    assert its["none"].units_of_plan is its["none"].gradients_of_plan is None
    noted = [note.values["variant"] for note in result.notes if note.states(SweepNote.MISFIT)]
    assert (noted == ["uls"]) == any(differences_of(fit) for fit in fits)
    (row,) = (line for line in comparison_text(result, 300).splitlines() if line.startswith("uls "))
    assert names(row, f"{100 * found.units_of_plan:.0f} % units", f"{100 * found.gradients_of_plan:.0f} % gradients")
    assert found.perplexity.value == pytest.approx(np.mean(perplexities), abs=1e-3)
    assert found.auroc_difference.value == pytest.approx(np.mean(aurocs), abs=1e-3)
    assert found.loss_difference.value == pytest.approx(np.mean(losses), abs=1e-4)
    # Two blocks give no interval that says anything, and none is printed.
    assert (found.auroc_difference.lower, found.loss_difference.lower, found.auroc.lower) == (None, None, None)
    assert found.gain.value == pytest.approx(np.mean([c.gain for c in result.cells if c.variant == "uls"]), abs=1e-4)
    assert SweepNote.FEW_BLOCKS(blocks=2, least=3) in result.notes
    verdicts = [(v.p_value, v.adjusted) for cell in result.cells for v in cell.verdicts]
    # Only ULS makes a promise: of real users and of canary users, in each block.
    assert len(verdicts) == 4
    assert [a for _, a in verdicts] == holm([p for p, _ in verdicts])
    assert found.epsilon is not None
    assert result.exit_code == 0
    assert "uls" in comparison_text(result, 300)


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ("key", ("key", "cell")),
        ("plan", ("record", "plan", "coins")),
        ("lone", ("record", "plan")),
        ("coins", ("coins", "cell 1/none")),
        ("score", ("scored", "model", "cell 1/none")),
        ("config", ("record", "config")),
        ("corpus", ("corpus", "cell 1/none")),
        ("reference", ("reference model", "cell 1/none")),
    ],
)
def test_what_would_void_a_comparison_is_left_out_with_its_line(swept, tmp_path, monkeypatch, change, naming):
    sweep, out, result = swept
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    first, path = read_record(copy / "cells/1/none/record.json"), copy / "cells/1/uls/record.json"
    its = read_record(path)

    def reference(fingerprint):
        return {"reference": its.reference.model_copy(update={"fingerprint": fingerprint})}

    changes = {
        "key": {"split": its.split.model_copy(update={"key_commitment": first.split.key_commitment})},
        "plan": {"cell": its.cell.model_copy(update={"sweep": "0" * 64})},
        "lone": {"cell": None},
        "coins": {"split": its.split.model_copy(update={"ledger_commitment": "0" * 64})},
        "score": reference(first.target.fingerprint),
        "config": {"config": {**its.config, "seed": 9}},
        "corpus": {"corpus": its.corpus.model_copy(update={"fingerprint": "0" * 64})},
        "reference": reference("0" * 64),
    }
    write_record(its.model_copy(update=changes[change]), path)
    monkeypatch.setattr(processes, "run_process", in_process)
    found = run_sweep(sweep, copy, QUIET, command="heldin sweep")
    by_name = {f"{cell.block}/{cell.variant}": cell for cell in found.cells}
    assert names(by_name["1/uls"].reason, *naming)
    out_too = {"1/none"} if change == "key" else set()
    assert {name for name, cell in by_name.items() if cell.state == "refused"} == {"1/uls"} | out_too
    assert found.exit_code == 2
    # What is said of the others together pays for the cell that is left out.
    before = {f"{c.block}/{c.variant}": [v.adjusted for v in c.verdicts] for c in result.cells}
    now = {name: [v.adjusted for v in cell.verdicts] for name, cell in by_name.items()}
    assert now["2/uls"] >= before["2/uls"]


def test_cells_that_ran_on_other_code_or_machines_are_told(swept, tmp_path, monkeypatch):
    sweep, out, result = swept
    assert not any(note.states(SweepNote.MACHINES) for note in result.notes)
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    path = copy / "cells/1/uls/record.json"
    its = read_record(path)
    ran = its.environment
    changes = {"git_revision": "feed" * 10, "device": "NVIDIA H100", "packages": {**ran.packages, "torch": "9.4.0"}}
    write_record(its.model_copy(update={"environment": ran.model_copy(update=changes)}), path)
    monkeypatch.setattr(processes, "run_process", in_process)
    (note,) = (n for n in run_sweep(sweep, copy, QUIET, command="").notes if n.states(SweepNote.MACHINES))
    differ = {each.values["part"]: each.values["values"] for each in note.values["differences"]}
    assert differ.keys() == {"heldin", "torch", "device"}
    assert "(feedfeedf)" in differ["heldin"]
    assert differ["torch"] == f"{ran.packages['torch']}, 9.4.0"
    assert differ["device"] == ", ".join(sorted(["NVIDIA H100", ran.device]))


def test_files_that_were_changed_between_cells_are_told(swept):
    _, out, _ = swept
    ran = read_record(out / "cells/1/uls/record.json").environment
    same = ran.model_copy(update={"git_revision": "a" * 40})
    assert about_machines([same, same]) == []
    (said,) = about_machines([same, ran.model_copy(update={"git_revision": "a" * 40 + "+changes"})])
    assert said.values["differences"] == [
        SweepNote.MACHINE(part="heldin", values="0.1.0 (aaaaaaaaa), 0.1.0 (aaaaaaaaa+changes)")
    ]


def test_a_comparison_of_some_cells_pays_for_all_of_the_plan(swept):
    sweep, out, result = swept
    cells = placed_cells(sweep, out)
    finished = {cell.name: read_finished(cell) for cell in cells}
    whole = joint_verdicts(finished, cells)
    assert {name: [v.adjusted for v in its] for name, its in whole.items()} == {
        f"{c.block}/{c.variant}": [v.adjusted for v in c.verdicts] for c in result.cells
    }
    # A tiny p-value in the one cell that is there first, and again when all are.
    record = finished["1/uls"].record
    verdicts = tuple(dataclasses.replace(v, p_value=0.013) for v in record.judgement.verdicts)
    changed = record.model_copy(update={"judgement": dataclasses.replace(record.judgement, verdicts=verdicts)})
    only = {"1/uls": dataclasses.replace(finished["1/uls"], record=changed)}
    alone = joint_verdicts(only, cells)
    assert [v.adjusted for v in alone["1/uls"]] == [4 * 0.013] * 2
    # A test without a p-value counts as well.
    verdicts = (verdicts[0], dataclasses.replace(verdicts[1], p_value=None))
    changed = record.model_copy(update={"judgement": dataclasses.replace(record.judgement, verdicts=verdicts)})
    only = {"1/uls": dataclasses.replace(finished["1/uls"], record=changed)}
    assert [v.adjusted for v in joint_verdicts(only, cells)["1/uls"]] == [4 * 0.013, None]


def test_the_joint_bound_pays_for_all_cells_and_is_none_where_nothing_is_certified(swept):
    sweep, out, _ = swept
    cells = placed_cells(sweep, out)
    its = read_finished(cells[0])
    told = dataclasses.replace(its, scores=its.member + np.linspace(0, 0.1, its.member.size))
    labelled = LabelledScores(told.scores, told.member)
    delta = its.record.judgement.delta
    bounds = [fdp_bound(labelled, delta, attacks=number).epsilon for number in (1, 6)]
    assert joint_bound(told, 6) == pytest.approx(bounds[1], abs=1e-3)
    assert bounds[1] < bounds[0]
    found = [dataclasses.replace(b, standing=Standing.INDICATIVE) for b in its.record.judgement.bounds]
    judgement = dataclasses.replace(its.record.judgement, bounds=tuple(found))
    flawed = dataclasses.replace(told, record=its.record.model_copy(update={"judgement": judgement}))
    assert joint_bound(flawed, 6) is None


def test_variants_with_another_attack_or_other_texts_are_not_held_against_the_first(swept):
    sweep, out, _ = swept
    one, other = (read_finished(cell) for cell in placed_cells(sweep, out)[:2])
    config = other.cell.config
    attack = config.attack.model_copy(update={"max_characters": 99})
    cell = dataclasses.replace(other.cell, config=config.model_copy(update={"attack": attack}))
    changed = dataclasses.replace(other, cell=cell)
    assert (auroc_change(one, changed), loss_change(one, changed)) == (None, None)
    assert loss_change(one, other) is not None


def test_thirds_are_the_same_people_under_every_variant_and_sorted_by_what_they_wrote(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    first, other = finished["1/none"], finished["1/uls"]
    # Ten users a third are asked for: these sixteen people stand for three times as many.
    more = [
        dataclasses.replace(
            its, people=tuple(dataclasses.replace(p, user=f"{p.user}-{i}") for i in range(3) for p in its.people)
        )
        for its in (first, other)
    ]
    found = bands([tuple(more)])
    assert [(its.of, its.third) for its in found] == [
        (of, t) for of in ("records", "word divergence") for t in (1, 2, 3)
    ]
    above = {p.user: p.above for p in more[1].people}
    ordered = sorted(more[0].people, key=lambda p: (round(p.share * first.record.training.records), p.user))
    lowest = np.array_split(np.array([above[p.user] for p in ordered]), 3)[0]
    assert found[0].above == pytest.approx(lowest.mean(), abs=1e-3)
    assert sum(its.users for its in found[:3]) == len(ordered)
    # Too few for groups in which nobody can be told apart.
    assert bands([(first, other)]) == []


def test_cells_of_a_block_that_are_given_one_by_one_are_paired_and_others_are_not(swept, call, tmp_path):
    _, out, _ = swept
    none, uls, apart = (out / "cells" / "1" / name for name in ("none", "uls", "apart"))
    code, printed, err = call("compare", none, uls, apart, "--json")
    assert code == 0, err
    first, second, third = json.loads(printed)["runs"]
    assert (first["paired"], second["paired"], third["paired"]) == (False, True, False)
    by_hand = auroc_change(*(read_finished(cell) for cell in placed_cells(*swept[:2])[:2])).brief()
    assert second["difference"] == [by_hand.value, by_hand.lower, by_hand.upper]
    notes = json.loads(printed)["notes"]
    assert any(note.endswith(": uls") for note in notes)
    assert len(notes) >= 2
    # Without its scores a run is joined as independent ones are.
    shutil.copytree(uls, tmp_path / "uls")
    purge(tmp_path / "uls", ("record",))
    code, printed, _ = call("compare", none, tmp_path / "uls", "--json")
    assert (code, json.loads(printed)["runs"][1]["paired"]) == (0, False)
