"""Trainers that are wrong on purpose, each by one common mistake, and a plain correct one to plant them in.

All but one are steps, with the signature of `finetune.private.private_gradient`; `by_sgd` and `stepwise` train by them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest, keyed_uniform, seed_key
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler, ShuffledSampler
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Optimizer, Precision, Recipe, Select
from heldin.finetune.units import PrivateTraining, SampledUnit
from heldin.white_box.trainers import PrivateStep, Trainer
from tests.draws import draw
from tests.planted_bugs.plain import CONFIG_SEED, Records, Sparse, keyed, trainable, zeros

BY_SGD = Recipe(
    optimizer=Optimizer.SGD,
    momentum=0.9,
    learning_rate=1.0,
    warmup_steps=0,
    select=Select.LAST,
    precision=Precision.FP32,
)
RANKS = 4  # of the trainer whose ranks share one seed
_EVERYONE = PoissonSampler(rate=1.0)


def changed(mechanism: Mechanism, **changes: object) -> Mechanism:
    return Mechanism(**{**dict(mechanism), **changes})


def under(change: Callable[[Mechanism], Mechanism]) -> PrivateStep:
    """Runs the real step under another mechanism than the stated one."""

    def step(model, training, number, sequences):
        return private_gradient(model, replace(training, mechanism=change(training.mechanism)), number, sequences)

    return step


def by_sgd(step: PrivateStep) -> Trainer:
    """Trains by gradient descent with momentum, as the loop does under the recipe `BY_SGD`."""

    def run(base, training, sequences):
        model = base.model.train()
        optimizer = torch.optim.SGD(trainable(model).values(), BY_SGD.learning_rate, BY_SGD.momentum)
        for number in range(training.mechanism.steps):
            for group in optimizer.param_groups:
                group["lr"] = BY_SGD.learning_rate_at(number, training.mechanism.steps)
            optimizer.zero_grad(set_to_none=True)
            step(model, training, number, sequences)
            optimizer.step()

    return run


def noise_times(share: float) -> PrivateStep:
    return under(lambda m: changed(m, noise_multiplier=m.noise_multiplier * share))


def variance_for_deviation() -> PrivateStep:
    """normal(std=(sigma C)^2)."""
    return under(lambda m: changed(m, noise_multiplier=m.noise_multiplier**2 * m.clip.norm))


def clip_norm_twice() -> PrivateStep:
    """normal(std=sigma C) * C."""
    return under(lambda m: changed(m, noise_multiplier=m.noise_multiplier * m.clip.norm))


def without_clipping() -> PrivateStep:
    """Noise as stated, and no clip to speak of."""
    return under(lambda m: changed(m, clip=FlatClip(norm=m.clip.norm * 1e6), noise_multiplier=m.noise_multiplier / 1e6))


def averaged_noise() -> PrivateStep:
    """Noise made for the whole batch is added to each micro-batch (here: each unit) and averaged with them."""

    def step(model, training, number, sequences):
        noisy = training.mechanism.noise_multiplier > 0
        micro_batches = max(1, len(training.drawn(number))) if noisy else 1
        averaged = zeros(model)
        mechanism = training.mechanism
        deviation = mechanism.noise_multiplier * mechanism.sensitivity
        for i in range(micro_batches if deviation > 0 else 0):
            own = replace(training, key=keyed_digest(training.key, "micro-batch", str(i)))
            for name, total in averaged.items():
                total += keyed(own, number, name, total, deviation) / (mechanism.divisor.value * micro_batches)
        private_gradient(model, replace(training, mechanism=_quiet(training.mechanism)), number, sequences)
        _add(model, averaged)

    return step


def clipped_pieces() -> PrivateStep:
    """A drawn user's records are micro-batches of their own, and each is clipped."""

    def step(model, training, number, sequences):
        pieces: list[SampledUnit] = []
        for unit in training.drawn(number):
            rows = training.rows(unit, number)
            pieces += [SampledUnit(f"{unit.name} piece {row}", (row,)) for row in rows] if rows else [unit]
        _with_cohort(model, training, number, sequences, pieces)

    return step


def realised_divisor() -> PrivateStep:
    def step(model, training, number, sequences):
        cohort = max(1, len(training.drawn(number)))
        mechanism = changed(training.mechanism, divisor=ConstantDivisor(value=cohort))
        private_gradient(model, replace(training, mechanism=mechanism), number, sequences)

    return step


