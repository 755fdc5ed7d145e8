"""A sweep: its file, blocks that share coins and nothing else, what is compared, and what is refused."""

import dataclasses
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import yaml

import heldin.jobs.sweep.driver as driver
from heldin.audit.paired import auroc_difference
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.p_values import holm
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Outcome, Standing
from heldin.jobs.config import load_config
from heldin.jobs.run.ledger import load_ledger
from heldin.jobs.run.pipeline import run
from heldin.jobs.run.utility import read_losses
from heldin.jobs.sweep.check import check_sweep
from heldin.jobs.sweep.comparison import _joint_bound, _joint_verdicts
from heldin.jobs.sweep.config import load_sweep
from heldin.jobs.sweep.driver import run_sweep
from heldin.jobs.sweep.finished import _read
from heldin.jobs.sweep.plan import kept_hash, placed_cells, take_sweep
from heldin.jobs.sweep.shared import make_shared
from heldin.jobs.sweep.shipping import shipping
from heldin.jobs.sweep.variants import auroc_change, loss_change
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import read_record, write_record
from heldin.record.facts import ByExposure
from heldin.record.sweep import read_sweep
from heldin.record.sweep_table import table
from heldin.reports.facts import facts
from tests.conftest import SMALL

QUIET = LineReporter(lambda line: None)
ROOT = Path(__file__).resolve().parents[2]
ULS = {"kind": "uls", "population": 30, "cohort": 8, "steps": 6, "delta": 1e-3, "noise_multiplier": 1.0}
USERS = {"corpus": {"users": {"min_records": 8, "fraction": 0.5, "max_users": None}}, "finetune": {"select": "last"}}
CANARIES = [{"kind": "rare_phrase", "users": 10, "documents": [4]}]


def written(folder, **content):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    sweep = {"name": "two", "base": "base.yaml", "variants": {"none": None, "uls": {"defense": ULS}}, **content}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
    return folder / "sweep.yaml"


def in_process(arguments, threads, *, module="heldin"):
    """A cell in this process: the real one takes seconds to start (test_sweep_processes)."""
    if module != "heldin":
        make_shared(load_config(Path(arguments[0])), QUIET)
        return 0, ""
    try:
        record = run(load_config(Path(arguments[1])), Path(arguments[3]), QUIET, command="heldin run")
    except InputError as error:
        return 2, f"error: {error}"
    return record.judgement.exit_code, ""


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
        patch.setattr(driver, "_process", in_process)
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

    def counting(arguments, threads, *, module="heldin"):
        called.append(arguments)
        return in_process(arguments, threads, module=module)

    monkeypatch.setattr(driver, "_process", counting)
    resumed = run_sweep(sweep, again, QUIET, command="heldin sweep")
    assert [a[0] for a in called] == [str(lost / "config.yaml"), "run"]
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
    monkeypatch.setattr(driver, "_process", in_process)
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
    monkeypatch.setattr(driver, "_process", None)
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
    assert printed.splitlines()[0].startswith("name,group,defense,promise,unit,epsilon,delta,cells,auroc")
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


