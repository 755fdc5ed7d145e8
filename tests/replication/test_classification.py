"""Text classification under mechanisms: the deal, what an encoder is asked, exact clipping, errors by the command."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from heldin.base.progress import LineReporter
from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum
from heldin.finetune.batches import Asked, collate
from heldin.models.tokens import IGNORED
from heldin.words.guarantee import Assumption
from replication.classification.config import (
    ClassificationConfig,
    Contender,
    EncoderShape,
    LabelledFile,
    load_classification,
)
from replication.classification.deal import deal
from replication.classification.encoder import encoder_tokenizer, load_classifier, new_masked_model, pretrained_encoder
from replication.classification.encoding import MaskedTexts, encoded, with_label
from tests.refusals import names, refused

ROOT = Path(__file__).resolve().parents[2]
TOPICS = {"sport": ("goal", "match", "team", "coach"), "market": ("share", "profit", "bank", "price"), "sky": ("moon",)}
ULS = {"kind": "uls", "population": 30, "cohort": 10, "group_size": 4, "steps": 4, "delta": 1e-3, "target_epsilon": 8}


TEXT = {"kind": "user-entity", "population": 150, "cohort": 40, "steps": 4, "delta": 1e-3, "noise_multiplier": 1.0}
NO_NAMES = {"kind": "words", "path": "/no/such/names.txt"}
QUIET = LineReporter(lambda line: None)


def labelled(number):
    dice = random.Random(3)
    for i in range(number):
        label = dice.choice(list(TOPICS))
        words = [dice.choice(TOPICS[label]) for _ in range(3)] + ["the", "was", "seen", "by", "Ann Bell"][: i % 6]
        dice.shuffle(words)
        yield {"topic": label, "text": f"{' '.join(words)} on day {i}"}


@pytest.fixture
def config(tmp_path):
    def write(rows=None, **changes):
        rows = list(labelled(400)) if rows is None else rows
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        content = {
            "name": "topics",
            "data": {"path": str(tmp_path / "texts.jsonl"), "label": "topic"},
            "test_texts": 60,
            "public_users": 20,
            "users": 30,
            "texts_per_user": 5,
            "spread": 1,
            "encoder": {"vocabulary": 330, "context": 20, "hidden": 16, "layers": 1, "heads": 2},
            "pretraining": {"epochs": 2, "batch_size": 16},
            "finetune": {"epochs": 20, "batch_size": 16, "learning_rate": 0.01},
            "contenders": {"noiseless": None},
            **changes,
        }
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    return write


def test_texts_are_dealt_once_and_whatever_the_files_order(config, tmp_path):
    rows = list(labelled(400))
    one = deal(load_classification(config([*rows, *rows[:50]])), tmp_path / "a", QUIET)
    other = deal(load_classification(config(rows[::-1])), tmp_path / "b", QUIET)
    assert (one.test, one.public, one.labels) == (other.test, other.public, other.labels)
    test, public, own = {text for text, _ in one.test}, set(one.public), list(one.store.texts())
    assert len(test) == 60
    assert not test & public
    assert not (test | public) & set(own)
    assert len(own) == len(set(own)) == len(one.labels)
    topic = {row["text"]: row["topic"] for row in rows}
    assert [one.classes[label] for label in one.labels] == [topic[text] for text in own]
    assert len(one.store.users) == 30
    assert 2 <= min(one.store.counts) <= max(one.store.counts) <= 9
    assert 0.4 < one.majority_error() < 0.9


def test_texts_of_several_labels_are_left_out_whatever_the_files_order(config, tmp_path):
    rows = list(labelled(400))
    twice = [{**row, "topic": "another"} for row in rows[:40]]
    lines = []
    its = [
        deal(load_classification(config(these)), tmp_path / name, LineReporter(lines.append))
        for name, these in (("a", [*rows, *twice]), ("b", [*twice, *rows]))
    ]
    assert its[0].labels == its[1].labels
    assert its[0].test == its[1].test
    dealt = {text for text, _ in its[0].test} | set(its[0].public) | set(its[0].store.texts())
    assert not dealt & {row["text"] for row in twice}
    assert len(set(lines)) == 1
    assert len(lines) == 2
    assert names(lines[0], "40")


def test_what_cannot_be_dealt_is_one_line(config, tmp_path):
    with refused(by="deal", naming=("40", "test_texts")):
        deal(load_classification(config(list(labelled(40)))), tmp_path / "a", QUIET)
    with refused(by="deal", naming=("'topic'", "1")):
        deal(load_classification(config([{"topic": 1, "text": f"text {i}"} for i in range(9)])), tmp_path / "b", QUIET)
    with refused(by="_labelled", naming="'topic'"):
        deal(load_classification(config([{"text": "a"}])), tmp_path / "c", QUIET)
    with refused(by="_labelled", naming="'topic'"):
        deal(load_classification(config([{"topic": None, "text": "a"}])), tmp_path / "d", QUIET)


@pytest.fixture(scope="module")
def tokenizer():
    return encoder_tokenizer([row["text"] for row in labelled(200)], 330)


def test_masks_change_from_epoch_to_epoch_and_ask_for_what_was_there(tokenizer):
    inputs = encoded(tokenizer, [row["text"] for row in labelled(200)], 20)
    assert all(ids[0] == tokenizer.pad_token_id and ids[-1] == tokenizer.cls_token_id for ids in inputs)
    assert max(map(len, inputs)) <= 21
    texts = MaskedTexts(tokenizer, inputs, 3, seed=0)
    assert len(texts) == 600
    assert list(texts)[5].ids == texts[5].ids == texts[5:6][0].ids
    masked = exchanged = asked = places = 0
    for i in range(600):
        seen, wanted = texts[i].inputs_and_targets()
        half = texts[i].predicted
        original = inputs[i % 200]
        assert (seen[0], seen[-1], wanted[0], wanted[-1]) == (original[0], original[-1], IGNORED, IGNORED)
        for a, b, c in zip(seen, wanted, original, strict=True):
            assert b in (IGNORED, c)
            assert a == c or b == c
            asked += b != IGNORED
            masked += a == tokenizer.mask_token_id
            exchanged += a not in (c, tokenizer.mask_token_id)
        places += half - 2
    assert 0.12 < asked / places < 0.2
    assert 0.7 < masked / asked < 0.9
    assert 0.05 < exchanged / asked < 0.15
    assert sum(texts[i].ids != texts[i + 200].ids for i in range(200)) > 190


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_clipping_an_encoder_is_exact_and_padding_is_not_read(kind, tokenizer, tmp_path):
    """Against one backward pass per unit, also where no target stands within the probe's first positions."""
    shape = EncoderShape(kind=kind, vocabulary=330, context=60, hidden=16, layers=2, heads=2)
    new_masked_model(shape, tokenizer, 0).save_pretrained(tmp_path)
    model = load_classifier(tmp_path, 3, seed=1).eval()
    again = load_classifier(tmp_path, 3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    words = [row["text"] for row in labelled(60)]
    for length in (9, 50):
        texts = [" ".join(words[i : i + 6]) for i in range(8)]
        inputs = [[ids[0], *ids[1 : length + i], ids[-1]] for i, ids in enumerate(encoded(tokenizer, texts, 60))]
        asked = [with_label(ids, i % 3) for i, ids in enumerate(inputs)]
        ids, targets, _ = collate(asked, torch.device("cpu")).tensors
        alone = collate(asked[:1], torch.device("cpu")).inputs
        with torch.no_grad():
            together = model(input_ids=ids, use_cache=False).logits[0, len(inputs[0]) - 1]
            torch.testing.assert_close(together, model(input_ids=alone).logits[0, -1])
        units = UnitBatch(ids, targets, torch.tensor([0, 0, 1, 1, 2, 2, 2, 3]), 4)
        fast, slow = (clipped_gradient_sum(model, units, clip_norm=0.5, engine=e) for e in ("auto", "loop"))
        assert fast.engine.startswith("auto")
        assert fast.notice is None
        torch.testing.assert_close(fast.norms, slow.norms, rtol=1e-4, atol=0)
        for name, gradient in slow.gradients.items():
            torch.testing.assert_close(fast.gradients[name], gradient, rtol=1e-3, atol=1e-6)


def test_a_pre_trained_encoder_is_the_base(replicate, config, tmp_path, tokenizer):
    shape = EncoderShape(kind="bert", vocabulary=330, context=30, hidden=16, layers=1, heads=2)
    base = tmp_path / "base"
    pretrained = new_masked_model(shape, tokenizer, 0)
    pretrained.config.hidden_dropout_prob = 0.1  # as BERT is published
    pretrained.save_pretrained(base)
    tokenizer.save_pretrained(base)
    content = yaml.safe_load(config().read_text(encoding="utf-8"))
    content = {key: its for key, its in content.items() if key not in ("encoder", "pretraining")}
    few = {**content, "encoder": {"base": str(base), "context": 20}, "finetune": {"epochs": 1, "batch_size": 16}}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(few), encoding="utf-8")
    code, out, err = replicate("text-classification", tmp_path / "few.yaml", "--out", tmp_path / "study", "--json")
    assert code == 0, err
    assert "pre-training" not in err
    assert not (tmp_path / "study" / "encoder").exists()
    assert json.loads(out)["outcomes"][0]["steps"] > 0
    model = load_classifier(base, 3, seed=1)
    assert model.config.hidden_dropout_prob == 0.0
    # Its weights, and not new ones.
    name = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(model.state_dict()[name], pretrained.state_dict()[name])
    with refused(naming="encoder.base", kind=ValidationError):
        ClassificationConfig.model_validate({**few, "encoder": {"base": str(base), "layers": 3}})
    with refused(naming="encoder.base", kind=ValidationError):
        ClassificationConfig.model_validate({**few, "pretraining": {"epochs": 2}})
    with refused(by="pretrained_encoder", naming=("31", "40")):
        pretrained_encoder(base, 40)
    with refused(by="pretrained_encoder", naming="nowhere"):
        pretrained_encoder(tmp_path / "nowhere", 20)


