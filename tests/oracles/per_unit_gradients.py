"""Slow, obviously right clipping: one plain backward pass per unit, one forward pass per record, in float64."""

import copy
import math

import torch
import torch.nn.functional as F


def unit_gradients(model, records_of_units, *, exact=True):
    """Losses and full gradients of each unit.

    Args:
        model: the model; a copy is used.
        records_of_units: a list of (inputs, targets) lists of ids per unit, without padding but for -100 targets.
        exact: in float64.

    Returns:
        A list of (loss, dict of name to gradient), one a unit.
    """
    twin = copy.deepcopy(model).eval()
    if exact:
        twin = twin.double()
    found = []
    for records in records_of_units:
        twin.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=torch.float64)
        for inputs, targets in records:
            logits = twin(input_ids=torch.tensor([inputs]), use_cache=False).logits[0]
            kept = torch.tensor(targets) != -100
            if kept.any():
                record = F.cross_entropy(logits[kept].to(torch.float64), torch.tensor(targets)[kept])
                loss = loss + record / len(records)
        if loss.requires_grad:
            loss.backward()
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in twin.named_parameters()
            if p.requires_grad
        }
        found.append((loss.item(), gradients))
    return found


def norm_of(gradients):
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def clipped_sum(found, clip_norm):
    """Sum of the clipped gradients, and the norms before clipping."""
    total, norms = {name: torch.zeros_like(g) for name, g in found[0][1].items()}, []
    for _, gradients in found:
        norm = norm_of(gradients)
        norms.append(norm)
        factor = 1.0 if norm <= clip_norm else clip_norm / norm
        for name, gradient in gradients.items():
            total[name] += factor * gradient
    return total, norms
