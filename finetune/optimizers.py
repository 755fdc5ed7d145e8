"""What is trained of a model, and by which optimizer."""

import torch
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.finetune.recipe import Optimizer, Recipe
from heldin.models.devices import kind_of
from heldin.models.reading import quiet_transformers


def with_adapters(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """The model with the recipe's adapters, or the model itself. Raises InputError if they do not fit it."""
    if recipe.lora is None:
        return model
    from peft import LoraConfig, get_peft_model  # slow to import, and only adapters need it

    targets = recipe.lora.targets
    config = LoraConfig(
        r=recipe.lora.rank,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with quiet_transformers():
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise InputError(
                f"finetune.lora.targets = {targets!r} does not fit the model: {str(error)[:120]}"
            ) from error


def optimizer_of(model: PreTrainedModel, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer of everything trainable in the model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rate, decay, fused = recipe.learning_rate, recipe.weight_decay, fused_on(model.device)
    match recipe.optimizer:
        case Optimizer.ADAM:
            return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=fused)
        case Optimizer.ADAMW:
            return torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=fused)
        case Optimizer.SGD:
            return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay, fused=fused)
        case Optimizer.ADAFACTOR:
            return torch.optim.Adafactor(parameters, rate, weight_decay=decay)


def fused_on(device: torch.device) -> bool | None:
    """Whether an optimizer's step is one kernel there; None: torch's own choice, which on a CPU is what it always was.

    On a GPU the other forms hold several temporary copies of all weights.
    """
    return True if kind_of(device) == "cuda" else None
