"""The seam of a white-box audit: whoever trains, its steps' noised gradients are watched.

A foreign trainer is handed in as a `PrivateStep`, with the signature of `finetune.private.private_gradient`: from the
model, the training (mechanism, key, units, canaries), the number of the step and all token sequences it leaves in
`.grad` of every trainable parameter what its optimizer would see. It

* samples `training.units` at the rate of `training.mechanism`, by coins that nobody knows without `training.key`;
* takes of a drawn unit the token sequences `training.contribution(unit, step, sequences)`, or, of a gradient canary
  (`unit.canary`), the gradient that `training.canaries` gives for its number;
* clips, sums, adds noise and divides as `training.mechanism` says, whose clip norm, rate, noise multiplier (also zero)
  and number of steps differ from run to run of an audit; in full precision.

What trains as a whole is a `Trainer`: it trains `base.model` in place and calls `training.watch` with each step's
gradients before its optimizer moves the weights. A step that leaves no gradient has released zeros. Under
torch.distributed (`white_box.processes`) every process is called alike, and each shows what its optimizer sees.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.choices import ConstantDivisor
from heldin.finetune.loop import train
from heldin.finetune.recipe import Optimizer, Precision, Recipe, Select
from heldin.finetune.units import Gradients, PrivateTraining
from heldin.models.loading import LanguageModel

PrivateStep = Callable[[PreTrainedModel, PrivateTraining, int, Sequence[Sequence[int]]], float | None]
Trainer = Callable[[LanguageModel, PrivateTraining, Sequence[Sequence[int]]], object]
See = Callable[[int, NDArray[np.float32]], None]

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


@dataclass(frozen=True)
class Stepwise:
    """Runs `step` for each step of the mechanism, Adam after it, and shows what Adam saw."""

    step: PrivateStep

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
        """Train `base.model` in place."""
        model = base.model.train()
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.Adam(trainable.values(), _RATE)
        unwatched = replace(training, watch=None)
        for number in range(training.mechanism.steps):
            optimizer.zero_grad(set_to_none=True)
            self.step(model, unwatched, number, sequences)
            if training.watch:
                training.watch(number, {name: p.grad for name, p in trainable.items() if p.grad is not None})
            optimizer.step()


def stepwise(step: PrivateStep) -> Trainer:
    """A trainer of a step function; it can be handed to other processes if `step` can be imported there."""
    return Stepwise(step)


def watched(
    trainer: Trainer, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]], see: See
) -> None:
    """Train, and hand `see` the number of each step and what it released, (d,), in units of the sensitivity.

    That is gradient times the stated divisor over the stated sensitivity: a unit clipped at the norm moves it by 1,
    the noise has deviation noise multiplier. d counts the trainable parameters in the model's order. A tensor without
    gradient is zeros, and so is a step that was never shown, which is handed over at the end.

    The global generators of Python, numpy and torch stand at the same state before each run: what a trainer draws
    from them without a seed of its own is public wherever the script that calls it began with a seed.
    """
    mechanism = training.mechanism
    assert isinstance(mechanism.divisor, ConstantDivisor)
    scale = mechanism.divisor.value / mechanism.sensitivity
    shapes = {name: p.shape for name, p in base.model.named_parameters() if p.requires_grad}
    missing = set(range(mechanism.steps))

    def watch(step: int, gradients: Gradients) -> None:
        if not 0 <= step < mechanism.steps:
            raise InputError(f"the trainer showed step {step} of {mechanism.steps}: steps count from 0")
        missing.discard(step)
        parts = [
            gradients[name].detach().reshape(-1).cpu().float() if name in gradients else torch.zeros(shape.numel())
            for name, shape in shapes.items()
        ]
        see(step, torch.cat(parts).numpy() * np.float32(scale))

    with _same_generators():
        trainer(base, replace(training, watch=watch), sequences)
    for step in sorted(missing):
        see(step, np.zeros(sum(shape.numel() for shape in shapes.values()), dtype=np.float32))


@contextmanager
def _same_generators() -> Iterator[None]:
    """The process's generators at one fixed state in the block, and afterwards as they were before."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
