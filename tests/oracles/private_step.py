"""Slow, obviously right private step: one backward pass per unit, dense gradients, clip, sum, noise, divide."""

import torch

from heldin.defenses.noise import gaussian


def naive_private_gradient(lm, training, step, sequences):
    """Noised mean gradient by parameter name."""
    mechanism = training.mechanism
    model = lm.model
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for unit in training.drawn(step):
        model.zero_grad()
        losses = []
        for tokens in training.contribution(unit, step, sequences):
            ids = torch.tensor([tokens])
            losses.append(model(input_ids=ids, labels=ids).loss)
        (sum(losses) / len(losses)).backward()
        norm = sum(float(p.grad.double().square().sum()) for p in parameters.values()) ** 0.5
        factor = min(1.0, mechanism.clip.norm / norm)
        for name, p in parameters.items():
            total[name] += factor * p.grad / (mechanism.clip.norm if mechanism.clip.kind == "normalised" else 1.0)
    deviation = mechanism.noise_multiplier * mechanism.sensitivity
    for name in total:
        if deviation:
            total[name] += gaussian(
                training.noise, training.key, step, name, total[name].shape, deviation, torch.device("cpu")
            )
        total[name] /= mechanism.divisor.value
    model.zero_grad()
    return total
