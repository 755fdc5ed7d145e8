"""Formats of quantised weights: what each format requires, and whether the files have the format in the config."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from heldin.base.errors import InputError
from heldin.models.model_config import ScoringPrecision
from heldin.models.stored import DTYPES, Stored

_BITSANDBYTES = ("int8", "nf4", "fp4")
# Modules that transformers needs to read weights of a format, by the name of the format in a config; for others it
# gives its own reasons. It dequantises fp8 and mxfp4 where nothing computes with them.
_MODULES = {
    "awq": ("gptqmodel",),
    "compressed-tensors": ("compressed_tensors",),
    "fbgemm_fp8": ("fbgemm_gpu",),
    "gptq": ("optimum", "gptqmodel"),
    "hqq": ("hqq",),
    "torchao": ("torchao",),
}
_NEEDS_GPU = ("fbgemm_fp8",)


def format_of(stated: Any, name: str, plain: Sequence[str]) -> str | None:
    """Return the format of quantised weights (``Stored.format``); None if the format leaves all numbers plain.

    Args:
        stated: section ``quantization_config`` of the model's config.
        name: name of the model, for messages.
        plain: types of the stored numbers, the most frequent type first; empty if some numbers are quantised.

    Raises:
        InputError: the files do not have the format, or this machine lacks a package or GPU that the format needs.
    """
    form = _named(stated)
    if form is not None and plain:
        raise InputError(
            f"'{name}': config.json states quantised weights ({form}), but the files contain plain numbers"
            f" ({plain[0]}). If the files are right, remove quantization_config from config.json. If config.json is"
            " right, save the weights again"
        )
    if form is not None:
        _require_packages(form, name)
    return form


def fixed_options(stored: Stored, precision: ScoringPrecision, device: torch.device | None) -> dict[str, Any]:
    """Return arguments of ``from_pretrained`` for quantised weights, which transformers loads in their stored format.

    Raises InputError for a precision that differs from the precision of the weights. fp32 is the default, and raises no
    error.
    """
    if precision not in ("fp32", stored.own):
        raise InputError(
            f"the weights are already quantised ({stored.format}), so precision {precision} is impossible: leave the"
            " precision out (--dtype, attack.precision), or give the same model in full precision"
        )
    # The other weights have one type, and their products need it: asked for another one, these alone would change.
    options: dict[str, Any] = {"dtype": DTYPES[stored.precision or "fp32"]}
    return {**options, "device_map": {"": device}} if stored.format in _BITSANDBYTES else options


def _named(stated: Any) -> str | None:
    content = stated if isinstance(stated, dict) else stated.to_dict()
    four, eight = content.get("load_in_4bit"), content.get("load_in_8bit")
    form = str(content.get("quant_method") or ("bitsandbytes" if four or eight else "unknown"))
    if form == "bitsandbytes":
        return str(content.get("bnb_4bit_quant_type", "fp4")) if four else "int8"
    # Formats of plain numbers by their own rules.
    plain = form == "bitnet" or (form == "compressed-tensors" and content.get("format") == "dense")
    return None if plain else form


def _require_packages(form: str, name: str) -> None:
    modules = ("bitsandbytes",) if form in _BITSANDBYTES else _MODULES.get(form, ())
    lacking = [module for module in modules if importlib.util.find_spec(module) is None]
    if lacking == ["bitsandbytes"]:
        install, extra = "'.[quantized]' in a clone of heldin", ""
    else:
        install, extra = " ".join(module.replace("_", "-") for module in lacking), ", in no extra of heldin"
    if lacking:
        raise InputError(
            f"the weights of '{name}' are quantised ({form}) and need {' and '.join(lacking)}{extra}: pip install"
            f" {install}, or give the same model in full precision"
        )
    if form in _NEEDS_GPU and not torch.cuda.is_available():
        raise InputError(
            f"the weights of '{name}' are quantised ({form}) and need a GPU, but torch finds no GPU: give the same"
            " model in full precision"
        )
