"""Auditing a checkpoint that someone else trained, from two files."""

import csv
import json
import shutil
import sys

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from heldin.attacks.kinds import DEFAULT_ATTACKS
from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.jobs.verify import verify
from heldin.models.logprobs import score_texts, stated_batch_size
from heldin.models.opening import load_language_model
from heldin.models.reading import quiet_transformers
from heldin.record.document import read_record
from heldin.reports.limits import limit_rows
from heldin.reports.page_one import state_data, state_evidence, written
from heldin.reports.recommendation import recommend
from heldin.reports.record_report import list_facts, report_record
from heldin.stages.sides.ledger import load_ledger
from heldin.words.answer import ComparisonFlaw, Headline
from heldin.words.evidence import ClaimLabel
from heldin.words.page_one import Advice, AttackNeeds, Evidence, LeftOut, Released
from heldin.words.rows import SkippedText
from heldin.words.split import SplitReason
from tests.models.tiny_multimodal import tiny_multimodal
from tests.refusals import names, refused
from tests.relisted import relist
from tests.statements import answer_in, states, values_of


@pytest.fixture
def files(finished, small_config, tmp_path):
    """The run's attacker texts as two files, as an auditor would be handed them."""
    from heldin.stages.run_config import load_config
    from heldin.stages.sides.data import prepare_data

    data = prepare_data(load_config(small_config), finished, LineReporter(lambda line: None))
    ledger = load_ledger(finished / "ledger")
    for role, name in ((Role.HELD_IN, "in.jsonl"), (Role.HELD_OUT, "out.jsonl")):
        rows = [
            {"author": user, "body": data.store.text(row), "mail": data.store.id(row)}
            for user in ledger.users(role)
            for row in ledger.parts[user][Part.ATTACKER]
        ]
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def _arguments(finished, files, out):
    columns = ["--user", "author", "--text", "body", "--set", "columns.id=mail", "--set", "attack.max_characters=200"]
    model = ["--model", finished / "checkpoints" / "final", "--reference", _reference(finished)]
    return ["audit", *model, "--held-in", files[0], "--held-out", files[1], "--out", out, *columns]


def _reference(finished):
    from heldin.base.files import cache_directory
    from heldin.finetune.pretraining import pretrained_folder
    from heldin.stages.run_config import load_config
    from heldin.stages.sides.data import prepare_data

    config = load_config(finished / "config.yaml")
    data = prepare_data(config, finished, LineReporter(lambda line: None))
    pretrain = config.model.pretrain
    return pretrained_folder(data.public_texts(), pretrain.shape, pretrain.recipe, cache_directory())


def test_it_finds_what_the_run_found_and_says_that_sides_are_asserted(call, finished, files, tmp_path):
    code, out, err = call(*_arguments(finished, files, tmp_path / "audit"))
    assert code == 0, err
    assert (tmp_path / "audit" / "report.pdf").is_file()
    audited, ran = (read_record(folder / "record.json") for folder in (tmp_path / "audit", finished))
    assert audited.training is None
    for mine, its in zip(audited.attacks, ran.attacks, strict=True):
        assert mine.auroc.value == pytest.approx(its.auroc.value, abs=1e-9)
    assert not audited.split.certifiable
    assert audited.split.reason.states(SplitReason.ASSERTED_BY_FILES)
    assert states(state_evidence(audited), Evidence.STATED)
    assert written(state_evidence(audited)) in " ".join(out.split())
    _assert_what_nobody_looked_at_is_not_known(audited)
    _assert_a_folder_holds_one_audit(call, _arguments(finished, files, tmp_path / "audit"))


