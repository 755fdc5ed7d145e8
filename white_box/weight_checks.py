"""Check that the weights follow from the released gradients, and from nothing else.

A guarantee covers released gradients. It covers the weights only if the optimizer sees nothing but released gradients.
Two checks compare weights. In whole trainings, the trainer's stated optimizer updates a second copy of the weights with
the gradients that the trainer showed. In short runs, the check overwrites the shown gradients with the same numbers for
any sample, so the weights must be equal too.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from heldin.base.coins import keyed_digest
from heldin.finetune.units import Gradients, PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.models.tokens import Tokens
from heldin.white_box.canaries import Array, flat
from heldin.white_box.check import Check, exact, silent
from heldin.white_box.stage import Stage
from heldin.white_box.trainers import StatedOptimizer, Trainer, changed, watched

GIVEN_STEPS = 8  # of each run with given gradients: half of them there, and half of them back, twice as far
RECOMPUTED, GIVEN = "weights recomputed from the releases", "weights under the same releases"
# Rounding that other forms of the same optimizer may have, in units of the last place. Of the weight: decay and
# subtraction. Of the largest move of its tensor: in Adam's average gradients cancel, and it divides by a root of at
# least 3 % of the largest gradient.
_OF_WEIGHT, _OF_MOVE = 4.0, 1000.0

Show = Callable[[int, Gradients], None]


class Replay:
    """A second copy of the weights. The stated optimizer updates it with the gradients that the trainer showed.

    After each step the copy is set to the trainer's weights, so steps are compared separately and rounding errors do
    not add up. The optimizer's state belongs only to the copy.
    """

    def __init__(self, base: LanguageModel, stated: StatedOptimizer, steps: int) -> None:
        self._base, self._stated, self._steps = base, stated, steps
        self._copies: dict[str, torch.nn.Parameter] = {}
        self._shown: tuple[int, dict[str, torch.Tensor]] | None = None
        self._before = flat(base)
        self._furthest = 0.0

    def show(self, step: int, gradients: Gradients) -> None:
        """Record the release of a step before the trainer's optimizer sees it."""
        # A step that is shown twice counts as shown last.
        if self._shown is None or self._shown[0] != step:
            self._compare()
        self._shown = step, {name: gradient.detach().clone() for name, gradient in gradients.items()}

    def furthest(self) -> float:
        """Compare the last step as well. Return the largest deviation of a weight in any step, over its possible
        rounding."""
        self._compare()
        self._shown = None
        return self._furthest

    def _compare(self) -> None:
        now = {name: p.detach() for name, p in self._base.model.named_parameters() if p.requires_grad}
        if not self._copies:
            # Whatever changed before the first step was shown was changed by no release.
            self._furthest = 0.0 if np.array_equal(flat(self._base), self._before) else math.inf
            self._copies = {name: torch.nn.Parameter(p.clone()) for name, p in now.items()}
            self._optimizer, self._schedule = self._stated(self._copies, self._steps)
            return
        if self._shown is None:
            return
        before = {name: copy.detach().clone() for name, copy in self._copies.items()}
        for name, copy in self._copies.items():
            copy.grad = self._shown[1][name].to(copy) if name in self._shown[1] else None
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        with torch.no_grad():
            for name, copy in self._copies.items():
                self._furthest = max(self._furthest, _roundings(before[name], copy.detach(), now[name]))
                copy.copy_(now[name])


def _roundings(before: torch.Tensor, expected: torch.Tensor, seen: torch.Tensor) -> float:
    """Return the largest distance of a weight from its expected value, in units of the possible rounding."""
    unit = torch.finfo(expected.dtype).eps
    old, new, shown = (tensor.double() for tensor in (before, expected, seen.to(expected)))
    size = torch.maximum(old.abs(), new.abs())
    allowed = unit * (_OF_WEIGHT * size + _OF_MOVE * (new - old).abs().max())
    apart = (shown - new).abs()
    worst = float(torch.where(apart > 0.0, apart / allowed, apart).max())
    return math.inf if math.isnan(worst) else worst


def recomputed_check(furthest: float | None, steps: int) -> Check:
    """Check the weights of whole trainings.

    Args:
        furthest: the largest deviation of a weight, over its rounding (``Replay.furthest``); None without a stated
            optimizer.
        steps: number of steps of all trainings.
    """
    if furthest is None:
        return silent(
            RECOMPUTED, "weights", "the weights recomputed from the releases: the trainer states no optimizer"
        )
    move = _OF_MOVE * torch.finfo(torch.float32).eps
    detects = (
        f"a weight, in one of {steps} steps or at the end, that differs from the stated optimizer's by {_OF_WEIGHT:g}"
        f" units in its last place and {move:.1g} of the largest move of its tensor"
    )
    return exact(f"{RECOMPUTED}, in roundings", "weights", furthest, 0.0, detects, tolerance=1.0)


