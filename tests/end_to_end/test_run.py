"""The main job through the command line: files, resume, report, export, and no leak of names or secrets."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import heldin.finetune.batches
import heldin.jobs.run
import heldin.stages.train.training
from heldin.audit.blind import REFERENCE
from heldin.audit.exposed_users import read_people
from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.defenses.plan_file import read_plan
from heldin.models.reading import quiet_transformers
from heldin.record.document import read_record
from heldin.reports.findings import warn
from heldin.reports.page_one import state_evidence
from heldin.stages.measures.tables import read_losses
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.ledger import load_ledger
from heldin.words.guarantee import GuaranteeText
from heldin.words.page_one import Evidence
from heldin.words.split import SplitReason
from tests.conftest import SMALL
from tests.pdf_pages import pages, text_of
from tests.statements import states


def _weights(folder):
    return load_file(folder / "checkpoints" / "final" / "model.safetensors")


def test_every_stage_leaves_its_named_file(finished):
    names = {p.name for p in finished.iterdir()}
    tables = {"scores.parquet", "people.parquet", "losses.parquet", "log.txt"}
    written = {"config.yaml", "plan.json", "record.json", "report.pdf", "seconds.json", "artefacts.json"}
    assert names == {*written, "ledger", "checkpoints", *tables}
    assert stat.S_IMODE(finished.stat().st_mode) == 0o700
    assert {stat.S_IMODE((finished / name).stat().st_mode) for name in tables} == {0o600}
    assert not list(finished.rglob("*.tmp"))


def test_the_record_holds_every_number_and_agrees_with_the_ledger(finished):
    record = read_record(finished / "record.json")
    ledger = load_ledger(finished / "ledger")
    assert (record.split.held_in, record.split.held_out) == (
        len(ledger.users(Role.HELD_IN)),
        len(ledger.users(Role.HELD_OUT)),
    )
    assert record.training.records == len(ledger.training_rows())
    assert record.training.users == record.split.held_in + record.split.always_in
    assert {a.attack for a in record.attacks} >= {"likelihood-ratio", "loss", "zlib", "min-k++"}
    assert [a.aggregation for a in record.attacks if a.attack == "likelihood-ratio"] == ["mean", "min", "max"]
    assert [b.name for b in record.blind].count(REFERENCE) == 1
    assert len(record.blind) == 2
    for result in record.attacks:
        assert result.auroc.lower <= result.auroc.value <= result.auroc.upper
    shown = {0, record.decision.decision.strongest}
    assert [result.curve is not None for result in record.attacks] == [k in shown for k in range(len(record.attacks))]
    assert sum(record.curve().histogram.held_in) == record.split.held_in
    assert sum(record.curve().histogram.held_out) == record.split.held_out
    for at in record.curve().tpr_at:
        assert (at.estimate is None) == (record.split.held_out * at.fpr < 1)
    assert all(g.reference_divergence is not None for g in record.exposure.groups)
    curve = record.training.curve
    assert len(curve) == SMALL["finetune"]["evaluations"]
    assert curve[-1].step == record.training.steps
    assert curve[-1].held_in_loss < curve[0].held_in_loss
    assert record.training.chosen_step == min(curve, key=lambda p: p.held_in_loss).step


def test_neither_record_nor_report_nor_plan_holds_a_name_a_text_or_a_secret(finished, small_config):
    ledger = load_ledger(finished / "ledger")
    files = ("record.json", "plan.json", "config.yaml")
    content = "".join((finished / name).read_text(encoding="utf-8") for name in files) + text_of(
        finished / "report.pdf"
    )
    assert ledger.key.hex() not in content
    for user in ledger.roles:
        assert user not in content
        assert user.split("@")[0].replace(".", " ").title() not in content


def _numbers(value):
    """Every number of a record, wherever it stands."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_no_number_of_the_record_is_one_users(finished):
    """The joins that pseudonyms and full curves allowed: by value, and by rank."""
    people = read_people(finished / "people.parquet")
    held_in = [[p.score, p.reference_loss, p.reference_divergence, p.word_divergence] for p in people]
    scores = pq.read_table(finished / "scores.parquet").to_pydict()
    by_user: dict[tuple[str, str], list[float]] = {}
    for user, attack, value in zip(scores["user"], scores["attack"], scores["statistic"], strict=True):
        by_user.setdefault((user, attack), []).append(value)
    everybody = [f(values) for values in by_user.values() for f in (np.mean, min, max)]
    everybody += [value for its in read_losses(finished).values() for value in (its.loss, its.base_loss)]
    single = np.array([v for row in held_in for v in row] + everybody)
    record = json.loads((finished / "record.json").read_text(encoding="utf-8"))
    there = np.array(_numbers(record))
    there = there[~np.isin(there, [0.0, 1.0, 0.5])]
    distance = np.abs(there[:, None] - single) / np.abs(single)
    assert distance.min() > 1e-7
    sides = record["split"]["held_in"], record["split"]["held_out"]

    def lists(value):
        if isinstance(value, list) and value and not isinstance(value[0], dict):
            yield value
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from lists(part)

    assert not [its for its in lists(record) if len(its) in (*sides, sum(sides))]  # no row, no step for each user
    assert min(g["users"] for g in record["exposure"]["groups"]) >= 10
    curves = [attack["curve"] for attack in record["attacks"] if attack["curve"]]
    assert 1 <= len(curves) <= 2
    for curve in curves:
        assert np.add(curve["histogram"]["held_in"], curve["histogram"]["held_out"]).min() >= 10
        named = np.array(curve["fpr"]) * sides[1] + np.array(curve["tpr"]) * sides[0]
        assert np.diff(named).min() > 9.99


