"""Pre-training on public texts: learns, is cached by content, refuses what cannot be."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import heldin.finetune.pretraining
from heldin.base.artefacts import artefact_folder
from heldin.finetune.loop import TrainingResult
from heldin.finetune.pretraining import pretrain, train_once
from heldin.finetune.recipe import Recipe, Select
from heldin.models.logprobs import score_texts
from heldin.models.model_config import TinyModel
from tests.documents import tokens
from tests.refusals import refused

SHAPE = TinyModel(vocabulary=300, context=32, hidden=16, layers=2, heads=2, window=8)
RECIPE = Recipe(epochs=2, batch_size=8, learning_rate=1e-2, sequence_length=32, select=Select.LAST)


def test_pretraining_learns_and_is_done_once_per_content(english, tmp_path, monkeypatch):
    lm = pretrain(english[:400], SHAPE, RECIPE, tmp_path)
    fresh = english[400:420]
    per_token = sum(s.total for s in score_texts(lm, fresh)) / sum(len(s.logprobs) for s in score_texts(lm, fresh))
    assert per_token > -3.5  # uniform guessing over 300 tokens is -5.7
    assert [p.name for p in (tmp_path / "pretrained").iterdir()] == [lm.name.rsplit("/", 1)[-1]]
    monkeypatch.setattr(heldin.finetune.pretraining, "train", lambda *a, **k: pytest.fail("trained twice"))
    assert pretrain(english[:400], SHAPE, RECIPE, tmp_path).fingerprint == lm.fingerprint


def test_what_cannot_be_pretrained(english, tmp_path):
    with refused(by=pretrain, naming=("model.pretrain.users", "model.base")):
        pretrain([], SHAPE, RECIPE, tmp_path)
    with refused(by=pretrain, naming=("sequence_length", "64", "model.pretrain.shape.context", "32")):
        pretrain(english, SHAPE, Recipe(sequence_length=64, select=Select.LAST), tmp_path)


def test_of_two_who_want_the_same_model_one_trains_and_the_other_waits(tmp_path, monkeypatch):
    calls = []

    def slowly(fresh, sequences, recipe, work, advance):
        calls.append(work)
        time.sleep(0.5)
        with artefact_folder(work / "final") as folder:
            (folder / "config.json").write_text("{}", encoding="utf-8")
        return TrainingResult(work / "final", 1, 1, (), 0.0)

    monkeypatch.setattr(heldin.finetune.pretraining, "train", slowly)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(train_once, None, tokens([[1]]), RECIPE, tmp_path / "model") for _ in range(2)]
        assert [its.result() for its in both] == [None, None]
    assert len(calls) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
