"""The callback of Trainer and TRL: what it notices of a training, and what the audit then need not be told."""

import importlib.util
import json
import shutil
from dataclasses import replace

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
from heldin.jobs.planted.training_log import LOG, hashes_in_folder, read_log, write_log
from heldin.jobs.verify import verify
from tests.planted_sets import base, lines, plan, read_lines, rows, write_lines

__all__ = ["base", "lines", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)


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
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **{"per_device_train_batch_size": 32, "learning_rate": 1e-3, "save_strategy": "no", **settings},
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
    # The log of the next training takes its place in the planted folder, and nothing from this audit.
    (planted / LOG).unlink()
    assert not verify(folder, QUIET).differences
    (folder / LOG).unlink()
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


@pytest.mark.slow
def test_checkpoints_audited_afterwards_show_the_auroc_over_steps(lines, base, tmp_path, call):
    planted = tmp_path / "planted"
    plant(plan(lines, base, looks=3), planted, QUIET)
    saves = {"save_strategy": "steps", "save_steps": 100, "learning_rate": 5e-3, "per_device_train_batch_size": 16}
    log = _fine_tune(planted, base, tmp_path / "model", epochs=24, **saves)
    steps = [its.step for its in log.weights]
    assert steps[:3] == [100, 200, 300]
    # Nothing of a score, and no user, stands in what was written while training.
    written = (planted / LOG).read_text(encoding="utf-8")
    assert not any(word in written for word in ("auroc", "score", "@", "canary", "user"))
    folders = [tmp_path / "model" / f"checkpoint-{step}" for step in steps[:3]]
    models = [word for folder in folders for word in ("--model", folder)]
    claim = ("--claim", "epsilon=0.05,delta=1e-5,unit=user", "--declared-by", "R. Signer")
    _, out, _ = call("audit", "--planted", planted, *models, *claim)
    last = out.splitlines()[-3:]
    for number, (step, line) in enumerate(zip(steps, last, strict=False), start=1):
        assert line.startswith(f"look {number} of 3, step {step} ("), line
    # What was learnt grows.
    aurocs = [float(line.split("AUROC ")[1].split()[0]) for line in last]
    assert aurocs[0] < aurocs[2]
    # A fourth was not paid for.
    call("audit", "--planted", planted, "--model", tmp_path / "model", *claim)
    for number in (1, 2, 3, 4):
        record = json.loads((planted / "audits" / str(number) / "record.json").read_text(encoding="utf-8"))
        standings = {its["standing"] for its in record["judgement"]["bounds"] if its["name"] == "one-run"}
        assert standings == {"certified" if number < 4 else "indicative"}


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


