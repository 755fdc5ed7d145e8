"""Compute a unit's contribution by one plain backward pass, and find the units in a step from their contributions.

The code is slow and simple. It uses no part of heldin's engine, no batches and no padding. At the weights of a step,
units' contributions are linearly independent, unless units have equal texts. A step without noise therefore shows which
units it summed, and whether the step contains anything else.
"""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from heldin.base.errors import InputError
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.models.tokens import Tokens
from heldin.white_box.canaries import Array

Texts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Reading:
    """One step, decomposed into contributions.

    Attributes:
        taken: how often the step contains each column's contribution, unrounded, shape (columns,).
        off: distance of the step from the nearest whole numbers of contributions, divided by the largest contribution.
    """

    taken: Array
    off: float

    @property
    def odd(self) -> float:
        """Return the largest distance of a column's number from a whole number."""
        return float(np.abs(self.taken - np.rint(self.taken)).max(initial=0.0))


@dataclass(frozen=True)
class _Weights:
    """A key for a model; two keys are equal if their models have equal weights."""

    digest: bytes  # all that equality and hash look at: training changes a model in place
    base: LanguageModel = field(compare=False)


def gradient(base: LanguageModel, texts: Texts) -> Array:
    """Return the mean over records of the gradient of each record's mean token loss, (d,); zero without records.

    See Charles et al. 2024, Algorithm 2. The result is cached by weights and records, so do not write to it.
    """
    weights = hashlib.sha256()
    for parameter in base.model.parameters():
        weights.update(parameter.detach().cpu().numpy().tobytes())
    return _gradient(_Weights(weights.digest(), base), texts)


# Each entry holds d float64 numbers, and keeps the model of its weights.
@functools.lru_cache(maxsize=128)
def _gradient(weights: _Weights, texts: Texts) -> Array:
    base = weights.base
    parameters = [p for p in base.model.parameters() if p.requires_grad]
    total = np.zeros(sum(p.numel() for p in parameters))
    with torch.enable_grad():
        for text in texts:
            ids = torch.tensor([list(text)])  # (1, L): one record at a time, without padding
            loss = base.model(input_ids=ids, labels=ids, use_cache=False).loss / len(texts)
            # Materialised: a parameter that the text does not use has zeros, and keeps its place among the d.
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
            total += torch.cat([part.reshape(-1) for part in gradients]).double().numpy()
    return total


def contribution(base: LanguageModel, texts: Texts, clip_norm: float) -> Array:
    """Return the clipped gradient of a unit with these records, divided by the clip norm, (d,); zero if the gradient is
    not finite."""
    whole = gradient(base, texts)
    norm = math.sqrt(float(whole @ whole))
    return whole / max(norm, clip_norm) if math.isfinite(norm) else np.zeros_like(whole)  # min(1, C / norm) / C


@dataclass(frozen=True, eq=False)
class ContributionColumns:
    """The contributions that a step can consist of.

    Attributes:
        names: names of the units of each column; several names if units have equal texts.
        matrix: the contributions, shape (columns, d).
    """

    names: tuple[tuple[str, ...], ...]
    matrix: Array

    @functools.cached_property
    def _inverse(self) -> Array:
        """The pseudo-inverse, shape (d, columns). A column of zeros gives zeros."""
        return np.asarray(np.linalg.pinv(self.matrix), dtype=np.float64)

    def read(self, released: Array) -> Reading:
        """Decompose a step of shape (d,) into contributions by least squares."""
        taken = released @ self._inverse
        return Reading(taken, self.off(released, np.rint(taken)))

    def off(self, released: Array, taken: Array) -> float:
        """Return how far a step is from these numbers of contributions, over the largest contribution (1 if all are
        zero)."""
        largest = float(np.linalg.norm(self.matrix, axis=1).max(initial=0.0))
        return float(np.linalg.norm(released - taken @ self.matrix)) / (largest or 1.0)


def columns_of(base: LanguageModel, alike: Mapping[Texts, Sequence[str]], clip_norm: float) -> ContributionColumns:
    """Return the columns at the current weights of ``base``, one for all units with equal contributions
    (``alike_in``)."""
    parts = [contribution(base, texts, clip_norm) for texts in alike]
    return ContributionColumns(tuple(tuple(names) for names in alike.values()), np.stack(parts))


def alike_in(
    training: PrivateTraining, units: Sequence[SampledUnit], step: int, sequences: Sequence[Tokens]
) -> dict[Texts, list[str]]:
    """Return the names of units with texts, by the token ids of the records that they contribute to a step."""
    names: dict[Texts, list[str]] = {}
    for unit in units:
        records = training.contribution(unit, step, sequences)
        if any(tokens.counted is not None for tokens in records):
            raise InputError(
                "the white-box audit computes gradients only of records in which every token counts: leave other"
                " records out"
            )
        texts = tuple(tuple(tokens.ids) for tokens in records)
        names.setdefault(texts, []).append(unit.name)
    return names


def furthest(readings: Sequence[Reading]) -> float:
    """Return the largest distance of a step from its stated value, over the largest contribution; infinite if one is
    NaN."""
    apart = [distance for each in readings for distance in (each.off, each.odd)]
    return max((math.inf if math.isnan(distance) else distance for distance in apart), default=math.inf)
