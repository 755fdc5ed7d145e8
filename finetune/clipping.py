"""Gradient clipping without noise, a heuristic defense: it bounds no privacy loss (Kandpal et al., Appendix D.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.choices import LEAST_CLIP_NORM
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import ClippedSum
from heldin.finetune.passes import Passes, clipped_sum
from heldin.finetune.ranks import own_share, sum_over_ranks


@dataclass(frozen=True)
class PlainClipping:
    """Clip each example's gradient, or the batch's mean gradient, to ``norm``; infinity only measures the norms."""

    unit: Literal["example", "batch"]
    norm: float

    def __post_init__(self) -> None:
        if not self.norm >= LEAST_CLIP_NORM:
            raise InputError(f"clip norm is {self.norm}: it must be at least {LEAST_CLIP_NORM:g}")


def clipped_batch_gradient(
    model: PreTrainedModel, clipping: PlainClipping, batch: Sequence[Sequence[int]], passes: Passes
) -> tuple[float, list[float]]:
    """Put the clipped mean gradient of a batch into ``.grad``.

    Args:
        model: whose ``.grad`` is set.
        clipping: unit and norm.
        passes: how many records go through the model at once.

    Returns:
        The mean loss, and the norms before clipping: one per example of this process, or one of the batch.
    """
    of_example = clipping.norm if clipping.unit == "example" else float("inf")
    share = own_share(batch)

    def compute(most: int) -> ClippedSum:
        runs = [[[ids] for ids in share[start : start + most]] for start in range(0, len(share), most)]
        return clipped_sum(model, runs, of_example, passes)

    # A process without a share of a small batch has sums of zero.
    clipped = passes.fitted(compute, lambda most: min(most, len(share)))
    # A tensor, to be summed over processes beside the gradients.
    loss = clipped.losses.double().sum().unsqueeze(0)
    sum_over_ranks([*clipped.gradients.values(), loss])
    norms: list[float] = clipped.norms.tolist()
    parameters = trainable(model)
    # The mean, where D.3 has the sum: without clipping the step is then that of plain training.
    mean = {name: gradient / len(batch) for name, gradient in clipped.gradients.items()}
    # After the sum over processes, since the batch is clipped as one: a process's own share has another norm.
    if clipping.unit == "batch":
        norms = [float(torch.stack([g.double().square().sum() for g in mean.values()]).sum().sqrt())]
        factor = min(1.0, clipping.norm / max(norms[0], 1e-30))  # a gradient of zero stays zero
        mean = {name: gradient * factor for name, gradient in mean.items()}
    for name, parameter in parameters.items():
        parameter.grad = mean[name].to(parameter.dtype)
    return float(loss) / len(batch), norms
