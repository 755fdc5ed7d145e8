"""Adapters: their keys and names, exact gradients of each unit, and what is saved."""

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from heldin.finetune.loop import train
from heldin.finetune.preparation import with_adapters
from heldin.finetune.recipe import Lora, Recipe, Select
from heldin.models.opening import load_language_model
from heldin.models.reading import quiet_transformers
from tests.finetune.test_private import _training
from tests.oracles.per_unit_gradients import clipped_sum, norm_of, unit_gradients
from tests.refusals import refused
from tests.tiny_models import batch, llama, people, run, worst_error

RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-2, select=Select.LAST, sequence_length=31)
KINDS = {
    "rslora": Lora(rank=2, rslora=True),
    "dora": Lora(rank=2, dora=True),
    "whole head": Lora(rank=2, modules_to_save=("lm_head",)),
    "pattern": Lora(rank=2, targets=r".*layers\.1\..*(q|v)_proj"),
    "dropout": Lora(rank=2, dropout=0.5),
}


def test_names_of_adapters_state_only_keys_that_are_set():
    assert repr(Lora()) == "Lora(rank=8, alpha=16, targets='all-linear')"
    assert len({repr(lora) for lora in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_gradients_of_units_with_masks_are_those_of_the_oracle(kind, engine):
    torch.manual_seed(0)
    model = with_adapters(llama(), replace(RECIPE, lora=KINDS[kind]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start
            nn.init.normal_(parameter, std=0.1)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    oracle = unit_gradients(model, people())
    bound = sorted(norm_of(g) for _, g in oracle)[-2] * 0.9
    expected, norms = clipped_sum(oracle, bound)
    found = run(model, batch(people()), engine, clip_norm=bound)
    assert found.gradients.keys() == expected.keys()
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4
    torch.testing.assert_close(found.norms.double(), torch.tensor(norms).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("place", [{"modules_to_save": ("lm_head",)}, {"targets": ".*lm_head"}])
def test_a_tied_weight_is_not_trained_in_one_place(place):
    with refused(by="_check_tied", naming=("lm_head", "tied")):
        with_adapters(llama(tied=True), replace(RECIPE, lora=Lora(rank=2, **place)))


def test_a_whole_layer_that_the_model_lacks_is_refused():
    with refused(by="with_adapters", naming="no_such_layer"):
        with_adapters(llama(), replace(RECIPE, lora=Lora(modules_to_save=("no_such_layer",))))


def test_private_training_refuses_dropout(make_lm, sequences, tmp_path):
    recipe = replace(RECIPE, lora=Lora(rank=2, dropout=0.1))
    with refused(by="begin", naming="finetune.lora.dropout"):
        train(make_lm(), sequences, recipe, tmp_path, private=_training(sequences, micro_records=8))


@pytest.mark.parametrize("lora", [Lora(rank=2, rslora=True), Lora(rank=2, dora=True, dropout=0.1)])
def test_the_saved_adapter_has_the_losses_of_the_trained_model(make_lm, sequences, tmp_path, lora):
    lm = make_lm()
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    result = train(lm, sequences, replace(RECIPE, lora=lora), tmp_path)
    base = make_lm().model
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    after = dict(lm.model.named_parameters())
    kept = {name.replace(".base_layer", ""): p for name, p in after.items() if "lora_" not in name}
    assert all(torch.equal(p, before[name]) for name, p in kept.items())
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        plain = base(input_ids=ids, labels=ids).loss
        with quiet_transformers():
            fresh = PeftModel.from_pretrained(base, result.folder / "adapter").eval()
        loaded = fresh(input_ids=ids, labels=ids).loss
        merged = load_language_model(str(result.folder)).model(input_ids=ids, labels=ids).loss
    assert abs(loaded - plain) > 1e-4
    torch.testing.assert_close(loaded, merged, atol=1e-4, rtol=0)
    assert len(AutoTokenizer.from_pretrained(result.folder / "adapter")) == len(lm.tokenizer)
    assert AutoModelForCausalLM.from_pretrained(result.folder).config.model_type == base.config.model_type