def test_a_cell_that_fails_is_shown_and_the_others_go_on(tmp_path, monkeypatch, call):
    def failing(arguments, threads, *, module="heldin"):
        if module == "heldin" and "/wild/" in arguments[1]:
            return 5, "stopped: training stopped: the loss became NaN"
        return in_process(arguments, threads, module=module)

    monkeypatch.setattr(driver, "_process", failing)
    file = written(
        tmp_path, variants={"wild": {}, "tame": {"defense": {"kind": "clip", "unit": "batch", "clip_norm": 1.0}}}
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
    monkeypatch.setattr(driver, "_process", in_process)
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 0, err
    assert "sweep: 1 of 2 cells are done already" in err
    assert read_sweep(tmp_path / "out").variants[1].auroc_difference is not None


def test_what_some_cells_share_fails_for_these_alone(tmp_path, monkeypatch, call):
    def failing(arguments, threads, *, module="heldin"):
        if module != "heldin" and "/lost/" in arguments[0]:
            return 1, "error: no such model"
        return in_process(arguments, threads, module=module)

    monkeypatch.setattr(driver, "_process", failing)
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


def test_axes_multiply_and_groups_follow_from_users_and_set_asides(tmp_path):
    sweep = load_sweep(
        written(
            tmp_path,
            variants={
                "none": None,
                "uls": {"defense": {**ULS, "noise_multiplier": None}},
                "fewer": {"corpus": {"users": {"max_users": 20}}},
                "fewer-uls": {"corpus": {"users": {"max_users": 20}}, "defense": ULS},
            },
            axes={"uls": {"defense.target_epsilon": [2, 8.5], "finetune.learning_rate": [1e-4]}},
            blocks=3,
        )
    )
    names = [variant.name for variant in sweep.variants]
    assert names == [
        "none",
        "uls-target_epsilon-2-learning_rate-0.0001",
        "uls-target_epsilon-8.5-learning_rate-0.0001",
        "fewer",
        "fewer-uls",
    ]
    assert [variant.group for variant in sweep.variants] == ["none", "none", "none", "fewer", "fewer"]
    assert sweep.variants[2].config.defense.target_epsilon == 8.5
    assert len(list(sweep.cells())) == 15
    first, third = sweep.of_block(sweep.variants[0], 1), sweep.of_block(sweep.variants[0], 3)
    assert (third.split.seed - first.split.seed, third.finetune.seed - first.finetune.seed) == (2, 2)
    assert (first.seed, first.model, first.corpus) == (third.seed, third.model, third.corpus)


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/sweeps/*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_sweep_is_read(path, monkeypatch, tmp_path):
    monkeypatch.setenv("HELDIN_DATA_DIR", str(tmp_path))
    assert len(load_sweep(path).variants) > 3


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
        attacks = [
            a.model_copy(
                update={"auroc": a.auroc.model_copy(update={"value": area, "lower": area - half, "upper": area + half})}
            )
            for a in record.attacks
        ]
        its = utility.gain.model_copy(update={"value": gained, "lower": gained - half, "upper": gained + half})
        found[block] = record.model_copy(
            update={
                "attacks": attacks,
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
        ({"candidates": ["uls", "other"]}, "decision.candidates: no variant 'other'; there are none, uls, more"),
        ({"candidates": ["uls", "uls"]}, "a variant stands there twice"),
        ({"candidates": ["uls", "more", "none", "apart"]}, "at most 3 are tested for shipping"),
        ({"candidates": ["uls", "apart"]}, "they have different users or set-asides"),
        ({"candidates": ["none"]}, "no candidate promises an epsilon_per_user"),
        ({"require": [{"of": "auroc"}]}, "give one of at_most and at_least"),
        ({"require": [{"of": "auroc", "at_most": 0.6, "limit": "lower"}]}, "at_most needs the upper confidence limit"),
        ({"require": [{"of": "speed", "at_most": 1}]}, "decision.require"),
        ({"blocks": 4}, "decision: its limits are over 4 blocks: give 5 blocks or more"),
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


SUBSTRINGS = [{"kind": "substring", "users": 2, "lengths": [3]}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"variants": {}}, "variants"),
        ({"base": "nothing.yaml"}, "no such config"),
        ({"blocks": 0}, "blocks"),
        ({"variant": {}}, "did you mean 'variants'"),
        ({"variants": {"a b": {}}}, "variants"),
        ({"variants": {"..": {}}}, "variants"),
        ({"variants": {"a": {}, "A": {}}}, "variants: two are called 'A'"),
        ({"variants": {"a" * 101: {}}}, "variants"),
        ({"axes": {"uls": {"defense.steps": []}}}, "axes.uls.defense.steps"),
        ({"axes": {"uls": {"name": ["2020-01-01"], "defense.steps": ["x" * 99]}}}, "a name has at most 100 letters"),
        ({"axes": {"other": {"seed": [1]}}}, "axes.other: no such variant"),
        ({"axes": {"uls": {"defense.target_epsilom": [1]}}}, "did you mean 'target_epsilon'"),
        ({"axes": {"none": {"seed": [1, 1]}}}, "variants: two are called 'none-seed-1'"),
        ({"variants": {"a": {"seed": -1}, "b": {"name": {}, "finetune": {"epoch": 1}}}}, "2 problems"),
        ({"variants": {"a": {}, "b": {"canaries": CANARIES}}}, "variants.b: its canary users are not those of 'a'"),
        (
            {
                "variants": {
                    "a": {"canaries": SUBSTRINGS},
                    "b": {"canaries": SUBSTRINGS, "finetune": {"sequence_length": 24}},
                }
            },
            "variants.b: its canary users are not those of 'a'",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_every_problem(tmp_path, call, content, said):
    code, _, err = call("sweep", written(tmp_path, **content), "--out", tmp_path / "out")
    assert (code, said in err) == (2, True), err
    assert not (tmp_path / "out").exists()


def test_two_variants_of_one_name_are_refused(tmp_path, call):
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("  uls:", "  none:"), encoding="utf-8")
    code, _, err = call("sweep", path, "--out", tmp_path / "out")
    assert (code, "none" in err) == (2, True), err


def test_check_lists_every_variant_with_its_promise_and_gradients(tmp_path, call):
    path = written(tmp_path, blocks=5)
    code, printed, err = call("sweep", path, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert printed.startswith("2 variants in 5 blocks: 10 cells, 1 at a time")
    assert "not at equal compute" in printed
    code, printed, _ = call("sweep", path, "--check", "--json", "--out", tmp_path / "out")
    rows = json.loads(printed)["variants"]
    assert [row["variant"] for row in rows] == ["none", "uls"]
    assert "gradients" in rows[1]["gradients"]
    assert not (tmp_path / "out").exists()
    broken = {"a": {"attack": {"reference": "/no/such/model"}}, "b": {"model": {"base": "/no", "pretrain": None}}}
    code, _, err = call("sweep", written(tmp_path, variants=broken), "--check", "--out", tmp_path / "out")
    assert code == 2
    assert "variants.a: " in err
    assert "variants.b: " in err


def test_a_document_of_another_version_or_a_damaged_one_is_one_line(tmp_path):
    (tmp_path / "comparison.json").write_text('{"schema_version": 99}', encoding="utf-8")
    with pytest.raises(InputError, match="has schema 99; this heldin reads 1"):
        read_sweep(tmp_path)
    (tmp_path / "comparison.json").write_text('{"schema_version": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="is damaged: run heldin sweep again"):
        read_sweep(tmp_path)
    with pytest.raises(InputError, match="is missing or damaged"):
        read_sweep(tmp_path / "nowhere")


def test_every_key_of_a_sweep_is_named_in_its_page():
    from heldin.jobs.sweep.config import DecisionRule, RequirementConfig, Resources, SweepConfig

    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    for section in (SweepConfig, Resources, DecisionRule, RequirementConfig):
        assert not [name for name in section.model_fields if f"`{name}`" not in page]
