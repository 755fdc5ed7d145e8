"""Train a model further on one user's own records, measure it, and discard it (Charles et al. 2024, Appendix G.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from heldin.finetune.batches import collate
from heldin.models.tokens import Tokens

BATCH = 16  # records
Halves = tuple[Sequence[Tokens], Sequence[Tokens]]


@dataclass(frozen=True)
class Change:
    """Mean losses per token on the reserved half of a user's records, in nats.

    Attributes:
        before: loss of the original model.
        after: loss of the model after further training on the other half.
    """

    before: float
    after: float


def personalized(model: PreTrainedModel, halves: Halves, *, epochs: int, learning_rate: float) -> Change:
    """Return the user's losses before and after ``epochs`` of plain SGD on the first half. Does not change ``model``.

    Args:
        model: the model to start from.
        halves: token ids of the records to train on, and of the records to measure.
        epochs: number of passes over the first half, in batches of 16 in the given order.
        learning_rate: learning rate of SGD without momentum, on the mean of the records' losses.
    """
    own, reserved = halves
    before = _loss(model, reserved)
    kept = {name: value.detach().clone() for name, value in model.named_parameters()}
    try:
        optimizer = torch.optim.SGD(model.parameters(), learning_rate)
        for _ in range(epochs):
            for start in range(0, len(own), BATCH):
                optimizer.zero_grad()
                batch = collate(own[start : start + BATCH], model.device)
                torch.autograd.backward(batch.losses(model).mean())
                optimizer.step()
        return Change(before, _loss(model, reserved))
    finally:
        # The next user starts from the same weights, to the bit.
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(kept[name])


def _loss(model: PreTrainedModel, sequences: Sequence[Tokens]) -> float:
    total, tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(sequences), BATCH):
            part = sequences[start : start + BATCH]
            lengths = torch.tensor([its.part(1, None).bearing for its in part], device=model.device)
            total += float((collate(part, model.device).losses(model) * lengths).sum())
            tokens += int(lengths.sum())
    return total / tokens
