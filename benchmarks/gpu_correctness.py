"""Part 1 of the GPU benchmark: every engine compared with float64 on the CPU, with TF32 enabled from outside."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gpu_base import Figure, Shape, arithmetic, some_units, tf32
from transformers import GPTNeoForCausalLM

from heldin.defenses.gradients.one_pass import Engine
from heldin.defenses.gradients.per_unit_gradients import ClippedSum, UnitBatch, clipped_gradient_sum

ENGINES: tuple[Engine, ...] = ("auto", "materialise", "ghost", "loop")
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def correctness(shape: Shape, length: int, device: torch.device) -> list[Figure]:
    """Measure every engine in both precisions, on three users with four records each."""
    with tf32():
        return _correctness(shape, length, device)


def _correctness(shape: Shape, length: int, device: torch.device) -> list[Figure]:
    model = shape.model(device)
    units = some_units(3, 4, length, shape.vocabulary, device)
    exact = [_double_gradient(model, units, number) for number in range(units.units)]
    bound = 0.5 * min(_norm(gradient) for gradient in exact)  # every unit is clipped
    of_double = _clipped_by_hand(exact, bound)
    half = [_half_gradient(model, units, number, device) for number in range(units.units)]
    expected = {"fp32": of_double, "bf16": _clipped_by_hand(half, bound)}
    found = [Figure("bf16, plain passes: distance to float64", _distance(expected["bf16"], of_double))]
    for precision in TOLERANCE:
        for engine in (*ENGINES, "split"):
            with arithmetic(precision, device):
                whole = _clipped(model, units, bound, engine)
                alone = [_clipped(model, _only(units, number), bound, engine) for number in range(units.units)]
            error = _distance(whole.gradients, expected[precision])
            most = max(_norm(its.gradients) for its in alone) / bound
            found.append(Figure(f"{precision}, {engine}: error of the sum", error, TOLERANCE[precision]))
            found.append(Figure(f"{precision}, {engine}: largest contribution over C", most, 1 + 1e-4))
            if precision == "bf16":
                found.append(Figure(f"bf16, {engine}: distance to float64", _distance(whole.gradients, of_double)))
    return found


def _clipped_by_hand(gradients: Sequence[Mapping[str, torch.Tensor]], bound: float) -> dict[str, torch.Tensor]:
    """Return the sum of units' gradients, each clipped to the bound, in float64 on the CPU."""
    norms = [_norm(gradient) for gradient in gradients]
    return {
        name: sum(its[name].double().cpu() * min(1.0, bound / norm) for its, norm in zip(gradients, norms, strict=True))
        for name in gradients[0]
    }


def _distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    return _norm({n: found[n].double().cpu() - expected[n] for n in expected}) / _norm(expected)


def _clipped(model: GPTNeoForCausalLM, units: UnitBatch, bound: float, engine: str) -> ClippedSum:
    if engine == "split":
        return clipped_gradient_sum(model, units, clip_norm=bound, most_records=1)
    its: Engine = next(name for name in ENGINES if name == engine)
    return clipped_gradient_sum(model, units, clip_norm=bound, engine=its)


def _double_gradient(model: GPTNeoForCausalLM, units: UnitBatch, number: int) -> dict[str, torch.Tensor]:
    """Return a unit's gradient by plain backward passes, one record at a time, in float64 on the CPU."""
    rows = _only(units, number)
    return _plain(
        copy.deepcopy(model).cpu().double(), UnitBatch(rows.inputs.cpu(), rows.targets.cpu(), rows.unit.cpu(), 1)
    )


def _half_gradient(
    model: GPTNeoForCausalLM, units: UnitBatch, number: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return a unit's gradient by plain backward passes in bfloat16 on the device, summed in float32 over records."""
    with arithmetic("bf16", device):
        return _plain(copy.deepcopy(model), _only(units, number))


def _plain(model: GPTNeoForCausalLM, unit: UnitBatch) -> dict[str, torch.Tensor]:
    for ids, targets in zip(unit.inputs, unit.targets, strict=True):
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        # Under autocast in float32.
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, targets) / len(unit.inputs))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _only(units: UnitBatch, number: int) -> UnitBatch:
    rows = units.unit == number
    return UnitBatch(units.inputs[rows], units.targets[rows], torch.zeros_like(units.unit[rows]), 1)


def _norm(gradients: Mapping[str, Any]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
