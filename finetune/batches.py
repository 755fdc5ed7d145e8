"""Records as tokens, the batches of each step, and the gradient of a plain batch.

A sequence contains one record of one user, never two. The batch of a step is a pure function of the step and the seed,
so a resumed run draws the same batches as an uninterrupted one.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.corpus.document import Document
from heldin.defenses.gradients.model_parts import even_width, trainable
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import own_share, processes, sum_over_ranks
from heldin.finetune.recipe import Truncate
from heldin.models.devices import moved
from heldin.models.objective import LANGUAGE_MODELLING, TokenBatch
from heldin.models.repeated import is_short, records, repeated, sums_of_recorded, without_compiling
from heldin.models.tokens import IGNORED, Ids, Pair, Tokens, start_token, tokens_of, tokens_within

GROUPS_OF_BATCHES = 32


def encode(
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    sequence_length: int | None,
    done: int = 0,
    truncation: "Truncation | None" = None,
) -> list[Tokens]:
    """Return the tokens of each document: start token, text, end-of-text token.

    A chat from a template has only its own tokens.

    If only parts of a text count, the end-of-text token counts if the token before it counts. A preference pair has the
    tokens of both answers, each after the prompt.

    Args:
        sequence_length: maximum number of predicted tokens; longer documents are truncated. None: no limit.
        done: number of documents that were encoded earlier; only the error message uses this number.
        truncation: rule for the truncation of longer documents; the function adds the numbers of lost tokens to this
            object.

    Returns:
        2 to ``sequence_length`` + 1 tokens for each document, or for each answer of a pair.

    Raises:
        InputError: a text has no tokens, or ``tokens_of`` raises an InputError.
    """
    written, truncation = list(documents), truncation or Truncation()
    branches = [branch for document in written for branch in document.branches()]
    numbers = [number for number, document in enumerate(written, start=done + 1) for _ in document.branches()]
    start = start_token(tokenizer, "the model")
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    longest = None if sequence_length is None else sequence_length + 1
    rows = []
    for number, document, tokens in zip(numbers, branches, tokens_of(tokenizer, branches), strict=True):
        if len(tokens) < 1 + document.framed:
            raise InputError(
                f"training text number {number} has no tokens: remove texts with only blanks or unknown characters"
            )
        if not document.framed:
            counted = tokens.counted
            if counted is not None:
                counted = np.concatenate([[False], counted, counted[-1:] if end else counted[:0]])
            tokens = Tokens([start, *tokens.ids, *end], counted)
        elif tokens.counted is not None:
            # The first token is only read.
            tokens = Tokens(tokens.ids, np.concatenate([[False], tokens.counted[1:]]))
        if longest is not None and len(tokens) > longest:
            tokens = truncation.cut(tokenizer, document, tokens, longest)
        rows.append(tokens)
    left = iter(rows)
    return [Pair.of(next(left), next(left)) if document.is_pair else next(left) for document in written]


@dataclass
class Truncation:
    """The rule for the truncation of records, and the numbers of lost tokens.

    Attributes:
        rule: keep whole turns, or all tokens that fit.
        records: number of truncated records.
        dropped: number of cut-off tokens.
        counted: number of cut-off tokens that would have counted in the loss.
    """

    rule: Truncate = Truncate.TURNS
    records: int = 0
    dropped: int = 0
    counted: int = 0

    def cut(self, tokenizer: PreTrainedTokenizerBase, document: Document, tokens: Tokens, most: int) -> Tokens:
        """Return the first ``most`` tokens, or fewer if otherwise the last turn would not be whole.

        If no counted turn fits, the cut is inside a turn, because otherwise the record would teach the model nothing.
        """
        left = tokens.part(0, most)
        if self.rule is Truncate.TURNS and document.layout is not None:
            first = int(not document.framed)  # a start token that was put before the text
            kept = first + tokens_within(tokenizer, document.text, _ends(document), most - first)
            whole = tokens.part(0, kept)
            if kept > 1 and whole.bearing:
                left = whole
        self.records += 1
        self.dropped += len(tokens) - len(left)
        self.counted += tokens.bearing - left.bearing
        return left


def _ends(document: Document) -> list[int]:
    assert document.layout is not None
    return [turn.end for turn in document.layout.turns]


def encoded(
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[Sequence[Document]],
    sequence_length: int | None,
    truncation: Truncation | None = None,
) -> Iterator[list[Tokens]]:
    """Yield ``encode`` of each batch.

    The error for a text without tokens gives the number of the text among all texts.
    """
    done = 0
    for documents in batches:
        yield encode(tokenizer, documents, sequence_length, done, truncation)
        done += len(documents)


class ShuffledBatches:
    """Batches of shuffled passes over the records. Every record occurs once in each epoch.

    With ``group_by_length``, the shuffled records are sorted by length within groups of 32 batches, and then all
    batches are shuffled. This order needs little padding.
    """

    def __init__(
        self, lengths: Sequence[int] | NDArray[np.int64], batch_size: int, seed: int, *, group_by_length: bool
    ) -> None:
        self._lengths = np.asarray(lengths)
        self._batch_size = batch_size
        self._seed = seed
        self._group = group_by_length
        self.per_epoch = -(-len(lengths) // batch_size)
        # A step needs one batch of its epoch; drawing the epoch anew for each would cost a pass over all records.
        self._epoch = functools.lru_cache(maxsize=1)(self._draw_epoch)

    def rows(self, step: int) -> list[int]:
        """Return the rows of the batch of ``step`` (from 0)."""
        epoch, position = divmod(step, self.per_epoch)
        rows, order = self._epoch(epoch)
        first = int(order[position]) * self._batch_size
        batch: list[int] = rows[first : first + self._batch_size].tolist()
        return batch

    def _draw_epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all rows, batch after batch, and the order of the batches."""
        # From (seed, epoch) alone, so that a resumed run draws its epoch again without those before it.
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self._seed, epoch])))
        order = generator.permutation(len(self._lengths))
        size = self._batch_size
        if not self._group:
            return order, np.arange(self.per_epoch)
        for start in range(0, len(order), size * GROUPS_OF_BATCHES):
            group = order[start : start + size * GROUPS_OF_BATCHES]
            group[:] = group[np.argsort(self._lengths[group], kind="stable")]
        # Shuffled again: sorted groups would train short texts before long ones.
        return order, generator.permutation(self.per_epoch)


