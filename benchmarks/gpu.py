"""Correctness and speed of private steps on a GPU: `make gpu`, or `PYTHONPATH=src python benchmarks/gpu.py --only 2`.

No network and no weights: models are random. Each part appends a line to benchmarks/gpu.jsonl (device, driver,
versions, commit) and says pass or fail for each figure; the exit code is 1 if one fails and 2 where there is no GPU.

1. Every engine: V = 50,257 tied, 4 layers, with TF32 switched on outside. In float32 within 1e-4 of plain float64
   backward passes on the CPU; in bfloat16 within 2e-2 of plain backward passes of that precision, and beside it how far
   both are from float64, which is the passes' own rounding; every contribution at most C (1 + 1e-4).
2. Steps of random 125M and 1.3B models over users of 16 x 512 and 16 x 1,024 tokens: a plain step (same loss, same
   attention, same passes), "auto" by the functions and with the noise of training, unit by unit. Medians of steps 2 to
   12 with Adam. Peak memory beside what a rehearsal without numbers said it would be.
3. Example DP, 32 records of 512 tokens at 125M: over plain training and over Opacus (hooks, ghost clipping).
4. Scoring 20,000 texts through the score cache, tokenizing included, over bare forward passes, which are given tokens;
   in float32 and in bfloat16.
5. Noise and optimizer of a 125M step, and the draws of 342,477 users with cohorts of 1,024 on the host.
6. Whole runs: a 125M shape pre-trained on Enron's public users (without HELDIN_DATA_DIR on the built-in corpus's),
   fine-tuned without a defense and under ULS at epsilon 8, in both precisions, and attacked.
7. With several GPUs: ULS steps at 125M by replicas and in shards over those of one GPU.
"""

import argparse
import copy
import functools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_base import Clock, Figure, Shape, arithmetic, recovering, some_units, tf32
from gpu_further import beside_gradients, example_dp, scoring
from gpu_whole import RUN_SHAPE, corpus_of, several, whole_runs
from transformers import GPTNeoForCausalLM, PreTrainedModel

from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.gradients.engine_choice import default_budget
from heldin.defenses.gradients.layer_rules import lay_out
from heldin.defenses.gradients.model_parts import unit_losses
from heldin.defenses.gradients.one_pass import Engine, release_workspace
from heldin.defenses.gradients.per_unit_gradients import ClippedSum, Units, clipped_gradient_sum
from heldin.defenses.noise import NoiseSource
from heldin.finetune.memory import Step, training_peak
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.private import clipped_sum, put_gradient, whole_units
from heldin.finetune.recipe import Recipe
from heldin.models.devices import Planned, moved

LINES = Path(__file__).with_name("gpu.jsonl")
ENGINES: tuple[Engine, ...] = ("auto", "materialise", "ghost", "loop")
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
RATIO, MEMORY = 1.10, 1.3  # of a ULS step over a plain one, at most
STEPS = 12


SHAPES = {"125M": Shape(12, 768, 12), "1.3B": Shape(24, 2048, 16)}


@dataclass(frozen=True)
class Case:
    """Steps to time: a shape, users of records of a length, and how many users go through the model at once."""

    shape: str
    users: int
    records: int
    length: int
    users_a_pass: int = 1
    checkpointing: bool = False


CASES = (
    Case("125M", 1, 16, 512),
    Case("125M", 4, 16, 512),
    Case("125M", 16, 16, 512, 2),
    Case("125M", 4, 16, 1024),
    Case("1.3B", 1, 16, 512),
    Case("1.3B", 4, 16, 512),
    Case("1.3B", 4, 16, 1024, checkpointing=True),
)


def correctness(shape: Shape, length: int, device: torch.device) -> list[Figure]:
    """Every engine in both precisions on three users of four records."""
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
    """The sum of these gradients of units, each cut down to the bound; float64, on the CPU."""
    norms = [_norm(gradient) for gradient in gradients]
    return {
        name: sum(its[name].double().cpu() * min(1.0, bound / norm) for its, norm in zip(gradients, norms, strict=True))
        for name in gradients[0]
    }


def _distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    return _norm({n: found[n].double().cpu() - expected[n] for n in expected}) / _norm(expected)


