"""The sum of clipped gradients over a step's passes, and how it is put into ``.grad``; no mechanism is known here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from heldin.defenses.gradients.held_gradients import Sums
from heldin.defenses.gradients.model_parts import take_apart
from heldin.defenses.gradients.per_unit_gradients import ClippedSum, UnitBatch, clipped_gradient_sum
from heldin.finetune.batches import collate
from heldin.finetune.passes import Passes
from heldin.models.devices import kind_of

Contribution = list[Sequence[int]]
Noise = Callable[[str, torch.Size, torch.device], torch.Tensor]


def clipped_sum(
    model: PreTrainedModel, runs: Sequence[Sequence[Contribution]], clip_norm: float, passes: Passes
) -> ClippedSum:
    """The sum of the clipped gradients of several passes' units, and what is known of each unit, in their order."""
    # A GPU is given the next pass while it computes one, and asked once, after the last, whether a unit was not finite.
    if kind_of(model.device) != "cpu":
        clipped = over_passes(model, runs, clip_norm, passes, asks=False)
        if not bool(clipped.masked.any()):
            return clipped
        del clipped  # its sums are as large as the model
    return over_passes(model, runs, clip_norm, passes, asks=True)


def over_passes(
    model: PreTrainedModel,
    runs: Sequence[Sequence[Contribution]],
    clip_norm: float,
    passes: Passes,
    *,
    asks: bool,
) -> ClippedSum:
    """``clipped_sum``, for which a GPU is waited for only if ``asks``.

    Args:
        asks: whether to look in each pass if a unit is not finite. False: where ``masked`` marks one, the sums are not
            to be used.
    """
    total: Sums | None = None
    of_passes: list[ClippedSum] = []
    parts = take_apart(model)
    for units in runs:
        clipped = clipped_gradient_sum(
            model,
            whole_units(units),
            clip_norm=clip_norm,
            memory_budget=passes.budget,
            most_records=passes.most if passes.splits else None,
            waits=asks,
            parts=parts,
            onto=total,
        )
        passes.note(clipped.engine, clipped.notice)
        total = clipped.gradients
        of_passes.append(clipped)
    if not of_passes:
        zeros = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in trainable(model).items()}
        none = torch.zeros(0, device=model.device)
        return ClippedSum(zeros, none, none, none > 0, "no records")
    return replace(
        of_passes[-1],
        norms=torch.cat([clipped.norms for clipped in of_passes]),
        losses=torch.cat([clipped.losses for clipped in of_passes]),
        masked=torch.cat([clipped.masked for clipped in of_passes]),
    )


def put_gradient(
    model: PreTrainedModel, total: Mapping[str, torch.Tensor], scale: float, divisor: float, noise: Noise | None
) -> None:
    """Put the noised mean into ``.grad``.

    Args:
        model: whose ``.grad`` is set.
        total: sums by parameter name, in float32; they are overwritten.
        scale: what the sums are multiplied by before the noise.
        noise: given a tensor's name, shape and device; None: no noise.
    """
    parameters = trainable(model)
    sums = [total[name] for name in parameters]
    # In place: three more copies of the largest tensor would stand in memory at the step's peak.
    torch._foreach_mul_(sums, scale)
    for name, summed in zip(parameters, sums, strict=True):
        if noise is not None:
            summed.add_(noise(name, summed.shape, summed.device))
    torch._foreach_div_(sums, divisor)
    for parameter, summed in zip(parameters.values(), sums, strict=True):
        parameter.grad = summed.to(parameter.dtype)


def whole_units(units: Sequence[Contribution]) -> UnitBatch:
    """A batch of units, each a list of token sequences; on the CPU."""
    inputs, targets = collate([ids for records in units for ids in records], torch.device("cpu"))
    unit = torch.tensor([i for i, records in enumerate(units) for _ in records])
    return UnitBatch(inputs, targets, unit, len(units))


def trainable(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The model's trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
