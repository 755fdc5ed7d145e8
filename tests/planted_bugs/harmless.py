"""Trainers that do what is stated by other means: no check may alarm on them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from heldin.base.coins import keyed_digest, keyed_uniform, seed_key
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateTraining, SampledUnit
from heldin.white_box.trainers import PrivateStep, Trainer, stepwise
from tests.planted_bugs.optimizers import AdamByHand, Stating, WholeTrainer, decayed
from tests.planted_bugs.plain import Plain, keyed, raw_gradient, to_norm


def plain() -> Plain:
    """A backward pass per unit, as anyone would write it."""
    return Plain()


def other_order() -> Plain:
    """Units are summed from the last to the first."""
    return Plain(cohort=lambda training, number: training.drawn(number)[::-1])


def another_generator() -> Plain:
    """torch's own generator, seeded by the run's key for each step and tensor."""

    def noise(training, number, name, summed, deviation):
        seed = int.from_bytes(keyed_digest(training.key, f"torch {number}", name)[:8], "big", signed=True)
        return torch.randn(summed.shape, generator=torch.Generator().manual_seed(seed)) * deviation

    return Plain(noise=noise)


def fresh_entropy() -> Plain:
    """Noise and coins as from the operating system: no run is like another, whatever the key."""
    # The same in every run of the tests: one audit in a hundred raises an alarm by chance.
    calls = itertools.count()

    def fresh() -> bytes:
        return keyed_digest(seed_key(0), "operating system", str(next(calls)))

    def noise(training, number, name, summed, deviation):
        return keyed(replace(training, key=fresh()), number, name, summed, deviation)

    # Of a new key the first step: a later one would go through all coins before it.
    return Plain(cohort=lambda training, number: replace(training, key=fresh()).drawn(0), noise=noise)


def small_passes() -> PrivateStep:
    """Micro-batches of three records."""

    def step(model, training, number, sequences):
        return private_gradient(model, replace(training, micro_records=3), number, sequences)

    return step


def hashed_names() -> Plain:
    """Coins keyed by a digest of the name: 256 bits do not meet."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        names = {u.name: keyed_digest(training.key, "pseudonym", u.name).hex() for u in training.units}
        rate = training.mechanism.sampler.rate
        return [u for u in training.units if keyed_uniform(training.key, f"draw {number}", names[u.name]) < rate]

    return Plain(cohort=cohort)


def coins_of_a_stream() -> Plain:
    """Coins by position in the list from one stream under the key: their joint law is all that counts."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        words = int.from_bytes(keyed_digest(training.key, "coins", str(number))[:16], "big")
        coins = np.random.Generator(np.random.Philox(key=words)).random(len(training.units))
        return [u for u, coin in zip(training.units, coins, strict=True) if coin < training.mechanism.sampler.rate]

    return Plain(cohort=cohort)


def double_precision() -> Trainer:
    """The model, its gradients and their sum in float64."""

    def contributions(model, training, drawn, number, sequences):
        norm = training.mechanism.clip.norm
        raw = [raw_gradient(model, training, unit, number, sequences) for unit in drawn]
        return [to_norm(u, {n: t.double() for n, t in g.items()}, norm) for u, g in zip(drawn, raw, strict=True)]

    def run(base, training, sequences):
        base.model.double()
        stepwise(Plain(contributions=contributions))(base, training, sequences)

    return run


HARMLESS: dict[str, Callable[[], PrivateStep | Trainer]] = {
    "one backward pass per unit": plain,
    "another order of units": other_order,
    "another generator under the key": another_generator,
    "noise and coins of the operating system": fresh_entropy,
    "passes of three records": small_passes,
    "names hashed": hashed_names,
    "coins of one stream under the key": coins_of_a_stream,
    "double precision": double_precision,
    "an optimizer written by hand, which states torch's": AdamByHand,
    "decay and a schedule, stated": lambda: Stating(decayed),
    "decay and a schedule, not stated": lambda: WholeTrainer(decayed),
}
