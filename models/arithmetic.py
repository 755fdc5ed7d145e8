"""Which arithmetic products of matrices use: float32 as it is, or half precision where it is asked for."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def true_float32() -> Iterator[None]:
    """Products of float32 matrices in float32, whatever the environment set (TF32, bf16); restored at the end.

    Under TF32 a norm and a sum of the same gradients are rounded differently, by 1e-3: a clipped contribution could
    exceed the clip norm. Scores would change under one cache key.
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
