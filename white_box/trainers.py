"""Watch a trainer in a white-box audit: its interface, and the results of its runs, which are releases or samples.

A trainer can be passed as a ``PrivateStep``, which has the signature of ``finetune.private.private_gradient``. Its
arguments are the model, the training (mechanism, key, units, canaries), the number of the step, and the tokens of all
records. It writes the gradient for its optimizer into ``.grad`` of every trainable parameter. It

* samples ``training.units`` at the rate of ``training.mechanism``, by coins that nobody knows without ``training.key``;
* uses the records ``training.contribution(unit, step, sequences)`` of a sampled unit (``Tokens``: their ``ids``, and
  which of them count) or, for a gradient canary (``unit.canary``), the gradient that ``training.canaries`` gives for
  its number;
* clips, sums, adds noise and divides by ``training.mechanism``, in full precision; its clip norm, rate, noise
  multiplier (which may be zero) and number of steps differ between the runs of an audit.

A whole trainer is a ``Trainer``. It trains ``base.model`` in place, and calls ``training.watch`` with each step's
gradients before its optimizer changes the weights. These gradients should be the tensors that its optimizer reads, not
copies, because ``white_box.weight_checks`` overwrites them. A trainer states its optimizer in a method ``optimizer``
(``StatedOptimizer``). A step without a gradient counts as a release of zeros. Under torch.distributed
(``white_box.processes``), every process is called in the same way, and each passes its optimizer's input to
``training.watch``.
"""

import importlib
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.loop import train
from heldin.finetune.recipe import Optimizer, Precision, Recipe, Select
from heldin.finetune.units import Gradients, PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.models.tokens import Tokens
from heldin.white_box.canaries import Array, Canaries, Index
from heldin.white_box.oracle import ContributionColumns, Reading, Texts, alike_in, columns_of
from heldin.white_box.stage import Stage, Weights, clip_norm_of

PrivateStep = Callable[[PreTrainedModel, PrivateTraining, int, Sequence[Tokens]], float | None]
Trainer = Callable[[LanguageModel, PrivateTraining, Sequence[Tokens]], object]
See = Callable[[int, NDArray[np.float32]], None]
# (trainable parameters by name, number of steps) -> a new optimizer of them, and its schedule if it has one
StatedOptimizer = Callable[
    [Mapping[str, torch.nn.Parameter], int], tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]
]

_RATE = 1e-3  # learning rate of Adam
_READABLE = 0.25  # of a contribution: so close to whole numbers, contributions at slightly other weights are accepted


@dataclass(frozen=True)
class LoopTrainer:
    """heldin's own trainer, which runs ``finetune.loop.train`` unchanged in a temporary folder."""

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Tokens]) -> None:
        """Train ``base.model`` in place."""
        with tempfile.TemporaryDirectory(prefix="heldin-white-box-") as folder:
            train(base, sequences, self._recipe(training.mechanism.steps), Path(folder), private=training)

    def optimizer(
        self, parameters: Mapping[str, torch.nn.Parameter], steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return the optimizer and the schedule of the recipe, without running the loop."""
        recipe = self._recipe(steps)
        optimizer = torch.optim.Adam(parameters.values(), _RATE)

        def share(step: int) -> float:
            return recipe.learning_rate_at(step, steps) / _RATE

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def _recipe(self, steps: int) -> Recipe:
        return Recipe(
            optimizer=Optimizer.ADAM,
            learning_rate=_RATE,
            checkpoint_every=steps,
            select=Select.LAST,
            precision=Precision.FP32,
        )


loop_trainer = LoopTrainer()


def stated_optimizer(trainer: Trainer) -> StatedOptimizer | None:
    """Return the optimizer that a trainer states in its method ``optimizer``; None if it has no such method."""
    stated: StatedOptimizer | None = getattr(trainer, "optimizer", None)
    return stated


@dataclass(frozen=True)
class Stepwise:
    """Runs ``step`` and then Adam in each step of the mechanism, and passes Adam's inputs to the watch."""

    step: PrivateStep

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Tokens]) -> None:
        """Train ``base.model`` in place."""
        model = base.model.train()
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer, _ = self.optimizer(trainable, training.mechanism.steps)
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

    def optimizer(self, parameters: Mapping[str, torch.nn.Parameter], steps: int) -> tuple[torch.optim.Optimizer, None]:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(parameters.values(), _RATE), None


