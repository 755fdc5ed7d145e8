"""The preparation of a model for training: adapters, frozen weights, gradient checkpointing and the optimizer.

With trained adapters, the frozen weights of linear layers can be stored in half precision. This halves their memory and
changes no result: autocast rounds the weights of a linear layer to bfloat16 in each pass, so the products have the same
operands. Other weights, such as embeddings, are used in float32 and stay in float32.

Gradient checkpointing recomputes activations in the backward pass instead of keeping them.
"""

import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from heldin.base.errors import InputError
from heldin.finetune.recipe import Optimizer, Recipe
from heldin.models.devices import kind_of
from heldin.models.reading import quiet_transformers


def with_adapters(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """Return the model with the recipe's adapters, or the model itself.

    Raises InputError if the adapters do not fit the model.
    """
    if recipe.lora is None:
        return model
    from peft import LoraConfig, get_peft_model  # slow to import, and only adapters need it

    targets = recipe.lora.targets
    if recipe.lora.picks:
        raise InputError(
            "finetune.lora.targets is auto, but only heldin run picks layers (model.saliency): name the layers"
        )
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for name in recipe.lora.modules_to_save:
        if name.rpartition(".")[2] not in names:
            raise InputError(
                f"finetune.lora.modules_to_save lists '{name}', but the model has no layer of this name: correct the"
                " name"
            )
    tied = _tied_weight(model)
    config = LoraConfig(
        r=recipe.lora.rank,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=recipe.lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(recipe.lora.modules_to_save) or None,
        use_rslora=recipe.lora.rslora,
        use_dora=recipe.lora.dora,
        task_type="CAUSAL_LM",
    )
    with quiet_transformers(), warnings.catch_warnings():
        # Of a tied weight PEFT only warns; it is refused below.
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        # PEFT sets it itself for the layers of GPT-2.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")
        try:
            adapted = get_peft_model(model, config)
        except ValueError as error:
            raise InputError(
                f"finetune.lora.targets {targets!r} does not fit the model ({str(error)[:120]}): name layers of this"
                " model"
            ) from error
    _check_tied(adapted, tied)
    return adapted


def _tied_weight(model: PreTrainedModel) -> Tensor | None:
    """Return the weight that is both the embedding and the head; None if there is no such weight."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None or head.weight is not embedding.weight:
        return None
    weight: Tensor = embedding.weight
    return weight


def _check_tied(adapted: nn.Module, tied: Tensor | None) -> None:
    """Raise InputError if an adapter or a fully trained layer uses the tied weight."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    # PEFT trains a copy for one of the two layers, and a model folder keeps one weight for both.
    for name, module in adapted.named_modules():
        changed = isinstance(module, BaseTunerLayer | ModulesToSaveWrapper)
        if changed and any(parameter is tied for parameter in module.parameters()):
            raise InputError(
                f"finetune.lora trains '{name}', but embedding and head share this weight (tied), and training"
                " would separate the two. Leave this layer out of finetune.lora.targets and"
                " finetune.lora.modules_to_save"
            )


def optimizer_of(model: PreTrainedModel, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for all trainable parameters of the model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rate, decay, fused = recipe.learning_rate, recipe.weight_decay, fused_on(model.device)
    match recipe.optimizer:
        case Optimizer.ADAM:
            return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=fused)
        case Optimizer.ADAMW:
            return torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=fused)
        case Optimizer.SGD:
            return torch.optim.SGD(parameters, rate, momentum=recipe.momentum, weight_decay=decay, fused=fused)
        case Optimizer.ADAFACTOR:
            return torch.optim.Adafactor(parameters, rate, weight_decay=decay)


def fused_on(device: torch.device) -> bool | None:
    """Return whether a step of the optimizer is one kernel on this device; None if torch decides, as on a CPU.

    On a GPU, unfused optimizers hold several temporary copies of all weights.
    """
    return True if kind_of(device) == "cuda" else None


_WHOLE: "weakref.WeakKeyDictionary[nn.Module, dict[str, Tensor]]" = weakref.WeakKeyDictionary()


def halve_frozen(model: PreTrainedModel, *, keep: bool = True) -> None:
    """Convert the frozen weights of linear layers to bfloat16.

    Args:
        model: a model with adapters.
        keep: whether to keep the original weights in main memory, for ``restore``.
    """
    shared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    kept = _WHOLE.setdefault(model, {})
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D):
            continue
        weight = module.weight
        if not weight.requires_grad and weight.dtype == torch.float32 and id(weight) not in shared:
            if keep:
                kept[f"{name}.weight"] = weight.detach().to("cpu", copy=True)
            weight.data = weight.data.to(torch.bfloat16)


def restore(copy: nn.Module, model: nn.Module) -> None:
    """Put the float32 weights that ``halve_frozen`` removed from a model into a copy of the model on the CPU."""
    parameters = dict(copy.named_parameters())
    for name, weight in _WHOLE.get(model, {}).items():
        parameters[name].data = weight.clone()


def use_checkpointing(
    model: PreTrainedModel, *, without_dropout: bool, again: Callable[[], AbstractContextManager[object]] = nullcontext
) -> None:
    """Make training passes of the model recompute activations.

    Args:
        model: the model, after any adapters are added.
        without_dropout: whether to set every dropout to 0. Per-unit passes have no dropout, but transformers recomputes
            activations only in training mode, in which the model's own dropout would be on.
        again: function that makes the block in which activations are recomputed.

    Raises:
        InputError: no layer of the model supports checkpointing.
    """
    # Its newer name, where there is one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    with quiet_transformers():
        try:
            # Not reentrant: that one gives no gradients where the first layers are frozen.
            enable({"use_reentrant": False, "context_fn": lambda: (nullcontext(), again())})
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"finetune.checkpointing is true, but a {type(model).__name__} cannot compute activations again: set"
                " finetune.checkpointing to false"
            ) from error
    if without_dropout:
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
            for key in [key for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]:
                setattr(module, key, 0.0)
