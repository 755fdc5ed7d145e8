"""Arithmetic of the forward and backward pass: float32, or bfloat16 if the device supports it."""

import contextlib
from contextlib import AbstractContextManager
from typing import Literal

import torch

from heldin.base.errors import InputError
from heldin.finetune.recipe import Precision

Arithmetic = Literal["fp32", "bf16"]


def arithmetic_of(precision: Precision, device: torch.device) -> Arithmetic:
    """Return the arithmetic of a recipe's precision on this device.

    Raises InputError for bf16 on a GPU without bf16.
    """
    has = device.type != "cuda" or _gpu_has_bf16(device)
    if precision is Precision.BF16 and not has:
        raise InputError(
            f"finetune.precision is bf16, but {torch.cuda.get_device_name(device)} has no bfloat16 arithmetic: set"
            " finetune.precision to auto or fp32"
        )
    if precision is Precision.AUTO:
        return "bf16" if device.type == "cuda" and has else "fp32"
    return "bf16" if precision is Precision.BF16 else "fp32"


def autocast(
    arithmetic: Arithmetic, device: torch.device, *, keeps_casts: bool = True
) -> AbstractContextManager[object]:
    """Return a block in which passes use this arithmetic.

    Args:
        device: device of the passes.
        keeps_casts: whether to keep half-precision copies of all weights until the end of the block.
    """
    # By torch itself: accelerate keeps one precision for the life of a process, and pre-training may have had another.
    if arithmetic == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=keeps_casts)


def _gpu_has_bf16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        # Emulated, it would be slower than float32, and no better.
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