def test_page_one_of_a_command_has_people_limits_advice_and_what_the_attack_needs(call, finished, files, tmp_path):
    """Terminal, JSON and record have one number of people, and a limit that is broken decides."""
    limit = "--set", "decision.require=[{of: auroc, at_most: 0.51}]"
    release = "--set", "release.access=text", "--set", "release.auditor=R. Auditor"
    arguments = [*_arguments(finished, files, tmp_path / "audit"), *limit, *release]
    code, out, err = call(*arguments)
    assert code == 0, err
    said, record = " ".join(out.split()), read_record(tmp_path / "audit" / "record.json")
    people = record.flagged()
    assert f"flags {people.members} of {people.of_members} members" in said
    assert f"wrongly {people.others} of {people.of_others} non-members" in said
    assert people.label in said
    assert str(AttackNeeds.MORE_THAN_RELEASED(released=Released.TEXT())).strip() in said
    for row in limit_rows(record):
        assert f"{row[3]}; {row[0]}" in said
    assert recommend(record).states(Advice.NOT_SHOWN)
    code, out, err = call(*arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["people"]["members"] == people.members
    assert found["best_attack"]["among"] == record.decision.scores
    assert [each["status"] for each in found["limits"]][-1] == "not_shown"
    assert found["grade"] == "not_on_this_evidence"


def test_members_are_listed_by_score_and_the_web_page_is_written(call, finished, files, tmp_path):
    """An audit keeps no membership: its files are read again, for the owner alone."""
    audit = tmp_path / "audit"
    code, out, err = call(*_arguments(finished, files, audit), "--html")
    assert code == 0, err
    assert names(out, audit / "report.pdf", audit / "report.html")
    assert (audit / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert call("report", audit, "--scores", tmp_path / "scores.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()))
    members = sorted((r for r in rows if r["member"] == "1"), key=lambda r: (-float(r["score"]), r["user"]))
    others = [float(r["score"]) for r in rows if r["member"] == "0"]
    code, out, err = call("report", audit, "--people", "--json", "--most", 5)
    assert code == 0, err
    listed = json.loads(out)
    assert listed["users"] == len(members) > 5
    assert [row["user"] for row in listed["people"]] == [row["user"] for row in members[:5]]
    for row, of_file in zip(listed["people"], members, strict=False):
        assert row["score"] == float(of_file["score"])
        assert row["above"] == pytest.approx(sum(score < row["score"] for score in others) / len(others))
        assert set(row) == {"user", "score", "above"}
    code, out, _ = call("report", audit, "--people")
    assert names(out, members[0]["user"], members[-1]["user"], len(members))
    files[0].unlink()
    code, out, err = call("report", audit, "--people")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert names(err, files[0].name)


def _assert_what_nobody_looked_at_is_not_known(record):
    overlaps = record.split.overlaps
    assert (record.scored_texts.kind, record.scored_texts.known_by) == ("not known", "not known")
    assert (record.split.assignment, record.split.known_by) == ("unknown", "not known")
    assert overlaps.scored_texts_in_same_users_training.count is None
    assert overlaps.held_out_texts_in_training.known_by == "not known"
    assert overlaps.held_out_texts_in_held_in.known_by == "measured"
    assert not record.decision.decision.exact


def _assert_a_folder_holds_one_audit(call, arguments):
    assert call(*arguments)[0] == 0
    code, _, _ = call(*arguments, "--assignment", "coin")
    assert code == 2
    out = arguments[arguments.index("--out") + 1]
    assert call.refused(by="_take_folder", naming=(f"'{out}'", "'assignment'", "--out"))


def test_models_that_state_no_context_are_audited_with_the_users(call, finished, files, tmp_path):
    import torch
    from transformers import BloomConfig, BloomForCausalLM

    for seed, name in enumerate(("target", "base")):
        torch.manual_seed(seed)
        model = BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=16, n_layer=1, n_head=2))
        model.save_pretrained(tmp_path / name)
        for file in (finished / "checkpoints" / "final").glob("tokenizer*"):
            shutil.copy(file, tmp_path / name)
        settings = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 10**30}))
    arguments = _arguments(finished, files, tmp_path / "audit")
    arguments[2], arguments[4] = tmp_path / "target", tmp_path / "base"
    code, _, err = call(*arguments)
    assert (code, "context" in err.splitlines()[-1]) == (2, True)
    code, _, err = call(*arguments, "--set", "context=1")
    assert (code, "context" in err) == (2, True)
    code, _, err = call(*arguments, "--set", "context=16")
    assert code == 0, err
    assert read_record(tmp_path / "audit" / "record.json").config["context"] == 16
    assert verify(tmp_path / "audit", LineReporter(lambda line: None)).differences == ()
    code, _, err = call(*arguments, "--set", "context=20")
    assert (code, "another 'context'" in err) == (2, True)