def _raised(error: Exception, number: int) -> str:
    """Return a text about an exception of a step function, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{'/'.join(Path(where.filename).parts[-2:])}, line {where.lineno}"
    message = " ".join(str(error).split())
    return f"the audited step function raised {type(error).__name__} in step {number} ({place}): {message}"


def stepwise(step: PrivateStep) -> Trainer:
    """Make a trainer from a step function. Other processes can run it if they can import ``step``."""
    return Stepwise(step)


def imported_step(name: str) -> PrivateStep:
    """Return the step function MODULE:NAME. Modules in the current folder take precedence.

    Raises InputError if there is no such function.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(f"--step '{name}': write MODULE:NAME, such as my_training:private_step")
    sys.path.insert(0, str(Path.cwd()))
    try:
        step: PrivateStep | None = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise InputError(
            f"--step '{name}': cannot import '{module}' ({error}). Correct the name, or put the module on PYTHONPATH"
        ) from error
    finally:
        sys.path.pop(0)
    if not callable(step):
        raise InputError(f"--step '{name}': '{module}' has no function '{function}'. Correct the name")
    return step


def watched(
    trainer: Trainer, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Tokens], see: See
) -> None:
    """Train, and call ``see`` with the number and the release of each step, shape (d,), in units of the sensitivity.

    If the mechanism's noise is correlated over steps, C^-1 z, then ``see`` gets C times the releases. These have
    independent noise, and a contribution extends over as many steps as there are bands. A run without noise is passed
    unchanged.

    In these units, the gradient is multiplied by the stated divisor and divided by the stated sensitivity. A unit
    clipped at the clip norm then changes the gradient by 1, and the deviation of the noise is the noise multiplier. d
    counts the trainable parameters, in the model's order. A tensor without gradient counts as zeros. A step that the
    trainer never shows also counts as zeros, and is passed at the end.

    Args:
        base: the model, trained in place.
        training: mechanism, key, units and canaries.
        see: called with each step's number and release.
    """
    mechanism = training.mechanism
    assert mechanism.divisor.constant is not None
    scale = mechanism.divisor.constant / mechanism.sensitivity
    shapes = {name: p.shape for name, p in base.model.named_parameters() if p.requires_grad}
    missing = set(range(mechanism.steps))
    see = _whitened(see, mechanism.sampler.coefficients) if mechanism.noise_multiplier else see

    def watch(step: int, gradients: Gradients) -> None:
        if not 0 <= step < mechanism.steps:
            raise InputError(f"the trainer gave step {step} of {mechanism.steps} steps: number the steps from 0")
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


def _whitened(see: See, coefficients: Sequence[float]) -> See:
    """Return a function that calls ``see`` with C times the shown values, as soon as all earlier steps are known."""
    if len(coefficients) == 1:
        return see
    released: dict[int, NDArray[np.float32]] = {}
    shown = 0

    def see_white(step: int, values: NDArray[np.float32]) -> None:
        nonlocal shown
        released[step] = values
        while shown in released:
            reach = range(min(len(coefficients), shown + 1))
            white = sum(np.float32(coefficients[i]) * released[shown - i] for i in reach)
            see(shown, np.asarray(white, dtype=np.float32))
            released.pop(shown - len(coefficients) + 1, None)
            shown += 1

    return see_white