def skips_empty_cohorts() -> PrivateStep:
    def step(model, training, number, sequences):
        if training.drawn(number):
            private_gradient(model, training, number, sequences)

    return step


def shuffled() -> PrivateStep:
    """A DataLoader with shuffle=True: passes over everybody in cohorts of the expected size."""

    def step(model, training, number, sequences):
        names = [unit.name for unit in training.units]
        cohort: list[SampledUnit] = []
        if names:
            size = max(1, round(len(names) * training.mechanism.sampler.rate))
            sampler = ShuffledSampler(population=len(names), cohort=size)
            cohort = [training.units[i] for i in draw(sampler, training.key, number, names)]
        _with_cohort(model, training, number, sequences, cohort)

    return step


def cohorts_of_one_size() -> PrivateStep:
    """Every step takes the expected number of units, in turn."""

    def step(model, training, number, sequences):
        units = training.units
        size = max(1, round(len(units) * training.mechanism.sampler.rate))
        cohort = [units[i % len(units)] for i in range(number * size, (number + 1) * size) if units]
        _with_cohort(model, training, number, sequences, cohort)

    return step


def index_keyed_coins() -> PrivateStep:
    """Each rank holds every fourth unit and draws by position in its own list, under the seed that all ranks share."""

    def step(model, training, number, sequences):
        rate, purpose = training.mechanism.sampler.rate, f"sampling {number}"
        taken = [
            unit
            for i, unit in enumerate(training.units)
            if keyed_uniform(training.key, purpose, str(i // RANKS)) < rate
        ]
        _with_cohort(model, training, number, sequences, taken)

    return step


def same_noise_every_step() -> PrivateStep:
    """The draws of each step, the noise of the first."""

    def step(model, training, number, sequences):
        private_gradient(model, replace(training, units=()), 0, sequences)
        noise = {name: p.grad.clone() for name, p in trainable(model).items()}
        private_gradient(model, replace(training, mechanism=_quiet(training.mechanism)), number, sequences)
        _add(model, noise)

    return step


def one_key() -> PrivateStep:
    """Noise and coins from the seed of the config, which every variant of a comparison inherits."""

    def step(model, training, number, sequences):
        private_gradient(model, replace(training, key=seed_key(CONFIG_SEED)), number, sequences)

    return step


def every_unit_twice() -> PrivateStep:
    """Everybody stands in the corpus under two names, and each name is a unit with coins of its own."""

    def step(model, training, number, sequences):
        aliases = tuple(replace(unit, name=f"{unit.name} (other address)") for unit in training.units)
        private_gradient(model, replace(training, units=(*training.units, *aliases)), number, sequences)

    return step


def second_moment_from_clean_gradients() -> Trainer:
    """Adam's numerator sees the noised gradient, its denominator the gradient before noise."""
    rate, first, second, tiny = 1e-3, 0.9, 0.999, 1e-8  # as of stepwise

    def run(base, training, sequences):
        model, unwatched = base.model.train(), replace(training, watch=None)
        m, v = zeros(model), zeros(model)
        for number in range(training.mechanism.steps):
            private_gradient(model, replace(unwatched, mechanism=_quiet(training.mechanism)), number, sequences)
            clean = {name: p.grad.clone() for name, p in trainable(model).items()}
            private_gradient(model, unwatched, number, sequences)
            if training.watch:
                training.watch(number, {name: p.grad for name, p in trainable(model).items()})
            with torch.no_grad():
                for name, p in trainable(model).items():
                    m[name] = first * m[name] + (1 - first) * p.grad
                    v[name] = second * v[name] + (1 - second) * clean[name].square()
                    deviation = (v[name] / (1 - second ** (number + 1))).sqrt() + tiny
                    p -= rate * m[name] / (1 - first ** (number + 1)) / deviation

    return run


def _with_cohort(
    model: PreTrainedModel, training: PrivateTraining, number: int, sequences: Records, cohort: Sequence[SampledUnit]
) -> None:
    everyone = changed(training.mechanism, sampler=_EVERYONE)
    private_gradient(model, replace(training, units=tuple(cohort), mechanism=everyone), number, sequences)


def _quiet(mechanism: Mechanism) -> Mechanism:
    return changed(mechanism, noise_multiplier=0.0)


def _add(model: PreTrainedModel, gradients: Sparse) -> None:
    for name, parameter in trainable(model).items():
        parameter.grad = parameter.grad + gradients[name]
