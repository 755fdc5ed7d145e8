"""Opacus as a private step for a white-box audit (Yousefpour et al. 2021).

These parts are Opacus's own: gradients of single records by its hooks, or their clipped sum by fast gradient and ghost
clipping; and clip, sum, noise and division by its optimizers. Two parts are heldin's. First, heldin draws the cohort,
by Poisson sampling or in shuffled batches. Second, heldin adds the gradients of gradient canaries to the records'
gradients, and clips them under fast gradient and ghost clipping. Opacus knows no users with several records: it clips
each record separately. A plan for users therefore runs as if each example were a user.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest
from heldin.base.errors import InputError
from heldin.finetune.batches import collate
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.models.attention import use_plain_head
from heldin.models.tokens import Tokens


@dataclass(frozen=True)
class OpacusStep:
    """One step of Opacus, for ``heldin.audit_trainer``.

    Attributes:
        mode: how gradients of single records are clipped. Hooks store them; "fast" and "ghost" use two backward passes,
            and weight the second pass. Ghost clipping refuses a model with tied weights.
        poisson: whether to draw the cohort as the plan states. False: equal batches of a shuffled epoch, which
            ``make_private(poisson_sampling=False)`` takes from the data loader.
        positions: whether to give each record its own row of position ids, which the hooks need. A model that makes one
            row for the whole batch has a single gradient of its position embeddings for all records, and Opacus stops.
        passes: number of physical batches per step, into which ``BatchMemoryManager`` divides the step.
    """

    mode: Literal["hooks", "fast", "ghost"] = "hooks"
    poisson: bool = True
    positions: bool = True
    passes: int = 1

    def __call__(
        self, model: PreTrainedModel, training: PrivateTraining, step: int, sequences: Sequence[Tokens]
    ) -> float | None:
        """Write the gradient for the optimizer into ``.grad``.

        Args:
            model: the model; its ``.grad`` is set.

        Raises:
            InputError: Opacus does not support the mechanism's clip or divisor, or is not installed.
        """
        optimizer = self._optimizer(model, training, step)
        drawn = training.drawn(step) if self.poisson else shuffled_batch(training, step)
        records = [ids for unit in drawn if unit.canary is None for ids in training.contribution(unit, step, sequences)]
        canaries = [unit.canary for unit in drawn if unit.canary is not None]
        given = [training.canaries.gradient(number) for number in canaries] if training.canaries else []
        size = max(1, -(-len(records) // self.passes))
        parts = [records[start : start + size] for start in range(0, len(records), size)] or [[]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about hooks on modules whose input needs no gradient
            for number, part in enumerate(parts):
                last = number == len(parts) - 1
                optimizer.signal_skip_step(do_skip=not last)
                # Canaries beside the last records: their gradients are put in once.
                self._backward(model, optimizer, part, given if last else [])
                optimizer.pre_step()
                if not last:
                    optimizer.zero_grad()
        for parameter in optimizer.params:
            # Opacus keeps them on the parameters; the next step starts from nothing.
            parameter.grad_sample = parameter.summed_grad = None
        return None

    def _optimizer(self, model: PreTrainedModel, training: PrivateTraining, step: int) -> Any:
        try:
            from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        except ImportError as error:
            raise InputError("Opacus is not installed: pip install '.[trainers]' in a clone of heldin") from error
        mechanism = training.mechanism
        clip = mechanism.clip.of_units()
        if clip.rescales or mechanism.divisor.constant is None:
            raise InputError(
                "Opacus clips each example's whole gradient and divides by the expected batch size: choose a plan"
                " that does the same"
            )
        for parameter in model.parameters():
            parameter.grad = None
        kind = DPOptimizer if self.mode == "hooks" else DPOptimizerFastGradientClipping
        # Its own noise, from a generator that nobody can foretell without the key.
        return kind(
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0),
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=clip.norm,
            expected_batch_size=mechanism.divisor.constant,
            loss_reduction="mean",
            generator=torch.Generator(model.device).manual_seed(_seed(training.key, "opacus noise", step)),
        )

    def _backward(
        self,
        model: PreTrainedModel,
        optimizer: Any,
        records: Sequence[Tokens],
        canaries: Sequence[Mapping[str, torch.Tensor]],
    ) -> None:
        """Set the optimizer's inputs on the parameters: gradients of records, or their clipped sum."""
        from opacus import GradSampleModule
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        norm = optimizer.max_grad_norm
        use_plain_head(model)
        if self.mode == "hooks":
            hooked = GradSampleModule(model, strict=False)
        else:
            ghost = self.mode == "ghost"
            hooked = GradSampleModuleFastGradientClipping(
                model, strict=False, max_grad_norm=norm, use_ghost_clipping=ghost
            )
        try:
            if records:
                batch = collate(records, model.device)
                losses = batch.losses(_WithPositions(hooked) if self.positions else hooked)
                if self.mode == "hooks":
                    torch.autograd.backward(losses.mean())
                else:
                    DPTensorFastGradientClipping(hooked, optimizer, losses).backward()
        finally:
            hooked.remove_hooks()
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if self.mode == "hooks":
            for name, parameter in named:
                more = [
                    gradients[name].unsqueeze(0) if name in gradients else torch.zeros_like(parameter)[None]
                    for gradients in canaries
                ]
                of_records = _of_records(parameter)
                # Copied only where there is something to add: these are as large as all per-example gradients.
                parameter.grad_sample = torch.cat([of_records, *more]) if more else of_records
            return
        for _, parameter in named:
            if not records:
                parameter.grad = torch.zeros_like(parameter)
        for gradients in canaries:
            # Not Opacus' own: it takes no gradient that did not come from a loss.
            whole = torch.sqrt(sum((part.square().sum() for part in gradients.values()), torch.zeros(())))
            scale = (norm / (whole + 1e-6)).clamp(max=1.0)
            for name, parameter in named:
                if name in gradients and parameter.grad is not None:
                    parameter.grad += scale * gradients[name]


@dataclass(frozen=True)
class _WithPositions:
    """A model that gets a separate row of position ids for each record."""

    hooked: Any

    def __call__(self, *, input_ids: torch.Tensor, use_cache: bool) -> Any:
        places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids).contiguous()
        return self.hooked(input_ids=input_ids, position_ids=places, use_cache=use_cache)


def shuffled_batch(training: PrivateTraining, step: int) -> list[SampledUnit]:
    """Return a batch of a shuffled epoch, with the size that the plan expects."""
    units, rate = training.units, training.mechanism.sampler.rate
    size = max(1, round(rate * len(units)))
    epoch, place = divmod(step, max(1, len(units) // size))
    generator = torch.Generator().manual_seed(_seed(training.key, "opacus epoch", epoch))
    order = torch.randperm(len(units), generator=generator).tolist()
    return [units[i] for i in order[place * size : (place + 1) * size]]


def _seed(key: bytes, purpose: str, number: int) -> int:
    return int.from_bytes(keyed_digest(key, purpose, str(number))[:8], "big", signed=True)


def _of_records(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradients per record, shape (records, ...); empty if no record was drawn."""
    gradients: torch.Tensor | None = getattr(parameter, "grad_sample", None)
    return torch.zeros((0, *parameter.shape), device=parameter.device) if gradients is None else gradients


opacus = OpacusStep()
opacus_fast = OpacusStep("fast")
opacus_ghost = OpacusStep("ghost")
opacus_in_passes = OpacusStep(passes=3)
opacus_shuffled = OpacusStep(poisson=False)
opacus_one_row_of_positions = OpacusStep(positions=False)
