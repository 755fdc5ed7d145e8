"""``finetune.preparation``: the same training with fewer activations kept, for every kind of step."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from heldin.finetune.holding import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.preparation import use_checkpointing
from heldin.finetune.recipe import Lora, Precision, Recipe, Select
from heldin.models.loading import LanguageModel
from tests.finetune.test_private import _training
from tests.refusals import names, refused
from tests.tiny_models import gpt2

RECIPE = Recipe(epochs=0.5, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31)
KINDS = {
    "plain": lambda _: {},
    "private": lambda sequences: {"private": _training(sequences, micro_records=8, steps=4)},
    "clipped": lambda _: {"clipping": PlainClipping("example", 0.1)},
}


def kept_floats(call):
    """Floats that autograd keeps for the backward pass, at most over the passes."""
    held = [0]

    def pack(x):
        held[0] += x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = call()
    return held[0], result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_training_is_the_same_and_keeps_less(make_lm, sequences, tmp_path, kind, lora):
    kept, weights, gradients = {}, {}, {}
    for on in (False, True):
        recipe = replace(RECIPE, checkpointing=on, lora=lora)
        folder = tmp_path / str(on)
        kept[on], result = kept_floats(
            lambda r=recipe, f=folder: train(make_lm(), sequences, r, f, **KINDS[kind](sequences))
        )
        weights[on], gradients[on] = load_file(result.folder / "model.safetensors"), result.gradients
    assert gradients[True] == gradients[False] > 0
    for name, tensor in weights[False].items():
        torch.testing.assert_close(weights[True][name], tensor, rtol=1e-4, atol=1e-5)
    assert kept[True] < 0.6 * kept[False]


def test_a_resume_may_switch_it_on(make_lm, sequences, tmp_path):
    recipe, steps = replace(RECIPE, epochs=1, checkpoint_every=1), []

    def stop(step):
        steps.append(step)
        if sum(steps) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_lm(), sequences, recipe, tmp_path, advance=stop)
    said = []
    train(make_lm(), sequences, replace(recipe, checkpointing=True), tmp_path, say=said.append)
    assert names(said[0], "step 1")


def test_dropout_of_a_model_does_not_stop_a_private_training(make_lm, sequences, tmp_path):
    """transformers computes activations again in training mode alone, in which GPT-2's own dropout would be on."""
    found = []
    for name, drop in (("none", 0.0), ("some", 0.3)):
        torch.manual_seed(0)
        model = gpt2(vocab_size=400, resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop).eval()
        lm = LanguageModel(model, make_lm().tokenizer, "gpt2", "f")
        recipe = replace(RECIPE, checkpointing=True, precision=Precision.FP32)
        result = train(lm, sequences, recipe, tmp_path / name, private=_training(sequences, micro_records=8, steps=4))
        found.append(load_file(result.folder / "model.safetensors"))
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name])


def test_a_model_that_cannot_is_one_line():
    class Fixed:
        def gradient_checkpointing_enable(self, _settings):
            raise ValueError("Fixed does not support gradient checkpointing.")

    with refused(by=use_checkpointing, naming=("finetune.checkpointing", "Fixed")):
        use_checkpointing(Fixed(), without_dropout=False)