@contextmanager
def _same_generators() -> Iterator[None]:
    """Set the global random generators of Python, numpy and torch to a fixed state, and restore them at the end."""
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


@dataclass(frozen=True)
class Run:
    """One run: a training without its watch, and the name of its model's weights (``Stage.model``)."""

    training: PrivateTraining
    weights: Weights = "as made"


@dataclass(frozen=True, eq=False)
class ObservedDraws:
    """The sampled units in the steps of one run.

    Attributes:
        texts: how often each step contains each column of texts, shape (T, columns).
        names: names of the units in each column.
        canaries: how often each step contains each gradient canary with its own coordinate, shape (T, canaries).
        odd: largest distance of these numbers from a whole number.
    """

    texts: Array
    names: tuple[tuple[str, ...], ...]
    canaries: Array
    odd: float


def changed(
    mechanism: Mechanism, *, clip_norm: float | None = None, rate: float | None = None, **other: Any
) -> Mechanism:
    """Return the mechanism with another clip norm, rate, or other field.

    Args:
        clip_norm: the new clip norm; None: unchanged.
        rate: the new sampling rate; noise is then independent, and every step may draw every unit. None: unchanged.
        other: new values of other fields, by name.
    """
    if clip_norm is not None:
        other["clip"] = mechanism.clip.of_units().with_norm(clip_norm)
    if rate is not None:
        other["sampler"] = PoissonSampler(rate=rate)
    return Mechanism(**{**dict(mechanism), **other})


def releases(stage: Stage, trainer: Trainer, run: Run) -> NDArray[np.float32]:
    """Return the release of each step, in units of the sensitivity, shape (T, d).

    Raises InputError for a release that is not finite.
    """
    rows: dict[int, NDArray[np.float32]] = {}

    def see(step: int, released: NDArray[np.float32]) -> None:
        # By its number: a trainer need not show its steps in order, and one shown twice counts as shown last.
        rows[step] = released

    watched(trainer, stage.model(run.weights), run.training, stage.sequences, see)
    stream = np.stack([rows[step] for step in range(run.training.mechanism.steps)])
    bad = np.flatnonzero(~np.isfinite(stream).all(axis=1))
    if bad.size:
        raise InputError(
            f"the trainer released a gradient at step {bad[0]} that is not finite, so it cannot be audited: correct"
            " the trainer"
        )
    return stream


def readings(stage: Stage, trainer: Trainer, run: Run) -> list[Reading]:
    """Compare each step of a run without noise with the contributions at the weights of that step.

    At rate 1, every unit must occur exactly once; otherwise, a whole number of times. The same rule applies to gradient
    canaries, which are visible in their own coordinates.
    """
    base, training = stage.model(run.weights), run.training
    units = [unit for unit in training.units if unit.canary is None]
    everybody = training.mechanism.sampler.rate == 1.0 and training.mechanism.sampler.groups == 1
    places, copies = _places(training), training.mechanism.members
    by_step: dict[int, Reading] = {}

    def see(step: int, released: NDArray[np.float32]) -> None:
        if not np.isfinite(released).all():
            by_step[step] = Reading(np.full(1, np.inf), np.inf)  # a finding here, not an error
            return
        columns = columns_of(base, alike_in(training, units, step, stage.sequences), clip_norm_of(training.mechanism))
        rest = released.astype(np.float64)
        of_canaries = rest[places]
        # No text reaches these coordinates, so that what is left is of texts alone.
        rest[places] = 0.0
        if everybody:
            # Who took part is known at rate 1: least squares could explain a wrong sum by other numbers of units.
            taken = np.array([float(len(names)) for names in columns.names])
            lost = float(np.abs(of_canaries - copies).max(initial=0.0))
            by_step[step] = Reading(taken, max(columns.off(rest, taken), lost))
        else:
            reading = columns.read(rest)
            by_step[step] = Reading(np.concatenate([reading.taken, of_canaries]), reading.off)

    watched(trainer, base, training, stage.sequences, see)
    return [by_step[step] for step in range(training.mechanism.steps)]


