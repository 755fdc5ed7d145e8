"""Frozen weights in half precision beside trained adapters: half the memory, and no other number.

Autocast rounds the weights of a linear layer to bfloat16 in each pass. Those of layers that are not trained can be kept
so: the products have the same operands. Other weights, such as embeddings, are used in float32 and stay.
"""

import weakref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_WHOLE: "weakref.WeakKeyDictionary[nn.Module, dict[str, Tensor]]" = weakref.WeakKeyDictionary()


def halve_frozen(model: PreTrainedModel, *, keep: bool = True) -> None:
    """Keep the frozen weights of linear layers in bfloat16.

    Args:
        model: with adapters.
        keep: keep what they were in main memory, for ``restore``.
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
    """Give a copy of a model, on the CPU, the float32 weights that ``halve_frozen`` took from the model."""
    parameters = dict(copy.named_parameters())
    for name, weight in _WHOLE.get(model, {}).items():
        parameters[name].data = weight.clone()