class Asked(Tokens):
    """A record with targets other than its next tokens. The input ids come first, then equally many targets.

    Targets are ``IGNORED`` at positions without a target. The first input is the padding id of a model that masks
    padding.
    """

    __slots__ = ()

    @classmethod
    def of(cls, inputs: Sequence[int], targets: Sequence[int]) -> "Asked":
        """Make a record from inputs and equally many targets."""
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs, {len(targets)} targets")
        return cls([*inputs, *targets])

    @property
    def predicted(self) -> int:
        """Number of positions."""
        return len(self.ids) // 2

    def inputs_and_targets(self) -> tuple[Ids, Ids]:
        """Return the inputs and the targets."""
        return self.ids[: self.predicted], self.ids[self.predicted :]


def collate(records: Sequence[Tokens], device: torch.device) -> TokenBatch:
    """Return the batch of these records, padded on the right, with one row per record, or two per pair.

    Raises ValueError if the records have different objectives, or if a pair has no objective.
    """
    objectives = {record.objective if isinstance(record, Pair) else LANGUAGE_MODELLING for record in records}
    if len(objectives) > 1:
        raise ValueError(f"a batch of records with several objectives: {objectives}")
    pairs = [tokens.inputs_and_targets() for record in records for tokens in record.rows()]
    longest = max(len(ids) for ids, _ in pairs)
    both = np.full((2, len(pairs), longest), IGNORED, dtype=np.int64)
    for row, (ids, asked) in enumerate(pairs):
        # Padding stands behind the text, where a causal model's predictions of the text do not see it: any id would do.
        both[0, row] = ids[0]
        both[0, row, : len(ids)] = ids
        both[1, row, : len(asked)] = asked
    inputs, targets = moved(torch.from_numpy(both), device)
    objective = objectives.pop()
    # Trained as texts, both answers of a pair would be made likelier.
    if objective is None:
        raise ValueError("a batch of pairs without an objective")
    reference = [value for record in records if isinstance(record, Pair) for value in record.reference]
    if not reference:
        return TokenBatch.of(inputs, targets)
    return TokenBatch(inputs, targets, torch.tensor(reference, device=device), objective)


def plain_batch_gradient(
    model: PreTrainedModel, batch: Sequence[Tokens], micro_batch: int, arithmetic: Arithmetic
) -> torch.Tensor:
    """Put this process's part of a batch's gradient into ``.grad`` by plain autograd, and return its part of the loss.

    The parts of all processes add up to the mean over the batch's records. ``over_processes`` computes this sum.

    Args:
        model: the model; its ``.grad`` is set.

    Returns:
        Shape (1,), float64.
    """
    return without_compiling(lambda: _plain_passes(model, batch, micro_batch, arithmetic))


def _plain_passes(
    model: PreTrainedModel, batch: Sequence[Tokens], micro_batch: int, arithmetic: Arithmetic
) -> torch.Tensor:
    total = torch.zeros(1, dtype=torch.float64, device=model.device)
    # A pass that ran out of memory leaves the gradients of its first micro-batches behind.
    model.zero_grad(set_to_none=True)
    share = own_share(batch)

    def add_gradient(
        inputs: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        # Over the whole batch, so that micro-batches and processes add up to the mean over its records.
        rows = parts[0].with_tensors(inputs, targets, reference)
        loss = rows.losses(model, once=True).sum() / count
        with torch.autocast(model.device.type, enabled=False):
            torch.autograd.backward(loss)
        return loss.detach()

    parts = [collate(share[start : start + micro_batch], model.device) for start in range(0, len(share), micro_batch)]
    rows_of_batch = sum(len(record.rows()) for record in batch)
    count = torch.full((), float(rows_of_batch), device=model.device)
    weights = trainable(model)
    short = bool(parts) and is_short(model, min(part.inputs.numel() for part in parts))
    recorded = short and records(model, model.modules(), weights)
    if recorded:
        for name, summed in sums_of_recorded(model, weights).items():
            weights[name].grad = summed
    # Around all passes: half-precision copies of the weights are kept to the end of the block.
    with autocast(arithmetic, model.device):
        for part in parts:
            operands = (even_width(model, part) if recorded else part).tensors
            kind = ("plain", part.objective)
            total += repeated(model, kind, add_gradient, (*operands, count), recorded=recorded)
    return total


def over_processes(model: PreTrainedModel, loss: torch.Tensor) -> float:
    """Sum the parts of ``plain_batch_gradient`` over the processes, and return the batch's mean loss.

    Call this only when each process has its whole part, because a process that runs out of memory repeats its part
    alone.
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
