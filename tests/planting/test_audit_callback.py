"""What the log of a training shows, for honest and for wrong trainers, and what the audit says then."""

import functools
import gc
import importlib.util
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

import heldin
from heldin.base.artefacts import read_document, write_document
from heldin.base.progress import LineReporter
from heldin.jobs.verify import verify
from heldin.models.fingerprints import fingerprint_in_folder
from heldin.models.opening import load_language_model
from heldin.planting.audit import audit_planted
from heldin.planting.body import counts_of_log
from heldin.planting.condition_checks import PlantedEvidence, conditions_of
from heldin.planting.looks import Look
from heldin.planting.plant import plant
from heldin.planting.plant_data import drawn_data
from heldin.planting.plant_folder import read_form, read_planted
from heldin.planting.records import copied
from heldin.planting.target import PlantedAudit, has_other_base
from heldin.planting.training_log import read_log, segment_path
from heldin.record.planted_facts import ConditionName, Known, Reason
from heldin.record.planted_files import LOG
from tests.planted_sets import made_rows, plan, read_lines, save_base, write_lines
from tests.refusals import raised_apart, refused

QUIET = LineReporter(lambda line: None)
EXAMPLE = "epsilon=8,delta=1e-6,unit=example"


def _rows():
    """Each user has as many as an audit asks for, and no more: every row is trained on in nearly every test."""
    return made_rows(records=8)


