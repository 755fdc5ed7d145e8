"""Wrong trainers whose keys or draws are wrong: what is keyed by what, and every unit's own rate."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from heldin.base.coins import keyed_digest, keyed_uniform, seed_key
from heldin.finetune.units import PrivateTraining, SampledUnit
from tests.draws import draw
from tests.planted_bugs.plain import CONFIG_SEED, Cohort, Plain, as_stated, keyed

_PHYSICAL_BATCH = 32


def public_coins() -> Plain:
    """Poisson coins from the seed of the config, noise from the key."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        return replace(training, key=seed_key(CONFIG_SEED)).drawn(number)

    return Plain(cohort=cohort)


def public_noise() -> Plain:
    """Noise from a generator under the seed of the config, coins from the key."""

    def noise(training, number, name, summed, deviation):
        return keyed(replace(training, key=seed_key(CONFIG_SEED)), number, name, summed, deviation)

    return Plain(noise=noise)


def global_generator() -> Plain:
    """torch.randn: the script began with seed_everything(config.seed)."""

    def noise(training, number, name, summed, deviation):
        return torch.randn(summed.shape) * deviation

    return Plain(noise=noise)


def sixteen_bits_of_key() -> Plain:
    """seed = int.from_bytes(key[:2]): as secret as 16 bits can be."""

    def narrowed(training: PrivateTraining) -> PrivateTraining:
        return replace(training, key=keyed_digest(seed_key(0), "16 bits", training.key[:2].hex()))

    def noise(training, number, name, summed, deviation):
        return keyed(narrowed(training), number, name, summed, deviation)

    return Plain(cohort=lambda training, number: narrowed(training).drawn(number), noise=noise)


def rate_by_records() -> Plain:
    """One coin for each record of a user, any of which draws the user: the sampler goes over the rows of the table."""
    return Plain(cohort=_drawn_at(lambda rate, unit, training: 1.0 - (1.0 - rate) ** max(1, len(unit.rows))))


def rate_by_length() -> Plain:
    """A WeightedRandomSampler with the users' tokens as weights; the mean rate is as stated."""

    def rate(rate: float, unit: SampledUnit, training: PrivateTraining) -> float:
        texts = [u for u in training.units if u.canary is None]
        if unit.canary is not None or not texts:
            return rate
        mean = sum(map(_tokens(training), texts)) / len(texts)
        return min(1.0, rate * _tokens(training)(unit) / max(mean, 1.0))

    return Plain(cohort=_drawn_at(rate))


def lone_records_always() -> Plain:
    """Users of one record are too few to sample: they are put into a catch-all that every step contains."""
    return Plain(cohort=_drawn_at(lambda rate, unit, _: 1.0 if unit.canary is None and len(unit.rows) == 1 else rate))


def cool_down() -> Plain:
    """Who took part in the last step rests in this one, 'for diversity'."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        last = {unit.name for unit in cohort(training, number - 1)} if number else set()
        return [unit for unit in training.drawn(number) if unit.name not in last]

    return Plain(cohort=cohort)


def everyone_first() -> Plain:
    """The first step goes over everybody, to warm up the optimizer's state."""
    return Plain(cohort=lambda training, number: training.drawn(number) if number else training.units)


def physical_batch() -> Plain:
    """cohort[:batch_size]: what does not fit on the device is left out."""
    return Plain(cohort=lambda training, number: training.drawn(number)[:_PHYSICAL_BATCH])


def short_names() -> Plain:
    """Coins keyed by the user's id in a column of eight characters."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        names = [unit.name[:8] for unit in training.units]
        return [training.units[i] for i in draw(training.mechanism.sampler, training.key, number, names)]

    return Plain(cohort=cohort)


def with_replacement() -> Plain:
    """'Poisson' read as a cohort of Poisson size, drawn with replacement: a user may be in it twice."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        words = int.from_bytes(keyed_digest(training.key, "cohort", str(number))[:16], "big")
        random = np.random.Generator(np.random.Philox(key=words))
        n, rate = len(training.units), training.mechanism.sampler.rate
        if rate == 1.0 or not n:
            return training.units
        return [training.units[i] for i in random.integers(n, size=random.poisson(rate * n))]

    return Plain(cohort=cohort)


def never_empty() -> Plain:
    """Nobody drawn: draw again, for a step on nothing would be wasted."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        found, tries = training.drawn(number), 0
        while training.units and not found:
            tries += 1
            found = replace(training, key=keyed_digest(training.key, "again", str(tries))).drawn(number)
        return found

    return Plain(cohort=cohort)


def cohort_twice() -> Plain:
    """A cohort is drawn for every second step, 'to halve the loading'."""
    return Plain(cohort=lambda training, number: training.drawn(number - number % 2))


def texts_only(wrong: Cohort) -> Cohort:
    """The wrong draw for users with texts, the stated one for gradient canaries."""

    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        texts = replace(training, units=tuple(u for u in training.units if u.canary is None))
        others = replace(training, units=tuple(u for u in training.units if u.canary is not None))
        return [*wrong(texts, number), *as_stated(others, number)]

    return cohort


def without_replacement() -> Plain:
    """Users with texts are shuffled anew each epoch and dealt out, each once: the mean rate is as stated."""

    def dealt(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        steps = max(1, round(1.0 / training.mechanism.sampler.rate))
        epoch, turn = divmod(number, steps)
        share = [keyed_uniform(training.key, f"epoch {epoch}", unit.name) for unit in training.units]
        return [u for u, at in zip(training.units, share, strict=True) if int(at * steps) == turn]

    return Plain(cohort=texts_only(dealt))


def _drawn_at(rate_of: Callable[[float, SampledUnit, PrivateTraining], float]) -> Cohort:
    def cohort(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        rate, purpose = training.mechanism.sampler.rate, f"sampling {number}"
        return [
            unit
            for unit in training.units
            if keyed_uniform(training.key, purpose, unit.name) < rate_of(rate, unit, training)
        ]

    return cohort


def _tokens(training: PrivateTraining) -> Callable[[SampledUnit], int]:
    return lambda unit: sum(training.records.lengths[row] for row in unit.rows)
