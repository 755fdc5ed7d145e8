"""The gradients of a model that is spread over processes. heldin clips each unit as a whole, and adds noise to each
shard.

A shard group processes one unit at a time, and its processes divide the unit's records among themselves. Each
parameter's gradient is summed over the processes in float32, and stays in shards. The norm needs one number from each
process, and the clipped shard is added to the sum. Several groups divide the units among themselves, and compute one
joint sum per step. So heldin clips each unit as a whole even if several processes have its records, and draws noise for
each shard.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from heldin.base.errors import ResumableError
from heldin.defenses.gradients.held_gradients import norm_of_all
from heldin.defenses.gradients.layer_rules import lay_out
from heldin.defenses.gradients.model_parts import Parts, evaluating, take_apart, unit_losses
from heldin.defenses.gradients.per_unit_gradients import clip_factors
from heldin.finetune.batches import collate
from heldin.finetune.passes import Contribution, Noise, Passes
from heldin.finetune.sharding import Shard, Spread, local, rows_of, shards
from heldin.finetune.units import PrivateTraining
from heldin.models.arithmetic import true_float32
from heldin.models.devices import is_out_of_memory
from heldin.models.tokens import Tokens


def sharded_private_gradient(
    model: PreTrainedModel,
    training: PrivateTraining,
    step: int,
    sequences: Sequence[Tokens],
    passes: Passes,
    spread: Spread,
) -> float | None:
    """Compute ``finetune.private.private_gradient`` of a spread model. Each process gets its shard of the noised mean.

    Args:
        model: the model; its ``.grad`` is set.
        step: number of the step, from 0.

    Raises:
        ResumableError: a pass does not fit into memory. heldin cannot repeat the pass, because other processes wait for
            it.
    """
    mechanism = training.mechanism
    clip, divisor = mechanism.clip.of_units(), mechanism.divisor
    assert divisor.constant is not None
    parameters = shards(model)
    rows = {name: rows_of(p, spread) for name, p in parameters.items()}
    passes.hear(training.noise_of_steps.notice(step))
    if mechanism.noise_multiplier > 0 and step + 1 < mechanism.steps:
        passes.hear(training.source.ahead(step + 1, {name: p.shape for name, p in parameters.items()}, rows))
    drawn = training.drawn(step)[spread.replica :: spread.replicas]
    units = (training.contribution(unit, step, sequences) for unit in drawn)
    total, tally = clipped_shards(model, units, clip.norm, passes, spread)
    scale, _ = clip.scaled(clip.norm)
    deviation = mechanism.noise_multiplier * mechanism.sensitivity

    def noise(name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        return training.noise_of_steps.gaussian(step, name, shape, deviation, device, rows[name])

    put_shards(model, total, scale, divisor.constant, noise if deviation > 0 else None)
    loss, count = tally.tolist()
    return loss / count if count else None


def clipped_shards(
    model: PreTrainedModel, units: Iterable[Contribution], clip_norm: float, passes: Passes, spread: Spread
) -> tuple[dict[str, Shard], torch.Tensor]:
    """Return the sum of units' clipped gradients over all processes.

    Args:
        units: units of this process's shard group; they are the same on all processes of the group.

    Returns:
        This process's shard of the sum, by parameter name, in float32, and a tensor (2,) with the sum of the finite
        units' losses and the number of these losses.
    """
    model.zero_grad(set_to_none=True)  # what is left of another step would be clipped with the first unit
    total = {name: torch.zeros_like(local(p), dtype=torch.float32) for name, p in shards(model).items()}
    tally = torch.zeros(2, dtype=torch.float64, device=model.device)
    parts = take_apart(model)
    with evaluating(parts), true_float32():
        for records in units:
            if spread.member == 0:
                passes.count(records)
            if records:
                tally += _add_clipped(parts, records, total, clip_norm, passes, spread)
    spread.over_replicas([*total.values(), tally])
    passes.note(f"auto: unit by unit, each over {spread.members} processes", None)
    return total, tally


def put_shards(
    model: PreTrainedModel, total: Mapping[str, Shard], scale: float, divisor: float, noise: Noise | None
) -> None:
    """Apply ``finetune.passes.put_gradient`` to a spread model.

    Noise is added only to this process's shard of a tensor.

    Args:
        model: the model; its ``.grad`` is set.
        total: this process's shards of the sums, by parameter name.
        scale: factor by which the sums are multiplied before noise is added.
        noise: function from a tensor's name, whole shape and device to its noise; None: no noise.
    """
    for name, parameter in shards(model).items():
        summed = total[name] * scale
        if noise is not None:
            summed += noise(name, parameter.shape, summed.device)
        _put(parameter, summed / divisor)


def _add_clipped(
    parts: Parts,
    records: Sequence[Tokens],
    total: Mapping[str, Shard],
    clip_norm: float,
    passes: Passes,
    spread: Spread,
) -> torch.Tensor:
    """Add one unit's clipped gradient to the sums. Return (loss, 1), or zeros if the loss is not finite."""
    # The unit's loss is the mean over its records, wherever they are.
    loss = _backward(parts.model, records, spread.member, spread.members, passes.most)
    gradients = {name: p.grad for name, p in parts.trainable.items()}
    # A unit without records has no gradient here, and the device is not known from it.
    norm = norm_of_all(local(g) for g in gradients.values() if g is not None).to(loss.device)
    square = norm.square().unsqueeze(0)
    # One number from each process: the norm is that of the whole gradient, over all tensors and shards.
    spread.over_members([square, loss])
    norm = square.sqrt()
    masked = ~(torch.isfinite(norm.float()) & torch.isfinite(loss))
    factor = clip_factors(norm, masked, clip_norm)[0]
    for name, gradient in gradients.items():
        if gradient is not None:
            # By selection: zero times a number that is not finite is none.
            total[name].add_(torch.where(masked[0], 0.0, local(gradient).float() * factor))
    parts.model.zero_grad(set_to_none=True)
    return torch.cat([torch.where(masked, 0.0, loss), (~masked).double()])


