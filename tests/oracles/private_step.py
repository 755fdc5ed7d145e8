"""Slow, obviously right private step: one backward pass per unit, dense gradients, clip, sum, noise, divide."""

import math

import torch

from heldin.defenses.noise import gaussian
from tests.oracles.record_loss import record_loss


def naive_private_gradient(lm, training, step, sequences):
    """Noised mean gradient by parameter name."""
    return naive_step(lm, training, step, sequences, training.mechanism.clip.norm)[0]


def naive_step(lm, training, step, sequences, clip_norm):
    """Noised mean gradient by parameter name, and the clip norm of the next step."""
    mechanism = training.mechanism
    model = lm.model
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0.0
    for unit in training.drawn(step):
        model.zero_grad()
        losses = [record_loss(model, record) for record in training.contribution(unit, step, sequences)]
        (sum(losses) / len(losses)).backward()
        norm = sum(float(p.grad.double().square().sum()) for p in parameters.values()) ** 0.5
        count += 0.5 if norm <= clip_norm else -0.5
        factor = min(1.0, clip_norm / norm) if norm else 1.0
        for name, p in parameters.items():
            total[name] += factor * p.grad / (clip_norm if mechanism.clip.kind == "normalised" else 1.0)
    follows = mechanism.clip.follows
    deviation = mechanism.noise_multiplier * (1.0 if mechanism.clip.kind == "normalised" else clip_norm)
    deviation /= (1 - (follows.share if follows else 0)) ** 0.5
    for name in total:
        if deviation:
            total[name] += gaussian(
                training.noise, training.key, step, name, total[name].shape, deviation, torch.device("cpu")
            )
        total[name] /= mechanism.divisor.value
    model.zero_grad()
    if follows:
        wide = mechanism.noise_multiplier / (2 * follows.share**0.5)
        if wide:
            shape, cpu = torch.Size([1]), torch.device("cpu")
            count += float(gaussian(training.noise, training.key, step, "clip norm", shape, wide, cpu))
        below = 0.5 + count / mechanism.divisor.value
        clip_norm *= math.exp(-follows.rate * (below - follows.quantile))
    return total, clip_norm