def test_a_records_targets_are_its_own():
    records = [Asked.of([7, 1, 2], [IGNORED, IGNORED, 0]), Asked.of([7, 1], [IGNORED, 2])]
    ids, targets, _ = collate(records, torch.device("cpu")).tensors
    assert ids.tolist() == [[7, 1, 2], [7, 1, 7]]
    assert targets.tolist() == [[IGNORED, IGNORED, 0], [IGNORED, 2, IGNORED]]
    with pytest.raises(ValueError, match="2 inputs, 1 targets"):
        Asked.of([1, 2], [1])


@pytest.mark.slow
def test_the_command_tells_errors_and_promises_side_by_side(replicate, config, tmp_path):
    (tmp_path / "names.txt").write_text("Ann Bell\n", encoding="utf-8")
    listed = {"kind": "words", "path": str(tmp_path / "names.txt")}
    uedp = {"kind": "uedp", "population": 30, "cohort": 10, "steps": 3, "delta": 1e-3, "noise_multiplier": 2.0}
    contenders = {
        "noiseless": None,
        "hidden": {"data_defenses": [{"kind": "deidentify", "entities": listed}], "finetune": {"epochs": 1}},
        "users": {"defense": ULS},
        "fedavg": {"defense": {**ULS, "local": {"learning_rate": 0.1}}},
        "texts": {"defense": {**TEXT, "group_size": 5, "entity_cap": 9, "entities": listed}},
        "paper": {"defense": {**uedp, "entities": listed, "sensitive_share": 0.2}},
    }
    path = config(contenders=contenders)
    code, out, err = replicate("text-classification", path, "--out", tmp_path / "study", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found == json.loads((tmp_path / "study" / "text-classification.json").read_text(encoding="utf-8"))
    its = {outcome["name"]: outcome for outcome in found["outcomes"]}
    assert list(its) == list(contenders)
    # Three topics that their words tell: learnt without noise, and not by always naming one of them.
    assert its["noiseless"]["test_error"] < 0.1 < 0.4 < found["majority_error"]
    assert its["hidden"]["steps"] < its["noiseless"]["steps"] / 10
    assert "de-identification (words):" in err
    for name in ("noiseless", "hidden", "paper"):
        assert its[name]["epsilon"] is None
        assert its[name]["promise"].startswith(("no DP guarantee", "no protection was applied"))
    assert "what holds without the assumption" in its["paper"]["promise"]
    assert str(Assumption.PUBLIC_USERS()) not in out
    assert "for the protected pseudo-users only: labels, test texts" in its["users"]["promise"]
    # Of 400 texts every sixth has both names; the deal draws some 150.
    assert its["paper"]["naming"] == its["texts"]["naming"] == pytest.approx(1 / 6, abs=0.1)
    assert its["hidden"]["changed"] == round(its["texts"]["naming"] * its["hidden"]["texts"])
    assert {its[name]["changed"] for name in contenders if name != "hidden"} == {0}
    for name in ("users", "fedavg"):
        assert its[name]["epsilon"] == pytest.approx(8, abs=0.05)
        assert "minimum number of records" not in its[name]["promise"]
    assert "for every user and recognised entity together" in its["texts"]["promise"]
    assert its["texts"]["texts"] < its["users"]["texts"]
    assert not (tmp_path / "study" / "work").exists()
    code, _, err = replicate("text-classification", path, "--out", tmp_path / "study")
    assert code == 2
    assert names(err, "--out")
    code, out, err = replicate(
        "text-classification", path, "--out", tmp_path / "two", "--set", "contenders={only: null}"
    )
    assert code == 0, err
    assert "the most frequent class alone errs in" in out
    assert "only: no protection was applied" in out


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"contenders": {}}, ["contenders"]),
        ({"finetune": {"select": "best"}}, ["select", "'last'"]),
        ({"contenders": {"a": {"defense": {"kind": "clip", "unit": "batch"}}}}, ["'clip'", "clip_norm"]),
        ({"contenders": {"a": {"defense": {**ULS, "record_selection": "longest"}}}}, ["defense.record_selection"]),
        ({"contenders": {"a": {"data_defenses": [{"kind": "deduplicate"}]}}}, ["contenders.a", "data_defenses"]),
        ({"contenders": {"a": {"defense": {**ULS, "cohort": 99}}}}, ["contenders.a:"]),
        ({"encoder": {"hidden": 10, "heads": 3}}, ["encoder.hidden 10", "encoder.heads"]),
        ({"contendors": {}}, ["contendors"]),
        ({"finetune": {"lora": {"rank": 2}}}, ["lora", "null"]),
        ({"pretraining": {"sequence_length": 9}}, ["sequence_length", "encoder.context"]),
        ({"pretraining": {"epochs": 2.5}}, ["pretraining.epochs"]),
        ({"spread": 1e308}, ["spread"]),
        ({"texts_per_user": float("inf")}, ["texts_per_user"]),
        ({"contenders": {"a": {"defense": {**TEXT, "entities": {"kind": "gold", "path": "x"}}}}}, ["contenders.a:"]),
        ({"contenders": {"a": {"data_defenses": [{"kind": "deidentify", "entities": NO_NAMES}]}}}, ["contenders.a:"]),
    ],
)
def test_a_study_that_cannot_be_is_refused_before_anything_is_written(replicate, config, tmp_path, changes, naming):
    code, _, err = replicate("text-classification", config(**changes), "--out", tmp_path / "study")
    assert code == 2, err
    assert names(err, *naming)
    assert not (tmp_path / "study").exists()


