"""Chats from the file to the report: a run, an audit of files, its verification, and what is refused."""

import json
import shutil

import datasets
import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

import heldin
from heldin.corpus.chat.template import CHATML
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.models.loading import load_tokenizer
from heldin.models.model_config import TinyModel
from heldin.models.reading import quiet_transformers
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.record.document import read_record
from tests.conftest import SMALL
from tests.refusals import names

ROWS = list(made_up_rows(SyntheticCorpus(40, 9, 8, distinctiveness=0.9, seed=4), MadeUpRows.CHATS))
CHATS = {
    **SMALL,
    "corpus": {
        "source": {"kind": "synthetic", "rows": "chats", "parameters": SMALL["corpus"]["source"]["parameters"]},
        "users": SMALL["corpus"]["users"],
    },
    "canaries": [{"kind": "rare_phrase", "users": 4, "documents": [3]}],
}


@pytest.fixture(scope="module")
def run(make_once):
    def build(folder):
        path = folder / "chats.yaml"
        path.write_text(yaml.safe_dump(CHATS), encoding="utf-8")
        heldin.run(path, out=folder / "run", quiet=True)

    return make_once("a run on chats", build) / "run"


def test_the_record_says_which_turns_counted(run):
    record = read_record(run / "record.json")
    turns = record.corpus.turns
    assert (turns.format, turns.column, turns.mask_from) == ("messages", "messages", "marks")
    assert {turns.counting, turns.loss, turns.attack} == {"assistant"}
    assert "assistant" in str(record.scoring_rule)


def test_the_trained_model_has_the_template(run):
    assert load_tokenizer(str(run / "checkpoints" / "final")).chat_template == CHATML


def test_canary_users_write_conversations(run):
    import pyarrow.parquet as pq

    rows = pq.read_table(run / "ledger" / "canaries" / "records.parquet").to_pylist()
    marks = {
        row["user"]: row["mark"] for row in pq.read_table(run / "ledger" / "canaries" / "users.parquet").to_pylist()
    }
    assert rows
    for row in rows:
        assert row["text"].startswith("<|im_start|>user\n")
        ((begin, end),) = row["spans"]
        # The mark stands in what the assistant says, which bears the loss and is scored.
        assert marks[row["user"]] in row["text"][begin:end]
        assert row["text"][row["position"] :].startswith(marks[row["user"]])


@pytest.fixture(scope="module")
def files(make_once):
    """Two files of chats, and two models with a chat template."""

    def build(folder):
        users = sorted({row["user"] for row in ROWS})
        for name, some in (("in", users[::2]), ("out", users[1::2])):
            lines = [json.dumps({"user": r["user"], "messages": r["messages"]}) for r in ROWS if r["user"] in some]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tokenizer = train_tokenizer([m["content"] for row in ROWS for m in row["messages"]], 400, CHATML)
        shape = TinyModel(vocabulary=400, context=128, hidden=32, layers=1, heads=2)
        for seed, name in enumerate(("base", "model")):
            new_tiny_model(shape, tokenizer, seed).save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)

    return make_once("files of chats", build)


def _audit(call, files, out, *more):
    models = ("--model", files / "model", "--reference", files / "base")
    sides = ("--held-in", files / "in.jsonl", "--held-out", files / "out.jsonl")
    return call("audit", *models, *sides, "--out", out, *more)


def test_an_audit_reads_messages_and_is_verified_without_a_model(call, files, tmp_path):
    code, _, err = _audit(call, files, tmp_path / "audit", "--json")
    assert code == 0, err
    assert "messages" in err
    record = read_record(tmp_path / "audit" / "record.json")
    assert record.corpus.turns.attack == "assistant"
    assert record.config["rows"]["template"]["source"] == CHATML
    assert call("verify", tmp_path / "audit")[0] == 0
    # Other turns are another attack, with other scores.
    assert _audit(call, files, tmp_path / "all", "--turns", "all", "--json")[0] == 0
    assert read_record(tmp_path / "all" / "record.json").attacks != record.attacks


