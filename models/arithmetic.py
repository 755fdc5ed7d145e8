"""A model's arithmetic: how its weights are stored, the precision for scoring, and true float32 products.

For quantised weights heldin checks, before it loads any weight, that the files have the format in the config.
"""

import contextlib
import importlib.util
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from heldin.base.errors import InputError
from heldin.models.model_config import ScoringPrecision
from heldin.models.quantized import fixed_options, format_of
from heldin.models.stored import DTYPES, Stored


@contextlib.contextmanager
def true_float32() -> Iterator[None]:
    """Compute products of float32 matrices in float32 within this block, and restore the environment's setting (TF32,
    bf16) afterwards.

    TF32 rounds a norm and a sum of the same gradients differently, by 1e-3, so a clipped contribution could exceed the
    clip norm. Scores under one cache key would also differ.
    """
    # torch has an older setting for all backends and newer ones for each, and reading the older one fails where the
    # newer ones disagree: then these alone are restored.
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    newer = [backend.fp32_precision for backend in backends]
    try:
        older: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for backend, precision in zip(backends, newer, strict=True):
            backend.fp32_precision = precision


_QUANTIZED = ("int8", "nf4")
_FLOATS: dict[str, ScoringPrecision] = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}


def stored_in(files: Sequence[Path], config: Any, name: str) -> Stored:
    """Return how weights are stored, according to the headers of the weight files.

    Raises InputError if the files do not have the stated format, or this machine cannot load this format.
    """
    numbers, packed = Counter[str](), False
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - no mapping
                    part = tensors.get_slice(key)
                    kind, shape = part.get_dtype(), part.get_shape()
                    numbers[kind] += torch.Size(shape).numel()
                    # Masks of older models are whole numbers too.
                    packed |= len(shape) > 1 and kind not in (*_FLOATS, "F64", "BOOL") and not key.endswith("bias")
        except Exception:  # loading tells what is wrong with a file
            return Stored()
    floats = [kind for kind, _ in numbers.most_common() if kind in _FLOATS]
    form, stated = None, getattr(config, "quantization_config", None)
    if stated is not None:
        form = format_of(stated, name, [] if packed else floats)
    size = sum(file.stat().st_size for file in files)
    return Stored(_FLOATS[floats[0]] if floats else None, form, sum(numbers.values()), size)


def loading_options(
    precision: ScoringPrecision, device: torch.device | None, stored: Stored | None = None
) -> dict[str, Any]:
    """Return arguments of ``from_pretrained`` for weights in this precision.

    Args:
        precision: bf16 and fp16 take half the bytes of fp32. int8 (LLM.int8, arXiv 2208.07339) and nf4 (QLoRA, arXiv
            2305.14314) are formats of bitsandbytes that keep all but the matrices of linear layers in bfloat16.
        device: device for the model; None: spread the model over all GPUs, and main memory for the rest.
        stored: how the files store the weights; None: as plain numbers.

    Raises:
        InputError: bitsandbytes is not installed, the GPU has no bfloat16 arithmetic, or the stored weights are
            quantised in another precision.
    """
    options: dict[str, Any] = {"dtype": DTYPES.get(precision, torch.bfloat16)}
    if precision not in ("fp32", "fp16") and _lacks_bf16(device):
        raise InputError(f"precision {precision} needs bfloat16 arithmetic, which the GPU lacks: choose fp32")
    spread = {"device_map": "auto"} if device is None else {}
    if stored is not None and stored.format is not None:
        return {**fixed_options(stored, precision, device), **spread}
    options |= spread
    if precision in _QUANTIZED:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise InputError(f"{precision} needs bitsandbytes: pip install '.[quantized]' in a clone of heldin")
        options["quantization_config"] = _quantization(precision)
        # Quantized while they are read, on the device where they stay: they cannot be moved by ``to`` afterwards.
        options.setdefault("device_map", {"": device})
    return options


def in_fingerprint(precision: ScoringPrecision) -> str:
    """Return the precision's part of a model's fingerprint, so the cache separates scores by precision."""
    return {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}.get(precision, precision)


@contextmanager
def tokens_rounded_apart(model: Any) -> Iterator[None]:
    """Make LLM.int8 round each token's activations separately in this block; other precisions always do.

    Otherwise an activation column with a large value at one token stays unrounded at all tokens of a batch (section 3.2
    of arXiv 2208.07339). A token would then change predictions at earlier positions and in other texts.
    """
    layers = []
    if getattr(model, "is_loaded_in_8bit", False):
        from bitsandbytes.nn.modules import Linear8bitLt

        layers = [layer.state for layer in model.modules() if isinstance(layer, Linear8bitLt)]
    kept = [state.threshold for state in layers]
    try:
        for state in layers:
            state.threshold = 0.0
        yield
    finally:
        for state, threshold in zip(layers, kept, strict=True):
            state.threshold = threshold


def _quantization(precision: ScoringPrecision) -> Any:
    from transformers import BitsAndBytesConfig

    if precision == "int8":
        # It warns once a matrix that it goes through float16.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def _lacks_bf16(device: torch.device | None) -> bool:
    on_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    # Emulated, it would be slower than float32, and no better.
    return on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False)
