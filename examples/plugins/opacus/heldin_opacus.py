"""Example-level DP with the steps of Opacus: per-example gradients, clipping, noise and scale."""

import warnings
from typing import ClassVar, Literal

import torch
from dp_accounting import dp_event
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.base.section import Count, Positive
from heldin.defenses.mechanisms.declared import DeclaredDefense, StepGiven


class Example(DeclaredDefense):
    """Example-level DP by Opacus, for models without tied weights and learned positions."""

    unit: ClassVar[Literal["user", "example"]] = "example"

    cohort: Count = 32
    """Expected number of records in a step."""
    noise: Positive = 1.0
    """Standard deviation of the noise on the sum, divided by the clip norm."""

    def dp_event(self) -> dp_event.DpEvent:
        """Return the event of the run: Gaussian steps on Poisson samples."""
        single = dp_event.PoissonSampledDpEvent(self.cohort / self.population, dp_event.GaussianDpEvent(self.noise))
        return dp_event.SelfComposedDpEvent(single, self.steps)

    def require_model(self, model: PreTrainedModel) -> None:
        """Raise InputError for a model for which Opacus computes wrong per-example gradients."""
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        if tied or sum(isinstance(part, torch.nn.Embedding) for part in model.modules()) > 1:
            raise InputError(
                "Opacus computes wrong gradients for tied embeddings and learned positions: choose a model without them"
            )

    def step(self, model: PreTrainedModel, given: StepGiven) -> float | None:
        """Put Opacus's noised mean gradient into ``.grad``, and return the records' mean loss."""
        hooked = GradSampleModule(model, loss_reduction="sum")
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = DPOptimizer(
            torch.optim.SGD(parameters.values(), lr=1.0),
            noise_multiplier=given.noise_multiplier,
            max_grad_norm=given.clip_norm,
            expected_batch_size=given.divisor,
            generator=torch.Generator(model.device).manual_seed(given.seed),
        )

        def add(samples: dict[str, torch.Tensor]) -> None:
            for name, parameter in parameters.items():
                parameter.grad_sample = samples[name].to(parameter.device)
            optimizer.clip_and_accumulate()

        # Nobody, first: a step without a record has a sum of zeros, and noise.
        add({name: p.new_zeros((0, *p.shape)) for name, p in parameters.items()})
        losses: list[float] = []
        records = [unit.records[0] for unit in given.units if unit.gradient is None]
        for first in range(0, len(records), given.pass_records):
            hooked.zero_grad(set_to_none=True)
            found = given.losses(hooked, records[first : first + given.pass_records])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Full backward hook", UserWarning)  # of token ids, which have none
                torch.autograd.backward(found.sum())
            add({name: p.grad_sample for name, p in parameters.items()})
            losses += found.tolist()
        for gradient in (unit.gradient for unit in given.units if unit.gradient is not None):
            add({name: part.unsqueeze(0) for name, part in gradient.items()})
        optimizer.add_noise()
        optimizer.scale_grad()
        hooked.to_standard_module()
        return sum(losses) / len(losses) if losses else None
