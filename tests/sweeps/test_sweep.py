"""A sweep: blocks that share coins and nothing else, what is compared, and what is refused."""

import csv
import dataclasses
import json
import os
import shutil
import stat

import numpy as np
import pytest
from scipy import stats

import heldin.sweeps.processes as processes
from heldin.audit.paired import auroc_difference, independent_difference
from heldin.audit.utility import UserLoss
from heldin.base.errors import InputError
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.p_values import holm
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Outcome, Standing
from heldin.jobs.purge import purge
from heldin.jobs.run.ledger import load_ledger
from heldin.jobs.run.losses_file import read_losses
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import read_record, write_record
from heldin.record.facts import ByExposure
from heldin.record.sweep import read_sweep
from heldin.record.sweep_table import table
from heldin.reports.facts import facts
from heldin.sweeps.check import check_sweep
from heldin.sweeps.comparison import _joint_bound, _joint_verdicts
from heldin.sweeps.config import Finding
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.exposed import bands
from heldin.sweeps.findings import finding_results
from heldin.sweeps.finished import Finished, _read, finished_cells
from heldin.sweeps.load import load_sweep
from heldin.sweeps.plan import kept_hash, placed_cells, take_sweep
from heldin.sweeps.processes import Ended
from heldin.sweeps.shipping import shipping
from heldin.sweeps.variants import auroc_change, loss_change
from tests.tiny_sweeps import CANARIES, QUIET, ULS, USERS, in_process, written


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two variants in two blocks, and a group of its own; the sweep, its folder and its result."""
    folder = tmp_path_factory.mktemp("swept")
    variants = {
        "none": USERS,
        "uls": {**USERS, "defense": ULS, "canaries": CANARIES},
        "apart": {**USERS, "split": {"attacker_fraction": 0.2}},
    }
    variants["none"] = {**USERS, "canaries": CANARIES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_process", in_process)
        sweep = load_sweep(written(folder, variants=variants, blocks=2))
        result = run_sweep(sweep, folder / "out", QUIET, command="heldin sweep")
    return sweep, folder / "out", result


def test_variants_of_a_block_share_coins_and_set_asides_and_nothing_else(swept):
    sweep, out, _ = swept
    cells = {cell.name: load_ledger(cell.folder / "ledger") for cell in placed_cells(sweep, out)}
    assert list(cells) == ["1/none", "1/uls", "1/apart", "2/none", "2/uls", "2/apart"]
    for block in "12":
        one, other, apart = (cells[f"{block}/{name}"] for name in ("none", "uls", "apart"))
        assert (one.coins_key, one.roles, one.parts) == (other.coins_key, other.roles, other.parts)
        assert one.commitment() == other.commitment() != apart.commitment()
        assert apart.coins_key != one.coins_key
    assert cells["1/none"].coins_key != cells["2/none"].coins_key
    # Other blocks have other coins and set-asides of the same people.
    assert cells["1/none"].roles.keys() == cells["2/none"].roles.keys()
    assert cells["1/none"].roles != cells["2/none"].roles
    assert cells["1/none"].parts != cells["2/none"].parts
    keys = {its.key for its in cells.values()} | {its.coins_key for its in cells.values()}
    assert len(keys) == 6 + 4
    records = {name: read_record(out / "cells" / name / "record.json") for name in cells}
    assert len({its.split.key_commitment for its in records.values()}) == 6
    assert {its.cell.sweep for its in records.values()} == {records["1/none"].cell.sweep}
    assert [(its.cell.block, its.cell.variant, its.cell.group) for its in records.values()][1] == (1, "uls", "none")
    assert {its.reference.fingerprint for its in records.values()} == {records["1/none"].reference.fingerprint}
    assert "which is that of block 2 of a sweep" in records["2/uls"].split.standing_reason
    for path in (out / "ledger/coins.json", out / "sweep.json", out / "cells/1/uls/ledger/cell.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


def test_a_sweep_goes_on_where_it_was_and_ends_in_the_same_comparison(swept, tmp_path, monkeypatch):
    sweep, out, result = swept
    # Cells that are done are not touched, and what is left is made under the block's coins.
    again = tmp_path / "out"
    shutil.copytree(out, again)
    lost = again / "cells" / "2" / "none"
    before = load_ledger(lost / "ledger")
    shutil.rmtree(lost)
    called = []

    def counting(task, slot):
        called.append(task.words)
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", counting)
    resumed = run_sweep(sweep, again, QUIET, command="heldin sweep")
    assert [a[0] for a in called] == [str(lost), "run"]
    now = load_ledger(lost / "ledger")
    assert (now.coins_key, now.roles) == (before.coins_key, before.roles)
    assert now.key != before.key, "a lost cell is trained under a key of its own"

    def without_times(found):
        return [c.model_copy(update={"seconds": 0.0, "peak_memory": None}) for c in found.cells]

    # Plain training is the same from the same coins and seeds.
    assert without_times(resumed) == without_times(result)


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


def test_gradients_and_memory_of_a_cell(swept):
    _, out, _ = swept
    plain, uls = (read_record(out / f"cells/1/{name}/record.json") for name in ("none", "uls"))
    # Two epochs of every training record.
    assert plain.training.gradients == 2 * plain.training.records
    assert 0 < uls.training.gradients < uls.training.steps * uls.training.records
    assert 10**8 < plain.environment.peak_memory < 10**11


def test_coins_are_for_the_cells_own_config_and_folder(swept, tmp_path, call):
    sweep, _, _ = swept
    out = tmp_path / "out"
    take_sweep(sweep, out)
    cell, copy = out / "cells" / "1" / "uls", tmp_path / "mine"
    shutil.copytree(cell, copy)
    code, _, err = call("run", copy / "config.yaml", "--out", copy)
    assert (code, "is a copy of a private run's folder or of a sweep's cell" in err) == (2, True), err
    text = (cell / "config.yaml").read_text(encoding="utf-8")
    (cell / "config.yaml").write_text(text.replace("max_characters: 200", "max_characters: 100"), encoding="utf-8")
    code, _, err = call("run", cell / "config.yaml", "--out", cell)
    assert (code, "whose config was fixed before its coins were drawn ('attack.max_characters' differs)" in err) == (
        2,
        True,
    ), err


def test_a_kill_while_cells_are_laid_out_is_gone_on_with(swept, tmp_path):
    sweep, _, _ = swept
    out = tmp_path / "out"
    take_sweep(sweep, out)
    cell = out / "cells" / "1" / "uls"
    before = json.loads((cell / "ledger" / "cell.json").read_text(encoding="utf-8"))
    (cell / "config.yaml").unlink()
    (cell / "ledger" / "origin").unlink()
    take_sweep(sweep, out)
    assert json.loads((cell / "ledger" / "cell.json").read_text(encoding="utf-8")) == before
    assert (cell / "config.yaml").is_file()
    (out / "ledger" / "coins.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="this sweep cannot go on"):
        take_sweep(sweep, out)


def test_a_folder_from_before_a_config_key_came_is_gone_on_with(swept, tmp_path, monkeypatch):
    sweep, out, result = swept
    older = tmp_path / "out"
    shutil.copytree(out, older)
    plan = json.loads((older / "sweep.json").read_text(encoding="utf-8"))
    for cell in plan["cells"]:
        del cell["config"]["audit"]["test_texts_per_user"]
    # As the version before would have written it, hash included.
    (older / "sweep.json").write_text(json.dumps(plan), encoding="utf-8")
    for cell in placed_cells(sweep, older):
        path = cell.folder / "record.json"
        its = read_record(path)
        kept = {**its.config, "audit": {k: v for k, v in its.config["audit"].items() if k != "test_texts_per_user"}}
        facts = its.cell.model_copy(update={"sweep": kept_hash(older)})
        write_record(its.model_copy(update={"config": kept, "cell": facts}), path)
    monkeypatch.setattr(processes, "run_process", None)
    again = run_sweep(sweep, older, QUIET, command="heldin sweep")
    assert [cell.state for cell in again.cells] == ["done"] * 6
    assert again.variants == result.variants


def test_a_variant_or_block_that_is_added_later_is_refused(swept, tmp_path, call):
    _, out, _ = swept
    variants = {"none": {**USERS, "canaries": CANARIES}, "later": USERS | {"canaries": CANARIES}}
    code, _, err = call("sweep", written(tmp_path / "a", variants=variants), "--out", out)
    assert (code, "a variant or a block that is added later needs coins of its own" in err) == (2, True), err
    inside = out / "cells" / "1" / "none" / "checkpoints" / "final"
    code, _, err = call(
        "sweep", written(tmp_path / "b", variants={"a": {"attack": {"reference": str(inside)}}}), "--out", out
    )
    assert (code, "is a model of this sweep" in err) == (2, True), err
    code, _, err = call("run", tmp_path / "a" / "base.yaml", "--out", out)
    assert (code, "holds no such run" in err) == (2, True), err


def test_the_result_is_read_again_and_told_by_compare(swept, call):
    _, out, result = swept
    code, printed, err = call("compare", out, "--json")
    assert code == 0, err
    assert json.loads(printed)["variants"][1]["name"] == "uls"
    code, printed, _ = call("compare", out)
    assert printed.strip() == table(result)
    code, printed, _ = call("compare", out, "--csv")
    assert printed.splitlines()[0].startswith("name,group,defense,promise,unit,privacy_unit,trained_users,epsilon,")
    code, _, err = call("compare", out, "--over", "seed")
    assert (code, "--over and --to are for the folders of runs" in err) == (2, True)
    code, printed, err = call("verify", out / "cells" / "2" / "uls", "--json")
    assert (code, json.loads(printed)["differences"]) == (0, []), err


def test_a_cells_report_says_whose_cell_it_is_and_what_the_model_is_good_for(swept):
    _, out, _ = swept
    record = read_record(out / "cells/2/uls/record.json")
    rows = dict(facts(record))
    assert rows["cell of a sweep"] == f"block 2, uls; {record.cell.sweep[:16]}"
    said = rows["loss on test texts, nats per token"]
    assert said.startswith(
        f"{record.utility.loss:.3f} on {record.utility.texts} texts of {record.utility.users} held-out"
    )
    assert f"the base model {record.utility.base_loss:.3f}, gain " in said
    assert rows["gradients"].startswith(f"of {record.training.gradients:,} records")


def test_a_changed_loss_is_found_by_verify(swept, tmp_path, call):
    _, out, _ = swept
    cell = tmp_path / "cell"
    shutil.copytree(out / "cells" / "1" / "none", cell)
    its = read_record(cell / "record.json")
    better = its.utility.model_copy(update={"loss": its.utility.loss - 0.1})
    write_record(its.model_copy(update={"utility": better}), cell / "record.json")
    code, printed, _ = call("verify", cell)
    assert (code, "utility.loss" in printed) == (2, True), printed
    (cell / "losses.parquet").write_bytes(b"")
    code, _, err = call("verify", cell)
    assert (code, "losses.parquet' is damaged, or of other models" in err) == (2, True), err


@pytest.mark.slow
def test_a_cell_that_fails_is_shown_and_the_others_go_on(tmp_path, monkeypatch, call):
    def failing(task, slot):
        if task.module == "heldin" and "/wild/" in task.words[1]:
            return Ended(5, "stopped: training stopped: the loss became NaN")
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", failing)
    # A clip norm that every batch meets: where none does, both train alike, and equal scores have no difference.
    file = written(
        tmp_path, variants={"wild": {}, "tame": {"defense": {"kind": "clip", "unit": "batch", "clip_norm": 0.1}}}
    )
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 5, err
    assert "cell 1/wild: failed: stopped: training stopped: the loss became NaN" in printed
    assert "cell 1/wild: failed" in err
    found = read_sweep(tmp_path / "out")
    assert [its.state for its in found.cells] == ["failed", "done"]
    # The first is what the others are held against: without it there is no difference.
    assert found.variants[1].auroc_difference is None
    assert found.variants[1].auroc.over == "users"
    assert found.variants[1].auroc.lower < found.variants[1].auroc.value < found.variants[1].auroc.upper
    monkeypatch.setattr(processes, "run_process", in_process)
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 0, err
    assert "sweep: 1 of 2 cells are done already" in err
    assert read_sweep(tmp_path / "out").variants[1].auroc_difference is not None


def test_what_some_cells_share_fails_for_these_alone(tmp_path, monkeypatch, call):
    def failing(task, slot):
        if task.module != "heldin" and task.words[0].endswith("/lost"):
            return Ended(1, "error: no such model")
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", failing)
    lost = {"attack": {"references": [{"kind": "pretrained", "seed": 5}]}}
    file = written(tmp_path, variants={"lost": lost, "none": {}})
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 5, err
    assert "cell 1/lost: failed: what it shares could not be made: error: no such model" in printed
    assert [its.state for its in read_sweep(tmp_path / "out").cells] == ["failed", "done"]


def test_gradients_are_counted_as_they_are_computed(tmp_path):
    uls = {**ULS, "group_size": 3}
    local = {**uls, "local": {"learning_rate": 0.1, "epochs": 5}}
    sweep = load_sweep(written(tmp_path, variants={"a": {"defense": uls}, "b": {"defense": local}}))
    rows = check_sweep(sweep, tmp_path / "out").variants
    assert [row["gradients"] for row in rows] == [
        f"{n:,} gradients, expected at most" for n in (6 * 8 * 3, 6 * 8 * 3 * 5)
    ]


RULE = {
    "require": [
        {"of": "epsilon_per_user", "at_most": 8},
        {"of": "auroc", "limit": "upper", "at_most": 0.6},
        {"of": "loss_gain_over_base", "limit": "lower", "at_least": 0.05},
    ],
    "prefer": "loss_gain_over_base",
    "candidates": ["uls", "more"],
}
TWO = {"none": None, "uls": {"defense": ULS}, "more": {"defense": {**ULS, "noise_multiplier": 2.0}}}


def made_up(record, auroc, gain, *, spread=0.01, epsilon=6.0, half=0.02):
    """Records of five blocks with these AUROCs and gains, their own intervals half as wide as ``half``."""
    utility = record.utility
    found = {}
    for block, way in enumerate((-1, 0.5, 0, -0.5, 1), start=1):
        area, gained = auroc + way * spread, gain - way * spread
        reached = {"value": area, "lower": area - half, "upper": area + half}
        attacks, dials = (
            [its.model_copy(update={"auroc": its.auroc.model_copy(update=reached)}) for its in rows]
            for rows in (record.attacks, record.dials)
        )
        its = utility.gain.model_copy(update={"value": gained, "lower": gained - half, "upper": gained + half})
        found[block] = record.model_copy(
            update={
                "attacks": attacks,
                "dials": dials,
                "utility": utility.model_copy(update={"gain": its}),
                "training": record.training.model_copy(update={"epsilon": epsilon}),
            }
        )
    return found


def test_the_rule_names_what_to_ship_or_why_not(swept, tmp_path):
    _, out, _ = swept
    record = read_record(out / "cells/1/uls/record.json")
    assert record.training.unit == "user"
    sweep = load_sweep(written(tmp_path, variants=TWO, decision=RULE, blocks=5))
    good, better, leaks = made_up(record, 0.52, 0.2), made_up(record, 0.53, 0.4), made_up(record, 0.75, 0.9)
    found = shipping(sweep, {"uls": good, "more": better})
    assert (found.answer, found.variant, found.block) == ("ship", "more", 1)
    assert found.said.startswith("ship more (the model of block 1): it keeps every requirement, shown at 95% for all 2")
    assert [t.requirement for t in found.candidates[0].tests][1] == "auroc at most 0.6"
    # A dial counts as an attack does, over the blocks and for the block whose model is handed out.
    far = {
        block: its.model_copy(
            update={"dials": [its.dials[0].model_copy(update={"auroc": leaks[block].attacks[0].auroc}), *its.dials[1:]]}
        )
        for block, its in better.items()
    }
    assert shipping(sweep, {"uls": good, "more": far}).variant == "uls"
    # What leaks more may gain more.
    assert shipping(sweep, {"uls": good, "more": leaks}).variant == "uls"
    assert shipping(sweep, {"uls": leaks, "more": leaks}).answer == "none passes"
    assert shipping(sweep, {"uls": made_up(record, 0.5, 0.2, epsilon=9.0), "more": leaks}).answer == "none passes"
    # Text sampling promises an epsilon to every user with caps only; without, to people of so many records.
    by = ByExposure(counted="records", exposed=1, curve=[], group_size=None, entity_cap=None)
    for group_size, answer in ((None, "none passes"), (4, "ship")):
        texts = {
            block: its.model_copy(
                update={
                    "training": its.training.model_copy(
                        update={"unit": "user_entity", "by_exposure": by.model_copy(update={"group_size": group_size})}
                    )
                }
            )
            for block, its in good.items()
        }
        assert shipping(sweep, {"uls": texts, "more": leaks}).answer == answer
    unsure = made_up(record, 0.56, 0.2, spread=0.07)
    found = shipping(sweep, {"uls": unsure, "more": leaks})
    assert found.answer == "cannot be judged"
    assert f"uls would pass with {found.candidates[0].blocks_needed} blocks" in found.said
    # The first block's own interval is above the limit, the second's is not.
    wide = made_up(record, 0.55, 0.2, spread=-0.02, half=0.045)
    assert shipping(sweep, {"uls": wide, "more": leaks}).block == 2
    none = made_up(record, 0.52, 0.2, half=0.2)
    assert "no single model of it does" in shipping(sweep, {"uls": none, "more": leaks}).said
    # A violated claim stands against a variant, whatever it reaches.
    bad = record.judgement.verdicts[0]
    violated = {
        block: its.model_copy(
            update={
                "judgement": dataclasses.replace(
                    its.judgement, verdicts=(dataclasses.replace(bad, outcome=Outcome.VIOLATED),)
                )
            }
        )
        for block, its in good.items()
    }
    found = shipping(sweep, {"uls": violated, "more": leaks})
    assert found.answer == "none passes"
    assert "is violated" in found.candidates[0].disqualified
    del good[3]
    assert "cells of uls have no result" in shipping(sweep, {"uls": good, "more": better}).said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"candidates": ["uls", "other"]},
            "decision.candidates: no variant 'other': choose from 'none', 'uls', 'more'",
        ),
        ({"candidates": ["uls", "uls"]}, "a variant stands there twice"),
        ({"candidates": ["uls", "more", "none", "apart"]}, "at most 3 are tested for shipping"),
        ({"candidates": ["uls", "apart"]}, "they have different users or set-asides"),
        ({"candidates": ["none"]}, "no candidate promises an epsilon_per_user"),
        ({"require": [{"of": "auroc"}]}, "give one of at_most and at_least"),
        ({"require": [{"of": "auroc", "at_most": 0.6, "limit": "lower"}]}, "at_most needs the upper confidence limit"),
        ({"require": [{"of": "speed", "at_most": 1}]}, "decision.require"),
        ({"blocks": 4}, "decision: its limits need at least 5 blocks, and there are 4"),
    ],
)
def test_a_rule_that_cannot_be_applied_is_one_line(tmp_path, call, changes, said):
    blocks = changes.pop("blocks", 5)
    variants = {**TWO, "apart": {"split": {"seed": 5}, "defense": ULS}} if "apart" in str(changes) else TWO
    file = written(tmp_path, variants=variants, decision={**RULE, **changes}, blocks=blocks)
    code, _, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert (code, said in err) == (2, True), err


def test_check_says_how_probably_a_candidate_passes(tmp_path, call):
    file = written(tmp_path, variants=TWO, decision=RULE, blocks=5)
    code, printed, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert "rule: in 5 blocks a candidate that does not leak passes auroc at most 0.6" in printed
    assert "with 1,000 audited users" in printed


def test_check_names_a_candidate_that_cannot_pass(tmp_path, call):
    require = [{"of": "epsilon_per_user", "at_most": 8}, *RULE["require"]]
    rule = {**RULE, "require": require, "candidates": ["none", "uls"]}
    file = written(tmp_path, variants=TWO, decision=rule, blocks=5)
    code, printed, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert printed.count("promises no epsilon_per_user and cannot pass") == 1
    assert "rule: none promises no epsilon_per_user" in printed


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


def test_the_report_of_a_sweep_is_made_with_it_and_again_from_its_document(swept, call):
    _, out, result = swept
    code, printed, err = call("report", out, "--html")
    assert code == 0, err
    assert (out / "report.pdf").stat().st_size > 20_000
    assert (out / "report.html").stat().st_size < 3_000_000
    assert f"report: {out / 'report.pdf'}" in printed
    cell = out / "cells" / "1" / "none"
    code, printed, err = call("report", cell, "--html")
    assert code == 0, err
    assert f"{cell / 'report.html'}" in printed
    assert (cell / "report.html").stat().st_size < 3_000_000
    assert result.attacker.fpr == 0.05
    for its in result.variants:
        assert 0 <= its.named.value <= 1000
        assert its.dominated_by == []  # two blocks show nothing
    assert result.variants[1].differs["defense.kind"] == "uls"
    assert result.variants[1].epsilon_per_user == result.variants[1].epsilon
    assert result.variants[0].epsilon_per_user is None
    assert result.variants[1].ceiling is not None


def test_the_table_of_a_sweep_as_csv_has_a_row_for_each_variant(swept, call):
    _, out, result = swept
    code, printed, err = call("compare", out, "--csv")
    assert code == 0, err
    rows = list(csv.DictReader(printed.splitlines()))
    assert [row["name"] for row in rows] == [its.name for its in result.variants]
    assert float(rows[1]["auroc"]) == result.variants[1].auroc.value
    assert not {"ceiling", "canaries", "bands", "differs"} & rows[0].keys()


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


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("error: the score of user 'o'neil@example.com' is nan", "error: the score of user ..."),
        ("KeyError: 'alice'", "KeyError: ..."),
        ('error: user "o\'neil" is there twice', "error: user ..."),
        ("error: a held-out user's test text has no finite loss", None),
        ("error: '/runs/a' is damaged: remove it", None),
        ("error: '../a' is damaged: remove it", None),
        ("error: the score of user '.alice' is nan", "error: the score of user ..."),
    ],
)
def test_what_a_failed_cell_says_reaches_documents_up_to_what_it_quotes(said, shown):
    assert processes.without_names(said) == (
        said if shown is None else f"{shown} (heldin run with this cell's config.yaml says all of it)"
    )


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


@pytest.mark.parametrize(("threads", "of_shared"), [(1, 1), (None, len(os.sched_getaffinity(0)))])
def test_what_cells_share_has_all_cores_unless_the_file_sets_a_limit(tmp_path, monkeypatch, threads, of_shared):
    asked = []
    monkeypatch.setattr(processes, "run_process", lambda _, slot: asked.append(slot.threads) or Ended(1, "no memory"))
    resources = {"workers": 2, "threads": threads}
    run_sweep(load_sweep(written(tmp_path, resources=resources)), tmp_path / "out", QUIET, command="heldin sweep")
    assert asked == [of_shared]
