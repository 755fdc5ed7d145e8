"""Runs of a trainer that an audit watches, and what it sees: releases, or who took part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heldin.base.errors import InputError
from heldin.defenses.choices import FlatClip, NormalisedClip, PoissonSampler
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.units import PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.white_box.canaries import Array, Canaries, Index
from heldin.white_box.oracle import ContributionColumns, Reading, Texts, alike_in, columns_of
from heldin.white_box.stage import Stage, Weights
from heldin.white_box.trainers import Trainer, watched

_READABLE = 0.25  # of a contribution: so close to whole numbers, contributions at slightly other weights are accepted


@dataclass(frozen=True)
class Run:
    """One run: a training without its watch, and the weights of its model (``Stage.model``)."""

    training: PrivateTraining
    weights: Weights = "as made"


@dataclass(frozen=True, eq=False)
class ObservedDraws:
    """The units that took part in the steps of one run.

    Attributes:
        texts: how often each column of texts was found, shape (T, columns).
        names: units of each column.
        canaries: the same for gradient canaries with their own coordinate, shape (T, canaries).
        odd: largest distance of any of these numbers from a whole one.
    """

    texts: Array
    names: tuple[tuple[str, ...], ...]
    canaries: Array
    odd: float


def changed(
    mechanism: Mechanism, *, clip_norm: float | None = None, rate: float | None = None, **other: Any
) -> Mechanism:
    """The mechanism with another clip norm, rate, or other field.

    Args:
        clip_norm: its new clip norm; None: as before.
        rate: its new sampling rate; None: as before.
        other: other fields to replace, by name.
    """
    if clip_norm is not None:
        assert isinstance(mechanism.clip, FlatClip | NormalisedClip)
        other["clip"] = type(mechanism.clip)(norm=clip_norm)
    if rate is not None:
        other["sampler"] = PoissonSampler(rate=rate)
    return Mechanism(**{**dict(mechanism), **other})


def releases(stage: Stage, trainer: Trainer, run: Run, places: Index | None = None) -> NDArray[np.float32]:
    """Return the release of each step, in units of the sensitivity, shape (T, k).

    Args:
        places: coordinates to keep, shape (k,); None: all.

    Raises:
        InputError: a release that is not finite.
    """
    rows: dict[int, NDArray[np.float32]] = {}

    def see(step: int, released: NDArray[np.float32]) -> None:
        # By its number: a trainer need not show its steps in order, and one shown twice counts as shown last.
        rows[step] = released if places is None else released[places]

    watched(trainer, stage.model(run.weights), run.training, stage.sequences, see)
    stream = np.stack([rows[step] for step in range(run.training.mechanism.steps)])
    bad = np.flatnonzero(~np.isfinite(stream).all(axis=1))
    if bad.size:
        raise InputError(f"the trainer released a gradient that is not finite at step {bad[0]}: it cannot be audited")
    return stream


def readings(stage: Stage, trainer: Trainer, run: Run) -> list[Reading]:
    """Compare each step of a run without noise with the contributions at the weights of that step.

    If everybody takes part (rate 1) every unit must be there once, otherwise a whole number of times; the same holds
    for gradient canaries, which are read from their own coordinates.
    """
    base, training = stage.model(run.weights), run.training
    units = [unit for unit in training.units if unit.canary is None]
    everybody = training.mechanism.sampler.rate == 1.0
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
    """Find the units that took part in each step of a run without noise.

    The weights are restored after each step, so that contributions hardly change: they are computed once, and again if
    units contribute something else, or if a step cannot be decomposed with the old ones. Raises InputError if a step
    released something that is not finite.
    """
    base, training = stage.model(), run.training
    places, reader = _places(training), _Reader(base, training, stage.sequences)
    steps = training.mechanism.steps
    texts: list[Array] = [np.zeros(0)] * steps
    canaries: list[Array] = [np.zeros(0)] * steps

    def see(step: int, released: NDArray[np.float32]) -> None:
        if not np.isfinite(released).all():
            raise InputError(f"the trainer released a gradient that is not finite at step {step}: it cannot be audited")
        rest = released.astype(np.float64)
        canaries[step] = rest[places]
        rest[places] = 0.0
        texts[step] = reader.read(step, rest)

    watched(trainer, base, training, stage.sequences, see)
    drawn = np.stack(canaries)
    odd = max(reader.odd, float(np.abs(drawn - np.rint(drawn)).max(initial=0.0)))
    return ObservedDraws(np.stack(texts), reader.names, np.rint(drawn), odd)


def clip_norm_of(mechanism: Mechanism) -> float:
    """The clip norm C of a mechanism that clips every unit."""
    assert isinstance(mechanism.clip, FlatClip | NormalisedClip)
    return mechanism.clip.norm


class _Reader:
    """Finds who took part in steps, and restores the weights after each.

    ``names`` groups the units with the same texts; ``odd`` is the largest distance of a number of contributions from a
    whole one.
    """

    def __init__(self, base: LanguageModel, training: PrivateTraining, sequences: Sequence[Sequence[int]]) -> None:
        self._base, self._training, self._sequences = base, training, sequences
        self._units = [unit for unit in training.units if unit.canary is None]
        groups: dict[tuple[tuple[int, ...], ...], list[str]] = {}
        for unit in self._units:
            # By the texts themselves: units of equal texts add equal vectors, which no reading can tell apart.
            groups.setdefault(tuple(tuple(sequences[row]) for row in unit.rows), []).append(unit.name)
        self.names = tuple(tuple(names) for names in groups.values())
        self.odd = 0.0
        self._group = {name: i for i, names in enumerate(self.names) for name in names}
        self._weights: list[torch.Tensor] = []
        self._known: tuple[Mapping[Texts, Sequence[str]], ContributionColumns] | None = None

    def read(self, step: int, released: Array) -> Array:
        """Return the number of units of each group that took part, shape (groups,)."""
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
    """Coordinates of the gradient canaries that take part."""
    canaries = training.canaries
    assert isinstance(canaries, Canaries)
    if not any(unit.canary is not None for unit in training.units):
        return np.zeros(0, dtype=np.int64)
    assert canaries.coordinates is not None
    return canaries.coordinates
