"""Layers picked by gradients of public users: the saliency of an oracle, and a base model that stays as it was."""

import copy
from dataclasses import replace

import pytest
import torch

from heldin.finetune.layer_choice import layer_saliency, most_salient, on_every_layer, with_layers
from heldin.finetune.preparation import with_adapters
from heldin.finetune.recipe import Lora, Recipe, Select
from heldin.models.devices import seed_generators
from heldin.models.loading import LanguageModel
from tests.documents import tokens
from tests.oracles.per_unit_gradients import unit_gradients
from tests.refusals import refused
from tests.tiny_models import V, gpt2, gpt_neo, llama

RECIPE = Recipe(epochs=1, batch_size=8, select=Select.LAST, sequence_length=31, lora=Lora(rank=3, targets="auto"))
MODELS = {"gpt-neo": gpt_neo, "gpt2": gpt2, "llama": llama, "llama tied": lambda: llama(tied=True)}


def base(make=gpt_neo):
    torch.manual_seed(1)
    return LanguageModel(make().eval(), None, "tiny", "")


def users(count=5):
    generator = torch.Generator().manual_seed(3)
    return [
        tokens(torch.randint(5, V, (6 + r,), generator=generator).tolist() for r in range(1 + u % 3))
        for u in range(count)
    ]


def by_autograd(lm, people, recipe):
    """The mean square of the gradient over all numbers of each layer's adapter, one user at a time."""
    seed_generators(recipe.seed, torch.device("cpu"))
    adapted = with_adapters(copy.deepcopy(lm.model), on_every_layer(recipe))
    records = [[(list(r.ids[:-1]), list(r.ids[1:])) for r in its] for its in people]
    found = [gradients for _, gradients in unit_gradients(adapted, records)]
    saliency = {}
    for name in found[0]:
        layer = name.split("base_model.model.")[1].split(".lora_")[0]
        mean = sum(gradients[name] for gradients in found) / len(found)
        squares, size = saliency.get(layer, (0.0, 0))
        saliency[layer] = squares + float(mean.square().sum()), size + mean.numel()
    return {layer: squares / size for layer, (squares, size) in saliency.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_saliency_is_that_of_plain_autograd(kind):
    lm, people = base(MODELS[kind]), users()
    expected = by_autograd(lm, people, RECIPE)
    found = layer_saliency(lm, people, RECIPE)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-3)
    # Each user counts once, however many records: with all records in one unit it is another number.
    assert found != pytest.approx(layer_saliency(lm, [[record for its in people for record in its]], RECIPE), rel=1e-3)


@pytest.mark.parametrize("kind", MODELS)
def test_the_base_model_is_as_before_and_trains_as_if_nothing_had_been_measured(kind):
    lm = base(MODELS[kind])
    lm.model.requires_grad_(True)
    before = copy.deepcopy(lm.model)
    layers = most_salient(layer_saliency(lm, users(), RECIPE), 0.2)
    assert list(lm.model.state_dict()) == list(before.state_dict())
    assert all(torch.equal(now, was) for now, was in zip(lm.model.parameters(), before.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in lm.model.parameters())
    trained = []
    for model in (lm.model, before):
        seed_generators(7, torch.device("cpu"))
        adapted = with_adapters(model, with_layers(RECIPE, layers))
        trained.append({name: p.detach() for name, p in adapted.named_parameters() if p.requires_grad})
    now, was = trained
    assert now.keys() == was.keys()
    assert {name.split("base_model.model.")[1].split(".lora_")[0] for name in now} == set(layers)
    assert all(torch.equal(now[name], was[name]) for name in now)


def test_a_layer_that_no_output_depends_on_is_picked_last():
    lm = base()
    last = lm.model.transformer.h[1].mlp
    with torch.no_grad():
        last.c_proj.weight.zero_()
    saliency = layer_saliency(lm, users(), RECIPE)
    silent = [name for name, value in saliency.items() if value == 0]
    assert silent == ["transformer.h.1.mlp.c_fc"]
    assert silent[0] not in most_salient(saliency, 0.9)


def test_the_share_counts_layers_in_the_order_of_the_model():
    saliency = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 3.0}
    assert most_salient(saliency, 0.05) == ("b",)
    assert most_salient(saliency, 0.5) == ("b", "d")
    assert most_salient(saliency, 0.75) == ("b", "c", "d")
    assert most_salient(saliency, 1.0) == ("a", "b", "c", "d")


def test_what_cannot_be_measured_is_refused():
    with refused(by=layer_saliency, naming="model.saliency"):
        layer_saliency(base(), [], RECIPE)
    broken = base()
    with torch.no_grad():
        broken.model.transformer.wte.weight[:, 0] = float("nan")
    with refused(by="_gradient_sums", naming="model.saliency"):
        layer_saliency(broken, users(), RECIPE)
    assert not any("lora" in name for name, _ in broken.model.named_parameters())
    with refused(by=with_adapters, naming=("finetune.lora.targets", "model.saliency")):
        with_adapters(gpt_neo(), RECIPE)
    for share in (0.0, 1.1):
        with refused(by="Lora.__post_init__", naming="picked_share"):
            Lora(targets="auto", picked_share=share)


def test_texts_without_a_counted_token_pick_nothing():
    """Otherwise the first layers of the model would be picked, by nobody."""
    lm = base()
    silent = [[replace(record, counted=(False,) * len(record.ids)) for record in its] for its in users()]
    with refused(by=layer_saliency, naming="model.saliency"):
        layer_saliency(lm, silent, RECIPE)
    assert not any("lora" in name for name, _ in lm.model.named_parameters())


def test_before_the_choice_every_layer_counts():
    assert on_every_layer(RECIPE).lora.targets == "all-linear"
    named = replace(RECIPE, lora=Lora(targets=("c_fc",)))
    assert on_every_layer(named) is named
    assert on_every_layer(replace(RECIPE, lora=None)).lora is None
