"""Frozen weights in bfloat16 under adapters: the training of float32 ones, bit by bit, and what is saved is float32."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from heldin.finetune import training
from heldin.finetune.loop import train
from heldin.finetune.preparation import halve_frozen, with_adapters
from heldin.finetune.recipe import Lora, Precision, Recipe, Select
from tests.finetune.test_private import _training

RECIPE = Recipe(
    epochs=1,
    batch_size=8,
    learning_rate=1e-2,
    select=Select.LAST,
    sequence_length=31,
    precision=Precision.BF16,
    lora=Lora(rank=2),
)


@pytest.mark.parametrize("kind", ["private", "plain", "checkpointed"])
def test_training_and_what_is_saved_are_those_of_float32_weights(make_lm, sequences, tmp_path, monkeypatch, kind):
    recipe = replace(RECIPE, checkpointing=kind == "checkpointed")
    private = _training(sequences, micro_records=8) if kind == "private" else None
    saved = []
    for halved in (True, False):
        if not halved:
            monkeypatch.setattr(training, "halve_frozen", lambda model: None)
        result = train(make_lm(), sequences, recipe, tmp_path / str(halved), private=private)
        saved.append(load_file(result.folder / "model.safetensors"))
    base = make_lm().model.state_dict()
    assert saved[0].keys() == saved[1].keys()
    assert any(not torch.equal(saved[0][name], base[name]) for name in saved[0])
    for name, tensor in saved[0].items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, saved[1][name]), name


def test_an_evaluation_between_steps_reads_halved_weights(make_lm, sequences, tmp_path):
    seen = []

    def evaluate(step, model):
        with torch.no_grad():
            seen.append(model(input_ids=torch.tensor([[1, 2, 3]])).logits.float())
        return {"held_in_loss": 1.0}

    lm = make_lm()
    with torch.no_grad():
        before = lm.model(input_ids=torch.tensor([[1, 2, 3]])).logits
    train(lm, sequences, replace(RECIPE, learning_rate=1e-9), tmp_path, evaluate=evaluate)
    assert seen
    torch.testing.assert_close(seen[-1], before, atol=3e-2, rtol=3e-2)


def test_only_frozen_weights_of_linear_layers_are_halved(make_lm):
    model = with_adapters(make_lm().model, RECIPE)
    before = sum(p.numel() * p.element_size() for p in model.parameters())
    halve_frozen(model)
    half = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}
    assert half
    assert all(".base_layer.weight" in name for name in half)
    # The head is the embedding, which is looked up in float32.
    assert model.get_input_embeddings().weight.dtype == torch.float32
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert sum(p.numel() * p.element_size() for p in model.parameters()) < before
