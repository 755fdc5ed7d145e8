"""The objective of a training: a loss for each record in a batch. Gradients and clipping use only these losses."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from heldin.models.attention import unpacked
from heldin.models.devices import in_chunks, moved, rows_per_chunk
from heldin.models.repeated import in_compiled
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import IGNORED


@dataclass(frozen=True)
class TokenBatch:
    """Rows of a batch, padded on the right. A record has one row, or two if it compares two answers.

    Attributes:
        inputs: token ids that the model reads, (B, L).
        targets: target token ids at each position, (B, L); ``IGNORED`` at positions without a target.
        reference: log-probability, in nats, of each row's targets under the model before training, (B,); zeros if the
            objective does not use it.
        objective: objective of the training.
    """

    inputs: Tensor
    targets: Tensor
    reference: Tensor
    objective: "Objective"

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor) -> "TokenBatch":
        """Return a batch of language modelling."""
        return cls(inputs, targets, torch.zeros(len(inputs), device=inputs.device), LANGUAGE_MODELLING)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and reference."""
        return self.inputs, self.targets, self.reference

    def with_tensors(self, inputs: Tensor, targets: Tensor, reference: Tensor) -> "TokenBatch":
        """Return a batch with the same objective."""
        return TokenBatch(inputs, targets, reference, self.objective)

    def rows(self, which: slice | Tensor) -> "TokenBatch":
        """Return a batch of some rows."""
        return self.with_tensors(*(tensor[which] for tensor in self.tensors))

    def at(self, device: torch.device) -> "TokenBatch":
        """Return the batch on a device."""
        return self.with_tensors(*(moved(tensor, device) for tensor in self.tensors))

    def losses(self, model: Callable[..., Any], *, once: bool = False) -> Tensor:
        """Return a loss for each row; see ``Objective.losses``."""
        return self.objective.losses(model, self, once=once)

    def record_losses(self, model: Callable[..., Any]) -> Tensor:
        """Return the loss of each record."""
        return self.losses(model)[:: self.objective.rows]


class Objective(Protocol):
    """A loss function that training minimises."""

    @property
    def rows(self) -> int:
        """Number of rows per record."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the model with the model before training."""
        ...

    def validation_loss(self, target: Sequence[TokenScores], reference: Sequence[TokenScores]) -> float:
        """Return the mean loss of texts from their scores.

        Args:
            target: scores of n texts under the trained model.
            reference: scores of these texts under the model before training; empty unless ``needs_reference``.
        """
        ...

    def losses(self, model: Callable[..., Any], batch: TokenBatch, *, once: bool = False) -> Tensor:
        """Return, for each row, the loss of the row's record, (B,).

        A loss does not depend on other records, nor on their padding. The rows of a record are consecutive.

        Args:
            model: the model, possibly with gradients.
            batch: batch on the model's device.
            once: whether there is at most one backward pass, which needs less memory.
        """
        ...


@dataclass(frozen=True)
class TargetLikelihood:
    """The mean cross entropy of a record's own targets, in nats per token; 0 for a record without targets.

    The targets of language modelling are the counted next tokens (``finetune.batches.collate``).
    """

    rows: ClassVar[int] = 1
    needs_reference: ClassVar[bool] = False

    def validation_loss(self, target: Sequence[TokenScores], reference: Sequence[TokenScores]) -> float:
        """Return the mean loss over all tokens of all texts, in nats per token."""
        # Over tokens, not over texts: short texts do not count as much as long ones.
        return sum(scores.nats for scores in target) / sum(scores.tokens for scores in target)

    def losses(self, model: Callable[..., Any], batch: TokenBatch, *, once: bool = False) -> Tensor:
        """Return the loss of each record, (B,)."""
        # By the record's own number: the usual mean over all tokens of a batch would make a record's weight depend on
        # the lengths of others. Without a target it is 0 and not 0 / 0, which would end the training.
        return row_losses(model, batch, once=once) / target_counts(batch)


LANGUAGE_MODELLING = TargetLikelihood()


def row_losses(model: Callable[..., Any], batch: TokenBatch, *, once: bool) -> Tensor:
    """Return, for each row, the sum of its targets' cross entropies in nats, (B,)."""
    with unpacked():
        logits = model(input_ids=batch.inputs, use_cache=False).logits  # (B, L, V)
    return token_losses(logits, batch.targets, once=once).sum(1)  # (B, L) -> (B,)


def target_counts(batch: TokenBatch) -> Tensor:
    """Return the number of targets in each row, at least 1, (B,)."""
    return (batch.targets != IGNORED).sum(1).clamp_min(1)


def token_losses(logits: Tensor, targets: Tensor, *, once: bool) -> Tensor:
    """Return the cross entropy of each token, (B, L), float32; zero at ignored targets.

    Args:
        logits: logits, (B, L, V).
        targets: token ids, (B, L).
        once: whether there is only one backward pass and no other use of the logits; the gradient then overwrites the
            logits.
    """
    # Float32 numbers are made of a chunk of tokens at a time: tensors over the vocabulary are the largest of a step.
    losses: Tensor = _TokenLosses.apply(logits, targets, once)  # type: ignore[no-untyped-call]
    return losses


class _TokenLosses(torch.autograd.Function):
    """``token_losses``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, once: bool) -> Tensor:
        rows = logits.detach().flatten(0, -2)  # (N, V)
        kept = targets.flatten() != IGNORED
        index = torch.where(kept, targets.flatten(), 0).unsqueeze(1)  # ``gather`` needs an id at ignored positions too
        ctx.shape, ctx.once = logits.shape, once
        totals = None
        if in_compiled():
            losses, totals = _compiled(_losses)(rows, index)
        else:
            chunks = in_chunks(rows, index)
            scores = [torch.log_softmax(part, 1, dtype=torch.float32).gather(1, ids) for part, ids in chunks]
            losses = -torch.cat(scores)
        ctx.save_for_backward(rows, index, kept, totals)
        return torch.where(kept, losses.squeeze(1), 0.0).view_as(targets)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, None, None]:
        rows, index, kept, totals = ctx.saved_tensors
        scale = torch.where(kept, delta.flatten(), 0.0).unsqueeze(1)
        whole = rows if ctx.once else torch.empty_like(rows)
        if totals is not None:
            _compiled(_put_gradient)(whole, rows, index, totals, scale)
            return whole.view(ctx.shape), None, None
        scales, outs = (torch.split(tensor, rows_per_chunk(rows)) for tensor in (scale, whole))
        for (part, ids), scale, out in zip(in_chunks(rows, index), scales, outs, strict=True):
            gradient = torch.softmax(part, 1, dtype=torch.float32)
            gradient.scatter_add_(1, ids, torch.full_like(scale, -1.0))
            torch.mul(gradient, scale, out=out)  # rounded once, where the logits are of half precision
        return whole.view(ctx.shape), None, None


# Compiled, each of these reads the logits once or twice and makes no other tensor of their size.
def _losses(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross entropies (N, 1) of logits (N, V) at ids (N, 1), and log-sum-exps (N, 1)."""
    wide = rows.float()
    totals = torch.logsumexp(wide, 1, keepdim=True)
    return totals - wide.gather(1, index), totals


def _put_gradient(out: Tensor, rows: Tensor, index: Tensor, totals: Tensor, scale: Tensor) -> None:
    """Write the gradient of ``_losses`` times ``scale`` (N, 1) into ``out`` (N, V), which may be the logits
    themselves."""
    shares = (rows.float() - totals).exp()
    asked = torch.arange(rows.shape[1], device=rows.device) == index
    out.copy_(torch.where(asked, shares - 1, shares) * scale)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
