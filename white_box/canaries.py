"""Gradient canaries: users with gradients that the auditor chooses, handled like all other users."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from heldin.finetune.units import Gradients
from heldin.models.loading import LanguageModel

Directions = Literal["coordinate", "random"]
Array = NDArray[np.float64]
Index = NDArray[np.int64]

POSITIONS = "transformer.wpe.weight"  # of GPT-Neo and of GPT-2
OVERSIZE = 10.0  # norm of a canary's gradient in clip norms, so that the clip is what bounds it


@dataclass(frozen=True)
class Canaries:
    """m canary users with gradients of norm ``norm`` along unit directions, determined by the public seed and a number.

    Attributes:
        count: number of canaries m.
        norm: norm of a canary's gradient before clipping.
        shapes: shape of every trainable tensor, in the model's order; together they have d coordinates.
        coordinates: index of each canary's coordinate among the d coordinates, shape (m,); None for random directions.
        quiet: coordinates that contain only noise, because no canary may use them, shape (p,).
        seed: public seed of random directions.
    """

    count: int
    norm: float
    shapes: Mapping[str, torch.Size]
    coordinates: Index | None
    quiet: Index
    seed: int = 0

    def of_norm(self, clip_norm: float) -> "Canaries":
        """Return these canaries for another clip norm. The ratio of gradient norm to clip norm stays the same."""
        return replace(self, norm=OVERSIZE * clip_norm)

    @functools.cached_property
    def offsets(self) -> dict[str, int]:
        """Return the index of each tensor's first coordinate among the d coordinates."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        return dict(zip(self.shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @property
    def dimension(self) -> int:
        """Return d, the number of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def direction(self, number: int) -> NDArray[np.float32]:
        """Compute the random unit vector of canary ``number``, (d,). It is zero in the quiet coordinates."""
        # From public numbers: an attacker may know every direction; who is in is what the secret key hides.
        philox = np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64))
        values = np.random.Generator(philox).standard_normal(self.dimension, dtype=np.float32)
        # Before normalising, so that the direction still has norm 1; the quiet coordinates stay noise alone.
        values[self.quiet] = 0.0
        return np.asarray(values / np.linalg.norm(values.astype(np.float64)), dtype=np.float32)

    def gradient(self, number: int) -> Gradients:
        """Return the gradient of canary ``number`` before clipping. Omits tensors in which the gradient is zero."""
        if self.coordinates is None:
            whole = torch.from_numpy(self.direction(number) * np.float32(self.norm))
            return {
                name: whole[self.offsets[name] :][: shape.numel()].view(shape) for name, shape in self.shapes.items()
            }
        own = torch.zeros(self.shapes[POSITIONS])
        # Coordinates count through all tensors, this tensor's entries from its own start.
        own.view(-1)[int(self.coordinates[number]) - self.offsets[POSITIONS]] = self.norm
        return {POSITIONS: own}

    @property
    def watched(self) -> Index:
        """Return the coordinates of a step that determine its projections on the canaries, shape (k,)."""
        return np.arange(self.dimension) if self.coordinates is None else self.coordinates

    def projections(self, stream: NDArray[np.float32]) -> Array:
        """Return the projections of steps on each canary's direction, shape (T, m).

        Args:
            stream: the steps at the watched coordinates, shape (T, k).
        """
        if self.coordinates is not None:
            return stream.astype(np.float64)  # a coordinate's projection is itself
        return np.stack([stream @ self.direction(j) for j in range(self.count)], axis=1).astype(np.float64)


def flat(base: LanguageModel) -> Array:
    """Return all trainable parameters as one vector, shape (d,)."""
    parts = [p.detach().reshape(-1).cpu().double() for p in base.model.parameters() if p.requires_grad]
    return np.asarray(torch.cat(parts).numpy())
