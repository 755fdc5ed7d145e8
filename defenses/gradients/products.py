"""Products of half-precision operands with float32 results, and the size of the pieces in which they are computed."""

from collections.abc import Iterator

import torch
from torch import Tensor

from heldin.models.devices import kind_of, memory_of

# Floats in memory at a time, for values that need not be kept: within a CPU's cache; enough to occupy a GPU.
PIECE = {"cpu": 2**22, "cuda": 2**28}
_SHARE = 64  # of a GPU's memory that a piece takes at most

# Three terms of bfloat16, of eight significant bits each, are all 24 bits of a float32. Two leave an error of 2^-16 of
# each token's part, which is more than 1e-4 of a gradient in which the tokens' parts cancel.
TERMS = 3
EVEN = 8  # numbers of half precision in the 16 bytes that a GPU reads at a time


def piece_floats(device: torch.device) -> int:
    """Return the number of floats in a piece on this device."""
    if kind_of(device) != "cuda":
        return PIECE["cpu"]
    # Of the whole memory, not of what is free: pieces, and so roundings, are the same in every step.
    return min(PIECE["cuda"], memory_of(device) // (4 * _SHARE))


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of left (U, M, T) and right (U, T, N), float32."""
    if _stays_half(left, right):
        # Products of two half-precision numbers are exact in float32: copies of the factors would only take memory.
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def multiply_into(out: Tensor, left: Tensor, right: Tensor, *, keep: bool) -> None:
    """Set ``out`` (U, M, N), float32, to left^T right. With ``keep``, add the product to ``out``.

    Args:
        out: tensor for the products.
        left: left operand, (U, T, M).
        right: right operand, (U, T, N).
        keep: whether to add to ``out``.
    """
    if _stays_half(left, right):
        # Of an odd number of columns cuBLAS has slow kernels alone: the last of them go apart.
        whole = left.shape[2] - left.shape[2] % EVEN or left.shape[2]
        for some in (slice(0, whole), slice(whole, None)):
            part, columns = out[:, some], left[:, :, some].mT
            if keep and part.numel():
                part.add_(torch.bmm(columns, right, out_dtype=torch.float32))
            elif part.numel():
                torch.bmm(columns, right, out_dtype=torch.float32, out=part)
    else:
        out.baddbmm_(left.float().mT, right.float(), beta=int(keep))  # beta 0 ignores what ``out`` holds, NaN too


def add_scaled(total: Tensor, left: Tensor, right: Tensor, factors: Tensor) -> None:
    """Add the sum over records and positions of factor times left^T right to ``total`` (M, N), float32.

    Args:
        total: tensor to which the sum is added.
        left: left operand, (B, ..., M).
        right: right operand, (B, ..., N).
        factors: factors of the records, (B,), float32.
    """
    # The factors scale the narrower side, which costs less.
    narrow, other = (left, right) if left.shape[-1] < right.shape[-1] else (right, left)
    scaled = narrow.float() * factors.view(-1, *[1] * (narrow.dim() - 1))
    for term in terms(scaled, other.dtype):
        first, second = (term, other) if narrow is left else (other, term)
        first, second = first.flatten(0, -2).t(), second.flatten(0, -2)
        if _stays_half(first, second):
            total.add_(torch.mm(first, second, out_dtype=torch.float32))
        else:
            total.addmm_(first.float(), second.float())


def terms(scaled: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield terms of this type that sum to the float32 operand.

    Unless the type is bfloat16, there is one term, the operand.
    """
    if dtype != torch.bfloat16:
        yield scaled
        return
    rest = scaled
    for _ in range(TERMS):
        # Never one rounded term alone: where tokens cancel, a contribution would exceed the clip norm.
        term = rest.to(dtype)
        yield term
        rest = rest - term.float()


def _stays_half(left: Tensor, right: Tensor) -> bool:
    # No other device has products of half-precision operands with float32 results.
    return kind_of(left.device) == "cuda" and left.dtype == right.dtype != torch.float32
