"""The seam of a white-box audit: whoever trains, its steps' noised gradients are watched.

A foreign trainer is handed in as a `PrivateStep`, with the signature of `finetune.private.private_gradient`: from the
model, the training (mechanism, key, units, canaries), the number of the step and all token sequences it leaves in
`.grad` of every trainable parameter what its optimizer would see. It must draw gradient canaries (`unit.canary`), ask
`training.canaries` for their gradients, and clip, sum and noise these like any other unit's; a step that leaves no
gradient has released zeros. What trains as a whole is a `Trainer`, which calls `training.watch` itself.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from audit.white_box.canaries import Index
from corpus.errors import InputError
from defenses.choices import ConstantDivisor
from finetune.loop import train
from finetune.recipe import Optimizer, Precision, Recipe, Select
from finetune.units import Gradients, PrivateTraining
from models.loading import LanguageModel

PrivateStep = Callable[[PreTrainedModel, PrivateTraining, int, Sequence[Sequence[int]]], float | None]
Trainer = Callable[[LanguageModel, PrivateTraining, Sequence[Sequence[int]]], object]

_RATE = 1e-3


def loop_trainer(base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
    """heldin's own: `finetune.loop.train` as it stands, in a temporary folder."""
    recipe = Recipe(
        optimizer=Optimizer.ADAM,
        learning_rate=_RATE,
        checkpoint_every=training.mechanism.steps,
        select=Select.LAST,
        precision=Precision.FP32,
    )
    with tempfile.TemporaryDirectory(prefix="heldin-white-box-") as folder:
        train(base, sequences, recipe, Path(folder), private=training)


def stepwise(step: PrivateStep) -> Trainer:
    """A trainer that runs `step` for each step of the mechanism, Adam after it, and shows what Adam saw."""

    def run(base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
        model = base.model.train()
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.Adam(trainable.values(), _RATE)
        unwatched = replace(training, watch=None)
        for number in range(training.mechanism.steps):
            optimizer.zero_grad(set_to_none=True)
            step(model, unwatched, number, sequences)
            if training.watch:
                training.watch(number, {name: p.grad for name, p in trainable.items() if p.grad is not None})
            optimizer.step()

    return run


def watched_steps(
    trainer: Trainer,
    base: LanguageModel,
    training: PrivateTraining,
    sequences: Sequence[Sequence[int]],
    shapes: Mapping[str, torch.Size],
    places: Index,
) -> NDArray[np.float32]:
    """What the steps released at `places` (k,) among all trainable parameters, in units of the sensitivity, (T, k).

    That is gradient times the stated divisor over the stated sensitivity: a unit clipped at the norm moves it by 1,
    the noise has deviation noise multiplier. A step that was never shown, and a tensor without gradient, are zeros.
    Raises InputError where the trainer released something that is not finite.
    """
    mechanism = training.mechanism
    assert isinstance(mechanism.divisor, ConstantDivisor)
    scale = mechanism.divisor.value / mechanism.sensitivity
    stream = np.zeros((mechanism.steps, places.size), dtype=np.float32)
    at = torch.from_numpy(places)

    def watch(step: int, gradients: Gradients) -> None:
        parts = [
            gradients[name].detach().reshape(-1).cpu().float() if name in gradients else torch.zeros(shape.numel())
            for name, shape in shapes.items()
        ]
        stream[step] = torch.cat(parts)[at].numpy() * scale

    trainer(base, replace(training, watch=watch), sequences)
    bad = np.flatnonzero(~np.isfinite(stream).all(axis=1))
    if bad.size:
        raise InputError(f"the trainer released a gradient that is not finite at step {bad[0]}: it cannot be audited")
    return stream
