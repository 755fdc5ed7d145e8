"""The gradient of a private step: draw units, clip each unit's gradient, sum, add noise once, divide by a constant.

The sources are Charles et al. (2024), Algorithms 1 (ELS) and 2 (ULS), and docs/theory.md#rules-of-a-private-step. The
optimizer sees only the result.
"""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from heldin.defenses.choices import ClipQuantile
from heldin.defenses.gradients.held_gradients import norm_of_all
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import clip_factors
from heldin.finetune.local_updates import clipped_difference_sum
from heldin.finetune.passes import Passes, fitted_sum, put_gradient
from heldin.finetune.ranks import own_share, sum_over_ranks
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.models.tokens import Tokens


def private_gradient(
    model: PreTrainedModel,
    training: PrivateTraining,
    step: int,
    sequences: Sequence[Tokens],
    passes: Passes | None = None,
) -> float | None:
    """Put the noised mean gradient of ``step`` into ``.grad``, and return the cohort's mean loss, which is not private.

    For an empty cohort, the gradient is pure noise and the loss is None. Gaussian noise is added once, to the sum over
    all passes and processes. Its standard deviation is the noise multiplier times the sensitivity.

    Args:
        model: the model; its ``.grad`` is set.
        step: number of the step, from 0.
        passes: limits the number of records per forward pass; None: ``training.micro_records``.
    """
    mechanism, passes = training.mechanism, passes or Passes(training.micro_records)
    clip, divisor = mechanism.clip.of_units(), mechanism.divisor
    assert divisor.constant is not None
    norm = clip.norm if passes.effort.clip_norm is None else passes.effort.clip_norm
    share = own_share(training.drawn(step))
    passes.hear(training.noise_of_steps.notice(step))
    if mechanism.noise_multiplier > 0 and step + 1 < mechanism.steps:
        # Drawn in other processes while this one computes gradients.
        passes.hear(training.source.ahead(step + 1, {name: p.shape for name, p in trainable(model).items()}))
    # Nobody drawn, or nobody for this process, gives a sum of zeros, and the step goes on: to skip it would tell that
    # nobody was there (docs/theory.md#rules-of-a-private-step).
    people = [unit for unit in share if unit.canary is None]
    total, tally = _sum_of_people(model, training, step, people, sequences, passes, norm)
    _add_canaries(total, training, [unit for unit in share if unit.canary is not None], norm)
    # Before the noise, which every process then adds to the same sum: the other way round it would be added once each.
    sum_over_ranks([*total.values(), tally])
    scale, sensitivity = clip.scaled(norm)
    deviation = mechanism.noise_multiplier * sensitivity
    loss, units, below = tally.tolist()
    if clip.follows is not None:
        deviation /= math.sqrt(1.0 - clip.follows.share)
        passes.effort.clip_norm = clip.follows.next_norm(norm, _noised_share(training, clip.follows, step, below))

    def noise(name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        # Keyed by the tensor's name: every process adds the same noise to the same sum.
        return training.noise_of_steps.gaussian(step, name, shape, deviation, device)

    # A constant of the config: the number drawn would make the noise tell the cohort's size
    # (docs/theory.md#public-constants).
    put_gradient(model, total, scale, divisor.constant, noise if deviation > 0 else None)
    if training.watch:
        training.watch(step, {name: p.grad for name, p in trainable(model).items() if p.grad is not None})
    return loss / units if units else None


def _noised_share(training: PrivateTraining, follows: ClipQuantile, step: int, below: float) -> float:
    """Return the noised share of units with a norm of at most the clip norm. The step releases this share.

    A unit adds 1/2 or -1/2 to ``below``, and the noise has deviation s / (2 sqrt(share)). Together with the clipped
    gradient, a unit's vector is at most 1 / s deviations long (docs/theory.md#clip-quantile).
    """
    mechanism = training.mechanism
    assert mechanism.divisor.constant is not None
    deviation = mechanism.noise_multiplier / (2.0 * math.sqrt(follows.share))
    # On the CPU, so that processes on unlike devices go on with one clip norm.
    noise = training.source.gaussian(step, "clip norm", torch.Size([1]), deviation, torch.device("cpu"))
    return 0.5 + (below + (float(noise) if deviation > 0 else 0.0)) / mechanism.divisor.constant


def _sum_of_people(
    model: PreTrainedModel,
    training: PrivateTraining,
    step: int,
    people: Sequence[SampledUnit],
    sequences: Sequence[Tokens],
    passes: Passes,
    norm: float,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the sum of these units' contributions, clipped to ``norm``, and a tensor (3,).

    The sum is by parameter name. The tensor has the sum of the finite units' losses, their number, and half of (units
    up to the norm minus units above it).
    """
    local = training.mechanism.local
    if local is not None:
        work = [training.local_work(unit, step, sequences) for unit in people]
        for user_work in work:
            passes.count(user_work.sequences, local.epochs)
        return clipped_difference_sum(model, work, local, norm)
    given = [training.contribution(unit, step, sequences) for unit in people]
    for records in given:
        passes.count(records)
    clipped = fitted_sum(model, given, norm, passes)
    finite = ~clipped.masked
    losses = torch.where(finite, clipped.losses, 0.0).sum().double()
    # A unit that is not finite is above every norm.
    below = (finite & (clipped.norms <= norm)).sum() - finite.numel() / 2
    return clipped.gradients, torch.stack([losses, finite.sum().double(), below.double()])


def _add_canaries(
    total: dict[str, torch.Tensor], training: PrivateTraining, canaries: Sequence[SampledUnit], clip_norm: float
) -> None:
    for unit in canaries:
        assert training.canaries is not None
        assert unit.canary is not None
        gradient = training.canaries.gradient(unit.canary)
        norm = norm_of_all(gradient.values())
        # The same clip as everybody's, or a canary would test another mechanism.
        factor = clip_factors(norm, ~torch.isfinite(norm), clip_norm)
        for name, tensor in gradient.items():
            # Planted gradients lie in main memory, wherever the model is.
            total[name] += (tensor * factor).to(total[name].device)