def _clipped(model: GPTNeoForCausalLM, units: Units, bound: float, engine: str) -> ClippedSum:
    if engine == "split":
        return clipped_gradient_sum(model, units, clip_norm=bound, most_records=1)
    its: Engine = next(name for name in ENGINES if name == engine)
    return clipped_gradient_sum(model, units, clip_norm=bound, engine=its)


def _double_gradient(model: GPTNeoForCausalLM, units: Units, number: int) -> dict[str, torch.Tensor]:
    """A unit's gradient by plain backward passes, a record at a time, in float64 on the CPU."""
    rows = _only(units, number)
    return _plain(copy.deepcopy(model).cpu().double(), Units(rows.inputs.cpu(), rows.targets.cpu(), rows.unit.cpu(), 1))


def _half_gradient(
    model: GPTNeoForCausalLM, units: Units, number: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """The same on the device in bfloat16, float32 between the records."""
    with arithmetic("bf16", device):
        return _plain(copy.deepcopy(model), _only(units, number))


def _plain(model: GPTNeoForCausalLM, unit: Units) -> dict[str, torch.Tensor]:
    for ids, targets in zip(unit.inputs, unit.targets, strict=True):
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        # Under autocast in float32.
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, targets) / len(unit.inputs))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _only(units: Units, number: int) -> Units:
    rows = units.unit == number
    return Units(units.inputs[rows], units.targets[rows], torch.zeros_like(units.unit[rows]), 1)