@pytest.fixture(scope="module", autouse=True)
def _spared():
    """Each training of transformers collects garbage, which takes a second in a process that holds much by then."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rows():
    return _rows()


@pytest.fixture
def base(planted_once):
    return planted_once / "base"


@pytest.fixture
def lines(planted_once):
    return planted_once / "mine.jsonl"


@pytest.fixture(scope="session")
def planted_once(make_lm, make_once):
    """A base model, rows, and sets planted in them: with a promised log, without one, and of short rows."""

    def build(root):
        base, lines = save_base(make_lm(layers=1), root / "base"), write_lines(_rows(), root / "mine.jsonl")
        for name, changes in PLANTED.items():
            plant(plan(lines, base, **changes), root / name, QUIET)
        # Several of these fit into one sequence.
        brief = [{**row, "body": f"{row['body'][:6]} {i}"} for i, row in enumerate(_rows())]
        (root / "brief rows").mkdir()
        brief = write_lines(brief, root / "brief rows" / "mine.jsonl")
        plant(plan(brief, base, evidence="callback", canaries=[]), root / "brief", QUIET)

    return make_once("watched", build)


PLANTED = {
    "callback": {"evidence": "callback"},
    "declared": {"evidence": "declared"},
    "short": {"evidence": "callback", "sequence_length": 14},
}


@pytest.fixture
def planted(planted_once, tmp_path, request):
    return shutil.copytree(planted_once / getattr(request, "param", "callback"), tmp_path / "planted")


class _Texts(torch.utils.data.Dataset):
    def __init__(self, tokenizer, texts, most=32):
        self._ids = [tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in texts]

    def __len__(self):
        return len(self._ids)

    def __getitem__(self, number):
        return {"input_ids": self._ids[number], "attention_mask": [1] * len(self._ids[number])}


def _tokenizer(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def _planted_texts(planted):
    return [row["body"] for row in read_lines(planted / "training" / "mine.jsonl")]


def _trainer(planted, base, to, *, texts=None, most=32, kind=Trainer, collator=None, callback=None, **settings):
    tokenizer = _tokenizer(base)
    texts = texts or _planted_texts(planted)
    given = {"per_device_train_batch_size": 32, "learning_rate": 1e-3, "save_strategy": "no", "num_train_epochs": 1}
    return kind(
        AutoModelForCausalLM.from_pretrained(base),
        TrainingArguments(str(to), report_to=[], use_cpu=True, disable_tqdm=True, **{**given, **settings}),
        train_dataset=_Texts(tokenizer, texts, most),
        eval_dataset=_Texts(tokenizer, texts[:8]),
        data_collator=collator or DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[callback or heldin.AuditCallback(planted)],
    )


def _fine_tune(planted, base, to, **settings):
    trainer = _trainer(planted, base, to, **settings)
    trainer.train()
    trainer.save_model(str(to))
    return to


def _audit(planted, model, *claims, say=QUIET, by="R. Signer"):
    record, folder = audit_planted(PlantedAudit(planted, str(model), claims, by), None, say, command="test")
    return record.planted, folder


def _named(conditions, name):
    return next(condition for condition in conditions if condition.name is name)


@functools.cache
def _reference(path):
    """The model that rows were planted for; only the tokenizer and the name are used."""
    return load_language_model(path)


def _seen(planted, model, *claims, other_base=False):
    """The counts of the log and the conditions that an audit of the model would find, without a score."""
    config, manifest = read_planted(planted)
    reference = _reference(config.reference)
    data = drawn_data(config, manifest, planted, QUIET, replace(reference, fingerprint=manifest.reference))
    late, length = copied(planted / "ledger").late, config.sequence_length
    training, fault = counts_of_log(
        planted / LOG, fingerprint_in_folder(model), manifest, data, reference.tokenizer, late, length, QUIET
    )
    evidence = PlantedEvidence(training, fault, None, read_form(planted), other_base)
    return training, conditions_of(planted, manifest, Look(1, "", claims), "R. Signer", evidence)


def _given(planted, model):
    training, conditions = _seen(planted, model)
    condition = _named(conditions, ConditionName.GIVEN_EVERY_ROW)
    return condition.known_by, set(condition.reasons), training


def test_a_training_that_was_logged_needs_less_to_be_declared(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", num_train_epochs=2)
    facts, folder = _audit(planted, model, EXAMPLE)
    count = len(_planted_texts(planted))
    training = facts.training
    assert (training.sequences, training.rows, training.epochs, training.starts) == (2 * count, count, 2, 1)
    assert (training.missing, training.foreign, training.silent, training.unreadable) == (0, 0, 0, 0)
    assert (training.fewest_reads, training.most_reads, training.repeated) == (2, 2, 0)
    assert training.loss_share_canaries > 0.9
    assert _named(facts.conditions, ConditionName.GIVEN_EVERY_ROW).known_by is Known.CHECKED
    assert _named(facts.conditions, ConditionName.ROW_IS_EXAMPLE).known_by is Known.CHECKED
    # What the log does not show stays declared.
    for name in (ConditionName.WEIGHTED_ALIKE, ConditionName.NOTHING_ELSE, ConditionName.STARTED_UNSEEN):
        assert _named(facts.conditions, name).known_by is Known.DECLARED
    assert not verify(folder, QUIET).differences
    # The next training adds to the log in the planted folder, and the audit keeps its own.
    shutil.rmtree(planted / LOG)
    assert not verify(folder, QUIET).differences
    shutil.rmtree(folder / LOG)
    with refused(by="_evidence", naming=LOG):
        verify(folder, QUIET)


def test_it_needs_no_ledger_and_the_log_is_its_owners_alone(planted, base, tmp_path):
    handed_on = tmp_path / "handed on"
    handed_on.mkdir()
    shutil.copy(planted / "manifest.json", handed_on)
    shutil.copytree(planted / "training", handed_on / "training")
    model = _fine_tune(handed_on, base, tmp_path / "model")
    assert all(path.stat().st_mode & 0o077 == 0 for path in (handed_on / LOG).iterdir())
    shutil.copytree(handed_on / LOG, planted / LOG)
    assert _given(planted, model)[0] is Known.CHECKED


def test_watching_changes_no_weight(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "watched")

    class Nothing(heldin.AuditCallback):
        def on_train_begin(self, *_, **__):
            pass

    _fine_tune(planted, base, tmp_path / "alone", callback=Nothing(planted))
    assert fingerprint_in_folder(tmp_path / "watched") == fingerprint_in_folder(tmp_path / "alone")


@pytest.mark.parametrize(
    ("change", "settings", "reasons", "counts"),
    [
        (lambda texts: texts[20:], {}, {Reason.ROWS_MISSING}, {"missing": 20}),
        (
            lambda texts: [*texts, "a text of somebody else", "and of another"],
            {},
            {Reason.ROWS_FOREIGN},
            {"foreign": 2},
        ),
        (lambda texts: texts, {"max_steps": 2}, {Reason.ROWS_MISSING}, {"steps": 2}),
        (lambda texts: texts, {"dataloader_drop_last": True}, {Reason.ROWS_MISSING}, {}),
    ],
)
def test_what_the_log_contradicts_is_not_met_whoever_signs(change, settings, reasons, counts, planted, base, tmp_path):
    texts = change(_planted_texts(planted))
    model = _fine_tune(planted, base, tmp_path / "model", texts=texts, **settings)
    known_by, found, training = _given(planted, model)
    assert (known_by, found) == (Known.NOT_MET, reasons)
    assert {name: getattr(training, name) for name in counts} == counts


@pytest.mark.parametrize("alike", [0, 1, 40])
def test_the_original_file_in_place_of_the_planted_one_is_not_met_however_many_rows_begin_alike(
    alike, rows, base, tmp_path
):
    # Rows of different users that are one text once they are cut hid what was missing.
    same = " ".join(f"w{i}" for i in range(40))
    for number in range(2 * alike):
        rows = [*rows]
        rows[number] = {**rows[number], "body": f"{same} {number}"}
    original = write_lines(rows, tmp_path / "mine.jsonl")
    planted = tmp_path / "planted"
    canaries = [{"kind": "unseen_token", "users": 20, "documents": [4]}]
    plant(plan(original, base, split={"canaries_only": True}, evidence="callback", canaries=canaries), planted, QUIET)
    texts = [row["body"] for row in read_lines(original)]
    model = _fine_tune(planted, base, tmp_path / "model", texts=texts)
    known_by, reasons, training = _given(planted, model)
    assert known_by is Known.NOT_MET
    assert Reason.ROWS_MISSING in reasons
    assert training.missing_canary_rows > 20
    assert training.missing >= training.missing_canary_rows
    assert training.silent_canary_users > 5
    assert (training.alike > 0) is (alike > 0)


@pytest.mark.parametrize("planted", ["brief"], indirect=True)
def test_rows_written_twice_are_no_single_examples(planted, base, tmp_path):
    texts = _planted_texts(planted)
    model = _fine_tune(planted, base, tmp_path / "model", texts=texts + texts[:3])
    training, conditions = _seen(planted, model, EXAMPLE)
    assert (training.cut, training.repeated) == (0, 3)
    assert _named(conditions, ConditionName.ROW_IS_EXAMPLE).reasons == [Reason.ROWS_REPEATED]
    assert _named(conditions, ConditionName.GIVEN_EVERY_ROW).known_by is Known.CHECKED


@pytest.mark.parametrize("planted", ["short"], indirect=True)
def test_rows_that_are_cut_are_known_by_what_is_left_of_them(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", most=12)
    known_by, _, training = _given(planted, model)
    assert known_by is Known.CHECKED
    assert training.cut > 100
    tokenizer = _tokenizer(base)
    tokenizer.truncation_side = "left"
    ids = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in _planted_texts(planted)]
    trainer = _trainer(planted, base, tmp_path / "left")
    trainer.train_dataset._ids = ids
    trainer.train()
    trainer.save_model(str(tmp_path / "left"))
    assert _given(planted, tmp_path / "left")[0] is Known.CHECKED


def test_rows_that_are_split_into_pieces_were_all_given_and_are_no_single_examples(planted, base, tmp_path):
    trainer = _trainer(planted, base, tmp_path / "model")
    trainer.train_dataset._ids = [ids[i : i + 16] for ids in trainer.train_dataset._ids for i in range(0, len(ids), 16)]
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    _, conditions = _seen(planted, tmp_path / "model", EXAMPLE)
    assert _named(conditions, ConditionName.GIVEN_EVERY_ROW).known_by is Known.CHECKED
    assert _named(conditions, ConditionName.ROW_IS_EXAMPLE).reasons == [Reason.ROWS_SPLIT]


class _Masking(Trainer):
    """Counts no loss on some rows: those that ``masks`` picks by their tokens."""

    masks = staticmethod(lambda ids: False)

    def compute_loss(self, model, inputs, *args, **kwargs):
        for ids, labels in zip(inputs["input_ids"], inputs["labels"], strict=True):
            if self.masks(ids):
                labels[:] = -100
        return super().compute_loss(model, inputs, *args, **kwargs)


class _ByText(_Masking):
    masks = staticmethod(lambda ids: len(set(ids.tolist())) < 12)


class _ByLength(_Masking):
    masks = staticmethod(lambda ids: int((ids != ids[-1]).sum()) > 28)


@pytest.mark.parametrize("kind", [_ByText, _ByLength])
def test_rows_whose_loss_is_masked_are_not_met(kind, planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", kind=kind)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons) == (Known.NOT_MET, {Reason.ROWS_SILENT})
    assert training.silent > 0


def test_a_loss_that_is_counted_on_few_tokens_of_canary_rows_is_not_met(planted, base, tmp_path):
    class Thinning(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            for ids, labels in zip(inputs["input_ids"], inputs["labels"], strict=True):
                if len(set(ids.tolist())) < 12:
                    labels[4:] = -100
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = _fine_tune(planted, base, tmp_path / "model", kind=Thinning)
    _, conditions = _seen(planted, model)
    assert _named(conditions, ConditionName.WEIGHTED_ALIKE).reasons == [Reason.CANARY_LOSS_THINNED]


def test_a_sampler_that_skips_rows_is_not_met(planted, base, tmp_path):
    class Skipping(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SubsetRandomSampler(range(40, len(self.train_dataset)))

    known_by, reasons, training = _given(planted, _fine_tune(planted, base, tmp_path / "model", kind=Skipping))
    assert (known_by, reasons, training.missing) == (Known.NOT_MET, {Reason.ROWS_MISSING}, 40)


def _checkpoints(folder):
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def test_a_training_that_went_on_from_a_checkpoint_is_judged_as_a_whole(planted, base, tmp_path):
    to = tmp_path / "model"
    size = {"per_device_train_batch_size": 16}
    steps = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **size}
    _trainer(planted, base, to, **steps).train()
    early = _checkpoints(to)[0]
    # Neither half read every row.
    assert _given(planted, early)[0] is Known.NOT_MET
    total = -(-len(_planted_texts(planted)) // 16)
    assert total > 5
    for until in (5, total):
        _trainer(planted, base, to, save_strategy="steps", save_steps=1, max_steps=until, **size).train(
            resume_from_checkpoint=str(_checkpoints(to)[-1])
        )
    training, conditions = _seen(planted, _checkpoints(to)[-1])
    assert (training.starts, training.steps, training.missing) == (3, total, 0)
    assert training.epochs == 1
    assert _named(conditions, ConditionName.GIVEN_EVERY_ROW).known_by is Known.CHECKED


def test_a_part_of_the_log_that_is_missing_or_altered_is_not_met(planted, base, tmp_path):
    to, steps = tmp_path / "model", {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    _trainer(planted, base, to, **steps).train()
    _trainer(planted, base, to, save_strategy="steps", save_steps=5, max_steps=10).train(
        resume_from_checkpoint=str(_checkpoints(to)[-1])
    )
    model, kept = _checkpoints(to)[-1], tmp_path / "kept"
    shutil.copytree(planted / LOG, kept)
    assert _given(planted, model)[0] is Known.CHECKED

    def cut(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def flip(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))

    names = [segment_path(kept, number, 0).with_suffix(end).name for number in (1, 2) for end in (".json", ".reads")]
    for name in names:
        for damage in (cut, flip, lambda path: path.unlink()):
            shutil.rmtree(planted / LOG)
            shutil.copytree(kept, planted / LOG)
            damage(planted / LOG / name)
            known_by, reasons, training = _given(planted, model)
            assert (known_by, training) == (Known.NOT_MET, None), (name, damage)
            assert reasons <= {Reason.LOG_DAMAGED, Reason.LOG_OF_OTHER_MODEL}
    whole = read_document(segment_path(kept, 1, 0))
    forged = (
        {"header": None},
        {"checkpoints": [{}]},
        {"header": {**whole["header"], "number": "x"}},
        {"checkpoints": 1},
    )
    for change in forged:
        write_document(segment_path(planted / LOG, 1, 0), {**whole, **change})
        assert _given(planted, model)[:2] == (Known.NOT_MET, {Reason.LOG_DAMAGED}), change
    shutil.rmtree(planted / LOG)
    assert _given(planted, model)[:2] == (Known.NOT_MET, {Reason.LOG_ABSENT})


def test_the_first_segment_renamed_to_the_second_is_not_met(planted, base, tmp_path):
    _fine_tune(planted, base, tmp_path / "one")
    model = _fine_tune(planted, base, tmp_path / "two", num_train_epochs=2)
    log = planted / LOG
    for end in (".json", ".reads"):
        segment_path(log, 1, 0).with_suffix(end).unlink()
        segment_path(log, 2, 0).with_suffix(end).rename(segment_path(log, 1, 0).with_suffix(end))
    assert _given(planted, model)[:2] == (Known.NOT_MET, {Reason.LOG_DAMAGED})


def test_the_log_of_another_run_is_not_met_where_a_log_was_promised(planted_once, base, tmp_path):
    known = {}
    for evidence in ("callback", "declared"):
        planted = shutil.copytree(planted_once / evidence, tmp_path / evidence)
        _fine_tune(planted, base, tmp_path / f"{evidence} other")
        unlogged = tmp_path / f"{evidence} unlogged"
        trainer = _trainer(planted, base, unlogged, num_train_epochs=2)
        trainer.remove_callback(heldin.AuditCallback)
        trainer.train()
        trainer.save_model(str(unlogged))
        known[evidence] = _given(planted, unlogged)
    assert known["callback"][:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_MODEL})
    assert known["declared"][:2] == (Known.DECLARED, {Reason.SIGNED})


def test_the_log_of_another_planted_set_is_not_met(planted, lines, base, tmp_path):
    one, other = planted, tmp_path / "other"
    plant(plan(lines, base), other, QUIET)
    model = _fine_tune(one, base, tmp_path / "model")
    shutil.copytree(one / LOG, other / LOG)
    assert _given(other, model)[:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_SET})


@pytest.mark.parametrize("planted", ["declared"], indirect=True)
def test_a_log_that_contradicts_counts_also_where_none_was_promised(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", texts=_planted_texts(planted)[20:])
    assert _given(planted, model)[0] is Known.NOT_MET


def test_the_best_model_that_is_loaded_at_the_end_has_the_reads_of_its_own_step(planted, base, tmp_path):
    trainer = _trainer(planted, base, tmp_path / "model")
    watch = heldin.AuditCallback(planted)
    early, late = (AutoModelForCausalLM.from_pretrained(base) for _ in range(2))
    with torch.no_grad():
        late.get_input_embeddings().weight.mul_(1.1)
    state = trainer.state
    watch.on_train_begin(trainer.args, state, None, model=early, processing_class=trainer.processing_class)
    for state.global_step, state.epoch, model in ((2, 0.4, early), (5, 1.0, late)):
        watch.on_save(trainer.args, state, None, model=model)
    # With load_best_model_at_end the trainer loads the best checkpoint before it says that training has ended.
    watch.on_train_end(trainer.args, state, None, model=early)
    early.save_pretrained(tmp_path / "best")
    trainer.processing_class.save_pretrained(tmp_path / "best")
    training, _ = _seen(planted, tmp_path / "best")
    assert (training.steps, training.epochs) == (2, 0.4)


class _Joined:
    """A collator that makes one sequence of all examples, and says where each begins, or does not."""

    def __init__(self, *, boundaries):
        self.boundaries = boundaries

    def __call__(self, examples):
        ids = [token for its in examples for token in its["input_ids"]]
        batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([ids])}
        if self.boundaries:
            batch["position_ids"] = torch.tensor([[i for its in examples for i in range(len(its["input_ids"]))]])
        return batch


class _Wrapped:
    """A collator that joins examples and cuts them at one length, as packing without boundaries does."""

    def __init__(self):
        self.left = []

    def __call__(self, examples):
        self.left += [token for its in examples for token in [*its["input_ids"], 0]]
        count = max(1, len(self.left) // 24)
        rows, self.left = self.left[: 24 * count], self.left[24 * count :]
        ids = torch.tensor(rows).reshape(count, -1)
        return {"input_ids": ids, "labels": ids.clone()}


def test_packing_with_boundaries_is_known_and_without_them_stays_declared(planted, base, tmp_path):
    settings = {"per_device_train_batch_size": 1, "max_steps": -1}
    model = _fine_tune(planted, base, tmp_path / "apart", collator=_Joined(boundaries=True), **settings)
    assert _given(planted, model)[0] is Known.CHECKED
    # GPT-Neo of these tests reads 32 tokens.
    model = _fine_tune(planted, base, tmp_path / "wrapped", collator=_Wrapped(), per_device_train_batch_size=8)
    _, conditions = _seen(planted, model, EXAMPLE)
    condition = _named(conditions, ConditionName.GIVEN_EVERY_ROW)
    assert condition.known_by is Known.DECLARED
    assert Reason.PACKED_WITHOUT_BOUNDARIES in condition.reasons
    assert _named(conditions, ConditionName.ROW_IS_EXAMPLE).known_by is Known.NOT_MET


def test_weights_that_lie_next_to_those_that_are_loaded_count_for_nothing(planted, base, tmp_path):
    one = _fine_tune(planted, base, tmp_path / "one")
    other = tmp_path / "other"
    shutil.copytree(base, other)
    shutil.copy(one / "model.safetensors", other / "old.safetensors")
    logged = read_log(planted / LOG)[0][0].checkpoints[-1].model
    assert logged.has_tensors_of(fingerprint_in_folder(one))
    assert not logged.has_tensors_of(fingerprint_in_folder(other))


def test_another_training_set_and_damaged_files_are_refused_in_one_line(planted, tmp_path):
    with refused(by="_training_set", naming="manifest.json"):
        heldin.AuditCallback(tmp_path / "nowhere")
    training = planted / "training" / "mine.jsonl"
    training.write_text(training.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with refused(by="_training_set", naming="mine.jsonl") as altered:
        heldin.AuditCallback(planted)
    training.unlink()
    with refused(by="_training_set", naming="mine.jsonl") as missing:
        heldin.AuditCallback(planted)
    assert raised_apart(altered, missing)


def _loop(planted, base, to, watch_at=None, *, processes=1):
    """A training loop of somebody's own, in accelerate's manner."""
    from accelerate import Accelerator

    accelerator, tokenizer = Accelerator(cpu=True), _tokenizer(base)
    data = _Texts(tokenizer, _planted_texts(planted))
    loader = torch.utils.data.DataLoader(
        data, batch_size=32, shuffle=True, collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False)
    )
    model = AutoModelForCausalLM.from_pretrained(base)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    with heldin.watch_training(planted, model, tokenizer) as watch:
        for step, batch in enumerate(loader, start=1):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():  # an evaluation is no training
                model(**batch)
            if step == watch_at:
                watch.checkpoint(step)
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


def test_a_loop_of_ones_own_is_watched_like_a_trainer(planted, base, tmp_path):
    model = _loop(planted, base, tmp_path / "model", watch_at=3)
    training, conditions = _seen(planted, model, EXAMPLE)
    assert (training.sequences, training.epochs) == (training.rows, None)
    for name in (ConditionName.GIVEN_EVERY_ROW, ConditionName.ROW_IS_EXAMPLE):
        assert _named(conditions, name).known_by is Known.CHECKED


def test_processes_log_their_own_reads_and_all_of_them_count(planted, base, tmp_path):
    from heldin.planting.watching import Watch

    tokenizer, model = _tokenizer(base), AutoModelForCausalLM.from_pretrained(base)
    data = _Texts(tokenizer, _planted_texts(planted))
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    watches = [Watch(planted) for _ in range(2)]
    # One after the other in this process: what is read by which of them is what counts.
    for process, watch in enumerate(watches):
        watch.start(model, tokenizer, process=process, processes=2)
        for start in range(process * 16, len(data), 32):
            model(**collate([data[i] for i in range(start, min(start + 16, len(data)))]))
        watch.checkpoint(5)
        watch.stop()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    known_by, _, training = _given(planted, tmp_path / "model")
    assert (known_by, training.processes, training.missing) == (Known.CHECKED, 2, 0)
    segment_path(planted / LOG, 1, 1).unlink()
    assert _given(planted, tmp_path / "model")[:2] == (Known.NOT_MET, {Reason.LOG_DAMAGED})


@pytest.mark.slow
def test_checkpoints_audited_afterwards_show_the_auroc_over_steps(lines, base, tmp_path, call, monkeypatch):
    monkeypatch.setattr("heldin.stages.sides.ledger.new_key", lambda: b"\x11" * 32)
    planted = tmp_path / "planted"
    plant(plan(lines, base, looks=3), planted, QUIET)
    saves = {"save_strategy": "steps", "save_steps": 12, "learning_rate": 2e-3, "per_device_train_batch_size": 16}
    _fine_tune(planted, base, tmp_path / "model", num_train_epochs=6, **saves)
    steps = [checkpoint.step for checkpoint in read_log(planted / LOG)[0][0].checkpoints]
    assert steps[:3] == [12, 24, 36]
    # Nothing of a score, and no user, is in what was written while training.
    written = segment_path(planted / LOG, 1, 0).read_text(encoding="utf-8")
    assert not any(word in written for word in ("auroc", "score", "@", "canary", "user"))
    folders = [tmp_path / "model" / f"checkpoint-{step}" for step in steps[:3]]
    models = [word for folder in folders for word in ("--model", folder)]
    claim = ("--claim", "epsilon=0.05,delta=1e-5,unit=user", "--declared-by", "R. Signer")
    _, out, _ = call("audit-planted", planted, *models, *claim)
    last = out.splitlines()[-3:]
    for number, (step, line) in enumerate(zip(steps, last, strict=False), start=1):
        assert line.startswith(f"look {number} of 3, step {step} ("), line
    # What was learnt grows.
    aurocs = [float(line.split("AUROC ")[1].split()[0]) for line in last]
    assert aurocs[0] < aurocs[2]
    # A fourth was not paid for.
    call("audit-planted", planted, "--model", tmp_path / "model", *claim)
    for number in (1, 2, 3, 4):
        record = json.loads((planted / "audits" / str(number) / "record.json").read_text(encoding="utf-8"))
        standings = {its["standing"] for its in record["judgement"]["bounds"] if its["name"] == "one-run"}
        assert standings == {"certified" if number < 4 else "indicative"}


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL (the extra 'trainers') is missing")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of TRL's own default settings
@pytest.mark.parametrize(("packing", "planted"), [(False, "callback"), (True, "brief")], indirect=["planted"])
def test_a_lora_training_by_trl_is_recognised_and_packing_is_said(packing, planted, base, tmp_path):
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    tokenizer = _tokenizer(base)
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
    known_by, _, training = _given(planted, tmp_path / "adapter")
    assert known_by is Known.CHECKED
    # The log binds an adapter, and the plan its base.
    reference = read_planted(planted)[1].reference
    job = PlantedAudit(planted, str(tmp_path / "adapter"))
    assert not has_other_base(job, reference)
    other = _edited(base, tmp_path / "other base", layer_norm_epsilon=100.0)
    config = tmp_path / "adapter" / "adapter_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "base_model_name_or_path": str(other)}), encoding="utf-8")
    assert has_other_base(job, reference)
    # What its user names counts, and not what its config names.
    assert not has_other_base(replace(job, adapter_base=str(base)), reference)
    _, conditions = _seen(planted, tmp_path / "adapter", other_base=True)
    given = _named(conditions, ConditionName.GIVEN_EVERY_ROW)
    assert (given.known_by, given.reasons) == (Known.DECLARED, [Reason.SIGNED, Reason.BASE_UNSEEN])
    assert (training.packed > 0) is packing
    versions = read_log(planted / LOG)[0][0].header.versions
    assert {"trl", "peft", "transformers", "torch"} <= set(versions)


def _loss(outputs, labels, num_items_in_batch=None):
    return torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
    )


class _OwnLoss(Trainer):
    """Takes the labels out of the batch, and computes the loss by itself."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        return (_loss(outputs, labels), outputs) if return_outputs else _loss(outputs, labels)


