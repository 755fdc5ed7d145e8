"""Wrong trainers that are right alone and wrong in several processes; a process can import them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest, keyed_uniform
from heldin.finetune.ranks import own_share, processes, rank, sum_over_ranks
from heldin.finetune.units import PrivateTraining, SampledUnit
from tests.planted_bugs.plain import Records, keyed, raw_gradient, to_norm, trainable, zeros

Mistake = Literal[
    "none",
    "noise on every rank",
    "noise over ranks",
    "same noise summed",
    "first rank only",
    "split users",
    "shard coins",
]


@dataclass(frozen=True)
class Ranked:
    """A plain step that shares the cohort out; every rank adds the same keyed noise after the sum, once.

    mistake: noise on every rank: each adds its own of the full deviation before the sum; noise over ranks: of the
    deviation over their number; same noise summed: the same one before the sum; first rank only: the others step on
    without noise; split users: a user's records go to several ranks and are clipped there; shard coins: each rank draws
    from its own shard by position, under the seed that all share.
    """

    mistake: Mistake = "none"

    def __call__(self, model: PreTrainedModel, training: PrivateTraining, number: int, sequences: Records) -> None:
        mechanism, total = training.mechanism, zeros(model)
        for unit in self._share(training, number):
            raw = raw_gradient(model, training, unit, number, sequences)
            for name, tensor in to_norm(unit, raw, mechanism.clip.norm).items():
                total[name] += tensor
        deviation = mechanism.noise_multiplier * mechanism.sensitivity
        before = self.mistake in ("noise on every rank", "noise over ranks", "same noise summed")
        if deviation and before:
            self._add_noise(total, training, number, deviation)
        sum_over_ranks(list(total.values()))
        if deviation and not before:
            self._add_noise(total, training, number, deviation)
        for name, parameter in trainable(model).items():
            parameter.grad = total[name] / mechanism.divisor.value

    def _share(self, training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
        if self.mistake == "shard coins":
            rate, purpose = training.mechanism.sampler.rate, f"sampling {number}"
            shard = own_share(training.units)
            return [u for i, u in enumerate(shard) if keyed_uniform(training.key, purpose, str(i)) < rate]
        if self.mistake == "split users":
            pieces = [replace(unit, rows=(row,)) for unit in training.drawn(number) for row in unit.rows or (None,)]
            pieces = [p if p.rows != (None,) else replace(p, rows=()) for p in pieces]
            return own_share(pieces) if processes() > 1 else training.drawn(number)
        return own_share(training.drawn(number))

    def _add_noise(self, total, training: PrivateTraining, number: int, deviation: float) -> None:
        if self.mistake == "first rank only" and rank() > 0:
            return
        if self.mistake in ("noise on every rank", "noise over ranks"):
            training = replace(training, key=keyed_digest(training.key, "rank", str(rank())))
        if self.mistake == "noise over ranks":
            deviation /= processes()
        for name, tensor in total.items():
            tensor += keyed(training, number, name, tensor, deviation)