def _norm(gradients: Mapping[str, Any]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def steps(case: Case, shape: Shape, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """A plain step, "auto" and unit by unit, over the same users; bfloat16 passes, float32 weights."""
    model = shape.model(device)
    if case.checkpointing:
        model.train()
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    runs = _runs(case, shape)
    taken: dict[str, dict[str, Any]] = {}
    for name in ("plain", "auto", "loop"):
        with recovering(name, taken):
            taken[name] = _timed(name, model, runs, device)
    about = f"{case.shape}, {case.users} x {case.records} x {case.length}"
    found: list[Figure] = []
    plain = taken["plain"]
    for name in ("auto", "loop"):
        # A step that does not fit has no time: its figure is infinite, or not a number, and fails.
        its, limits = taken[name], (RATIO, MEMORY) if name == "auto" else (None, None)
        ratio = its.get("seconds", math.inf) / plain.get("seconds", math.nan)
        memory = its.get("allocated", math.inf) / plain.get("allocated", math.nan)
        found.append(Figure(f"{about}, {name}: step over plain", ratio, limits[0]))
        found.append(Figure(f"{about}, {name}: peak memory over plain", memory, limits[1]))
    if "allocated" in taken["auto"]:
        said = _rehearsed(case, shape, runs, device)
        found.append(Figure(f"{about}, auto: peak memory over a rehearsal's", taken["auto"]["allocated"] / said))
    return found, {about: taken}


Runs = list[list[list[list[int]]]]  # token ids of each record of each user of each pass


def _runs(case: Case, shape: Shape) -> Runs:
    generator = torch.Generator().manual_seed(1)
    size = (case.users, case.records, case.length + 1)
    users: list[list[list[int]]] = torch.randint(0, shape.vocabulary, size, generator=generator).tolist()
    return [users[first : first + case.users_a_pass] for first in range(0, case.users, case.users_a_pass)]


def _rehearsed(case: Case, shape: Shape, runs: Runs, device: torch.device) -> int:
    """Bytes that steps of this case would hold, by a rehearsal without numbers."""

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic) -> None:
        with autocast(arithmetic, torch.device("cpu")):
            total = clipped_sum(model, runs, 1.0, passes).gradients
        put_gradient(model, total, 1.0, 1.0, lambda _, size, where: torch.empty(size, device=where))

    step = Step(compute, case.users_a_pass * case.records, case.records)
    recipe = Recipe(checkpointing=case.checkpointing)
    memory = int(torch.cuda.get_device_properties(device).total_memory)
    return training_peak(lambda: shape.model(torch.device("cpu")), recipe, step, Planned("cuda", memory)).total


def _timed(name: str, model: GPTNeoForCausalLM, runs: Runs, device: torch.device) -> dict[str, Any]:
    model.zero_grad(set_to_none=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-6, fused=True if device.type == "cuda" else None)
    clock = Clock(device)
    source = NoiseSource(NoiseGenerator.PHILOX, bytes(32))
    users = sum(map(len, runs))
    passes = Passes(max(sum(map(len, run)) for run in runs), budget=default_budget(device))
    phases: dict[str, list[float]] = {"gradients": [], "noise": [], "optimizer": []}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for step in range(STEPS):
        began = clock()
        if name == "plain":
            _plain_gradient(model, runs)
            after = noised = clock()
        else:
            with arithmetic("bf16", device):
                total = clipped_sum(model, runs, 1.0, passes).gradients if name == "auto" else _looped(model, runs)
            after = clock()
            noise = functools.partial(source.gaussian, step)
            put_gradient(model, total, 1.0, users, lambda n, size, where, its=noise: its(n, size, 1.0, where))
            del total  # as training does
            noised = clock()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ended = clock()
        for phase, seconds in zip(phases, (after - began, noised - after, ended - noised), strict=True):
            phases[phase].append(seconds)
    whole = [sum(its) for its in zip(*phases.values(), strict=True)][1:]
    release_workspace(model)
    memory = (
        {"allocated": torch.cuda.max_memory_allocated(device), "reserved": torch.cuda.max_memory_reserved(device)}
        if device.type == "cuda"
        else {}
    )
    of_phases = {phase: statistics.median(its[1:]) for phase, its in phases.items()}
    return {"seconds": statistics.median(whole), "phases": of_phases, "ways": passes.effort.ways, **memory}


def _plain_gradient(model: GPTNeoForCausalLM, runs: Runs) -> None:
    for run in runs:
        units = whole_units(run)
        inputs, targets = moved(units.inputs, model.device), moved(units.targets, model.device)
        with arithmetic("bf16", model.device):
            losses = unit_losses(model, inputs, targets, lay_out(units.unit, units.units, model.device))
        torch.autograd.backward(losses.sum() / sum(map(len, runs)))


def _looped(model: GPTNeoForCausalLM, runs: Runs) -> dict[str, torch.Tensor]:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for run in runs:
        found = clipped_gradient_sum(model, whole_units(run), clip_norm=1.0, engine="loop")
        for name, summed in total.items():
            summed += found.gradients[name]
        del found  # as training does
    return total


def part_1(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    return correctness(Shape(4, 768, 12, context=512), 512, device), {}


def part_2(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for case in CASES:
        found, told = steps(case, SHAPES[case.shape], device)
        figures += found
        details |= told
    return figures, details


PARTS: dict[int, Callable[[torch.device], tuple[list[Figure], dict[str, Any]]]] = {
    1: part_1,
    2: part_2,
    3: lambda device: example_dp(SHAPES["125M"], 32, 512, device),
    4: lambda device: scoring(SHAPES["125M"], 20_000, 120, device),
    5: lambda device: beside_gradients(SHAPES["125M"], 342_477, 1024, device),
    6: lambda _: whole_runs(corpus_of(), RUN_SHAPE, 256),
    7: lambda device: several(SHAPES["125M"], device, torch.cuda.device_count()),
}
OF_SEVERAL = 7


def provenance(device: torch.device) -> dict[str, Any]:
    """On what and with what a part was measured."""
    here = Path(__file__).resolve().parent

    def said(*command: str) -> str | None:
        try:
            return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    return {
        "device": torch.cuda.get_device_name(device),
        "memory": torch.cuda.get_device_properties(device).total_memory,
        "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": said("git", "rev-parse", "HEAD"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", choices=sorted(PARTS), help="parts (default: all)")
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device here, and nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    if chosen.check:
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
        return 0
    failed = 0
    parts = chosen.only or [its for its in sorted(PARTS) if its != OF_SEVERAL or torch.cuda.device_count() > 1]
    for number in parts:
        began = time.monotonic()
        figures, details = PARTS[number](device)
        seconds = round(time.monotonic() - began, 1)
        print(f"part {number}, {seconds:,.0f} s")
        print("\n".join(figure.line() for figure in figures))
        failed += sum(figure.fails for figure in figures)
        told = {"part": number, "seconds": seconds, "figures": [asdict(figure) for figure in figures], **details}
        with LINES.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**provenance(device), **told}) + "\n")
    if left := sorted(set(PARTS) - set(parts)):
        print(f"not run: part{'s'[: len(left) > 1]} {', '.join(map(str, left))}")
    print(f"{failed} figures fail" if failed else "every figure that was measured passes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
