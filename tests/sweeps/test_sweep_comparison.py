"""What a sweep compares: like with like, in pairs within a group, with what each statement costs."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from scipy import stats

import heldin.sweeps.processes as processes
from heldin.audit.paired import auroc_difference, independent_difference
from heldin.audit.utility import UserLoss
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.p_values import holm
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Standing
from heldin.jobs.purge import purge
from heldin.jobs.run.losses_file import read_losses
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import read_record, write_record
from heldin.record.sweep import read_sweep
from heldin.record.sweep_table import table
from heldin.sweeps.comparison import _about_machines, _joint_bound, _joint_verdicts
from heldin.sweeps.config import Finding
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.exposed import bands
from heldin.sweeps.findings import finding_results
from heldin.sweeps.finished import Finished, _read, finished_cells
from heldin.sweeps.plan import kept_hash, placed_cells
from heldin.sweeps.variants import auroc_change, loss_change
from tests.tiny_sweeps import QUIET, in_process


def test_what_is_compared_follows_from_scores_and_losses_of_the_same_users(swept):
    _, out, result = swept
    assert result == read_sweep(out)
    its = {variant.name: variant for variant in result.variants}
    assert (its["none"].group, its["uls"].group, its["apart"].group) == ("none", "none", "apart")
    assert its["none"].auroc_difference is its["apart"].auroc_difference is None
    aurocs, losses = [], []
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
    found = its["uls"]
    assert found.auroc_difference.value == pytest.approx(np.mean(aurocs), abs=1e-3)
    assert found.loss_difference.value == pytest.approx(np.mean(losses), abs=1e-4)
    # Two blocks give no interval that says anything, and none is printed.
    assert (found.auroc_difference.lower, found.loss_difference.lower, found.auroc.lower) == (None, None, None)
    assert found.gain.value == pytest.approx(np.mean([c.gain for c in result.cells if c.variant == "uls"]), abs=1e-4)
    assert "2 blocks: differences are between these models, not between defenses" in " ".join(result.notes)
    verdicts = [(v.p_value, v.adjusted) for cell in result.cells for v in cell.verdicts]
    # Only ULS makes a promise: of real users and of canary users, in each block.
    assert len(verdicts) == 4
    assert [a for _, a in verdicts] == holm([p for p, _ in verdicts])
    assert found.epsilon is not None
    assert result.exit_code == 0
    assert "uls" in table(result)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("key", "it was trained under the key of another cell"),
        ("plan", "its record is of another plan, which was not fixed before these coins"),
        ("lone", "its record is of another plan"),
        ("coins", "it has other coins than cell 1/none"),
        ("score", "it was scored with the model of cell 1/none, whose coins it shares"),
        ("config", "its record is of another config than the sweep's plan"),
        ("corpus", "it read another corpus than cell 1/none"),
        ("reference", "it has another reference model than cell 1/none"),
    ],
)
def test_what_would_void_a_comparison_is_left_out_with_its_line(swept, tmp_path, monkeypatch, change, said):
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
    assert said in by_name["1/uls"].said
    out_too = {"1/none"} if change == "key" else set()
    assert {name for name, cell in by_name.items() if cell.state == "failed"} == {"1/uls"} | out_too
    assert found.exit_code == 5
    # What is said of the others together pays for the cell that is left out.
    before = {f"{c.block}/{c.variant}": [v.adjusted for v in c.verdicts] for c in result.cells}
    now = {name: [v.adjusted for v in cell.verdicts] for name, cell in by_name.items()}
    assert now["2/uls"] >= before["2/uls"]


def test_cells_that_ran_on_other_code_or_machines_are_told(swept, tmp_path, monkeypatch):
    sweep, out, result = swept
    assert not any("same code and machine" in note for note in result.notes)
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    path = copy / "cells/1/uls/record.json"
    its = read_record(path)
    ran = its.environment
    changes = {"git_revision": "feed" * 10, "device": "NVIDIA H100", "packages": {**ran.packages, "torch": "9.4.0"}}
    write_record(its.model_copy(update={"environment": ran.model_copy(update=changes)}), path)
    monkeypatch.setattr(processes, "run_process", in_process)
    (said,) = (n for n in run_sweep(sweep, copy, QUIET, command="").notes if "same code and machine" in n)
    assert "(feedfeedf)" in said
    assert f"torch: {ran.packages['torch']}, 9.4.0" in said
    assert ", ".join(sorted(["NVIDIA H100", ran.device])) in said
    assert "numpy" not in said


def test_files_that_were_changed_between_cells_are_told(swept):
    _, out, _ = swept
    ran = read_record(out / "cells/1/uls/record.json").environment
    same = ran.model_copy(update={"git_revision": "a" * 40})
    assert _about_machines([same, same]) == []
    (said,) = _about_machines([same, ran.model_copy(update={"git_revision": "a" * 40 + "+changes"})])
    assert "(heldin: 0.1.0 (aaaaaaaaa), 0.1.0 (aaaaaaaaa+changes))" in said


def test_a_comparison_of_some_cells_pays_for_all_of_the_plan(swept):
    sweep, out, result = swept
    cells = placed_cells(sweep, out)
    finished = {cell.name: _read(cell) for cell in cells}
    whole = _joint_verdicts(finished, cells)
    assert {name: [v.adjusted for v in its] for name, its in whole.items()} == {
        f"{c.block}/{c.variant}": [v.adjusted for v in c.verdicts] for c in result.cells
    }
    # A tiny p-value in the one cell that is there first, and again when all are.
    record = finished["1/uls"].record
    verdicts = tuple(dataclasses.replace(v, p_value=0.013) for v in record.judgement.verdicts)
    changed = record.model_copy(update={"judgement": dataclasses.replace(record.judgement, verdicts=verdicts)})
    only = {"1/uls": dataclasses.replace(finished["1/uls"], record=changed)}
    alone = _joint_verdicts(only, cells)
    assert [v.adjusted for v in alone["1/uls"]] == [4 * 0.013] * 2
    # A test without a p-value counts as well.
    verdicts = (verdicts[0], dataclasses.replace(verdicts[1], p_value=None))
    changed = record.model_copy(update={"judgement": dataclasses.replace(record.judgement, verdicts=verdicts)})
    only = {"1/uls": dataclasses.replace(finished["1/uls"], record=changed)}
    assert [v.adjusted for v in _joint_verdicts(only, cells)["1/uls"]] == [4 * 0.013, None]


def test_the_joint_bound_pays_for_all_cells_and_is_none_where_nothing_is_certified(swept):
    sweep, out, _ = swept
    cells = placed_cells(sweep, out)
    its = _read(cells[0])
    told = dataclasses.replace(its, scores=its.member + np.linspace(0, 0.1, its.member.size))
    labelled = LabelledScores(told.scores, told.member)
    delta = its.record.judgement.delta
    bounds = [fdp_bound(labelled, delta, attacks=number).epsilon for number in (1, 6)]
    assert _joint_bound(told, 6) == pytest.approx(bounds[1], abs=1e-3)
    assert bounds[1] < bounds[0]
    found = [dataclasses.replace(b, standing=Standing.INDICATIVE) for b in its.record.judgement.bounds]
    judgement = dataclasses.replace(its.record.judgement, bounds=tuple(found))
    flawed = dataclasses.replace(told, record=its.record.model_copy(update={"judgement": judgement}))
    assert _joint_bound(flawed, 6) is None


def test_variants_with_another_attack_or_other_texts_are_not_held_against_the_first(swept):
    sweep, out, _ = swept
    one, other = (_read(cell) for cell in placed_cells(sweep, out)[:2])
    config = other.cell.config
    attack = config.attack.model_copy(update={"max_characters": 99})
    cell = dataclasses.replace(other.cell, config=config.model_copy(update={"attack": attack}))
    changed = dataclasses.replace(other, cell=cell)
    assert (auroc_change(one, changed), loss_change(one, changed)) == (None, None)
    assert loss_change(one, other) is not None


def test_findings_are_tested_in_pairs_within_a_group_and_without_across_groups(swept):
    sweep, out, _ = swept
    cells = placed_cells(sweep, out)
    finished, problems = finished_cells(cells, kept_hash(out), QUIET)
    assert not problems
    asked = [
        {"of": "auroc", "variant": "uls", "against": "none", "expect": "less"},
        {"of": "loss", "variant": "uls", "against": "none", "expect": "more", "margin": 1e-6},
        {"of": "canaries", "variant": "uls", "against": "none", "expect": "alike"},
        {"of": "auroc", "variant": "apart", "against": "none", "expect": "alike"},
    ]
    findings = tuple(Finding(finding="a finding", source="nobody", **its) for its in asked)
    with_findings = dataclasses.replace(sweep, config=sweep.config.model_copy(update={"findings": findings}))
    area, loss, canaries, apart = finding_results(with_findings, finished)
    # Two blocks give no interval: nothing can be judged.
    assert {its.seen for its in (area, loss, canaries, apart)} == {"cannot be judged"}
    by_hand = np.mean(
        [
            finished[f"{b}/uls"].record.primary().auroc.value - finished[f"{b}/none"].record.primary().auroc.value
            for b in "12"
        ]
    )
    assert area.difference.value == pytest.approx(by_hand, abs=1e-3)
    assert area.values[1] - area.values[0] == pytest.approx(by_hand, abs=1e-3)
    # One block has the interval of its own users.
    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    one_block = with_findings.config.model_copy(update={"blocks": 1})
    area, loss, canaries, apart = finding_results(dataclasses.replace(with_findings, config=one_block), first)
    pair = auroc_change(first["1/none"], first["1/uls"])
    assert (area.difference.lower, area.difference.upper) == pytest.approx((pair.lower, pair.upper), abs=1e-3)
    one, other = (first[f"1/{name}"].record.primary().auroc for name in ("none", "apart"))
    joined = independent_difference((one.value, one.lower, one.upper), (other.value, other.lower, other.upper))
    assert (apart.difference.lower, apart.difference.upper) == pytest.approx(joined[1:], abs=1e-3)
    assert loss.difference.over == "users"
    assert canaries.difference is None or canaries.difference.lower <= canaries.difference.value


def test_across_groups_three_blocks_or_more_are_joined_by_welchs_interval(swept, monkeypatch):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    values = {"none": [0.70, 0.74, 0.72, 0.75], "apart": [0.60, 0.66, 0.63, 0.61]}
    monkeypatch.setattr(Finished, "auroc", property(lambda its: values[its.cell.variant.name][its.cell.block - 1]))
    made = {}
    for name in values:
        its = finished[f"1/{name}"]
        for block in (1, 2, 3, 4):
            made[f"{block}/{name}"] = dataclasses.replace(its, cell=dataclasses.replace(its.cell, block=block))
    finding = Finding(
        finding="less", source="nobody", of="auroc", variant="apart", against="none", expect="less", published="much"
    )
    config = sweep.config.model_copy(update={"findings": (finding,), "blocks": 4})
    (found,) = finding_results(dataclasses.replace(sweep, config=config), made)
    limits = stats.ttest_ind(values["apart"], values["none"], equal_var=False).confidence_interval(0.95)
    assert (found.difference.lower, found.difference.upper) == pytest.approx((limits.low, limits.high), abs=1e-4)
    assert (found.seen, found.published, found.difference.over) == ("confirmed", "much", "blocks")


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
    by_hand = auroc_change(*(_read(cell) for cell in placed_cells(*swept[:2])[:2])).brief()
    assert second["difference"] == [by_hand.value, by_hand.lower, by_hand.upper]
    notes = json.loads(printed)["notes"]
    assert any("user by user: uls" in note for note in notes)
    assert any("drew its own coins" in note for note in notes)
    # Without its scores a run is joined as independent ones are.
    shutil.copytree(uls, tmp_path / "uls")
    purge(tmp_path / "uls", ("record",))
    code, printed, _ = call("compare", none, tmp_path / "uls", "--json")
    assert (code, json.loads(printed)["runs"][1]["paired"]) == (0, False)


def test_findings_hold_like_against_like_only_and_wait_for_all_blocks(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)

    def judged(cells, blocks, of, variant):
        finding = Finding(finding="f", source="s", of=of, variant=variant, against="none", expect="alike")
        config = sweep.config.model_copy(update={"findings": (finding,), "blocks": blocks})
        (found,) = finding_results(dataclasses.replace(sweep, config=config), cells)
        return found

    first = {name: its for name, its in finished.items() if name.startswith("1/")}
    for of in ("auroc", "loss"):
        assert judged(first, 1, of, "apart").difference is not None
        # A block is missing: what is there is not judged for the whole.
        assert judged(first, 2, of, "apart").difference is None
    its = first["1/apart"]
    attack = its.cell.config.attack.model_copy(update={"max_characters": 99})
    config = its.cell.config.model_copy(update={"attack": attack})
    other = {**first, "1/apart": dataclasses.replace(its, cell=dataclasses.replace(its.cell, config=config))}
    assert judged(other, 1, "auroc", "apart").difference is None
    assert judged(other, 1, "loss", "apart").difference is None


def test_of_different_people_the_loss_has_the_spread_of_the_people(swept):
    sweep, out, _ = swept
    finished, _ = finished_cells(placed_cells(sweep, out), kept_hash(out), QUIET)
    rng = np.random.default_rng(0)
    finding = Finding(finding="f", source="s", of="loss", variant="apart", against="none", expect="alike")
    config = sweep.config.model_copy(update={"findings": (finding,), "blocks": 1})
    missed = 0
    for _ in range(400):
        made = {}
        for name in ("none", "apart"):
            its = finished[f"1/{name}"]
            # People differ much in their loss, and hardly in what training changed of it.
            losses = {
                f"u{i}": UserLoss(f"u{i}", 1, base + 0.05 * rng.standard_normal(), base)
                for i, base in enumerate(5 + 0.5 * rng.standard_normal(60))
            }
            made[f"1/{name}"] = dataclasses.replace(its, losses=losses)
        (found,) = finding_results(dataclasses.replace(sweep, config=config), made)
        missed += not found.difference.lower <= 0 <= found.difference.upper
    # 20 are expected; with the spread of the gains it would be more than 300.
    assert missed <= 50