def draws(stage: Stage, trainer: Trainer, run: Run) -> ObservedDraws:
    """Find the sampled units in each step of a run without noise.

    The weights are restored after each step, so contributions hardly change. They are computed once. They are computed
    again if units contribute other texts, or if they do not explain a step. Raises InputError if a release is not
    finite.
    """
    base, training = stage.model(), run.training
    places, reader = _places(training), _Reader(base, training, stage.sequences)
    steps = training.mechanism.steps
    texts: list[Array] = [np.zeros(0)] * steps
    canaries: list[Array] = [np.zeros(0)] * steps

    def see(step: int, released: NDArray[np.float32]) -> None:
        if not np.isfinite(released).all():
            raise InputError(
                f"the trainer released a gradient at step {step} that is not finite, so it cannot be audited: correct"
                " the trainer"
            )
        rest = released.astype(np.float64)
        canaries[step] = rest[places]
        rest[places] = 0.0
        texts[step] = reader.read(step, rest)

    watched(trainer, base, training, stage.sequences, see)
    drawn = np.stack(canaries)
    odd = max(reader.odd, float(np.abs(drawn - np.rint(drawn)).max(initial=0.0)))
    return ObservedDraws(np.stack(texts), reader.names, np.rint(drawn), odd)


class _Reader:
    """Finds the sampled units in each step, and restores the weights after the step.

    ``names`` groups units with equal texts. ``odd`` is the largest distance of a number of contributions from a whole
    number.
    """

    def __init__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Tokens]) -> None:
        self._base, self._training, self._sequences = base, training, sequences
        self._units = [unit for unit in training.units if unit.canary is None]
        groups: dict[tuple[tuple[int, ...], ...], list[str]] = {}
        for unit in self._units:
            # By the texts themselves: units of equal texts add equal vectors, which no reading can tell apart.
            groups.setdefault(tuple(tuple(sequences[row].ids) for row in unit.rows), []).append(unit.name)
        self.names = tuple(tuple(names) for names in groups.values())
        self.odd = 0.0
        self._group = {name: i for i, names in enumerate(self.names) for name in names}
        self._weights: list[torch.Tensor] = []
        self._known: tuple[Mapping[Texts, Sequence[str]], ContributionColumns] | None = None

    def read(self, step: int, released: Array) -> Array:
        """Return the number of sampled units in each group, shape (groups,)."""
        alike = alike_in(self._training, self._units, step, self._sequences)
        if not self._weights:
            self._weights = [p.detach().clone() for p in self._base.model.parameters()]
        if self._known is None or self._known[0] != alike:
            self._known = alike, columns_of(self._base, alike, clip_norm_of(self._training.mechanism))
        columns = self._known[1]
        reading = columns.read(released)
        if reading.odd > _READABLE or reading.off > 2.0 * _READABLE:
            # A step that hardly fits may be right at the present weights, which are not quite the first ones.
            columns = columns_of(self._base, alike, clip_norm_of(self._training.mechanism))
            reading = columns.read(released)
            self.odd = max(self.odd, reading.odd)
        # Before the optimizer's own update, so that the next step is at most one update away from the first weights.
        with torch.no_grad():
            for parameter, kept in zip(self._base.model.parameters(), self._weights, strict=True):
                parameter.copy_(kept)
        taken = np.zeros(len(self.names))
        np.add.at(taken, [self._group[names[0]] for names in columns.names], np.rint(reading.taken))
        return taken


def _places(training: PrivateTraining) -> Index:
    """Return the coordinates of the run's gradient canaries."""
    canaries = training.canaries
    assert isinstance(canaries, Canaries)
    if not any(unit.canary is not None for unit in training.units):
        return np.zeros(0, dtype=np.int64)
    assert canaries.coordinates is not None
    return canaries.coordinates
