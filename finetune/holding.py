"""How the processes of a training hold the model: each process has the whole model, or a shard.

The training loop does not change.

Plain batches may be clipped without noise. This heuristic defense bounds no privacy loss (Kandpal et al., Appendix
D.3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.defenses.choices import LEAST_CLIP_NORM
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import ClippedSum
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.batches import over_processes, plain_batch_gradient
from heldin.finetune.checkpoints import TrainingState, load_state, save_model, save_state, weights_checksum
from heldin.finetune.passes import Passes, clipped_sum
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import own_share, rank, sum_over_ranks
from heldin.finetune.units import PrivateTraining
from heldin.models.tokens import Tokens

Records = Sequence[Tokens]
StepGradient = Callable[[PreTrainedModel, PrivateTraining, int, Records, Passes], float | None]


@dataclass(frozen=True)
class PlainClipping:
    """Clipping of each example's gradient, or of the batch's mean gradient, to ``norm``.

    With norm infinity, heldin only measures norms.
    """

    unit: Literal["example", "batch"]
    norm: float

    def __post_init__(self) -> None:
        if not self.norm >= LEAST_CLIP_NORM:
            raise InputError(f"clip norm is {self.norm}: give at least {LEAST_CLIP_NORM:g}")


def plain_clipping(mechanism: Mechanism) -> PlainClipping | None:
    """Return the clipping of a run without noise; None for all other runs, because a mechanism clips each unit."""
    plain = mechanism.clip.plain
    return None if mechanism.protects or plain is None else PlainClipping(plain.unit, plain.norm)


def clipped_batch_gradient(
    model: PreTrainedModel, clipping: PlainClipping, batch: Sequence[Tokens], passes: Passes
) -> tuple[float, list[float]]:
    """Put the clipped mean gradient of a batch into ``.grad``.

    Args:
        model: the model; its ``.grad`` is set.
        clipping: unit and norm.
        passes: limits the number of records per forward pass.

    Returns:
        The mean loss, and the norms before clipping: one norm per example of this process, or one norm of the batch.
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


@dataclass(frozen=True)
class Holding:
    """The operations that the loop needs on a model that one or more processes hold.

    Attributes:
        private_gradient: function from model, mechanism, number of the step, tokens by row and limits of a pass. It
            puts the noised mean gradient of the step into ``.grad``, and returns the cohort's mean loss, or None for an
            empty cohort.
        batch_gradient: function from model, batch, clipping (None: no clipping), limits of a pass and arithmetic. It
            puts the gradient of a plain batch into ``.grad``, and returns the mean loss and the norms before clipping.
        load: function from a folder, the job's name, model, optimizer and ``say``, which receives a line for each
            skipped state. It loads the newest undamaged state, and returns None if there is no state.
        save: function that writes a resumable state to a folder.
        save_model: function that writes a model folder, completely or not at all.
        finite: function that returns true if all trained weights are finite.
        checksum: function that returns a number computed from the weights, equal on every process.
        keeps_casts: whether a process may keep half-precision copies of all weights during a step.
    """

    private_gradient: StepGradient
    batch_gradient: Callable[
        [PreTrainedModel, Records, PlainClipping | None, Passes, Arithmetic], tuple[float, list[float]]
    ]
    load: Callable[..., TrainingState | None]
    save: Callable[[Path, TrainingState, PreTrainedModel, torch.optim.Optimizer], None]
    save_model: Callable[[Path, PreTrainedModel, PreTrainedTokenizerBase], None]
    finite: Callable[[PreTrainedModel], bool]
    checksum: Callable[[PreTrainedModel], int]
    keeps_casts: bool


def whole_holding(of_step: StepGradient) -> Holding:
    """Return a holding in which each process has the whole model. The first process writes one checkpoint for all."""

    def of_batch(
        model: PreTrainedModel, batch: Records, clipping: PlainClipping | None, passes: Passes, arithmetic: Arithmetic
    ) -> tuple[float, list[float]]:
        passes.count(own_share(batch))
        if clipping is not None:
            with autocast(arithmetic, model.device):
                return clipped_batch_gradient(model, clipping, batch, passes)
        share = len(own_share(batch))
        loss = passes.fitted(
            lambda most: plain_batch_gradient(model, batch, most, arithmetic), lambda most: min(most, share)
        )
        return over_processes(model, loss), []

    def save(folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
        if rank() == 0:
            save_state(folder, state, model, optimizer)

    def save_whole(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        if rank() == 0:
            save_model(folder, model, tokenizer)

    return Holding(
        of_step,
        of_batch,
        load_state,
        save,
        save_whole,
        lambda model: all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad),
        lambda model: weights_checksum(p for p in model.parameters() if p.requires_grad),
        True,
    )
