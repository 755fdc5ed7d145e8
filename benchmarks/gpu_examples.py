"""Part 3 of the GPU benchmark: example DP compared with plain training and Opacus. Needs dp-accounting and Opacus."""

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from gpu_base import Figure, Shape, median_step, recovering, share_of_card
from transformers import GPTNeoForCausalLM

from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.arithmetic import true_float32
from heldin.models.tokens import Tokens
from heldin.white_box.opacus_step import OpacusStep
from heldin.white_box.power import trainer_mechanism

EXAMPLE_RATIO = 1.5
STEPS = 12
KEY = bytes(32)


def example_dp(shape: Shape, records: int, length: int, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Return an example-level step divided by a plain step and by Opacus's, all on the same records in float32.

    Opacus needs a row of position ids for each record, and its ghost clipping refuses tied weights. For this
    comparison, both its model and ours have a separate head.
    """
    training, sequences = _of_all_records(records, length, shape.vocabulary)
    model = shape.model(device).train()
    untied = copy.deepcopy(model)
    untied.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    batch = list(sequences)
    ways: dict[str, tuple[GPTNeoForCausalLM, Callable[[GPTNeoForCausalLM, int], object]]] = {
        "plain": (model, lambda its, _: plain_batch_gradient(its, batch, records, "fp32")),
        "ours": (model, lambda its, step: private_gradient(its, training, step, sequences)),
        "Opacus, hooks": (model, lambda its, step: OpacusStep()(its, training, step, sequences)),
        "ours, untied": (untied, lambda its, step: private_gradient(its, training, step, sequences)),
        "Opacus, ghost": (untied, lambda its, step: OpacusStep("ghost")(its, training, step, sequences)),
    }
    taken: dict[str, dict[str, Any]] = {}
    for name, (its, step) in ways.items():
        # All sides in float32, whatever the environment set: in TF32 they would not compute what ours does.
        with recovering(name, taken), true_float32():
            taken[name] = {"seconds": median_step(lambda n, m=its, s=step: s(m, n), its, device, STEPS)}
    about = f"{records} x {length}"
    found = [
        _ratio(f"example DP, {about}: step over plain", "ours", "plain", taken, EXAMPLE_RATIO),
        _ratio(f"example DP, {about}: step over Opacus with hooks", "ours", "Opacus, hooks", taken, 1.0),
        _ratio(
            f"example DP, {about}: step over Opacus with ghost clipping", "ours, untied", "Opacus, ghost", taken, 1.0
        ),
    ]
    found += [
        Figure(
            f"example DP, {about}, {name}: share of the card",
            share_of_card(shape, records * length, timed["seconds"], device),
        )
        for name, timed in taken.items()
        if "seconds" in timed
    ]
    return found, {about: taken}


def _of_all_records(records: int, length: int, vocabulary: int) -> tuple[PrivateTraining, list[Tokens]]:
    """Return a plan that draws every record in every step, and records with this many predicted tokens."""
    mechanism = trainer_mechanism("example", PoissonSampler(rate=1.0), steps=STEPS, delta=1e-5, target_epsilon=8.0)
    numbers = random.Random(1)
    sequences = [Tokens([numbers.randrange(1, vocabulary) for _ in range(length + 1)]) for _ in range(records)]
    names = [f"record {number}" for number in range(records)]
    lengths = [length + 1] * records
    kept = PrivateRecords(names, names, lengths)
    return plan_private_training(mechanism, KEY, kept, NoiseGenerator.PHILOX, micro_records=records), sequences


def _ratio(what: str, one: str, other: str, taken: dict[str, dict[str, Any]], limit: float | None) -> Figure:
    # What did not fit is no success: its figure is infinite, or not a number, and fails.
    seconds = [taken[name].get("seconds", float("inf")) for name in (one, other)]
    return Figure(what, seconds[0] / seconds[1], limit)
