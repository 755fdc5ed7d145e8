"""Trainers of banded noise, right and wrong by one mistake each: a step without noise, and noise of their own."""

from dataclasses import fields

import numpy as np
import torch

from heldin.base.coins import keyed_uniform, seed_key
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.noise import NoiseSource
from heldin.defenses.samplers import group_of
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateTraining
from heldin.white_box.trainers import changed
from tests.oracles import banded

CPU = torch.device("cpu")


def noised(c_of=lambda c: c, lost=None, foreign=False):
    """A trainer's step whose noise is made with dense matrices.

    Args:
        c_of: what is done to C.
        lost: share of the steps after which what was carried is lost, as at a resume.
        foreign: whether the noise of another run is carried on from there.
    """

    def step(model, training, number, sequences):
        mechanism = training.mechanism
        private_gradient(model, _with(training, changed(mechanism, noise_multiplier=0.0)), number, sequences)
        if not mechanism.noise_multiplier:
            return
        steps = mechanism.steps
        inverse = np.linalg.inv(c_of(banded.matrix(mechanism.sampler.groups, steps)))
        first = int(steps * lost) if lost is not None and number >= int(steps * lost) else 0
        if first:
            # As of a run that begins there.
            inverse[:, :first] = inverse[:, :first] if foreign else 0.0
        deviation = mechanism.noise_multiplier * mechanism.sensitivity / mechanism.divisor.value
        for name, parameter in model.named_parameters():
            for s in range(number + 1):
                if inverse[number, s]:
                    key = seed_key(99) if foreign and s < first else training.key
                    source = NoiseSource(NoiseGenerator.PHILOX, key)
                    z = source.gaussian(s, name, parameter.shape, deviation, CPU)
                    parameter.grad.add_(z, alpha=float(inverse[number, s]))

    return step


def drawn_by(draws):
    """A trainer's step that draws units by ``draws(training, step, unit)``."""

    def step(model, training, number, sequences):
        return private_gradient(model, _with(training, training.mechanism, draws), number, sequences)

    return step


class _Drawing(PrivateTraining):
    """Whose units are drawn in another way."""

    draws = None

    def drawn(self, step):
        if self.draws is None:
            return super().drawn(step)
        return [unit for unit in self.units if type(self).draws(self, step, unit)]


_KEPT: dict = {}


def _with(training, mechanism, draws=None):
    """The same training under another mechanism, made once: what it carries along stays."""
    at = id(training), mechanism, draws
    if at not in _KEPT:
        kind = type("_Drawing", (_Drawing,), {"draws": draws})
        given = {f.name: getattr(training, f.name) for f in fields(training)}
        # With the training itself, so that its number stays its own.
        _KEPT[at] = kind(**{**given, "mechanism": mechanism, "watch": None}), training
    return _KEPT[at][0]


def _coin(training, step, unit):
    return keyed_uniform(training.key, f"coin {step}", unit.name) < training.mechanism.sampler.rate


def _group(training, unit):
    return group_of(training.key, unit.name, training.mechanism.sampler.groups)


def by_coins(training, step, unit):
    """Right: by a coin of each step, in the steps of the unit's group."""
    groups = training.mechanism.sampler.groups
    return step % groups == _group(training, unit) and _coin(training, step, unit)


def in_two_groups(training, step, unit):
    groups = training.mechanism.sampler.groups
    return (step - _group(training, unit)) % groups < 2 and _coin(training, step, unit)


def by_texts(training, step, unit):
    """Whose groups follow from what a unit writes."""
    groups = training.mechanism.sampler.groups
    return step % groups == sum(unit.rows) % groups and _coin(training, step, unit)


def by_place(training, step, unit):
    """Whose groups follow from the place in the list of units, and so from who else is there."""
    groups = training.mechanism.sampler.groups
    return step % groups == list(training.units).index(unit) % groups and _coin(training, step, unit)


def too_often(training, step, unit):
    """With the rate b M / N where M / N was accounted for."""
    groups, rate = training.mechanism.sampler.groups, training.mechanism.sampler.rate
    coin = keyed_uniform(training.key, f"coin {step}", unit.name) < groups * rate
    return step % groups == _group(training, unit) and coin