def given_checks(stage: Stage, trainer: Trainer, key: bytes) -> tuple[Check, ...]:
    """Train on different people with the same given gradients in place of the releases: the weights must be equal.

    The gradients alternate in sign, so the loss of everybody's texts rises in some steps and falls in others. The
    comparison is impossible if the trainer shows copies of its gradients, or if two runs on the same people differ.
    """
    rng = np.random.default_rng(int.from_bytes(keyed_digest(key, "white-box given", "")[:8], "big"))
    forth = rng.standard_normal((GIVEN_STEPS // 2, stage.canaries.dimension)) * stage.mechanism.noise_multiplier
    given = np.concatenate([forth, -2.0 * forth])
    mechanism = changed(stage.all_records, rate=1.0, steps=GIVEN_STEPS)

    def trained(names: tuple[str, ...], numbers: Array = given) -> Mapping[int, Array]:
        training = replace(stage.planned(keyed_digest(key, "white-box given", "run"), names), mechanism=mechanism)
        return _weights(stage, trainer, training, numbers.astype(np.float32))

    writers = stage.names_of_writers
    nobody = trained(())
    if not _all_tensors_differ(stage, nobody, trained((), -given)):
        why = f"{GIVEN}: the trainer shows copies of the gradients that its optimizer reads"
        return (silent(GIVEN, "weights", why),)
    # Everybody, and people alone with ordinary and with unlikely texts: each group has a loss of its own.
    apart = [_apart(nobody, trained(names)) for names in (writers, writers[:1], (writers[-2],))]
    furthest = max(apart)
    if furthest > 0.0 and _apart(trained(writers), trained(writers)) > 0.0:
        why = f"{GIVEN}: two runs on the same people, under one key, end with other weights"
        return (silent(GIVEN, "weights", why),)
    detects = f"any difference between weights of four groups of people under the same {GIVEN_STEPS} releases"
    return (exact(f"{GIVEN}, furthest apart", "weights", furthest, 0.0, detects, tolerance=0.0),)


def watching(trainer: Trainer, show: Show) -> Trainer:
    """Return the trainer. ``show`` receives its gradients before anybody else sees them."""

    def run(base: LanguageModel, training: PrivateTraining, sequences: Sequence[Tokens]) -> None:
        watch = training.watch
        assert watch is not None

        def both(step: int, gradients: Gradients) -> None:
            show(step, gradients)
            watch(step, gradients)

        trainer(base, replace(training, watch=both), sequences)

    return run


def _weights(
    stage: Stage, trainer: Trainer, training: PrivateTraining, given: NDArray[np.float32]
) -> Mapping[int, Array]:
    """Return the weights before each step and after the last step of a training with overwritten gradients.

    Args:
        given: the release to write in each step, in units of the sensitivity, shape (T, d).
    """
    base, weights = stage.model(), dict[int, Array]()
    mechanism = training.mechanism
    assert mechanism.divisor.constant is not None
    numbers = torch.from_numpy(given * np.float32(mechanism.sensitivity / mechanism.divisor.constant))

    def show(step: int, gradients: Gradients) -> None:
        weights[step] = flat(base)
        # A tensor that cannot be written to is as good as a copy.
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            for name, shape in stage.canaries.shapes.items():
                if name in gradients:
                    start = stage.canaries.offsets[name]
                    gradients[name].copy_(numbers[step, start : start + shape.numel()].reshape(shape))

    watched(watching(trainer, show), base, training, stage.sequences, lambda step, released: None)
    return {**weights, mechanism.steps: flat(base)}


def _apart(first: Mapping[int, Array], second: Mapping[int, Array]) -> float:
    """Return the largest difference between weights at the same time; infinite if the runs showed different steps."""
    if first.keys() != second.keys():
        return math.inf
    worst = max(float(np.abs(first[step] - second[step]).max()) for step in first)
    return math.inf if math.isnan(worst) else worst


def _all_tensors_differ(stage: Stage, first: Mapping[int, Array], second: Mapping[int, Array]) -> bool:
    """Return whether the last weights of two runs differ in every tensor."""
    moved = first[max(first)] != second[max(second)]
    offsets, shapes = stage.canaries.offsets, stage.canaries.shapes
    return all(bool(moved[offsets[n] : offsets[n] + shape.numel()].any()) for n, shape in shapes.items())
