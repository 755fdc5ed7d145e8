"""A sweep: blocks that share coins and nothing else, gone on with after a kill, and what is refused."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

import heldin.sweeps.processes as processes
from heldin.base.errors import ResumableError
from heldin.record.document import read_record
from heldin.record.sweep import read_sweep
from heldin.reports.sweep_findings import recommend
from heldin.stages.sides.ledger import load_ledger
from heldin.sweeps.cell_plan import placed_cells, take_sweep
from heldin.sweeps.check_sweep import check_sweep, lines
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.finished import is_finished
from heldin.sweeps.load import load_sweep
from heldin.sweeps.processes import Ended
from heldin.words.sweep_page import SweepAdvice
from tests.refusals import names, refused
from tests.tiny_sweeps import CANARIES, QUIET, ULS, USERS, in_process, written


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
    assert names(records["2/uls"].split.standing_reason, "repetition 2")
    for path in (out / "ledger/coins.json", out / "sweep.json", out / "cells/1/uls/ledger/cell.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


def test_coins_are_for_the_cells_own_config_and_folder(swept, tmp_path, call):
    sweep, _, _ = swept
    out = tmp_path / "out"
    take_sweep(sweep, out)
    cell, copy = out / "cells" / "1" / "uls", tmp_path / "mine"
    shutil.copytree(cell, copy)
    code, _, err = call("run", copy / "config.yaml", "--out", copy)
    assert (code, f"'{copy}'" in err) == (2, True), err
    text = (cell / "config.yaml").read_text(encoding="utf-8")
    (cell / "config.yaml").write_text(text.replace("max_characters: 200", "max_characters: 100"), encoding="utf-8")
    code, _, err = call("run", cell / "config.yaml", "--out", cell)
    assert (code, "'attack.max_characters'" in err) == (2, True), err


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_flip, "scores.parquet"),
        pytest.param(Path.unlink, "losses.parquet", marks=pytest.mark.slow),
        pytest.param(_flip, "artefacts.json", marks=pytest.mark.slow),
        (_flip, "record.json"),
    ],
)
def test_a_cell_with_a_damaged_table_or_record_is_measured_again(swept, tmp_path, monkeypatch, call, damage, name):
    _, out, result = swept
    monkeypatch.setattr(processes, "run_process", in_process)
    copy = tmp_path / "out"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("origin"))
    damage(copy / "cells" / "1" / "uls" / name)
    code, _, err = call("sweep", out.parent / "sweep.yaml", "--out", copy)
    assert code == result.exit_code, err
    # Trained no second time, and the same in everything that was found.
    (done,) = (line for line in err.splitlines() if line.startswith("cell 1/uls: "))
    assert names(done, "done")
    cells = zip(read_sweep(copy).cells, result.cells, strict=True)
    spent = {"seconds", "peak_memory"}
    assert all(now.model_dump(exclude=spent) == was.model_dump(exclude=spent) for now, was in cells)
    assert is_finished(copy / "cells" / "1" / "uls")


@pytest.mark.parametrize("name", ["job", "plan", "model"])
def test_a_damaged_commitment_of_a_cell_is_found_by_verify(swept, tmp_path, call, name):
    _, out, _ = swept
    shutil.copytree(out / "cells" / "1" / "uls", tmp_path / "uls")
    path = tmp_path / "uls" / "ledger" / name
    path.write_bytes(bytes(62) + path.read_bytes()[62:])
    code, printed, err = call("verify", tmp_path / "uls")
    assert code == 2
    assert names(printed + err, {"job": "ledger/job", "plan": "plan.json", "model": "final"}[name])


@pytest.mark.parametrize(
    "name",
    [
        "users.parquet",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ledger.json", "canaries/users.parquet")),
    ],
)
def test_a_cell_with_a_damaged_ledger_is_refused_with_a_remedy_that_works(swept, tmp_path, monkeypatch, call, name):
    _, out, result = swept
    copy = tmp_path / "out"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("origin"))
    folder = copy / "cells" / "1" / "none"
    _flip(folder / "ledger" / name)
    trained = []
    monkeypatch.setattr(processes, "run_process", lambda task, slot: trained.append(task) or in_process(task, slot))
    for _ in range(2):
        code, printed, err = call("sweep", out.parent / "sweep.yaml", "--out", copy)
        assert (code, trained) == (2, []), err
        (said,) = (line for line in printed.splitlines() if line.startswith("run 1/none: refused: "))
        assert names(said, f"'{folder}'", "ledger")
        assert recommend(read_sweep(copy)).states(SweepAdvice.CORRECT)
    shutil.rmtree(folder)
    code, _, err = call("sweep", out.parent / "sweep.yaml", "--out", copy)
    assert code == result.exit_code, err
    assert {cell.state for cell in read_sweep(copy).cells} == {"done"}


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
    with refused(by="unstamped", naming="coins.json"):
        take_sweep(sweep, out)


def test_a_variant_or_block_that_is_added_later_is_refused(swept, tmp_path, call):
    _, out, _ = swept
    variants = {"none": {**USERS, "canaries": CANARIES}, "later": USERS | {"canaries": CANARIES}}
    code, _, err = call("sweep", written(tmp_path / "a", variants=variants), "--out", out)
    assert (code, err.count("\n"), str(out) in err) == (2, 1, True), err
    inside = out / "cells" / "1" / "none" / "checkpoints" / "final"
    code, _, err = call(
        "sweep", written(tmp_path / "b", variants={"a": {"attack": {"reference": str(inside)}}}), "--out", out
    )
    assert (code, str(inside) in err) == (2, True), err
    code, _, err = call("run", tmp_path / "a" / "base.yaml", "--out", out)
    assert (code, str(out) in err) == (2, True), err


@pytest.mark.slow
def test_a_cell_that_fails_is_shown_and_the_others_go_on(tmp_path, monkeypatch, call):
    reason = "stopped: training stopped"

    def failing(task, slot):
        if task.module == "heldin" and "/wild/" in task.words[1]:
            return Ended(5, reason)
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", failing)
    # A clip norm that every batch meets: where none does, both train alike, and equal scores have no difference.
    file = written(
        tmp_path, variants={"wild": {}, "tame": {"defense": {"kind": "clip", "unit": "batch", "clip_norm": 0.1}}}
    )
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 5, err
    assert any("1/wild" in line and reason in line for line in printed.splitlines())
    assert any("1/wild" in line and reason in line for line in err.splitlines())
    found = read_sweep(tmp_path / "out")
    assert [its.state for its in found.cells] == ["failed", "done"]
    # The first is what the others are held against: without it there is no difference.
    assert found.variants[1].auroc_difference is None
    assert found.variants[1].auroc.over == "users"
    assert found.variants[1].auroc.lower < found.variants[1].auroc.value < found.variants[1].auroc.upper
    monkeypatch.setattr(processes, "run_process", in_process)
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 0, err
    assert names(err, "1 of 2")
    assert read_sweep(tmp_path / "out").variants[1].auroc_difference is not None


@pytest.mark.parametrize("times", [1, 2])
def test_a_cell_that_ended_resumable_is_tried_once_more(tmp_path, monkeypatch, call, times):
    calls = []

    def resumable(task, slot):
        calls.append(task.module)
        if calls.count(task.module) <= times:
            return Ended(5, "stopped: the score cache was removed")
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", resumable)
    file = written(tmp_path, variants={"none": USERS})
    code, _, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == (0 if times == 1 else 5), err
    if times == 1:
        assert calls == ["heldin.sweeps.shared"] * 2 + ["heldin"] * 2
        assert sum("cell 1/none: stopped: the score cache was removed" in line for line in err.splitlines()) == 1
        (cell,) = read_sweep(tmp_path / "out").cells
        assert (cell.state, json.loads((tmp_path / "out" / "state.json").read_text())["1/none"]["calls"]) == ("done", 2)
    else:  # and not for ever
        assert calls == ["heldin.sweeps.shared"] * 2


def test_what_some_cells_share_fails_for_these_alone(tmp_path, monkeypatch, call):
    reason = "error: no such model"

    def failing(task, slot):
        if task.module != "heldin" and task.words[0].endswith("/lost"):
            return Ended(1, reason)
        return in_process(task, slot)

    monkeypatch.setattr(processes, "run_process", failing)
    lost = {"attack": {"references": [{"kind": "pretrained", "seed": 5}]}}
    file = written(tmp_path, variants={"lost": lost, "none": {}})
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 5, err
    (failed,) = (line for line in printed.splitlines() if "run 1/lost: failed: " in line)
    assert failed.endswith(reason)
    assert [its.state for its in read_sweep(tmp_path / "out").cells] == ["failed", "done"]


def test_a_sweep_in_which_nothing_can_run_ends_with_one_error_and_no_comparison(tmp_path, call):
    """A wrong path of the base model was printed once for each of fifteen cells, above an empty report."""
    nowhere = str(tmp_path / "nowhere")
    model = {"base": nowhere, "pretrain": None}
    variants = {"none": {"model": model}, "other": {"model": model, "finetune": {"epochs": 2}}}
    file = written(tmp_path, variants=variants, blocks=2)
    code, printed, err = call("sweep", file, "--out", tmp_path / "out")
    assert code == 2, err
    assert (printed, err.splitlines()[-1].count(nowhere)) == ("", 1)
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert not {"comparison.json", "report.pdf"} & {path.name for path in (tmp_path / "out").iterdir()}


def test_gradients_are_counted_as_they_are_computed(tmp_path):
    uls = {**ULS, "group_size": 3}
    local = {**uls, "local": {"learning_rate": 0.1, "epochs": 5}}
    sweep = load_sweep(written(tmp_path, variants={"a": {"defense": uls}, "b": {"defense": local}}))
    rows = check_sweep(sweep, tmp_path / "out").variants
    assert len(rows) == 2
    assert all(names(row["gradients"], f"{n:,} gradients") for row, n in zip(rows, (144, 720), strict=True))


def test_a_variant_whose_plan_is_of_another_corpus_is_noted_before_anything_runs(tmp_path):
    """At equal compute by its plans, and not by its data: 33 users are there, half of them by coin."""
    defenses = {
        name: {**USERS, "defense": {**ULS, "population": n, "cohort": 4}} for name, n in (("a", 16), ("b", 300))
    }
    sweep = load_sweep(written(tmp_path, variants=defenses))
    checked = check_sweep(sweep, tmp_path / "out")
    assert [bool(row["misfit"]) for row in checked.variants] == [False, True]
    noted = [line for line in lines(checked, sweep) if "the plan of b " in line]
    assert len(noted) == len(checked.variants[1]["misfit"]) == 2
    assert names(" ".join(noted), "16", "300")


@pytest.mark.parametrize(("threads", "of_shared"), [(1, 1), (None, len(os.sched_getaffinity(0)))])
def test_what_cells_share_has_all_cores_unless_the_file_sets_a_limit(tmp_path, monkeypatch, threads, of_shared):
    asked = []
    monkeypatch.setattr(processes, "run_process", lambda _, slot: asked.append(slot.threads) or Ended(1, "no memory"))
    resources = {"workers": 2, "threads": threads}
    with pytest.raises(ResumableError, match="no memory"):
        run_sweep(load_sweep(written(tmp_path, resources=resources)), tmp_path / "out", QUIET, command="heldin sweep")
    assert asked == [of_shared]