def test_single_users_are_printed_to_their_owner_alone(call, finished):
    code, out, _ = call("report", finished, "--people", "--most", 3)
    people = read_people(finished / "people.parquet")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:4]] == [p.user for p in people[:3]]
    assert out.splitlines()[-1].startswith("3 of ")


def test_the_report_says_internal_on_every_page(finished):
    found = pages(finished / "report.pdf")
    assert 2 <= len(found) <= 7 + 2  # the annex has a page or two of its own
    assert all(page.says("Internal: ") for page in found)


def test_the_trainer_is_handed_the_included_records_and_nothing_else(small_config, tmp_path, monkeypatch):
    """Spy on what reaches the training loop: the token sequences of held-in users' training texts, no others."""
    handed = {}
    original = heldin.finetune.batches.encode

    def spy(tokenizer, texts, length, done, truncation):
        handed["texts"] = [document.text for document in texts]
        return original(tokenizer, texts, length, done)

    class Stop(Exception):
        pass

    def stop(*arguments, **options):
        handed["arguments"] = arguments
        raise Stop

    monkeypatch.setattr(heldin.finetune.batches, "encode", spy)
    monkeypatch.setattr(heldin.stages.train.training, "train", stop)
    with pytest.raises(Stop):
        heldin.jobs.run.run(load_config(small_config), tmp_path / "run", LineReporter(lambda line: None), command="")
    data = prepare_data(load_config(small_config), tmp_path / "run", LineReporter(lambda line: None))
    store, ledger = data.store, data.ledger
    held_in = {u for u, r in ledger.roles.items() if r is Role.HELD_IN}
    included = {store.text(row) for u in held_in for row in ledger.parts[u][Part.TRAIN]}
    others = {
        store.text(row)
        for user, parts in ledger.parts.items()
        for part, rows in parts.items()
        for row in rows
        if user not in held_in or part is not Part.TRAIN
    }
    assert set(handed["texts"]) == included
    assert not included & others
    assert len(handed["arguments"][1]) == len(handed["texts"])


def test_the_attack_is_handed_users_in_an_order_that_says_nothing_of_their_side(finished):
    users = list(dict.fromkeys(pq.read_table(finished / "scores.parquet")["user"].to_pylist()))
    assert users == sorted(users)
    assert set(pq.read_table(finished / "scores.parquet").column_names) == {
        "user",
        "text",
        "attack",
        "statistic",
        "dial",
        "setting",
    }