def test_a_training_that_diverges_takes_no_result_with_it(replicate, config, tmp_path):
    contenders = {"fine": {"finetune": {"epochs": 1}}, "wild": {"finetune": {"learning_rate": 2e9}}}
    code, _, err = replicate("text-classification", config(contenders=contenders), "--out", tmp_path / "study")
    assert (code, "contenders.wild: training stopped, because the " in err) == (2, True), err
    kept = json.loads((tmp_path / "study" / "text-classification.json").read_text(encoding="utf-8"))
    assert [its["name"] for its in kept["outcomes"]] == ["fine"]


def test_warnings_stand_beside_promises(replicate, config, tmp_path):
    path = config(contenders={"users": {"defense": {**ULS, "delta": 0.5}}})
    code, out, err = replicate("text-classification", path, "--out", tmp_path / "study")
    assert (code, "users: warning: delta 0.5 is above 1/30" in out) == (0, True), err


def test_the_same_seed_deals_and_trains_the_same_without_noise(replicate, config, tmp_path):
    path = config(finetune={"epochs": 1, "batch_size": 16})
    errors = []
    for name in ("a", "b"):
        code, out, err = replicate("text-classification", path, "--out", tmp_path / name, "--json")
        assert code == 0, err
        errors.append(json.loads(out)["outcomes"][0]["test_error"])
    assert np.ptp(errors) == 0


def test_every_key_of_a_study_is_named_in_its_page():
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split("## Text classification")[1]
    for section in (ClassificationConfig, LabelledFile, Contender):
        assert not [name for name in section.model_fields if f"`{name}`" not in page]