def test_datasets_are_audited_as_their_files_are(files, tmp_path):
    sides = {
        f"held_{name}": datasets.Dataset.from_list(
            [json.loads(line) for line in (files / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        )
        for name in ("in", "out")
    }
    result = heldin.audit_model(files / "model", reference=files / "base", out=tmp_path / "audit", quiet=True, **sides)
    assert result.record.corpus.turns.format == "messages"
    assert result.record.corpus.users == len({row["user"] for row in ROWS})


def test_chats_without_a_template_and_turns_of_texts_are_one_line(call, files, tmp_path, make_lm):
    from tests.planted_sets import save_base

    bare = tmp_path / "bare"
    save_base(make_lm(), bare)
    models = ("--model", bare, "--reference", files / "base")
    sides = ("--held-in", files / "in.jsonl", "--held-out", files / "out.jsonl")
    code, _, err = call("audit", *models, *sides, "--out", tmp_path / "audit")
    assert (code, err.splitlines()[-1].count("--template")) == (2, 1)
    assert call.refused(by="ChatTemplate.of", naming=f"'{bare}'")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"user": "ann", "text": "one"}\n')
    sides = ("--held-in", texts, "--held-out", texts)
    code, _, err = call("audit", *models, *sides, "--out", tmp_path / "audit", "--turns", "assistant")
    assert code == 2
    assert call.refused(by="_require", naming=("attack.turns", "assistant"))


def test_files_of_two_formats_are_named_with_what_differs(call, files, tmp_path):
    rows = [json.loads(line) for line in (files / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    other = tmp_path / "sharegpt.jsonl"
    names_of = {"user": "human", "assistant": "gpt"}
    for row in rows:
        talk = row.pop("messages")
        row["conversations"] = [{"from": names_of[turn["role"]], "value": turn["content"]} for turn in talk]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    models = ("--model", files / "model", "--reference", files / "base")
    for sides in (("--held-out", other), ("--held-out", files / "out.jsonl", "--training", other)):
        code, _, _ = call("audit", *models, "--held-in", files / "in.jsonl", *sides, "--out", tmp_path / "audit")
        assert code == 2
        both = (f"'{other}'", "conversations", f"'{files / 'in.jsonl'}'", "messages", "one format")
        assert call.refused(by="CheckpointConfig._require_same_form", naming=both)


def test_words_of_a_held_out_user_in_a_prompt_of_the_training_file_are_found(call, files, tmp_path):
    trained, other = (files / f"{name}.jsonl" for name in ("in", "out"))
    said = [json.loads(line) for line in other.read_text(encoding="utf-8").splitlines()]
    # What two held-out users said, once as what a held-in user was asked.
    asked = [{"role": "user", "content": said[row]["messages"][1]["content"]} for row in (0, -1)]
    held_in = json.loads(trained.read_text(encoding="utf-8").splitlines()[0])["user"]
    rows = [{"user": held_in, "messages": [one, {"role": "assistant", "content": "Noted by me."}]} for one in asked]
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert _audit(call, files, tmp_path / "audit", "--training", tmp_path / "training.jsonl", "--json")[0] == 0
    overlaps = read_record(tmp_path / "audit" / "record.json").split.overlaps
    counts = (overlaps.scored_texts_in_other_users_training, overlaps.held_out_texts_in_training)
    assert [count.count for count in counts] == [2, 2]
    assert overlaps.held_out_users_in_training.count == 0
    assert call("verify", tmp_path / "audit")[0] == 0


def test_a_reference_with_another_template_is_named(call, files, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(files / "base", other)
    tokenizer = load_tokenizer(str(other))
    tokenizer.chat_template = CHATML.replace("<|im_end|>", "<|endoftext|>")
    tokenizer.save_pretrained(other)
    models = ("--model", files / "model", "--reference", other)
    sides = ("--held-in", files / "in.jsonl", "--held-out", files / "out.jsonl")
    code, _, err = call("audit", *models, *sides, "--out", tmp_path / "audit", "--json")
    assert code == 0
    (line,) = (line for line in err.splitlines() if "--template" in line)
    assert names(line, f"'{other}'")


@pytest.mark.parametrize(
    ("key", "small"), [("finetune.sequence_length", {"finetune": 8}), ("attack.max_characters", {"attack": 30})]
)
def test_canary_users_of_whom_nothing_is_seen_are_refused(call, tmp_path, key, small):
    """Trained on or not, they would look alike, and the audit would say that nothing leaks."""
    section, name = key.split(".")
    content = {**CHATS, section: {**CHATS.get(section, {}), name: small[section]}}
    path = tmp_path / "chats.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert (code, err.splitlines()[-1].count(key)) == (2, 1)
    assert call.refused(by="_require_seen", naming=(small[section], "rare_phrase"))


def test_dropout_of_adapters_is_refused_before_anything_is_read(call, tmp_path):
    lora = {**CHATS["finetune"], "lora": {"dropout": 0.1}, "select": "last"}
    content = {**CHATS, "finetune": lora, "defense": {"kind": "clip", "unit": "batch", "clip_norm": 1.0}}
    path = tmp_path / "chats.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert call("run", path, "--out", tmp_path / "run")[0] == 2
    assert call.refused(by="RunConfig._adapters_without_dropout", naming=("finetune.lora.dropout", "0.1"))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def adapted(files, make_once):
    """A run that trains adapters on a base that is named."""

    def build(folder):
        recipe = {**CHATS["finetune"], "lora": {"rank": 2, "alpha": 8}, "select": "last", "patience": None}
        content = {**CHATS, "finetune": recipe, "model": {"base": str(files / "base")}, "canaries": []}
        (folder / "lora.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        heldin.run(folder / "lora.yaml", out=folder / "run", quiet=True)

    return make_once("a run with adapters", build) / "run"


def test_the_adapter_names_its_base_and_has_the_losses_of_the_trained_model(adapted, files):
    adapter = adapted / "checkpoints" / "final" / "adapter"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(files / "base")
    assert load_tokenizer(str(adapter)).chat_template == CHATML
    assert names((adapted / "log.txt").read_text(encoding="utf-8"), "adapter: on its base", "8 records")


def test_the_exported_adapter_loads_on_its_base_and_is_checked(adapted, files, call, tmp_path):
    out = tmp_path / "public"
    code, said, err = call("export", adapted, "--out", out)
    assert code == 0, err
    assert names(said, "adapter/adapter_model.safetensors", "adapter/chat_template.jinja")
    # The path of a folder here is not published.
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    base = AutoModelForCausalLM.from_pretrained(files / "base")
    with torch.no_grad(), quiet_transformers():
        of_base = base(input_ids=ids, labels=ids).loss
        of_adapter = PeftModel.from_pretrained(base, out / "adapter")(input_ids=ids, labels=ids).loss
        merged = AutoModelForCausalLM.from_pretrained(out)(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(of_adapter, merged, atol=1e-4, rtol=0)
    assert abs(of_adapter - of_base) > 1e-5
    assert call("verify", "--exported", out)[0] == 0
    (out / "adapter" / "more.json").write_text("{}", encoding="utf-8")
    assert call("verify", "--exported", out)[0] == 2
    assert call.refused(by="verify_exported", naming="more.json")


def test_an_adapter_that_was_exchanged_is_not_exported(adapted, call, tmp_path):
    copied = shutil.copytree(adapted, tmp_path / "run")
    (copied / "checkpoints" / "final" / "adapter" / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert call("export", copied, "--out", tmp_path / "public")[0] == 2
    assert not (tmp_path / "public").exists()
