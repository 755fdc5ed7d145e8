"""Plain autograd for one unit at a time, and a check of the layer rules against it on a model's first batch."""

import math
import weakref

import torch
from torch import Tensor, nn

from heldin.base.errors import InputError
from heldin.defenses.gradients.layer_rules import NoRule, lay_out
from heldin.defenses.gradients.model_parts import IGNORED, Parts, unit_losses
from heldin.defenses.gradients.one_pass import one_pass, ways_of
from heldin.models.devices import is_out_of_memory, moved

PROBE_POSITIONS = 32  # of one record, so that the probe is cheap

_CHECKED: "weakref.WeakKeyDictionary[nn.Module, dict[object, str | None]]" = weakref.WeakKeyDictionary()


def plain_gradient(
    parts: Parts, inputs: Tensor, targets: Tensor, most_records: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Loss and float32 gradients of one unit, by plain autograd, on the model's device.

    Args:
        inputs: token ids of the unit's records, (R, L); on the CPU, or a GPU is waited for.
        targets: token ids, (R, L), where the inputs are.
        most_records: of a forward pass; the gradients of several add up. None: all.
    """
    # Without the padding that other units cause.
    asked = (targets != IGNORED).any(0).nonzero()
    longest = int(asked.max()) + 1 if len(asked) else 1
    records, device = len(inputs), parts.device
    inputs, targets = moved(inputs[:, :longest], device), moved(targets[:, :longest], device)
    parameters = list(parts.trainable.values())
    # Restored below: accumulated gradients of the caller are not this function's to change.
    before = [p.grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        loss = torch.zeros((), device=device)
        for start in range(0, records, most_records or records):
            some = slice(start, start + (most_records or records))
            of_pass = inputs[some]
            layout = lay_out(torch.zeros(len(of_pass), dtype=torch.long), 1, device)
            with torch.enable_grad():
                part = unit_losses(parts.model, of_pass, targets[some], layout)[0]
                if len(of_pass) < records:
                    # The mean over this pass's records counts as their share of the unit's.
                    part = part * (len(of_pass) / records)
                torch.autograd.backward(part)  # not autograd.grad, which reentrant checkpointing refuses
            loss = loss + part.detach()
        return loss, [torch.zeros(p.shape, device=p.device) if p.grad is None else p.grad.float() for p in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def why_not_rules(parts: Parts, inputs: Tensor, targets: Tensor) -> str | None:
    """Why the one-pass engines cannot be used on this model, or None; checked once for each set of parameters.

    Raises InputError if a record's loss depends on the other records of its batch.
    """
    # The rules are tried on two records, the first with weight one and the second with zero: the result must be plain
    # autograd's gradient of the first record. That catches what no rule can see: a parameter that is used outside its
    # layer, a layer that is not used as its type suggests, and records that influence each other.
    device = parts.device
    autocast = torch.is_autocast_enabled(device.type)
    checkpointed = any(getattr(m, "gradient_checkpointing", False) for m in parts.modules)
    key = (tuple((name, id(p)) for name, p in parts.trainable.items()), autocast, checkpointed)
    # All that decides whether the rules hold, and not the batch, so that the price is paid once.
    known = _CHECKED.setdefault(parts.model, {})
    if key in known:
        return known[key]
    within = (targets[:, :PROBE_POSITIONS] != IGNORED).sum(1)
    row = int(within.argmax())  # the record with the most targets there
    # An encoder's one target stands at the end: then the whole record is tried.
    shown = PROBE_POSITIONS if within[row] else inputs.shape[1]
    inputs, targets = inputs[row, :shown], targets[row, :shown]
    loss, expected = plain_gradient(parts, inputs[None], targets[None])
    if not bool(torch.isfinite(loss)) or not any(bool(g.any()) for g in expected):
        # Not remembered: the next batch may have one.
        return "this batch has no record with a finite gradient that is not zero, to try the rules on"
    half = autocast or any(p.dtype != torch.float32 for p in parts.trainable.values())
    pair = lay_out(torch.arange(2), 2, device)
    other = torch.where(inputs == inputs.flip(0), (inputs == 0).long(), inputs.flip(0))  # differs at every position
    both, answers = moved(torch.stack([inputs, other]), device), moved(torch.stack([targets, targets]), device)
    with torch.enable_grad():  # without it, reentrant checkpointing warns
        beside = unit_losses(parts.model, both, answers, pair)[0].detach()
    if abs(float(beside - loss)) > (3e-2 if half else 1e-3) * max(1.0, abs(float(loss))):
        raise InputError("the model mixes the records of a batch, so that no user has a gradient of their own")
    try:
        gradients, _ = one_pass(parts, both, answers, pair, ways_of(parts, pair, len(inputs), "materialise", None))
        first = torch.tensor([1.0, 0.0], device=device)
        with torch.autocast(device.type, enabled=False):
            for gradient in gradients:
                gradient.norms()
            sums = {
                name: total for gradient in gradients for name, total in gradient.weighted_sums(first, None).items()
            }
            known[key] = _difference(expected, {name: sums[name] for name in parts.trainable}, half=half)
    except (NoRule, RuntimeError) as error:  # from autograd, for instance if a layer writes into another's output
        if is_out_of_memory(error):  # says nothing about the rules: the caller retries with fewer records
            raise
        known[key] = str(error).splitlines()[0]
    return known[key]


def _difference(expected: list[Tensor], sums: dict[str, Tensor], *, half: bool) -> str | None:
    whole = math.sqrt(sum(float(g.double().square().sum()) for g in expected))
    # Relative to the tensor's own norm, but not below a share of the whole gradient's: a tensor that hardly counts may
    # consist of rounding.
    share, floor = (1e-1, 1e-2) if half else (1e-3, 1e-4)
    for (name, gradient), plain in zip(sums.items(), expected, strict=True):
        if float((gradient - plain).norm()) > share * max(float(plain.norm()), floor * whole):
            return f"the rules for '{name}' do not give the gradient that autograd gives"
    return None
