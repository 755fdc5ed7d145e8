"""The callback of Trainer and TRL: what it notices of a training, and what the audit then need not be told."""

import importlib.util
import json
import shutil

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

import heldin
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.jobs.planted.audit import audit_planted
from heldin.jobs.planted.conditions import rests_on_log
from heldin.jobs.planted.plant import plant
from heldin.jobs.planted.target import PlantedAudit
from heldin.jobs.planted.training_log import LOG, hashes_in_folder, read_log, seen_rows, tensor_hashes
from heldin.jobs.verify import verify
from tests.planted_sets import base, lines, plan, read_lines, rows

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)
ENDS = frozenset({0})
ROWS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [1, 2, 3]]


def _seen(examples, rows=ROWS):
    return seen_rows([its if isinstance(its[0], list) else [its] for its in examples], rows, ends=ENDS)


@pytest.mark.parametrize(
    ("examples", "missing", "repeated", "foreign", "cut", "packed"),
    [
        (ROWS, 0, 0, 0, 0, 0),
        ([[0, 1, 2, 3, 0, 0], [4, 5, 6, 7, 8, 0], [9, 0], [1, 2, 3]], 0, 0, 0, 0, 0),
        (list(reversed(ROWS)), 0, 0, 0, 0, 0),
        # all cut at three tokens
        ([its[:3] for its in ROWS], 0, 0, 0, 1, 0),
        (ROWS[1:], 1, 0, 0, 0, 0),
        ([*ROWS, [9]], 0, 1, 0, 0, 0),
        ([*ROWS, [7, 7]], 0, 0, 1, 0, 0),
        # another row of as many tokens in the place of one
        ([[1, 2, 4], *ROWS[1:]], 1, 0, 1, 0, 0),
        ([[[1, 2, 3], [9]], [[4, 5, 6, 7, 8]], [[1, 2, 3]]], 0, 0, 0, 0, 1),
        # packed without a word on where rows end: nothing is recognised
        ([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1], [2, 3]], 4, 0, 3, 0, 0),
        # a row cut into two examples
        ([[1, 2, 3], [4, 5, 6], [7, 8], [9], [1, 2, 3]], 0, 0, 1, 1, 0),
    ],
)
def test_rows_are_counted_by_their_tokens(examples, missing, repeated, foreign, cut, packed):
    seen = _seen(examples)
    assert (seen.missing, seen.repeated, seen.foreign, seen.cut, seen.packed) == (
        missing,
        repeated,
        foreign,
        cut,
        packed,
    )
    assert (seen.examples, seen.rows) == (len(examples), 4)
    assert seen.all_and_no_other is (not (missing or foreign))
    assert seen.recognised is (missing < 4)


def test_tensors_are_known_by_their_values_in_every_precision():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.zeros(2), torch.arange(3)]
    assert tensor_hashes(tensors) == tensor_hashes([its.to(torch.bfloat16) for its in tensors[:2]])
    assert tensor_hashes([torch.arange(6.0).reshape(3, 2)]) != tensor_hashes(tensors[:1])
    assert len(tensor_hashes(tensors)) == 2  # of numbers that are trained


@pytest.fixture
def planted(lines, base, tmp_path):
    out = tmp_path / "planted"
    plant(plan(lines, base), out, QUIET)
    return out


class _Texts(torch.utils.data.Dataset):
    def __init__(self, tokenizer, texts, most=32):
        self._ids = [tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in texts]

    def __len__(self):
        return len(self._ids)

    def __getitem__(self, number):
        return {"input_ids": self._ids[number], "attention_mask": [1] * len(self._ids[number])}


