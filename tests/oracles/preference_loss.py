"""Losses and gradients of preference pairs, token by token and unit by unit, in float64; shares no code with heldin.

A pair is ((inputs, targets) of the chosen answer, (inputs, targets) of the rejected one), lists of ids with -100 where
nothing is asked.
"""

import copy
import math

import torch


def log_probability(model, answer):
    """Sum and number of the log-probabilities of an answer's targets."""
    inputs, targets = answer
    logits = model(input_ids=torch.tensor([inputs]), use_cache=False).logits[0].double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for place, target in enumerate(targets):
        if target != -100:
            total = total + torch.log_softmax(logits[place], dim=-1)[target]
            count += 1
    return total, count


def dpo(model, base, pair, beta, smoothing=0.0):
    """Rafailov et al. 2023, equation 7; with smoothing, that of conservative DPO."""
    ratios = []
    for answer in pair:
        with torch.no_grad():
            before, _ = log_probability(base, answer)
        after, _ = log_probability(model, answer)
        ratios.append(after - before)
    margin = beta * (ratios[0] - ratios[1])
    right, wrong = (-torch.log(1 / (1 + torch.exp(-sign * margin))) for sign in (1, -1))
    return (1 - smoothing) * right + smoothing * wrong


def orpo(model, _, pair, beta):
    """Hong et al. 2024, equations 4 to 7."""
    means = []
    for answer in pair:
        total, count = log_probability(model, answer)
        means.append(total / count)
    odds = [torch.exp(mean) / (1 - torch.exp(mean)) for mean in means]
    return -means[0] - beta * torch.log(1 / (1 + odds[1] / odds[0]))


def unit_gradients(model, base, pairs_of_units, loss_of):
    """(loss, gradients by name) of each unit: its loss is the mean over its pairs."""
    twin, before = (copy.deepcopy(each).eval().double() for each in (model, base))
    found = []
    for pairs in pairs_of_units:
        twin.zero_grad(set_to_none=True)
        loss = sum((loss_of(twin, before, pair) for pair in pairs), torch.zeros((), dtype=torch.float64))
        loss = loss / max(1, len(pairs))
        if loss.requires_grad:
            loss.backward()
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in twin.named_parameters()
            if p.requires_grad
        }
        found.append((loss.item(), gradients))
    return found


def guess():
    """The loss of a pair by a model that is its own reference."""
    return math.log(2.0)
