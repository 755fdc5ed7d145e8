"""A drawn user's own steps of SGD: what is clipped and summed is how far the model moved (McMahan et al. 2018).

Minus the difference takes the place of a gradient, so that noise, divisor and optimizer are those of every private
step; an optimizer that subtracts it moves the model where its users' models went.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from heldin.defenses.choices import LocalUpdates
from heldin.defenses.gradients.held_gradients import norm_of_all
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import clip_factors
from heldin.finetune.batches import collate
from heldin.finetune.sampled_units import LocalWork


def clipped_difference_sum(
    model: PreTrainedModel, people: Sequence[LocalWork], local: LocalUpdates, clip_norm: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The sum of minus the clipped model differences; and a tensor (3,): the sum of the users' losses, their number,
    and half the difference of the users up to and above the clip norm.

    A user whose difference is not finite, or whose factor float32 does not hold, contributes zero. The model is left as
    it was.

    Args:
        model: where every user starts.
        people: the drawn users.
        local: how each trains.
    """
    parameters = trainable(model)
    start = {name: p.detach().clone() for name, p in parameters.items()}
    total = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    tally = torch.zeros(3, dtype=torch.float64, device=model.device)
    training = model.training
    # Without dropout, like every private pass: its random numbers are no function of the run's key.
    model.eval()
    try:
        for work in people:
            if not work.sequences:
                continue
            loss = _train(model, list(parameters.values()), work, local)
            moved = {name: (start[name] - p.detach()).float() for name, p in parameters.items()}
            norm = norm_of_all(moved.values())
            finite = torch.isfinite(norm.float())
            tally[2] += 0.5 if norm <= clip_norm else -0.5  # one that is not finite is above every norm
            if finite:
                factor = clip_factors(norm, ~finite, clip_norm) * work.weight
                for name, difference in moved.items():
                    total[name] += difference * factor
                tally += torch.tensor([loss, 1.0, 0.0], dtype=torch.float64, device=model.device)
            _restore(parameters, start)
    finally:
        _restore(parameters, start)
        model.train(training)
    return total, tally


def _train(model: PreTrainedModel, parameters: list[torch.nn.Parameter], work: LocalWork, local: LocalUpdates) -> float:
    """Take the user's steps; return the mean loss of the first batch."""
    first, size = None, local.batch_size
    for _ in range(local.epochs):
        for at in range(0, len(work.sequences), size):
            losses = collate(work.sequences[at : at + size], model.device).record_losses(model)
            weights = torch.tensor(work.weights[at : at + size], device=losses.device)
            # By a constant: the paper sums, and its learning rate is for sums.
            gradients = torch.autograd.grad((losses * weights).sum() / size, parameters, allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        parameter.sub_(gradient, alpha=local.learning_rate)
            _forget_casts()
            first = float(losses.detach().mean()) if first is None else first
    assert first is not None
    return first


def _restore(parameters: dict[str, torch.nn.Parameter], start: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(start[name])
    _forget_casts()


def _forget_casts() -> None:
    """Weights have changed: under autocast their copies of lower precision would go on being used."""
    torch.clear_autocast_cache()
