"""Gradient clipping without noise, a heuristic defense: it bounds no privacy loss (Kandpal et al., Appendix D.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.passes import Passes
from heldin.finetune.private import whole_units
from heldin.finetune.ranks import own_share, sum_over_ranks


@dataclass(frozen=True)
class PlainClipping:
    """Clip each example's gradient, or the batch's mean gradient, to ``norm``; infinity only measures the norms."""

    unit: Literal["example", "batch"]
    norm: float

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise InputError(f"clip norm is {self.norm}: it must be positive")


def clipped_batch_gradient(
    model: PreTrainedModel, clipping: PlainClipping, batch: Sequence[Sequence[int]], passes: Passes
) -> tuple[float, list[float]]:
    """Put the clipped mean gradient of a batch into ``.grad``.

    Args:
        model: whose ``.grad`` is set.
        clipping: unit and norm.
        batch: token sequences of all processes.
        passes: how many records go through the model at once.

    Returns:
        The mean loss, and the norms before clipping: one per example of this process, or one of the batch.
    """
    of_example = clipping.norm if clipping.unit == "example" else float("inf")
    share = own_share(batch)

    def compute(most: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, list[float]]:
        total: dict[str, torch.Tensor] = {}
        # A tensor, to be summed over processes beside the gradients.
        loss = torch.zeros(1, dtype=torch.float64, device=model.device)
        norms: list[float] = []
        for start in range(0, len(share), most):
            units = whole_units([[ids] for ids in share[start : start + most]], model.device)
            found = clipped_gradient_sum(model, units, clip_norm=of_example, memory_budget=passes.budget)
            passes.note(found.engine, found.notice)
            if total:
                for name, summed in total.items():
                    summed += found.gradients[name]
            else:
                total = found.gradients
            loss += found.losses.sum().double()
            norms += found.norms.tolist()
            del found  # its sums are as large as the model, and the next pass needs the room
        return total, loss, norms

    total, loss, norms = passes.fitted(compute, lambda most: min(most, len(share)))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not total:  # a process without a share of a small batch
        total = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    sum_over_ranks([*total.values(), loss])
    # The mean, where D.3 has the sum: without clipping the step is then that of plain training.
    mean = {name: gradient / len(batch) for name, gradient in total.items()}
    # After the sum over processes, since the batch is clipped as one: a process's own share has another norm.
    if clipping.unit == "batch":
        norms = [float(torch.stack([g.double().square().sum() for g in mean.values()]).sum().sqrt())]
        factor = min(1.0, clipping.norm / max(norms[0], 1e-30))  # a gradient of zero stays zero
        mean = {name: gradient * factor for name, gradient in mean.items()}
    for name, parameter in parameters.items():
        parameter.grad = mean[name].to(parameter.dtype)
    return float(loss) / len(batch), norms
