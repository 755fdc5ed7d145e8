"""Gaussian noise as a function of (key, step, tensor name): never drawn twice for different data, the same on resume.

There are two generators. The default is counter-based: Philox (numpy's on a CPU, torch's on a GPU) under a key derived
per step and tensor by HMAC-SHA-256; it is fast and not cryptographic. The secure one takes its bits from SHAKE-256 and
turns them into normal numbers by the inverse distribution function. Neither protects against attacks on floating point.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from heldin.base.coins import keyed_digest
from heldin.defenses.choices import NoiseGenerator


def gaussian(
    generator: NoiseGenerator,
    key: bytes,
    step: int,
    name: str,
    shape: torch.Size,
    deviation: float,
    device: torch.device,
) -> torch.Tensor:
    """Independent N(0, deviation^2) numbers of ``shape``, fp32, for one tensor of one step.

    Args:
        generator: which of the two.
        key: the run's secret key; two runs must never share one, or their difference would contain no noise.
        step: number of the optimizer step.
        name: the tensor's name.
        shape: of the result.
        deviation: standard deviation.
        device: of the result.
    """
    # Keyed by the tensor's name: tensors of one shape that shared their noise would cancel it in their difference.
    derived = keyed_digest(key, f"noise {step}", name)
    match generator:
        case NoiseGenerator.PHILOX if device.type == "cuda":
            # torch takes 64 bits where numpy's Philox takes 128; the numbers differ from those of a CPU.
            seed = int.from_bytes(derived[:8], "big", signed=True)
            source = torch.Generator(device=device).manual_seed(seed)
            return torch.randn(shape, generator=source, device=device) * deviation
        case NoiseGenerator.PHILOX:
            words = int.from_bytes(derived[:16], "big")
            philox = np.random.Generator(np.random.Philox(key=words))
            values = philox.standard_normal(shape.numel(), dtype=np.float32)
        case NoiseGenerator.SECURE:
            # All of a tensor's bits at once: 8 bytes a coordinate, beside as many for its float64 numbers.
            bits = np.frombuffer(hashlib.shake_256(derived).digest(8 * shape.numel()), dtype=np.uint64)
            values = special.ndtri(_within_0_and_1(bits)).astype(np.float32)
    return torch.from_numpy(values).view(shape).mul_(deviation).to(device)


def _within_0_and_1(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The middles of 2^52 cells: never 0 or 1, whose inverses are infinite. Of 2^53 cells the topmost rounds to 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
