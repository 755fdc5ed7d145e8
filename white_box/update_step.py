"""A hand-written private update as a private step for a white-box audit.

The author of a plain PyTorch loop starts from gradients of single examples or users. The loop clips and sums them, adds
noise and divides. The update does exactly this. heldin draws the cohort, and computes each unit's gradient by one plain
backward pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.batches import collate
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.models.tokens import Tokens

# (gradients of each unit, one tensor (units, *shape) for each parameter; mechanism; source of all randomness) -> what
# the optimizer is given, one tensor for each parameter
Update = Callable[[Sequence[Tensor], Mechanism, torch.Generator], Sequence[Tensor]]


@dataclass(frozen=True)
class UpdateStep:
    """One step that calls a private update on the gradients of the drawn units, for ``heldin.audit_trainer``.

    Add ``step = UpdateStep(my_update)`` to your module, and run ``heldin white-box --step MODULE:step``.

    Attributes:
        update: function that clips, sums, adds noise and divides. It may draw random numbers only from the given
            generator, whose seed nobody can predict without the key. For a step that draws no unit, it gets tensors
            without rows.
    """

    update: Update

    def __call__(
        self, model: PreTrainedModel, training: PrivateTraining, step: int, sequences: Sequence[Tokens]
    ) -> float | None:
        """Write the gradient for the optimizer into ``.grad``.

        Args:
            model: the model; its ``.grad`` is set.
        """
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        drawn = [self._gradient(model, named, training, unit, step, sequences) for unit in training.drawn(step)]
        stacked = [
            torch.stack([gradients[i] for gradients in drawn]) if drawn else torch.zeros((0, *p.shape), device=p.device)
            for i, (_, p) in enumerate(named)
        ]
        seed = int.from_bytes(keyed_digest(training.key, "update", str(step))[:8], "big", signed=True)
        given = self.update(stacked, training.mechanism, torch.Generator(model.device).manual_seed(seed))
        for (_, parameter), gradient in zip(named, given, strict=True):
            parameter.grad = gradient.to(parameter)
        return None

    def _gradient(
        self,
        model: PreTrainedModel,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        training: PrivateTraining,
        unit: SampledUnit,
        step: int,
        sequences: Sequence[Tokens],
    ) -> list[Tensor]:
        """Return the gradient of a unit's loss, averaged over its records; or the gradient of a gradient canary."""
        if unit.canary is not None:
            assert training.canaries is not None
            planted = training.canaries.gradient(unit.canary)
            return [planted.get(name, torch.zeros_like(p)) for name, p in named]
        records = training.contribution(unit, step, sequences)
        if not records:
            return [torch.zeros_like(p) for _, p in named]
        loss = collate(records, model.device).losses(model).mean()
        return list(torch.autograd.grad(loss, [p for _, p in named], allow_unused=True, materialize_grads=True))
