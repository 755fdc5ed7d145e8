"""Copies of a model on other devices, so that all GPUs of a machine score."""

import copy
import weakref
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

_COPIES: "weakref.WeakKeyDictionary[PreTrainedModel, list[PreTrainedModel]]" = weakref.WeakKeyDictionary()


def copy_on(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """A copy of the model on a device, made tensor by tensor: where it lies a second one may not fit."""
    # What ``deepcopy`` finds in the memo it does not copy where it lies; tied weights stay tied.
    memo: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach().to(device, copy=True), p.requires_grad) for p in model.parameters()
    }
    memo |= {id(b): b.detach().to(device, copy=True) for b in model.buffers()}
    return copy.deepcopy(model, memo)


def copies_on_other_gpus(model: PreTrainedModel) -> list[PreTrainedModel]:
    """A copy of a model that does not change any more on each other GPU that this process may use.

    None where processes train together, each with its GPU; nor of a model on a CPU, spread over devices, or quantized.
    """
    alone = model.device.type == "cuda" and not dist.is_initialized()
    if not alone or hasattr(model, "hf_device_map") or getattr(model, "quantization_method", None) is not None:
        return []
    if model not in _COPIES:
        others = [torch.device("cuda", i) for i in range(torch.cuda.device_count()) if i != model.device.index]
        _COPIES[model] = [copy_on(model, device) for device in others]
    return _COPIES[model]
