"""A drawn user's own steps of SGD. The change of the model's weights is clipped and summed (McMahan et al. 2018).

heldin uses the negative difference as a gradient, so noise, divisor and optimizer are the same as in every private
step. An optimizer that subtracts the negative difference moves the model towards the users' models.
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
    """Return the sum of the negative clipped model differences, and a tensor (3,) of sums over users.

    The tensor has the sum of the users' losses, the number of losses, and half of (users up to the clip norm minus
    users above it).

    A user contributes zero if the difference is not finite, or if float32 cannot represent its factor. The model ends
    with unchanged weights.

    Args:
        model: the model from which every user starts.
        people: the drawn users.
        local: settings of each user's training.
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
    """Run the user's steps, and return the mean loss of the first batch."""
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
    """Clear autocast's cached casts. Otherwise autocast would use them after the weights have changed."""
    torch.clear_autocast_cache()
