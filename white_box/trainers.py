"""The interface between a white-box audit and the trainer whose noised gradients it watches.

A foreign trainer is passed as a ``PrivateStep``, with the signature of ``finetune.private.private_gradient``: from the
model, the training (mechanism, key, units, canaries), the number of the step and all token sequences it leaves in
``.grad`` of every trainable parameter what its optimizer would see. It

* samples ``training.units`` at the rate of ``training.mechanism``, by coins that nobody knows without ``training.key``;
* uses the token sequences ``training.contribution(unit, step, sequences)`` of a sampled unit or, for a gradient canary
  (``unit.canary``), the gradient that ``training.canaries`` gives for its number;
* clips, sums, adds noise and divides as ``training.mechanism`` says, in full precision; its clip norm, rate, noise
  multiplier (which may be zero) and number of steps differ between the runs of an audit.

A trainer as a whole is a ``Trainer``: it trains ``base.model`` in place and calls ``training.watch`` with each step's
gradients before its optimizer changes the weights. A step that leaves no gradient has released zeros. Under
torch.distributed (``white_box.processes``) every process is called in the same way, and each shows what its optimizer
sees.
"""

import importlib
import random
import sys
import tempfile
import traceback
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

_RATE = 1e-3  # learning rate of Adam


def loop_trainer(base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
    """heldin's own trainer: ``finetune.loop.train`` unchanged, in a temporary folder."""
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
    """Runs ``step`` and then Adam for each step of the mechanism, and shows what Adam saw."""

    step: PrivateStep

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
        """Train ``base.model`` in place."""
        model = base.model.train()
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.Adam(trainable.values(), _RATE)
        # Each step is shown once, here, whatever the step function itself would show.
        unwatched = replace(training, watch=None)
        for number in range(training.mechanism.steps):
            # A step function that adds to ``.grad`` starts from nothing, and one that leaves none has released nothing.
            optimizer.zero_grad(set_to_none=True)
            try:
                self.step(model, unwatched, number, sequences)
            except InputError:
                raise
            except Exception as error:
                raise InputError(_raised(error, number)) from error
            if training.watch:
                training.watch(number, {name: p.grad for name, p in trainable.items() if p.grad is not None})
            optimizer.step()


def _raised(error: Exception, number: int) -> str:
    """Describe the error that a step function raised, and the place."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{'/'.join(Path(where.filename).parts[-2:])}, line {where.lineno}"
    message = " ".join(str(error).split())
    return f"the audited step function raised {type(error).__name__} in step {number} ({place}): {message}"


def stepwise(step: PrivateStep) -> Trainer:
    """A trainer from a step function; it can run in other processes if ``step`` can be imported there."""
    return Stepwise(step)


def imported_step(name: str) -> PrivateStep:
    """The step function that MODULE:NAME names; modules of the current folder are found first.

    Raises InputError if there is none.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(f"--step '{name}': write MODULE:NAME, such as my_training:private_step")
    sys.path.insert(0, str(Path.cwd()))
    try:
        step: PrivateStep | None = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise InputError(f"--step '{name}': cannot import '{module}' ({error})") from error
    finally:
        sys.path.pop(0)
    if not callable(step):
        raise InputError(f"--step '{name}': '{module}' has no function '{function}'")
    return step


def watched(
    trainer: Trainer, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]], see: See
) -> None:
    """Train, and show ``see`` the number of each step and what it released, shape (d,), in units of the sensitivity.

    These units are gradient times the stated divisor over the stated sensitivity: a unit clipped at the norm changes it
    by 1, and the noise has the noise multiplier as deviation. d counts the trainable parameters in the model's order. A
    tensor without gradient is zeros, and so is a step that was never shown, which is shown at the end.

    Args:
        base: the model, trained in place.
        training: mechanism, key, units and canaries.
        see: called with each step's number and what it released.
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

    # randomness from the global generators would be public for a script that starts with a seed: it is so here
    with _same_generators():
        trainer(base, replace(training, watch=watch), sequences)
    for step in sorted(missing):
        see(step, np.zeros(sum(shape.numel() for shape in shapes.values()), dtype=np.float32))


@contextmanager
def _same_generators() -> Iterator[None]:
    """Set the global generators of Python, numpy and torch to a fixed state, and restore them afterwards."""
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