def _fine_tune(planted, base, to, *, texts=None, callback=None, epochs=1.0, most=32, **settings):
    """By transformers' Trainer; returns what the callback wrote."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = texts or [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(base),
        TrainingArguments(
            str(to),
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=_Texts(tokenizer, texts, most),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[callback or heldin.AuditCallback(planted)],
    )
    trainer.train()
    trainer.save_model(str(to))
    return read_log(planted / LOG)


def _conditions(planted, model, said=QUIET, claims=()):
    record, folder = audit_planted(PlantedAudit(planted, str(model), claims, "R. Signer"), None, said, command="test")
    return record.planted.conditions, folder


def test_a_training_that_the_callback_saw_needs_less_to_be_declared(planted, base, tmp_path):
    log = _fine_tune(planted, base, tmp_path / "model")
    count = len(read_lines(planted / "training" / "mine.jsonl"))
    assert log.ended
    assert (log.seen.examples, log.seen.rows, log.seen.missing, log.seen.foreign) == (count, count, 0, 0)
    assert log.loss_tokens == log.tokens > 0
    assert log.of_model(hashes_in_folder(tmp_path / "model")).weights[0].epochs == 1
    found, folder = _conditions(planted, tmp_path / "model", claims=("epsilon=8,delta=1e-6,unit=example",))
    by = {its.condition: its for its in found}
    given = next(its for its in found if "every row of the planted training set" in its.condition)
    assert (given.known_by, "by the log of its training" in given.note) == ("checked", True)
    assert next(its for its in by.values() if its.condition.startswith("each row was one")).known_by == "checked"
    assert next(its for its in by.values() if its.condition.startswith("nothing else in its")).known_by == "declared"
    assert not verify(folder, QUIET).differences
    (planted / LOG).unlink()
    with pytest.raises(InputError, match="the record rests on it: restore it"):
        verify(folder, QUIET)


def test_it_needs_no_ledger_and_never_reads_one(planted, base, tmp_path):
    handed_on = tmp_path / "handed on"
    handed_on.mkdir()
    shutil.copy(planted / "manifest.json", handed_on)
    shutil.copytree(planted / "training", handed_on / "training")
    log = _fine_tune(handed_on, base, tmp_path / "model")
    assert log.seen.all_and_no_other
    shutil.copy(handed_on / LOG, planted)
    assert rests_on_log(_conditions(planted, tmp_path / "model")[0])


def test_watching_changes_no_weight(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "watched")

    class Nothing(heldin.AuditCallback):
        def on_train_begin(self, *_, **__):
            pass

    _fine_tune(planted, base, tmp_path / "alone", callback=Nothing(planted))
    assert hashes_in_folder(tmp_path / "watched") == hashes_in_folder(tmp_path / "alone")


@pytest.mark.parametrize(
    ("change", "settings", "note"),
    [
        (lambda texts: texts[20:], {}, "without 20 of"),
        (lambda texts: [*texts, "a text of somebody else", "and of another"], {}, "with 2 examples that are none"),
        (lambda texts: texts, {"max_steps": 2}, "epochs, so that not every row was read"),
    ],
)
def test_what_the_log_contradicts_is_not_met_whoever_signs(change, settings, note, planted, base, tmp_path):
    texts = [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    _fine_tune(planted, base, tmp_path / "model", texts=change(texts), **settings)
    found, _ = _conditions(planted, tmp_path / "model")
    given = next(its for its in found if "every row of the planted training set" in its.condition)
    assert given.known_by == "not met"
    assert note in given.note


def test_rows_written_twice_are_no_single_examples(planted, base, tmp_path):
    texts = [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    _fine_tune(planted, base, tmp_path / "model", texts=texts + texts[:3])
    found, _ = _conditions(planted, tmp_path / "model", claims=("epsilon=8,delta=1e-6,unit=example",))
    assert {its.known_by for its in found if its.condition.startswith("each row was one")} == {"not met"}
    given = next(its for its in found if "every row of the planted training set" in its.condition)
    assert (given.known_by, "rows repeated 3 times" in given.note) == ("checked", True)


def test_the_log_of_another_model_is_not_used(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "one")
    _fine_tune(planted, base, tmp_path / "other", epochs=2.0)
    said = []
    found, _ = _conditions(planted, tmp_path / "one", LineReporter(said.append))
    assert not rests_on_log(found)
    assert any(line.startswith("training-log.json: of another model than") for line in said)


def test_checkpoints_on_the_way_are_known_and_a_resumed_training_keeps_them(planted, base, tmp_path):
    to = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]

    def trainer(epochs):
        return Trainer(
            AutoModelForCausalLM.from_pretrained(base),
            TrainingArguments(
                str(to), num_train_epochs=epochs, per_device_train_batch_size=32, save_strategy="epoch", report_to=[],
                use_cpu=True, disable_tqdm=True,
            ),
            train_dataset=_Texts(tokenizer, texts),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            processing_class=tokenizer,
            callbacks=[heldin.AuditCallback(planted)],
        )  # fmt: skip

    trainer(1).train()
    first = sorted(to.glob("checkpoint-*"))[0]
    trainer(2).train(resume_from_checkpoint=str(first))
    log = read_log(planted / LOG)
    assert [its.epochs for its in log.weights] == [1, 2]
    assert log.of_model(hashes_in_folder(first)).weights[0].epochs == 1


def test_a_dataset_that_cannot_be_read_is_said_and_declared(planted, base, tmp_path):
    class Raw(_Texts):
        def __getitem__(self, number):
            its = super().__getitem__(number)
            return {"tokens": its["input_ids"]}

    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    callback = heldin.AuditCallback(planted)
    assert callback.seen(Raw(tokenizer, texts), tokenizer) == (
        None,
        "the trainer's examples have no input_ids: they are tokenized later",
    )
    assert callback.seen(iter(texts), tokenizer)[1] == "the trainer reads its examples as a stream"
    assert callback.seen(Raw(tokenizer, texts), None)[1].startswith("the trainer was given no tokenizer")


def test_another_training_set_and_damaged_files_are_refused_in_one_line(planted, tmp_path):
    with pytest.raises(InputError, match="name the folder that heldin plant wrote"):
        heldin.AuditCallback(tmp_path / "nowhere")
    training = planted / "training" / "mine.jsonl"
    training.write_text(training.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not the training set of the manifest: restore it"):
        heldin.AuditCallback(planted)
    training.unlink()
    with pytest.raises(InputError, match="is missing: keep the training set beside its manifest"):
        heldin.AuditCallback(planted)
    (tmp_path / LOG).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"training-log.json' is damaged"):
        read_log(tmp_path / LOG)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL (the extra 'trainers') is missing")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of TRL's own default settings
@pytest.mark.parametrize("packing", [False, True])
def test_a_lora_training_by_trl_is_recognised_and_packing_is_said(packing, planted, base, tmp_path):
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    data = load_dataset(
        "json", data_files=str(planted / "training" / "mine.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    ).rename_column("body", "text")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=SFTConfig(
            str(tmp_path / "adapter"), num_train_epochs=1, max_length=32, use_cpu=True,
            per_device_train_batch_size=1 if packing else 16, packing=packing, bf16=False, save_strategy="no",
            report_to=[], disable_tqdm=True,
        ),
        train_dataset=data.select_columns("text"),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[heldin.AuditCallback(planted)],
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    log = read_log(planted / LOG)
    assert log.seen.all_and_no_other
    assert (log.seen.packed > 0) is packing
    assert log.of_model(hashes_in_folder(tmp_path / "adapter")) is not None
    assert {"trl", "peft", "transformers", "torch"} <= set(log.versions)
    assert "ledger" not in json.dumps(log.versions)
