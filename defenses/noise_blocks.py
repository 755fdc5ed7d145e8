"""Standard normal numbers of one block of a tensor's noise, as a function of (key, step, tensor, block).

A tensor is cut into blocks of ``BLOCK`` numbers in the order in which they lie in memory. Each has a key of its own, so
that a process that holds a part of a tensor draws the numbers of that part, and no others have to be drawn in order.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray
from scipy import special

from heldin.base.coins import keyed_digest
from heldin.defenses.choices import NoiseGenerator

BLOCK = 2**20


def block_digest(key: bytes, step: int, name: str, block: int) -> bytes:
    """The 32 bytes from which a block's numbers are made.

    Args:
        block: number of the block, from 0.
    """
    # Keyed by the tensor's name: tensors of one shape that shared their noise would cancel it in their difference.
    return keyed_digest(key, f"noise {step} {block}" if block else f"noise {step}", name)


def block_sizes(numbers: int) -> list[int]:
    """Numbers of each block of a tensor; all but the last have ``BLOCK``."""
    return [min(BLOCK, numbers - first) for first in range(0, numbers, BLOCK)]


def standard_normal(generator: NoiseGenerator, digest: bytes, count: int) -> NDArray[np.float32]:
    """The numbers of one block, N(0, 1), shape (count,).

    Args:
        generator: Philox under the first 128 bits of the digest, or SHAKE-256 of all of it.
    """
    match generator:
        case NoiseGenerator.PHILOX:
            philox = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
            return philox.standard_normal(count, dtype=np.float32)
        case NoiseGenerator.SECURE:
            bits = np.frombuffer(hashlib.shake_256(digest).digest(8 * count), dtype=np.uint64)
            return np.asarray(special.ndtri(_within_0_and_1(bits)), dtype=np.float32)


def _within_0_and_1(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The middles of 2^52 cells: never 0 or 1, whose inverses are infinite. Of 2^53 cells the topmost rounds to 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