def test_rows_written_twice_are_no_single_examples(rows, base, tmp_path):
    short = write_lines(
        [{**row, "body": f"{row['body'][:6]} {i}"} for i, row in enumerate(rows)], tmp_path / "mine.jsonl"
    )
    planted = tmp_path / "planted"
    plant(plan(short, base, canaries=[]), planted, QUIET)
    texts = [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    log = _fine_tune(planted, base, tmp_path / "model", texts=texts + texts[:3])
    assert (log.seen.cut, log.seen.repeated) == (0, 3)
    found, _ = _conditions(planted, tmp_path / "model", claims=("epsilon=8,delta=1e-6,unit=example",))
    assert {its.known_by for its in found if its.condition.startswith("each row was one")} == {"not met"}
    given = next(its for its in found if "every row of the planted training set" in its.condition)
    assert (given.known_by, "rows repeated 3 times" in given.note) == ("checked", True)


def test_the_log_of_another_training_set_is_not_met_whatever_it_shows(planted, base, tmp_path):
    for seen in (_fine_tune(planted, base, tmp_path / "model").seen, None):
        log = replace(read_log(planted / LOG), training_set="another", seen=seen)
        write_log(log, planted / LOG)
        given = next(its for its in _conditions(planted, tmp_path / "model")[0] if "every row of the" in its.condition)
        assert (given.known_by, "trained on another training set" in given.note) == ("not met", True)


def test_the_log_of_another_model_is_not_used(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "one")
    _fine_tune(planted, base, tmp_path / "other", epochs=2.0)
    said = []
    found, _ = _conditions(planted, tmp_path / "one", LineReporter(said.append))
    assert not rests_on_log(found)
    assert any(line.startswith("training-log.json: of another model than") for line in said)


def _trainer(planted, base, to, *, texts=None, batch=32, collator=None, **settings):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = texts or [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]
    return Trainer(
        AutoModelForCausalLM.from_pretrained(base),
        TrainingArguments(
            str(to), per_device_train_batch_size=batch, report_to=[], use_cpu=True, disable_tqdm=True, **settings
        ),
        train_dataset=_Texts(tokenizer, texts),
        eval_dataset=_Texts(tokenizer, texts[:8]),
        data_collator=collator or DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[heldin.AuditCallback(planted)],
    )


def test_checkpoints_on_the_way_are_known_and_what_went_on_from_one_is_not(planted, base, tmp_path):
    to = tmp_path / "model"
    _trainer(planted, base, to, num_train_epochs=2, save_strategy="epoch").train()
    first, second = sorted(to.glob("checkpoint-*"), key=lambda its: int(its.name.split("-")[1]))
    log = read_log(planted / LOG)
    assert [its.epochs for its in log.weights] == [1, 2]
    assert log.of_model(hashes_in_folder(first)).weights[0].epochs == 1
    assert log.of_model(hashes_in_folder(second)).weights[0].epochs == 2
    # Whatever was trained before the checkpoint, nobody watched it.
    _trainer(planted, base, to, num_train_epochs=3, save_strategy="epoch").train(resume_from_checkpoint=str(first))
    log = read_log(planted / LOG)
    assert (log.seen, log.unseen) == (None, "it went on from a checkpoint, and what came before is not known")
    assert log.of_model(hashes_in_folder(first)) is None


def test_the_best_model_that_is_loaded_at_the_end_has_the_epochs_of_its_own_step(planted, base, tmp_path):
    trainer = _trainer(planted, base, tmp_path / "model", num_train_epochs=1, save_strategy="no")
    callback, state = heldin.AuditCallback(planted), trainer.state
    early, late = (AutoModelForCausalLM.from_pretrained(base) for _ in range(2))
    with torch.no_grad():
        late.get_input_embeddings().weight.mul_(1.1)
    given = {"train_dataloader": trainer.get_train_dataloader(), "processing_class": trainer.processing_class}
    callback.on_train_begin(trainer.args, state, None, **given)
    for state.global_step, state.epoch, model in ((2, 0.4, early), (5, 1.0, late)):
        callback.on_save(trainer.args, state, None, model=model)
    # With load_best_model_at_end the trainer loads the best checkpoint before it says that training has ended.
    callback.on_train_end(trainer.args, state, None, model=early)
    early.save_pretrained(tmp_path / "best")
    trainer.processing_class.save_pretrained(tmp_path / "best")
    assert read_log(planted / LOG).of_model(hashes_in_folder(tmp_path / "best")).weights[0].epochs == 0.4
    given = next(its for its in _conditions(planted, tmp_path / "best")[0] if "every row of the" in its.condition)
    assert (given.known_by, "so that not every row was read" in given.note) == ("not met", True)


class _Pieces:
    """A collator that makes sequences of four tokens."""

    def __call__(self, examples):
        tokens = [token for its in examples for token in its["input_ids"]]
        rows = torch.tensor(tokens[: len(tokens) // 4 * 4]).reshape(-1, 4)
        return {"input_ids": rows, "labels": rows.clone()}


class _Joined:
    """A collator that makes one sequence of all examples."""

    def __call__(self, examples):
        rows = torch.tensor([[token for its in examples[:1] for token in its["input_ids"]]])
        rows = torch.tensor([[token for its in examples for token in its["input_ids"]]]) if len(examples) > 4 else rows
        return {"input_ids": rows, "labels": rows.clone()}


class _Silent(DataCollatorForLanguageModeling):
    """A collator that counts no loss on most examples."""

    def __call__(self, examples, **more):
        batch = super().__call__(examples, **more)
        batch["labels"][4:] = -100
        return batch


def test_collators_and_loaders_that_change_what_is_trained_on_are_noticed(planted, base, tmp_path):
    def log_of(**settings):
        trainer = _trainer(planted, base, tmp_path / "model", num_train_epochs=1, save_strategy="no", **settings)
        callback = heldin.AuditCallback(planted)
        return callback._began(trainer.state, trainer.get_train_dataloader(), trainer.processing_class)

    assert log_of(collator=_Pieces()).unseen == "its collator makes other sequences of the examples"
    joined = log_of(collator=_Joined())
    assert (joined.seen.all_and_no_other, joined.apart) == (True, False)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    assert log_of(collator=_Silent(tokenizer, mlm=False)).silent == 60
    dropping = log_of(dataloader_drop_last=True, batch=108)
    assert dropping.unseen == "it drops the last examples of an epoch (dataloader_drop_last)"
    assert log_of().apart
    trainer = _trainer(planted, base, tmp_path / "model", num_train_epochs=1, save_strategy="no")
    loader, callback = trainer.get_train_dataloader(), heldin.AuditCallback(planted)
    some = torch.utils.data.SubsetRandomSampler(range(40))
    own = torch.utils.data.DataLoader(loader.dataset, batch_size=8, sampler=some, collate_fn=loader.collate_fn)
    assert (
        callback._began(trainer.state, own, trainer.processing_class).unseen
        == "it draws its examples in a way of its own"
    )


def test_a_dataset_that_fails_ends_no_training(planted, base, tmp_path):
    trainer = _trainer(planted, base, tmp_path / "model", num_train_epochs=1, save_strategy="no")
    loader = trainer.get_train_dataloader()

    class Failing(_Texts):
        def __getitem__(self, number):
            raise OSError("gone")

    failing = Failing(trainer.processing_class, ["a b"])
    own = torch.utils.data.DataLoader(failing, batch_size=8, collate_fn=loader.collate_fn)
    log = heldin.AuditCallback(planted)._began(trainer.state, own, trainer.processing_class)
    assert log.unseen == "its examples cannot be read (OSError: gone)"


def test_weights_that_lie_beside_those_that_are_loaded_count_for_nothing(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "one")
    other = tmp_path / "other"
    shutil.copytree(base, other)
    shutil.copy(tmp_path / "one" / "model.safetensors", other / "old.safetensors")
    assert read_log(planted / LOG).of_model(hashes_in_folder(other)) is None
    assert read_log(planted / LOG).of_model(hashes_in_folder(tmp_path / "one")) is not None


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
