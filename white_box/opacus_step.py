"""Opacus as a private step, so that a white-box audit can take it apart (Yousefpour et al. 2021).

What is Opacus' own: gradients of single records by its hooks, and clip, sum, noise and division by its DPOptimizer.
What is not: the draw of the cohort (as by Poisson sampling, or in shuffled batches), and the gradients of gradient
canaries, which are put beside the records'. A user with several records is what Opacus has no word for: each record is
clipped by itself, so that a plan for users is run as people run it who take examples for users.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest
from heldin.base.errors import InputError
from heldin.defenses.choices import ConstantDivisor, FlatClip, PoissonSampler
from heldin.finetune.batches import collate, record_losses
from heldin.finetune.units import PrivateTraining, SampledUnit


@dataclass(frozen=True)
class OpacusStep:
    """One step of Opacus, for ``heldin.audit_trainer``.

    Attributes:
        poisson: draw the cohort as the plan says; False: equal batches of a shuffled epoch, which is what
            ``make_private(poisson_sampling=False)`` leaves to the data loader.
        positions: give each record its own row of position ids, as the hooks need them; without, a model that makes one
            row for the whole batch has one gradient of its position embeddings for all records, and Opacus stops.
    """

    poisson: bool = True
    positions: bool = True

    def __call__(
        self, model: PreTrainedModel, training: PrivateTraining, step: int, sequences: Sequence[Sequence[int]]
    ) -> float | None:
        """Leave in ``.grad`` what the optimizer would see.

        Args:
            model: whose ``.grad`` is set.
            training: mechanism, key and units.
            step: number of the step.
            sequences: token ids of every record.

        Raises:
            InputError: the mechanism's clip or divisor is none that Opacus has, or Opacus is not installed.
        """
        try:
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer
        except ImportError as error:
            raise InputError("Opacus is not installed: pip install 'heldin[trainers]'") from error
        mechanism = training.mechanism
        if not isinstance(mechanism.clip, FlatClip) or not isinstance(mechanism.divisor, ConstantDivisor):
            raise InputError("Opacus clips each example's whole gradient and divides by the expected batch size")
        trainable = [p for p in model.parameters() if p.requires_grad]
        # Its own noise, from a generator that nobody can foretell without the key.
        optimizer = DPOptimizer(
            torch.optim.SGD(trainable, lr=0.0),
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=mechanism.clip.norm,
            expected_batch_size=mechanism.divisor.value,
            loss_reduction="mean",
            generator=torch.Generator(model.device).manual_seed(_seed(training.key, "opacus noise", step)),
        )
        drawn = training.drawn(step) if self.poisson else _shuffled(training, step)
        records = [ids for unit in drawn if unit.canary is None for ids in training.contribution(unit, step, sequences)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about hooks on modules whose input needs no gradient
            hooked = GradSampleModule(model, strict=False)
            try:
                if records:
                    self._backward(hooked, records, model.device)
                samples = [_of_records(p) for p in trainable]
            finally:
                hooked.remove_hooks()
        canaries = [unit.canary for unit in drawn if unit.canary is not None]
        given = [training.canaries.gradient(number) for number in canaries] if training.canaries else []
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        for name, parameter, sample in zip(names, trainable, samples, strict=True):
            more = [its[name].unsqueeze(0) if name in its else torch.zeros_like(parameter)[None] for its in given]
            parameter.grad_sample = torch.cat([sample, *more])
        optimizer.pre_step()
        for parameter in trainable:
            # Opacus keeps them on the parameters; the next step starts from nothing.
            del parameter.grad_sample, parameter.summed_grad
        return None

    def _backward(self, hooked: Any, records: Sequence[Sequence[int]], device: torch.device) -> None:
        inputs, targets = collate(records, device)
        model = _WithPositions(hooked) if self.positions else hooked
        torch.autograd.backward(record_losses(model, inputs, targets).mean())


@dataclass(frozen=True)
class _WithPositions:
    """A model that is called with a row of position ids for each record."""

    hooked: Any

    def __call__(self, *, input_ids: torch.Tensor, use_cache: bool) -> Any:
        places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return self.hooked(input_ids=input_ids, position_ids=places, use_cache=use_cache)


def _shuffled(training: PrivateTraining, step: int) -> list[SampledUnit]:
    """A batch of a shuffled epoch, of the size that the plan expects."""
    assert isinstance(training.mechanism.sampler, PoissonSampler)
    units, rate = training.units, training.mechanism.sampler.rate
    size = max(1, round(rate * len(units)))
    epoch, place = divmod(step, max(1, len(units) // size))
    generator = torch.Generator().manual_seed(_seed(training.key, "opacus epoch", epoch))
    order = torch.randperm(len(units), generator=generator).tolist()
    return [units[i] for i in order[place * size : (place + 1) * size]]


def _seed(key: bytes, purpose: str, number: int) -> int:
    return int.from_bytes(keyed_digest(key, purpose, str(number))[:8], "big", signed=True)


def _of_records(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Gradients by record, shape (records, ...); none where no record was drawn."""
    found: torch.Tensor | None = getattr(parameter, "grad_sample", None)
    return torch.zeros((0, *parameter.shape), device=parameter.device) if found is None else found


opacus = OpacusStep()
opacus_shuffled = OpacusStep(poisson=False)
opacus_one_row_of_positions = OpacusStep(positions=False)
