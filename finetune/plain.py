"""The gradient of a plain batch: the mean of its records' losses, by plain autograd."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from heldin.finetune.batches import collate, record_losses
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import own_share, processes, sum_over_ranks


def plain_batch_gradient(
    model: PreTrainedModel, batch: Sequence[Sequence[int]], micro_batch: int, arithmetic: Arithmetic
) -> torch.Tensor:
    """Put this process's part of a batch's gradient into ``.grad`` by plain autograd; returns its part of the loss.

    Over the processes these parts sum up to the mean over the batch's records: ``over_processes`` sums them.

    Args:
        model: whose ``.grad`` is set.

    Returns:
        Shape (1,), float64.
    """
    total = torch.zeros(1, dtype=torch.float64, device=model.device)
    # A pass that ran out of memory leaves the gradients of its first micro-batches behind.
    model.zero_grad(set_to_none=True)
    share = own_share(batch)
    for start in range(0, len(share), micro_batch):
        inputs, targets = collate(share[start : start + micro_batch], model.device)
        with autocast(arithmetic, model.device):
            # Over the whole batch, so that micro-batches and processes add up to the mean over its records.
            loss = record_losses(model, inputs, targets).sum() / len(batch)
        torch.autograd.backward(loss)
        total += loss.detach()
    return total


def over_processes(model: PreTrainedModel, loss: torch.Tensor) -> float:
    """Sum the parts of ``plain_batch_gradient`` over the processes; returns the batch's mean loss.

    Once a process has all of its part: where memory ran out in one of them, it begins its part again, alone.
    """
    # Every process sums every parameter, whatever its share: one that skipped a sum would take part in the next one.
    if processes() > 1:
        gradients = [
            p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters() if p.requires_grad
        ]
        for parameter, gradient in zip((p for p in model.parameters() if p.requires_grad), gradients, strict=True):
            parameter.grad = gradient
        sum_over_ranks([loss, *gradients])
    return float(loss)