@pytest.mark.parametrize(
    "settings",
    [
        {"label_smoothing_factor": 0.1},
        {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 20, "per_device_train_batch_size": 4},
        {"kind": functools.partial(Trainer, compute_loss_func=_loss)},
        {"kind": _OwnLoss},
    ],
)
def test_labels_of_a_loss_outside_of_the_model_are_those_of_the_batch(settings, planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", **settings)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons, training.unlabelled, training.silent) == (Known.CHECKED, {Reason.LOG_AGREES}, 0, 0)
    assert training.loss_share_others > 0.9


def test_the_trainer_is_given_back_as_it_was(planted, base, tmp_path):
    trainer = _trainer(planted, base, tmp_path / "model", label_smoothing_factor=0.1)
    before, own = trainer.label_smoother, set(vars(trainer))
    trainer.train()
    assert trainer.label_smoother is before
    assert "compute_loss" not in own | set(vars(trainer))


class _MasksBeforeTheLoss(_ByText):
    """Exchanges the labels of the batch, on which the loss is then computed outside of the model."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        inputs["labels"] = inputs["labels"].clone()
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_labels_that_are_exchanged_before_a_loss_outside_of_the_model_are_seen(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", kind=_MasksBeforeTheLoss, label_smoothing_factor=0.1)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons) == (Known.NOT_MET, {Reason.ROWS_SILENT})
    assert training.silent > 0


class _OnceWithout(_ByText):
    """Reads one batch without labels, and masks those of some rows in every batch, as ``_ByText`` does."""

    first = True

    def training_step(self, model, inputs, *args, **kwargs):
        if self.first:
            self.first = False
            model(input_ids=inputs["input_ids"])
        return super().training_step(model, inputs, *args, **kwargs)


def test_one_pass_whose_labels_nobody_saw_hides_no_row_without_loss(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model", kind=_OnceWithout)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons) == (Known.NOT_MET, {Reason.ROWS_SILENT})
    assert (training.unlabelled, training.silent > 0) == (32, True)


class _Without(Trainer):
    """Gives no labels to anybody."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        ids = inputs["input_ids"]
        return _loss(model(input_ids=ids, attention_mask=inputs["attention_mask"]), ids)


def test_labels_that_nobody_saw_leave_a_declaration(planted, base, tmp_path):
    def collate(examples):
        return _tokenizer(base).pad(examples, return_tensors="pt")

    model = _fine_tune(planted, base, tmp_path / "model", kind=_Without, collator=collate)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons) == (Known.DECLARED, {Reason.SIGNED, Reason.LABELS_UNSEEN})
    assert (training.silent, training.unlabelled) == (None, training.sequences)