def test_a_reference_with_another_tokenizer_is_said_to_be_compared_per_text(call, finished, files, tmp_path, english):
    from heldin.models.tiny import train_tokenizer

    shutil.copytree(_reference(finished), tmp_path / "other")
    train_tokenizer(english, 290).save_pretrained(tmp_path / "other")
    arguments = _arguments(finished, files, tmp_path / "audit")
    arguments[arguments.index("--reference") + 1] = tmp_path / "other"
    code, out, err = call(*arguments)
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    assert record.per_text
    assert not read_record(finished / "record.json").per_text
    assert "likelihood-ratio-per-token" not in {a.attack for a in record.attacks}
    # The report says so.
    assert list_facts(record) != list_facts(record.model_copy(update={"per_text": False}))
    # Terminal, JSON and report name the attacks that did not run, and why.
    (statement,) = record.left_out
    assert statement.states(LeftOut.OTHER_TOKENIZER)
    ran = {attack.attack for attack in record.attacks}
    assert set(values_of(statement, LeftOut.OTHER_TOKENIZER)["attacks"].split(", ")) == set(DEFAULT_ATTACKS) - ran
    assert str(statement) in " ".join(out.split())
    assert str(statement) in str(report_record(record))
    code, out, err = call(*arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["page_one"]["left_out"] == [statement.model_dump(mode="json")]
    assert verify(tmp_path / "audit", LineReporter(lambda line: None)).differences == ()
    assert read_record(finished / "record.json").left_out == []


def stored_in(dtype, source, folder):
    """A copy of a model whose weights are stored in another type."""
    shutil.copytree(source, folder)
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "asked", ["auto", "memory", *(pytest.param(asked, marks=pytest.mark.slow) for asked in ("fits", "fp32"))]
)
def test_the_precision_is_the_targets_own_where_asked_or_where_float32_does_not_fit(
    call, finished, files, tmp_path, monkeypatch, asked
):
    arguments = _arguments(finished, files, tmp_path / "audit")
    arguments[2] = stored_in(torch.bfloat16, arguments[2], tmp_path / "target")
    if asked in ("auto", "fp32"):
        arguments += ["--dtype", asked]
    if asked in ("memory", "fp32"):
        monkeypatch.setattr("heldin.models.devices.main_memory", lambda: 2**20)
    code, _, err = call(*arguments)
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    expected = {"auto": ("bf16", "own"), "fits": ("fp32", "default"), "memory": ("bf16", "memory")}
    precision, reason = expected.get(asked, ("fp32", "asked"))
    assert (record.config["attack"]["precision"], record.config["precision_reason"]) == (precision, reason)
    assert (record.target.stored, record.reference.stored) == ("bf16", "fp32")
    lines = [line for line in err.splitlines() if "precision: " in line]
    if precision == "fp32":
        # Nothing changed, and nothing is said.
        assert record.precision is None
        assert lines == []
    else:
        assert names(lines[0], "bf16", f"'{tmp_path / 'target'}'", "--dtype")
        assert (record.precision.precision, record.precision.reason) == (precision, reason)
        # The shift is measured where float32 can be had.
        assert (record.precision.mean_shift is None) == (asked == "memory")
        assert record.precision.line in str(report_record(record))
    assert verify(tmp_path / "audit", LineReporter(lambda line: None)).differences == ()
    # The same call finds its audit.
    assert call(*arguments)[0] == 0