def test_running_again_does_nothing_twice_and_another_config_is_refused(call, finished, small_config, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    before = (folder / "record.json").read_bytes()
    weights = _weights(folder)
    code, out, err = call("run", small_config, "--out", folder)
    assert code == 0
    assert "report.pdf" in out
    assert "already finished: " in err
    # With its date: somebody may have signed the report.
    assert (folder / "record.json").read_bytes() == before
    assert all(torch.equal(v, weights[k]) for k, v in _weights(folder).items())
    code, _, err = call("run", small_config, "--out", folder, "--set", "finetune.epochs=5")
    assert code == 2
    assert call.refused(by="require_folder", naming=(f"'{folder}'", "'finetune.epochs'", "--out"))
    assert err.count("\n") == 1


@pytest.mark.slow  # the loop's own test kills a training in the fast suite
def test_a_run_killed_in_training_and_started_again_equals_an_undisturbed_one(finished, small_config, tmp_path):
    """The same ledger in two folders stands for the same run; one of them is killed with SIGKILL."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heldin", "run", str(small_config), "--out"]
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        shutil.copy(finished / "config.yaml", tmp_path / name)
        shutil.copytree(finished / "ledger", tmp_path / name / "ledger")
    child = subprocess.Popen([*command, str(tmp_path / "killed")], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("checkpoints/resume/step-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "killed" / "record.json").exists()
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name)], env=environment, check=True, capture_output=True)
    killed, whole = _weights(tmp_path / "killed"), _weights(tmp_path / "whole")
    assert killed.keys() == whole.keys()
    assert all(torch.equal(killed[k], whole[k]) for k in whole)
    records = [read_record(tmp_path / name / "record.json") for name in ("killed", "whole")]
    assert records[0].attacks == records[1].attacks
    assert records[0].training.curve == records[1].training.curve


def test_what_is_exported_is_model_card_and_plan_and_loads(call, finished, tmp_path):
    code, _, _ = call("export", finished, "--out", tmp_path / "public")
    assert code == 0
    names = {p.name for p in (tmp_path / "public").iterdir()}
    assert names >= {"README.md", "plan.json", "config.json", "model.safetensors", "tokenizer.json"}
    assert not names & {"record.json", "scores.parquet", "ledger", "report.pdf", "config.yaml"}
    promise = read_plan(tmp_path / "public" / "plan.json").guarantee()
    assert promise.statement.states(GuaranteeText.NO_PROTECTION)
    assert promise.label[1:] in (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "public")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "public")
    ids = tokenizer("The meeting", return_tensors="pt")["input_ids"]
    assert torch.isfinite(model(input_ids=ids).logits).all()
    code, _, err = call("export", finished, "--out", tmp_path / "public")
    assert call.refused(by="export_run", naming=f"'{tmp_path / 'public'}'")
    assert err.count("\n") == 1
    record = json.loads((finished / "record.json").read_text(encoding="utf-8"))
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert f"{record['attacks'][0]['auroc']['value']:.3f}" not in card
    code, _, err = call("export", tmp_path, "--out", tmp_path / "other")
    assert code == 2
    assert call.refused(by="read_record", naming="record.json")


def test_an_audit_pool_keeps_the_rest_always_in_and_an_exact_half_is_marked(call, small_config, tmp_path):
    out = tmp_path / "pool"
    changes = ["split.audit_pool=20", "split.assignment=exact_half", "finetune.epochs=0.5", "finetune.select=last"]
    code, _, err = call("run", small_config, "--out", out, *[a for c in changes for a in ("--set", c)])
    assert code == 0, err
    record = read_record(out / "record.json")
    assert (record.split.held_in, record.split.held_out, record.split.always_in) == (10, 10, 10)
    assert record.training.users == 20
    assert not record.split.certifiable
    assert record.split.reason.states(SplitReason.EXACT_HALF)
    assert any(record.split.standing_reason in line for line in warn(record))
    assert not states(state_evidence(record), Evidence.BY_COINS)
