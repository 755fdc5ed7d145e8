"""Gradient checkpointing: activations are computed again in the backward pass, and so are not kept."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.models.reading import quiet_transformers


def use_checkpointing(
    model: PreTrainedModel, *, without_dropout: bool, again: Callable[[], AbstractContextManager[object]] = nullcontext
) -> None:
    """Let training passes of the model compute activations again.

    Args:
        model: with adapters, if it gets any.
        without_dropout: set every dropout to 0. Per-unit passes have none, but transformers computes activations again
            in training mode only, in which the model's own would be on.
        again: makes the block in which they are computed again.

    Raises:
        InputError: the model has no layers that can do it.
    """
    # Its newer name, where there is one.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    with quiet_transformers():
        try:
            # Not reentrant: that one gives no gradients where the first layers are frozen.
            enable({"use_reentrant": False, "context_fn": lambda: (nullcontext(), again())})
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"finetune.checkpointing is true, but a {type(model).__name__} cannot compute activations again"
            ) from error
    if without_dropout:
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
            for key in [key for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]:
                setattr(module, key, 0.0)