def test_a_target_in_float32_stays_so_whatever_memory_there_is(call, finished, files, tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.models.devices.main_memory", lambda: 2**20)
    code, _, err = call(*_arguments(finished, files, tmp_path / "audit"))
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    assert (record.config["attack"]["precision"], record.config["precision_reason"]) == ("fp32", "default")


def test_an_adapter_whose_base_is_elsewhere_is_audited_on_the_one_that_is_named(call, finished, files, tmp_path):
    base = _reference(finished)
    with quiet_transformers():
        adapted = get_peft_model(
            load_language_model(str(base)).model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    adapted.save_pretrained(tmp_path / "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    content = {**json.loads(settings.read_text()), "base_model_name_or_path": "unsloth/tiny-bnb-4bit"}
    settings.write_text(json.dumps(content))
    arguments = _arguments(finished, files, tmp_path / "audit")
    arguments[2] = tmp_path / "adapter"
    code, _, _ = call(*arguments)
    assert code == 2
    # Nobody was asked: the message does not say that there is no such model.
    naming = ("'unsloth/tiny-bnb-4bit'", "adapter_config.json", "--adapter-base", "HF_HUB_OFFLINE")
    assert call.refused(by="require_base", naming=naming)
    code, _, err = call(*arguments, "--adapter-base", base)
    assert code == 0, err
    assert sum("unsloth/tiny-bnb-4bit" in line for line in err.splitlines()) == 1
    record = read_record(tmp_path / "audit" / "record.json")
    facts = record.target.adapter
    assert (facts.base, facts.named, record.reference.adapter) == (str(base), "unsloth/tiny-bnb-4bit", None)
    assert record.config["adapter_base"] == str(base)
    assert record.target.loaded in str(report_record(record))
    assert verify(tmp_path / "audit", LineReporter(lambda line: None)).differences == ()
    # A base for an audit of no adapter is a mistake, and a base that is not there is named at once.
    code, _, _ = call(*_arguments(finished, files, tmp_path / "other"), "--adapter-base", base)
    assert code == 2
    assert call.refused(by="_check_models", naming=("--adapter-base", f"'{base}'"))
    code, _, _ = call(*arguments, "--adapter-base", tmp_path / "none")
    assert code == 2
    assert call.refused(by="_look_for", naming=f"'{tmp_path / 'none'}'")


def test_a_model_that_reads_images_is_audited_by_its_texts(call, finished, files, tmp_path):
    tokenizer = load_language_model(str(_reference(finished))).tokenizer
    for seed, name in enumerate(("target", "base")):
        save_model = tiny_multimodal("qwen2_5_vl", seed=seed)
        save_model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    arguments = _arguments(finished, files, tmp_path / "audit")
    arguments[2], arguments[4] = tmp_path / "target", tmp_path / "base"
    code, _, err = call(*arguments)
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    assert record.target.architecture == "Qwen2_5_VLForConditionalGeneration"
    assert len(record.attacks) == len(read_record(finished / "record.json").attacks)
    assert verify(tmp_path / "audit", LineReporter(lambda line: None)).differences == ()


def test_an_audit_trusts_no_table_that_is_there_and_takes_the_folder_of_an_interrupted_one(
    call, finished, files, tmp_path, monkeypatch
):
    arguments, out = _arguments(finished, files, tmp_path / "out"), tmp_path / "out"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    # Killed once all is measured: nothing is left but the log, and killed while it writes, tables without a record.
    with monkeypatch.context() as patch:
        patch.setattr("heldin.jobs.checkpoint.audit.audit_body", interrupted)
        assert call(*arguments)[0] == 130
    assert [path.name for path in out.iterdir()] == ["log.txt"]
    with monkeypatch.context() as patch:
        patch.setattr("heldin.jobs.checkpoint.audit.write_new_record", interrupted)
        assert call(*arguments, "--set", "attack.max_characters=100")[0] == 130
    assert (out / "scores.parquet").is_file()
    # Its leftovers can be purged before anything is concluded from them.
    shutil.copytree(out, tmp_path / "left")
    assert call("purge", tmp_path / "left", "--yes")[0] == 0
    assert not list((tmp_path / "left").glob("*.parquet"))
    (out / ".scores.parquet.machine.99999999.tmp").write_text("half", encoding="utf-8")
    assert call(*arguments)[0] in (0, 4)
    assert call("verify", out)[0] == 0
    # Other scores under the right name: they are computed again, and the record stays as it is.
    kept, record = (out / "scores.parquet").read_bytes(), (out / "record.json").read_bytes()
    table = pq.read_table(out / "scores.parquet")
    turned = table.set_column(3, "statistic", pc.negate(table["statistic"]))
    pq.write_table(turned, out / "scores.parquet")
    relist(out / "scores.parquet")
    assert call(*arguments)[0] in (0, 4)
    assert ((out / "scores.parquet").read_bytes(), (out / "record.json").read_bytes()) == (kept, record)


def test_an_audit_takes_no_folder_of_a_model(call, finished, files, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished / "checkpoints" / "final", out)
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    code, _, err = call(*_arguments(finished, files, out))
    assert (code, "choose another --out" in err) == (2, True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept


def test_it_takes_no_folder_of_a_run(call, finished, files):
    before = (finished / "record.json").read_bytes()
    code, _, _ = call(*_arguments(finished, files, finished))
    assert code == 2
    assert call.refused(by="_require_empty", naming=(f"'{finished}'", "--out"))
    assert (finished / "record.json").read_bytes() == before


def test_an_audit_from_a_file_is_that_of_its_options_and_options_win(call, finished, files, tmp_path):
    arguments = _arguments(finished, files, tmp_path / "a")
    code, out, err = call(*arguments, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["kind"], answer["folder"]) == ("audit", str(tmp_path / "a"))
    given = dict(zip(arguments[1::2], map(str, arguments[2::2]), strict=True))
    content = {
        "name": "another",
        "model": given["--model"],
        "reference": given["--reference"],
        "held_in": given["--held-in"],
        "held_out": given["--held-out"],
        "columns": {"user": given["--user"], "text": given["--text"], "id": given.get("--id")},
        "attack": {"max_characters": 200},
        "audit": {"resamples": 200},
        "claims": ["epsilon=4,delta=1e-5"],
    }
    path = tmp_path / "audit.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("audit", "--config", path, "--out", tmp_path / "b", "--set", "name=mine")
    assert code == 0, err
    one, other = (read_record(tmp_path / folder / "record.json") for folder in ("a", "b"))
    assert (other.name, other.resamples) == ("mine", 200)
    assert [v.claim for v in other.judgement.verdicts] == [ClaimLabel.STATED(epsilon=4.0, delta=1e-5)]
    assert [a.auroc.value for a in one.attacks] == [a.auroc.value for a in other.attacks]
    for wrong, naming in (
        ({"reference": 5}, ("reference", "5")),
        ({"held_in": [1]}, ("held_in", "[1]")),
        ({"endpoint": "https://host/v1"}, ("endpoint", "'https://host/v1'")),
        ({"columns": "author"}, ("columns", "'author'")),
    ):
        path.write_text(yaml.safe_dump({**content, **wrong}), encoding="utf-8")
        code, _, err = call("audit", "--config", path, "--out", tmp_path / "c")
        assert (code, err.splitlines()[0]) == (2, f"error: {path}: 1 error")
        assert call.refused(by="checked", naming=naming)
    path.write_text(yaml.safe_dump({**content, "column": {}, "seed": -1}), encoding="utf-8")
    code, _, err = call("audit", "--config", path, "--out", tmp_path / "c")
    assert (code, err.splitlines()[-3]) == (2, f"error: {path}: 2 errors")
    assert call.refused(by="checked", naming=("column", "'columns'", "seed"))
    for needed in ("model", "reference", "held_in"):
        misspelt = {f"{key}n" if key == needed else key: its for key, its in content.items()}
        path.write_text(yaml.safe_dump(misspelt), encoding="utf-8")
        code, _, err = call("audit", "--config", path, "--out", tmp_path / "c")
        assert code == 2
        assert call.refused(by="checked", naming=(f"{needed}n", f"'{needed}'"))
        assert "Traceback" not in err


def test_groups_that_differ_by_their_words_do_not_blame_the_model(call, finished, tmp_path):
    for name, word in (("in", "zebra"), ("out", "invoice")):
        rows = [
            {"author": f"{name}{i}", "body": f"The {word} number {i} and {j} of {word}s.", "mail": f"{name}{i}-{j}"}
            for i in range(30)
            for j in range(2)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    files = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    code, printed, err = call(*_arguments(finished, files, tmp_path / "a"), "--claim", "epsilon=0.5,delta=1e-5")
    assert code == 0, err
    record = read_record(tmp_path / "a" / "record.json")
    assert states(record.decision.statement, Headline.NOT_VALID, ComparisonFlaw.GROUPS_DIFFER)
    assert answer_in(printed) == record.decision.decision.answer == "not valid"
    verdict = record.judgement.verdicts[0]
    assert (verdict.outcome, verdict.standing, verdict.exit_code) == ("inconclusive", "indicative", 0)


def test_a_user_or_a_record_on_both_sides_is_refused(call, finished, files, tmp_path):
    held_in, held_out = files
    kept = held_out.read_text(encoding="utf-8")
    first = json.loads(held_in.read_text(encoding="utf-8").splitlines()[0])
    held_out.write_text(kept + json.dumps({**first, "mail": "new"}) + "\n", encoding="utf-8")
    code, _, err = call(*_arguments(finished, files, tmp_path / "a"))
    assert code == 2
    assert call.refused(naming=("1 user", f"record {len(kept.splitlines()) + 1}", held_out))
    assert first["author"] not in err
    held_out.write_text(kept + json.dumps({**first, "author": "new"}) + "\n", encoding="utf-8")
    code, _, err = call(*_arguments(finished, files, tmp_path / "b"))
    assert code == 2
    assert names(err, "1 id", f"record {len(kept.splitlines()) + 1}", held_out)
    assert first["mail"] not in err


def test_one_user_and_the_same_model_twice_are_refused(call, finished, files, tmp_path):
    held_in, _ = files
    lines = held_in.read_text(encoding="utf-8").splitlines()
    author = json.loads(lines[0])["author"]
    held_in.write_text("".join(x + "\n" for x in lines if json.loads(x)["author"] == author), encoding="utf-8")
    code, _, _ = call(*_arguments(finished, files, tmp_path / "a"))
    assert code == 2
    assert call.refused(naming=("1 user", "2"))
    held_in.write_text("\n".join(lines), encoding="utf-8")
    arguments = _arguments(finished, files, tmp_path / "b")
    arguments[4] = arguments[2]
    code, _, _ = call(*arguments)
    assert code == 2
    assert call.refused(by="_audited")


def _training(finished, path, users=None, texts=None):
    """What the run was trained on, as a file of the same columns; ``texts`` are appended under ``users``."""
    from heldin.stages.run_config import load_config
    from heldin.stages.sides.data import prepare_data

    data = prepare_data(load_config(finished / "config.yaml"), finished, LineReporter(lambda line: None))
    rows = [{"author": (r := data.store.record(row)).user, "body": r.text} for row in data.training_rows]
    rows += [{"author": user, "body": text} for user, text in zip(users or [], texts or [], strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_what_is_declared_is_said_as_declared_and_thresholds_reach_the_answer(call, finished, files, tmp_path):
    declared = ["--texts", "fresh", "--assignment", "coin", "--set", "decision={auroc: 0.99, tpr: 0.99}"]
    code, _, err = call(*_arguments(finished, files, tmp_path / "audit"), *declared)
    assert code == 0, err
    record = read_record(tmp_path / "audit" / "record.json")
    assert (record.scored_texts.kind, record.scored_texts.known_by) == ("fresh", "declared")
    assert (record.split.assignment, record.split.known_by) == ("coin", "declared")
    assert (record.decision.by.auroc, record.decision.by.tpr) == (0.99, 0.99)


def test_a_look_at_the_training_file_tells_fresh_texts_from_those_trained_on(call, finished, files, tmp_path):
    training = _training(finished, tmp_path / "training.jsonl")
    code, _, err = call(*_arguments(finished, files, tmp_path / "fresh"), "--training", training, "--texts", "training")
    assert code == 0, err
    record = read_record(tmp_path / "fresh" / "record.json")
    assert (record.scored_texts.kind, record.scored_texts.known_by) == ("fresh", "measured")
    assert record.split.overlaps.held_out_users_in_training.count == 0
    assert record.decision.decision.flaws == ()
    # What was checked and what was not: these texts are fresh, and their authors are in the file.
    evidence = state_evidence(record)
    assert [said.code for said in evidence] == [
        code().code
        for code in (
            Evidence.PARTLY_CHECKED,
            Evidence.MEMBERS_IN_FILE,
            Evidence.OTHERS_NOT_IN_FILE,
            Evidence.FILE_STATED,
        )
    ]
    assert values_of(evidence, Evidence.MEMBERS_IN_FILE) == {"count": 13, "members": 13}

    held_in = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    both = _training(finished, tmp_path / "more.jsonl", [r["author"] for r in held_in], [r["body"] for r in held_in])
    code, _, err = call(*_arguments(finished, files, tmp_path / "known"), "--training", both)
    assert code == 0, err
    record = read_record(tmp_path / "known" / "record.json")
    assert (record.scored_texts.kind, record.scored_texts.known_by) == ("training", "measured")
    assert record.split.overlaps.scored_texts_in_same_users_training.count == len(held_in)
    assert values_of(state_evidence(record), Evidence.ALL_IN_FILE) == {"texts": len(held_in)}
    assert not states(state_evidence(record), Evidence.STATED)
    texts = [r["body"] for r in held_in]
    some = _training(finished, tmp_path / "some.jsonl", [r["author"] for r in held_in[1:]], texts[1:])
    some.write_text(some.read_text(encoding="utf-8").replace(texts[0], "another text"), encoding="utf-8")
    code, out, err = call(*_arguments(finished, files, tmp_path / "some"), "--training", some, "--assignment", "fixed")
    assert code == 0, err
    said = state_evidence(read_record(tmp_path / "some" / "record.json"))
    assert said[0].states(Evidence.NOT_BY_COINS)
    counted = values_of(said, Evidence.SOME_IN_FILE)
    assert counted["count"] < counted["texts"] == len(held_in)
    assert written(said) in " ".join(out.split())
    assert verify(tmp_path / "known", LineReporter(lambda line: None)).differences == ()


def test_a_training_file_of_the_wrong_people_makes_the_comparison_void(call, finished, files, tmp_path):
    held_out = [json.loads(line) for line in files[1].read_text(encoding="utf-8").splitlines()]
    leaked = _training(finished, tmp_path / "all.jsonl", [r["author"] for r in held_out], [r["body"] for r in held_out])
    code, out, err = call(*_arguments(finished, files, tmp_path / "a"), "--training", leaked)
    assert code == 0, err
    people = len({r["author"] for r in held_out})
    record = read_record(tmp_path / "a" / "record.json")
    flaw = values_of(record.decision.statement, ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON)
    assert (flaw["count"], flaw["users"]) == (people, people)
    assert answer_in(out) == "not valid"
    nobody = tmp_path / "nobody.jsonl"
    nobody.write_text(json.dumps({"author": "somebody else", "body": "x"}) + "\n", encoding="utf-8")
    code, out, _ = call(*_arguments(finished, files, tmp_path / "b"), "--training", nobody)
    decision = read_record(tmp_path / "b" / "record.json").decision
    assert states(decision.statement, ComparisonFlaw.HELD_IN_USERS_ABSENT)
    assert answer_in(out) == decision.decision.answer


def test_what_is_wrong_with_the_new_options_is_one_line(call, finished, files, tmp_path):
    arguments = _arguments(finished, files, tmp_path / "a")
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"user": "a", "text": "b"}) + "\n", encoding="utf-8")
    empty, header, blank = tmp_path / "empty.jsonl", tmp_path / "header.csv", tmp_path / "blank.jsonl"
    empty.write_text("", encoding="utf-8")
    header.write_text("author,body\n", encoding="utf-8")
    blank.write_text(json.dumps({"author": "a", "body": " "}) + "\n", encoding="utf-8")
    yours = ("other.jsonl", "line 1", "'author', 'body'", "user, text", "--user", "--text", "'columns'")
    for extra, by, naming in (
        (["--training", empty], "read_groups", (f"'{empty}'", "--training")),
        (["--training", header], "read_groups", (f"'{header}'", "--training")),
        (["--training", blank, "--skip-bad-rows"], "read_groups", (f"'{blank}'", "--training")),
        (["--training", other], "require_columns", yours),
        (["--training", tmp_path / "no.jsonl"], "_look_for", f"'{tmp_path / 'no.jsonl'}'"),
        (["--texts", "old"], "call", ("--texts", "'fresh'", "'training'", "'old'")),
        (["--set", "decision.auroc=0.5"], "checked", ("decision.auroc", "than 0.5", "found 0.5")),
        (["--set", "decision.auroc=1"], "checked", ("decision.auroc", "than 1", "found 1")),
        (["--set", "decision.tpr=0.05"], "DecisionConfig._possible", ("tpr 0.05", "fpr 0.05")),
    ):
        _, _, err = call(*arguments, *extra)
        assert call.refused(by=by, naming=naming)
        assert err.splitlines()[-1].startswith("error: ")
    assert [path.name for path in (tmp_path / "a").glob("*")] == ["log.txt"]
    arguments[2] = files[0]
    call(*arguments)
    assert call.refused(by="_look_for", naming=(f"'{files[0]}'", "--held-in"))


def test_a_limit_draws_users_of_both_groups_by_the_seed_and_is_recorded(call, finished, files, tmp_path):
    whole = _arguments(finished, files, tmp_path / "whole")
    assert call(*whole)[0] == 0
    drawn = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        arguments = [tmp_path / name if part == tmp_path / "whole" else part for part in whole]
        code, _, err = call(*arguments, "--limit", 12, "--seed", seed)
        assert code == 0, err
        record = read_record(tmp_path / name / "record.json")
        assert record.split.held_in + record.split.held_out == 12
        assert record.corpus.dropped_by_sampling == record.corpus.users - 12
        assert verify(tmp_path / name, LineReporter(lambda line: None)).differences == ()
        drawn[name] = set(pq.read_table(tmp_path / name / "scores.parquet")["user"].to_pylist())
    everybody = set(pq.read_table(tmp_path / "whole" / "scores.parquet")["user"].to_pylist())
    assert drawn["a"] == drawn["b"] != drawn["c"]
    assert drawn["a"] | drawn["c"] < everybody
    # Not six of each group: how many of those drawn are members is left to the draw.
    sizes = {read_record(tmp_path / name / "record.json").split.held_in for name in ("a", "c")}
    assert sizes != {6}


def test_a_key_is_not_set_by_an_option_and_by_set(call, finished, files, tmp_path):
    arguments = _arguments(finished, files, tmp_path / "twice")
    for given, naming in (
        (["--claim", "epsilon=1,delta=1e-5", "--set", "claims=[]"], ("--claim", "claims")),
        (["--set", "columns={user: author}"], ("--user", "columns")),
    ):
        code, _, _ = call(*arguments, *given)
        assert code == 2
        assert call.refused(by="_require_one_of_each", naming=naming)


def test_the_size_of_a_batch_changes_no_score_beyond_rounding(call, finished, files, tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_BATCH_SIZE", "0")
    texts, lm = ["a longer text than the other", "short", "another text"], load_language_model(_reference(finished))
    with refused(by=stated_batch_size, naming=("HELDIN_BATCH_SIZE", "0")):
        score_texts(lm, texts)
    monkeypatch.setenv("HELDIN_BATCH_SIZE", "1")
    alone = [its.total for its in score_texts(lm, texts)]
    monkeypatch.delenv("HELDIN_BATCH_SIZE")
    assert [its.total for its in score_texts(lm, texts)] == pytest.approx(alone, abs=1e-4)


def _rows_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _exported(files, folder, kind):
    """The files of both groups as another program exports them, and the options that they need."""
    written = []
    for file in files[:2]:
        rows, to = _rows_of(file), folder / f"{file.stem}.{kind}"
        if kind == "json":  # a chat log
            posts = [{"by": {"id": row["author"]}, "body": row["body"], "mail": row["mail"]} for row in rows]
            content = {"exported": "today", "posts": posts}
            to.write_text(json.dumps(content, indent=1), encoding="utf-8")
        else:  # Excel in Europe, and a dump
            table = pd.DataFrame(rows).assign(Köpfe=1)
            sign, encoding = (";", "cp1252") if kind == "csv" else ("\t", "utf-16")
            table.to_csv(to, sep=sign, encoding=encoding, errors="replace", index=False)
        written.append(to)
    options = {"csv": ["--encoding", "cp1252"], "json": ["--field", "posts", "--user", "by.id"], "txt": []}
    return written, options[kind]


@pytest.mark.parametrize("kind", ["csv", "json", "txt"])
def test_files_of_other_programs_give_the_same_audit(call, finished, files, tmp_path, kind):
    assert call(*_arguments(finished, files, tmp_path / "a"))[0] == 0
    written, options = _exported(files, tmp_path, kind)
    code, _, err = call(*_arguments(finished, written, tmp_path / "b"), *options)
    assert code == 0, err
    one, two = (read_record(tmp_path / name / "record.json") for name in "ab")
    assert [a.auroc for a in one.attacks] == [a.auroc for a in two.attacks]
    assert verify(tmp_path / "b", LineReporter(lambda line: None)).differences == ()


def test_rows_without_text_are_counted_for_each_group_and_an_uneven_loss_is_a_warning(call, finished, files, tmp_path):
    """Also where nobody would notice: on the terminal, in JSON, on page one, and again when the audit is verified."""
    gaps = [tmp_path / f"gaps-{file.name}" for file in files[:2]]
    people = [sorted({row["author"] for row in _rows_of(file)}) for file in files[:2]]
    lost = people[0][0]
    for file, to, gap in zip(files[:2], gaps, (True, False), strict=True):
        rows = _rows_of(file)
        empty = [{"author": user, "body": None} for user in people[0]] if gap else []
        rows = [{**row, "body": ""} if row["author"] == lost else row for row in rows] + empty
        to.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = _arguments(finished, gaps, tmp_path / "audit")
    code, _, _ = call(*arguments, "--strict")
    assert code == 2
    assert call.refused(by="batched", naming=(gaps[0].name, "--strict"))
    arguments[arguments.index("--out") + 1] = tmp_path / "again"
    code, out, err = call(*arguments)
    assert code == 0, err
    record = read_record(tmp_path / "again" / "record.json")
    mine, others = record.corpus.skipped
    assert (mine.group, mine.users, mine.users_with, mine.users_lost) == ("held-in", *[len(people[0])] * 2, 1)
    assert (others.group, others.without_text, others.users) == ("held-out", 0, len(people[1]))
    assert mine.without_text == len(people[0]) + sum(row["author"] == lost for row in _rows_of(files[0]))
    assert record.corpus.skipped_alike < 1e-3
    said = " ".join(out.split())
    for statement in state_data(record):
        assert str(statement) in said
    assert states(state_data(record), SkippedText.UNEVEN, SkippedText.BOTH_LOST)
    (warned,) = (statement for statement in state_data(record) if statement.states(SkippedText.UNEVEN))
    of_100 = {"members": 100, "members_lost": 100 / len(people[0]), "others": 0, "others_lost": 0}
    assert warned.values == pytest.approx(of_100)
    code, out, _ = call(*arguments, "--json")
    assert [group["users_lost"] for group in json.loads(out)["skipped"]] == [1, 0]
    assert verify(tmp_path / "again", LineReporter(lambda line: None)).differences == ()


def test_a_mistyped_column_is_seen_before_anything_slow_is_imported(call, finished, files, tmp_path, monkeypatch):
    arguments = _arguments(finished, files, tmp_path / "a")
    arguments[arguments.index("--user") + 1] = "autor"
    monkeypatch.setitem(sys.modules, "heldin.jobs.checkpoint.audit", None)  # an import of it would fail
    code, _, err = call(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert call.refused(by="require_columns", naming=("'autor'", "author", "--user"))
