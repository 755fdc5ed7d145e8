"""Wrong trainers whose noise depends on data: right where the cohort is large and its gradients are, and in no cohort.

Each multiplies the stated noise by a factor of what was drawn. All but `by_the_step` have the factor 1 in a step that
draws nobody, and in a step that draws a crowd of which every gradient is above the clip norm.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateTraining, SampledUnit
from tests.planted_bugs.plain import Records, contribution, norm_of, raw_gradient
from tests.planted_bugs.trainers import changed

_ENOUGH_UNITS, _ENOUGH_TOKENS, _ENOUGH_LOSS = 4, 20, 2.0  # from which on the noise is as stated


@dataclass(frozen=True)
class Drawn:
    """Who takes part in a step, and what of."""

    model: PreTrainedModel
    training: PrivateTraining
    number: int
    sequences: Records

    @property
    def units(self) -> Sequence[SampledUnit]:
        return self.training.drawn(self.number)

    def records(self) -> list[Sequence[int]]:
        units = [unit for unit in self.units if unit.canary is None]
        return [text for unit in units for text in contribution(self.training, unit, self.number, self.sequences)]

    def norms(self) -> list[float]:
        """Norms of the gradients before clipping, over the clip norm."""
        norm = self.training.mechanism.clip.norm
        raw = [raw_gradient(self.model, self.training, unit, self.number, self.sequences) for unit in self.units]
        return [norm_of(gradient.values()) / norm for gradient in raw]


@dataclass(frozen=True)
class NoiseTimes:
    """The real step, whose noise is multiplied by a factor of who takes part."""

    factor: Callable[[Drawn], float]

    def __call__(self, model: PreTrainedModel, training: PrivateTraining, number: int, sequences: Records) -> None:
        mechanism, drawn = training.mechanism, Drawn(model, training, number, sequences)
        factor = self.factor(drawn) if drawn.units and mechanism.noise_multiplier > 0 else 1.0
        wrong = changed(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
        private_gradient(model, replace(training, mechanism=wrong), number, sequences)


def by_the_number() -> NoiseTimes:
    return NoiseTimes(lambda drawn: min(1.0, len(drawn.units) / _ENOUGH_UNITS))


def by_who_was_drawn() -> NoiseTimes:
    """Half of all users, by a digest of the name, asked for protection."""

    def asked(unit: SampledUnit) -> bool:
        return keyed_digest(b"", "asked for protection", unit.name)[0] % 2 == 0

    return NoiseTimes(lambda drawn: 1.0 if any(asked(unit) for unit in drawn.units) else 0.0)


def by_the_largest() -> NoiseTimes:
    return NoiseTimes(lambda drawn: min(1.0, max(drawn.norms())))


def by_the_mean() -> NoiseTimes:
    return NoiseTimes(lambda drawn: min(1.0, fmean(drawn.norms())))


def by_the_median() -> NoiseTimes:
    return NoiseTimes(lambda drawn: min(1.0, median(drawn.norms())))


def by_the_loss() -> NoiseTimes:
    def factor(drawn: Drawn) -> float:
        loss = mean_loss(drawn.model, drawn.records())
        return 1.0 if math.isnan(loss) else min(1.0, loss / _ENOUGH_LOSS)

    return NoiseTimes(factor)


def by_the_tokens() -> NoiseTimes:
    def factor(drawn: Drawn) -> float:
        tokens = sum(len(text) - 1 for text in drawn.records())
        return min(1.0, tokens / _ENOUGH_TOKENS) if tokens else 1.0

    return NoiseTimes(factor)


def by_the_step() -> NoiseTimes:
    return NoiseTimes(lambda drawn: 1.0 / math.sqrt(1.0 + drawn.number))


def none_for_a_lone_unit() -> NoiseTimes:
    return NoiseTimes(lambda drawn: 0.0 if len(drawn.units) == 1 else 1.0)


def none_without_records() -> NoiseTimes:
    return NoiseTimes(lambda drawn: 1.0 if drawn.records() else 0.0)


def less_above_the_rate(times: float) -> NoiseTimes:
    """None in cohorts that are larger than the rate leads one to expect."""

    def factor(drawn: Drawn) -> float:
        mean = drawn.training.mechanism.sampler.rate * len(drawn.training.units)
        return 0.0 if len(drawn.units) > times * mean else 1.0

    return NoiseTimes(factor)


def less_above_the_divisor(times: float) -> NoiseTimes:
    """None in cohorts that are larger than what the sum is divided by."""
    return NoiseTimes(lambda drawn: 0.0 if len(drawn.units) > times * drawn.training.mechanism.divisor.value else 1.0)


def less_for_two() -> NoiseTimes:
    return NoiseTimes(lambda drawn: 0.9 if len(drawn.units) == 2 else 1.0)


def half_between_losses(low: float, high: float) -> NoiseTimes:
    """Half of the noise where the mean loss of the batch is between two numbers."""

    def factor(drawn: Drawn) -> float:
        return 0.5 if low <= mean_loss(drawn.model, drawn.records()) < high else 1.0

    return NoiseTimes(factor)


def mean_loss(model: PreTrainedModel, texts: Records) -> float:
    """The mean over texts of the mean token loss; NaN without texts."""
    with torch.no_grad():
        ids = [torch.tensor([list(text)]) for text in texts]
        losses = [float(model(input_ids=its, labels=its).loss) for its in ids]
    return fmean(losses) if losses else math.nan