def test_an_attention_that_the_log_does_not_understand_leaves_a_declaration(planted, base, tmp_path):
    class OfFour(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen = inputs["attention_mask"].bool()
            width = seen.shape[1]
            inputs["attention_mask"] = (seen[:, None, None] & torch.ones(width, width).tril().bool())[:, :, :width]
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = _fine_tune(planted, base, tmp_path / "model", kind=OfFour)
    known_by, reasons, training = _given(planted, model)
    assert (known_by, reasons) == (Known.DECLARED, {Reason.SIGNED, Reason.ATTENTION_UNSEEN})
    assert training.attention_unseen == training.sequences


def test_rows_of_canary_users_that_come_first_are_not_weighted_alike(planted_once, base, tmp_path):
    planted = tmp_path / "planted"
    canaries = [{"kind": "unseen_token", "users": 40, "documents": [2]}]
    split = {"canaries_only": True}
    lines = planted_once / "mine.jsonl"
    plant(plan(lines, base, split=split, evidence="callback", canaries=canaries), planted, QUIET)
    known = {row["body"] for row in read_lines(lines)}
    texts = sorted(_planted_texts(planted), key=lambda text: text in known)

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    for its, reasons in ((texts, [Reason.CANARIES_IN_ORDER]), (_planted_texts(planted), [Reason.SIGNED])):
        to = tmp_path / f"model {reasons[0]}"
        _fine_tune(planted, base, to, kind=InOrder, texts=its, num_train_epochs=2)
        _, conditions = _seen(planted, to)
        assert _named(conditions, ConditionName.GIVEN_EVERY_ROW).known_by is Known.CHECKED
        assert _named(conditions, ConditionName.WEIGHTED_ALIKE).reasons == reasons


def _edited(model, to, **keys):
    """A copy of a model with other keys in its config."""
    shutil.copytree(model, to)
    config = json.loads((to / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps({**config, **keys}), encoding="utf-8")
    return to


def test_a_model_that_was_changed_after_training_is_not_that_of_the_log(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model")
    assert _given(planted, model)[0] is Known.CHECKED
    harmless = _edited(model, tmp_path / "harmless", transformers_version="9.9", use_cache=False)
    assert _given(planted, harmless)[0] is Known.CHECKED
    for name, keys in (("epsilon", {"layer_norm_epsilon": 100.0}), ("window", {"window_size": 1})):
        changed = _edited(model, tmp_path / name, **keys)
        assert _given(planted, changed)[:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_CONFIG})
    tensors = load_file(model / "model.safetensors")
    norms = sorted(name for name in tensors if name.endswith(("ln_1.weight", "ln_2.weight")))
    tensors[norms[0]] = tensors[norms[0]] + 1
    for name, changed in (
        ("a value", tensors),
        ("a further tensor", {**load_file(model / "model.safetensors"), "transformer.h.7.ln_1.weight": torch.ones(4)}),
    ):
        to = _edited(model, tmp_path / name)
        save_file(changed, to / "model.safetensors", metadata={"format": "pt"})
        assert _given(planted, to)[:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_MODEL})
    to = _edited(model, tmp_path / "tokenizer")
    content = json.loads((to / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["merges"] = content["model"]["merges"][:-20]
    (to / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert _given(planted, to)[:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_TOKENIZER})


@pytest.mark.parametrize("planted", ["declared"], indirect=True)
def test_a_config_that_the_log_contradicts_is_not_met_also_where_no_log_was_promised(planted, base, tmp_path):
    model = _fine_tune(planted, base, tmp_path / "model")
    changed = _edited(model, tmp_path / "changed", layer_norm_epsilon=100.0)
    assert _given(planted, changed)[:2] == (Known.NOT_MET, {Reason.LOG_OF_OTHER_CONFIG})


def _in_loop(planted, base, to, prepare):
    """A training loop on a model that ``prepare`` wraps; what is inside is saved."""
    tokenizer, inner = _tokenizer(base), AutoModelForCausalLM.from_pretrained(base)
    data = _Texts(tokenizer, _planted_texts(planted))
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    model = prepare(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with heldin.watch_training(planted, model, tokenizer):
        for batch in torch.utils.data.DataLoader(data, batch_size=32, collate_fn=collate):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    inner.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


def _compiled(model):
    return torch.compile(model, backend="eager")


def _resized(model):
    model.resize_token_embeddings(model.config.vocab_size + 7)
    return model


@pytest.mark.parametrize("prepare", [pytest.param(_compiled, marks=pytest.mark.slow), _resized])
def test_a_model_is_recognised_whatever_wraps_it_while_it_is_trained(prepare, planted, base, tmp_path):
    assert _given(planted, _in_loop(planted, base, tmp_path / "model", prepare))[0] is Known.CHECKED


def test_a_model_that_was_trained_in_parallel_is_recognised(planted, base, tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = _in_loop(planted, base, tmp_path / "model", torch.nn.parallel.DistributedDataParallel)
    finally:
        distributed.destroy_process_group()
    assert _given(planted, model)[0] is Known.CHECKED