def sharded_batch_gradient(model: PreTrainedModel, batch: Sequence[Tokens], micro_batch: int, spread: Spread) -> float:
    """Put the gradient of a plain batch of a spread model into ``.grad``, and return the batch's mean loss.

    Args:
        model: the model; its ``.grad`` is set.
    """
    model.zero_grad(set_to_none=True)
    number, count = spread.replica * spread.members + spread.member, spread.replicas * spread.members
    loss = _backward(model, batch, number, count, micro_batch)
    spread.over_members([loss])
    gradients = {p: local(p.grad) for p in shards(model).values() if p.grad is not None}
    spread.over_replicas([*gradients.values(), loss])
    return float(loss)


def _backward(
    model: torch.nn.Module,
    records: Sequence[Tokens],
    number: int,
    count: int,
    most: int,
) -> torch.Tensor:
    """Run backward passes for this process's part of the records' mean loss, and return that part, (1,).

    All processes make equally many passes.
    """
    own = records[number::count]
    device = model.device
    assert isinstance(device, torch.device)
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for turn in range(math.ceil(math.ceil(len(records) / count) / most)):
        some = own[turn * most : (turn + 1) * most]
        # Every pass gathers weights from all processes: one without a record left goes along, and adds zero.
        batch = collate(some or [records[0].shortest()], device)
        layout = lay_out(torch.zeros(len(batch.inputs), dtype=torch.long), 1, device)
        try:
            part = unit_losses(model, batch, layout)[0] * (len(some) / len(records))
            torch.autograd.backward(part)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ResumableError(
                f"out of memory at {len(batch.inputs)} record(s) in one pass: lower defense.micro_records or"
                " finetune.micro_batch, set finetune.checkpointing, or use more processes (finetune.shard)"
            ) from error
        loss += part.detach()
    return loss


def _put(parameter: torch.nn.Parameter, gradient: Shard) -> None:
    whole = parameter.data
    assert isinstance(whole, DTensor)
    parameter.grad = DTensor.from_local(
        gradient.to(parameter.dtype),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
