"""Pick the layers that get adapters by the gradients of public users, before training.

A private step adds the same noise to every trained number, so an adapter should be where its numbers learn most. Every
linear layer gets an adapter for the measurement. The *saliency* of a layer is the mean square, over all numbers of its
adapter, of the gradient of the public users' mean loss. At this point only the second matrix of an adapter has a
gradient, because it starts at zero.

The layers follow from public texts, the base model and the seed alone, so they add nothing to epsilon. DP-SAPF (arXiv
2605.30312) picks layers by gradients too, and pays for a vote of private users. heldin takes no such vote.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.finetune.passes import Contribution, Passes, fitted_sum
from heldin.finetune.precision import arithmetic_of, autocast
from heldin.finetune.preparation import with_adapters
from heldin.finetune.recipe import Recipe
from heldin.models.devices import seed_generators
from heldin.models.loading import LanguageModel

USERS_A_BATCH = 64


def on_every_layer(recipe: Recipe) -> Recipe:
    """If the recipe still has to pick layers, return the recipe with adapters on every linear layer. Otherwise return
    the recipe unchanged.

    The result has at least as many trained numbers as the recipe after the choice.
    """
    if recipe.lora is None or not recipe.lora.picks:
        return recipe
    return replace(recipe, lora=replace(recipe.lora, targets="all-linear"))


def with_layers(recipe: Recipe, layers: Sequence[str]) -> Recipe:
    """Return the recipe with adapters on these layers only."""
    assert recipe.lora is not None
    return replace(recipe, lora=replace(recipe.lora, targets=tuple(layers)))


def layer_saliency(
    base: LanguageModel,
    users: Sequence[Contribution],
    recipe: Recipe,
    advance: Callable[[int], object] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Return the saliency of each linear layer, by the layer's full name, in the order of the model.

    Each user counts equally: a user's loss is the mean over records of the record's mean loss over its tokens.

    Args:
        base: the model before training; it has no adapters afterwards, and unchanged weights.
        users: the tokens of each public user's records.
        recipe: rank, precision and seed of the adapters.
        advance: called with the number of measured users after every batch.
        say: receives a line when a batch ran out of memory.

    Raises:
        InputError: there are no users, no gradient is finite, or every gradient is zero.
        ResumableError: a single record does not fit into memory.
    """
    if not users:
        raise InputError("public users pick the layers, but there are no public users: select some in model.saliency")
    assert recipe.lora is not None
    plain = replace(
        recipe, lora=replace(recipe.lora, targets="all-linear", dropout=0.0, modules_to_save=(), dora=False)
    )
    learns = {name: parameter.requires_grad for name, parameter in base.model.named_parameters()}
    seed_generators(recipe.seed, base.device)  # of the first matrix of each adapter
    adapted = with_adapters(base.model, plain).to(base.device)
    try:
        sums = _gradient_sums(adapted, base, users, recipe, advance, say)
        squares: dict[str, float] = defaultdict(float)
        sizes: dict[str, int] = defaultdict(int)
        for parameter, gradient in sums.items():
            layer = parameter.removeprefix("base_model.model.").partition(".lora_")[0]
            squares[layer] += float(gradient.double().square().sum())
            sizes[layer] += gradient.numel()
        saliency = {layer: squares[layer] / sizes[layer] for layer in squares}
    finally:
        _remove_adapters(adapted, base.model, learns)
    # Without this the first layers of the model would be picked, by nobody.
    if not any(saliency.values()):
        raise InputError(
            "every gradient of the public users is zero, so heldin cannot pick layers: no token of their texts counts"
            " within finetune.sequence_length. Give other texts in model.saliency, or change finetune.loss_on"
        )
    return saliency


def _gradient_sums(
    adapted: PreTrainedModel,
    base: LanguageModel,
    users: Sequence[Contribution],
    recipe: Recipe,
    advance: Callable[[int], object],
    say: Callable[[str], None],
) -> dict[str, torch.Tensor]:
    """Return the gradient of the users' mean loss, by parameter name."""
    total: dict[str, torch.Tensor] = {}
    passes, measured = Passes(recipe.micro_batch or USERS_A_BATCH, say), 0
    for first in range(0, len(users), USERS_A_BATCH):
        some = users[first : first + USERS_A_BATCH]
        with autocast(arithmetic_of(recipe.precision, base.device), base.device):
            of_batch = fitted_sum(adapted, some, float("inf"), passes)
        measured += int((~of_batch.masked).sum())
        for name, gradient in of_batch.gradients.items():
            total[name] = gradient if name not in total else total[name].add_(gradient)
        advance(len(some))
    if not measured:
        raise InputError(
            "no public user's loss has a finite gradient, so heldin cannot pick layers: check the base model and"
            " the texts in model.saliency"
        )
    return {name: gradient / measured for name, gradient in total.items()}


def _remove_adapters(adapted: PreTrainedModel, model: PreTrainedModel, learns: Mapping[str, bool]) -> None:
    """Remove the adapters, so the model and the gradient flags of its parameters are as before."""
    adapted.unload()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learns[name])


def most_salient(saliency: Mapping[str, float], share: float) -> tuple[str, ...]:
    """Return the layers with the largest saliency, in the order of the model.

    Args:
        saliency: saliency of each layer, in the order of the model.
        share: share of the layers to return, above 0 and at most 1; at least one layer is returned.
    """
    ranked = sorted(saliency, key=lambda name: -saliency[name])  # stable: of equal layers, the first
    chosen = set(ranked[: max(1, round(share * len(ranked)))])
    return tuple(name for name in saliency if name in chosen)
