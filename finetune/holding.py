"""How the processes of a training hold the model: each all of it, or each a shard. The loop is the same for both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.defenses.choices import ConcentrationFilter
from heldin.finetune.checkpoints import TrainingState, load_state, save_model, save_state
from heldin.finetune.clipping import PlainClipping, clipped_batch_gradient
from heldin.finetune.filtered import filtered_gradient
from heldin.finetune.passes import Passes
from heldin.finetune.plain import plain_batch_gradient
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.private import private_gradient
from heldin.finetune.ranks import own_share, rank
from heldin.finetune.sharded_checkpoints import (
    all_finite,
    load_sharded_state,
    save_sharded_model,
    save_sharded_state,
    weights_checksum,
)
from heldin.finetune.sharding import Spread, local, sharded_batch_gradient, sharded_private_gradient, shards
from heldin.finetune.units import PrivateTraining

Sequences = Sequence[Sequence[int]]


class Holding(Protocol):
    """What the loop asks of a model that its processes hold together."""

    def private_gradient(
        self, model: PreTrainedModel, private: PrivateTraining, step: int, sequences: Sequences, passes: Passes
    ) -> float | None:
        """Put the noised mean gradient of a step into ``.grad``; the cohort's mean loss, None for an empty cohort."""

    def batch_gradient(
        self,
        model: PreTrainedModel,
        batch: Sequences,
        clipping: PlainClipping | None,
        passes: Passes,
        arithmetic: Arithmetic,
    ) -> tuple[float, list[float]]:
        """Put the gradient of a plain batch into ``.grad``; its mean loss, and norms before clipping, if any."""

    def load(
        self, folder: Path, job: str, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> TrainingState | None:
        """Load the newest state; None if there is none."""

    def save(
        self, folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """Write a resumable state."""

    def save_model(self, folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a model folder, whole or not at all."""

    def finite(self, model: PreTrainedModel) -> bool:
        """Whether all trained weights are finite."""

    def checksum(self, model: PreTrainedModel) -> int:
        """A number of the weights that every process must have."""


@dataclass(frozen=True)
class Whole:
    """Every process holds all of the model, and processes its share of a step's units."""

    def private_gradient(
        self, model: PreTrainedModel, private: PrivateTraining, step: int, sequences: Sequences, passes: Passes
    ) -> float | None:
        """See ``finetune.private`` and, for a concentration filter, ``finetune.filtered``."""
        if isinstance(private.mechanism.clip, ConcentrationFilter):
            return filtered_gradient(model, private, step, sequences, passes)
        return private_gradient(model, private, step, sequences, passes)

    def batch_gradient(
        self,
        model: PreTrainedModel,
        batch: Sequences,
        clipping: PlainClipping | None,
        passes: Passes,
        arithmetic: Arithmetic,
    ) -> tuple[float, list[float]]:
        """See ``finetune.plain`` and ``finetune.clipping``."""
        passes.count(own_share(batch))
        if clipping is not None:
            with autocast(arithmetic, model.device):
                return clipped_batch_gradient(model, clipping, batch, passes)
        return passes.fitted(
            lambda most: plain_batch_gradient(model, batch, most, arithmetic), lambda most: min(most, len(batch))
        ), []

    def load(
        self, folder: Path, job: str, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> TrainingState | None:
        """On every process: all of them go on from the same file."""
        return load_state(folder, job, model, optimizer)

    def save(
        self, folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """The first process writes."""
        if rank() == 0:
            save_state(folder, state, model, optimizer)

    def save_model(self, folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """The first process writes."""
        if rank() == 0:
            save_model(folder, model, tokenizer)

    def finite(self, model: PreTrainedModel) -> bool:
        """Asked of this process's copy, which equals all others."""
        return all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad)

    def checksum(self, model: PreTrainedModel) -> int:
        """Of this process's copy."""
        return weights_checksum(p for p in model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Sharded:
    """Every process holds a shard of the model.

    Attributes:
        spread: how it lies over the processes.
    """

    spread: Spread

    def private_gradient(
        self, model: PreTrainedModel, private: PrivateTraining, step: int, sequences: Sequences, passes: Passes
    ) -> float | None:
        """See ``finetune.sharding``. Raises InputError for a mechanism that needs more than one unit's gradient at a
        time, or whole models."""
        if private.mechanism.local is not None or isinstance(private.mechanism.clip, ConcentrationFilter):
            raise InputError(
                "finetune.shard: local updates and the concentration filter need whole models; leave it out"
            )
        return sharded_private_gradient(model, private, step, sequences, passes, self.spread)

    def batch_gradient(
        self,
        model: PreTrainedModel,
        batch: Sequences,
        clipping: PlainClipping | None,
        passes: Passes,
        arithmetic: Arithmetic,
    ) -> tuple[float, list[float]]:
        """See ``finetune.sharding``. Raises InputError for clipping without noise."""
        if clipping is not None:
            raise InputError("finetune.shard: clipping without noise needs whole models")
        passes.count(own_share(batch))
        with autocast(arithmetic, model.device):
            return sharded_batch_gradient(model, batch, passes.most, self.spread), []

    def load(
        self, folder: Path, job: str, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> TrainingState | None:
        """Every process reads its shards."""
        return load_sharded_state(folder, job, model, optimizer)

    def save(
        self, folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """Every process writes its shards."""
        save_sharded_state(folder, state, model, optimizer)

    def save_model(self, folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """All shards are gathered, and the first process writes."""
        save_sharded_model(folder, model, tokenizer)

    def finite(self, model: PreTrainedModel) -> bool:
        """Asked of all shards."""
        return all_finite(model)

    def checksum(self, model: PreTrainedModel) -> int:
        """Of all shards of this process's group."""
        here = weights_checksum(local(p) for p in shards(model).values())
        return self.spread.checksum_over_members(here, model.device)


def holding_of(spread: Spread | None) -> Holding:
    """The holding of a model that lies as ``spread`` says; None: every process holds all of it."""
    return Whole() if spread is None else Sharded(spread)
