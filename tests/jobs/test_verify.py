"""A record is verified from its files; whatever was changed in it is found, and nothing else."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import heldin.stages.train.models
from heldin.base.artefacts import read_document, write_document
from heldin.base.progress import LineReporter
from heldin.jobs.run import run_again
from heldin.jobs.verify import table, verify
from heldin.record.document import read_record, write_record
from heldin.stages.train.models import pretrain
from tests.made_facts import stated
from tests.refusals import names, refused
from tests.relisted import relist

QUIET = LineReporter(lambda line: None)


@pytest.fixture
def run(finished, tmp_path, monkeypatch, tmp_path_factory):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def _changed(run, change):
    path = run / "record.json"
    content = read_document(path)
    change(content)
    write_document(path, content)


def test_an_untouched_record_is_recomputed_to_the_last_number(run):
    found = verify(run, QUIET)
    assert found.differences == ()
    assert found.compared > 500
    assert "values compared, 0 differ" in table(found)


def test_a_base_model_that_is_pre_trained_otherwise_here_is_named(run, tmp_path, monkeypatch):
    """As on another machine, whose arithmetic differs in the last bits."""
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))

    def elsewhere(*arguments, **named):
        with torch.random.fork_rng():
            lm = pretrain(*arguments, **named)
        (file,) = (tmp_path / "cache" / "pretrained").glob("*/model.safetensors")
        weights = load_file(file)
        weights["transformer.ln_f.bias"] += 1e-7
        save_file(weights, file, metadata={"format": "pt"})
        return lm

    monkeypatch.setattr(heldin.stages.train.models, "pretrain", elsewhere)
    with refused(by=run_again, naming=("pretrained", "cache")):
        verify(run, QUIET)


def test_every_changed_number_is_named(run):
    def change(content):
        content["attacks"][0]["auroc"]["value"] += 1e-6
        content["training"]["curve"][-1]["held_out_loss"] = 0.5
        content["split"]["held_in"] += 1
        content["per_text"] = True
        content["exposure"]["groups"][0]["reference_divergence"] += 1e-6
        content["judgement"]["bounds"][0]["epsilon_lower"] = 3.0
        content["training"]["promise"] = stated("epsilon 1").model_dump()
        content["target"]["fingerprint"] = content["target"]["fingerprint"]

    _changed(run, change)
    found = verify(run, QUIET)
    assert {d.where for d in found.differences} == {
        "attacks[0].auroc.value",
        "per_text",
        "exposure.groups[0].reference_divergence",
        f"training.curve[{len(read_record(run / 'record.json').training.curve) - 1}].held_out_loss",
        "split.held_in",
        "judgement.bounds[0].epsilon_lower",
        "training.promise.code",
        "training.promise.values.text",
    }


def test_scores_of_another_model_are_refused(run):
    relist(run / "scores.parquet", made_from="another model")
    with refused(by="MeasureFolder.values_of", naming="scores.parquet'"):
        verify(run, QUIET)


def test_a_record_that_names_another_model_differs(run):
    _changed(run, lambda content: content["target"].update(fingerprint="another"))
    assert [difference.where for difference in verify(run, QUIET).differences] == ["target.fingerprint"]


DAMAGED = ("checkpoints/tokens/ids.bin", "checkpoints/tokens/ends.bin", "checkpoints/tokens/about.json")
DAMAGED += ("checkpoints/tokens/artefacts.json", "checkpoints/resume/step-00000028/artefacts.json", "config.yaml")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_that_no_number_follows_from_is_changed(call, run, name):
    content = bytearray((run / name).read_bytes())
    content[len(content) // 3] ^= 1
    (run / name).write_bytes(content)
    found = verify(run, QUIET) if name != "config.yaml" else None
    code, out, err = call("verify", run)
    assert code == 2
    if found is not None:
        assert found.changed == (name,)
    assert names(out + err, name)


def test_every_file_is_in_exactly_one_list(run):
    (run / "mine.txt").write_text("mine", encoding="utf-8")
    (run / "link").symlink_to(run / "mine.txt")
    (run / "ledger" / "users.parquet.tmp").write_text("left behind", encoding="utf-8")
    (run / "report.pdf").unlink()
    (run / "checkpoints" / "tokens" / "ids.bin").unlink()
    found = verify(run, QUIET)
    there = [path.relative_to(run).as_posix() for path in run.rglob("*") if not path.is_dir()]
    listed = [*found.by_digest, *found.changed, *found.not_checked]
    assert sorted(listed) == sorted([*there, "checkpoints/tokens/ids.bin"])
    assert found.changed == ("checkpoints/tokens/ids.bin",)
    assert set(found.not_checked) == {"mine.txt", "link", "ledger/users.parquet.tmp", "log.txt", "seconds.json"}


def test_another_config_or_no_ledger_is_said(run):
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["audit"]["resamples"] = 300
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = verify(run, QUIET)
    assert {"config.audit.resamples", "resamples"} <= {d.where for d in found.differences}
    (run / "ledger" / "ledger.json").unlink()
    with refused(by="run_again", naming="run"):
        verify(run, QUIET)


def test_the_command_exits_with_two_where_something_differs(call, run):
    code, out, err = call("verify", run)
    assert (code, err.count("error")) == (0, 0)
    assert "0 differ" in out
    _changed(run, lambda content: content.update(attacker_texts=1))
    code, out, _ = call("verify", run, "--json")
    assert code == 2
    assert json.loads(out)["differences"][0]["where"] == "attacker_texts"


def test_an_audit_is_verified_too(call, run, tmp_path):
    files = {}
    for side in ("in", "out"):
        rows = [
            {"user": f"{side}{u}", "text": f"word{u} said {side} number {i} again and again"}
            for u in range(6)
            for i in range(3)
        ]
        files[side] = tmp_path / f"{side}.jsonl"
        files[side].write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    base, reference = run / "checkpoints" / "final", _bases()[0]
    out = tmp_path / "audit"
    arguments = ["--model", base, "--reference", reference, "--held-in", files["in"], "--held-out", files["out"]]
    code, _, err = call("audit", *arguments, "--out", out, "--claim", "epsilon=4,delta=1e-5")
    assert code in (0, 4), err
    assert verify(out, QUIET).differences == ()
    record = read_record(out / "record.json")
    write_record(record.model_copy(update={"attacker_texts": 7}), out / "record.json")
    assert [d.where for d in verify(out, QUIET).differences] == ["attacker_texts"]


def _bases():
    from heldin.base.files import cache_directory

    return sorted(p.parent for p in cache_directory().rglob("config.json"))


def test_facts_of_a_measure_that_do_not_fit_are_no_record(run):
    _changed(run, lambda content: content["measures"]["utility"].update(comment=None))
    with refused(by=read_record, naming="record.json"):
        verify(run, QUIET)
