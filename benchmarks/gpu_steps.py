"""Part 2 of the GPU benchmark: private steps divided by plain steps, and their peak memory."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from gpu_base import Clock, Figure, Marks, Shape, arithmetic, recovering, share_of_card
from torch._inductor.async_compile import shutdown_compile_workers
from transformers import PreTrainedModel

from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.gradients.engine_choice import default_budget
from heldin.defenses.gradients.one_pass import release_workspace
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.defenses.noise import NoiseSource
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.memory import Step, training_peak
from heldin.finetune.passes import Passes, clipped_sum, put_gradient, whole_units
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.preparation import halve_frozen, optimizer_of, with_adapters
from heldin.finetune.recipe import Lora, Recipe
from heldin.finetune.sharding import Spread
from heldin.models import repeated
from heldin.models.devices import Planned
from heldin.models.tokens import Tokens

# Most time and most peak memory of a step: ULS over plain, and ULS of adapters over ULS of all weights.
LIMITS = {"auto": (1.10, 1.3), "lora": (0.5, 1.0)}
STEPS, WARM = 10, 4
NOISE = "noise of a step"  # its range in a profile


@dataclass(frozen=True)
class Case:
    """Steps to time: a shape, users, records and their length, and the number of users per pass.

    A case also has the ways to step, which are compared with the first way. It says whether the memory is rehearsed,
    which takes a core up to a minute.
    """

    shape: str
    users: int
    records: int
    length: int
    users_a_pass: int = 1
    checkpointing: bool = False
    rehearsed: bool = False
    ways: tuple[str, ...] = ("plain", "auto", "loop")

    @property
    def about(self) -> str:
        return f"{self.shape}, {self.users} x {self.records} x {self.length}"

    @property
    def tokens(self) -> int:
        return self.users * self.records * self.length


WHOLE = ("plain", "auto")
CASES = (
    Case("125M", 1, 16, 512),
    Case("125M", 4, 16, 512, 4, rehearsed=True),
    Case("125M", 16, 16, 512, 4, ways=WHOLE),
    Case("125M", 4, 16, 1024, 4),
    Case("1.3B", 1, 16, 512),
    Case("1.3B", 4, 16, 512, rehearsed=True),
    Case("1.3B", 4, 16, 1024, checkpointing=True, ways=WHOLE),
    Case("125M", 4, 16, 512, ways=WHOLE),  # as in the first measurements: a user a pass
    Case("1.3B", 16, 16, 512, ways=("auto", "lora")),
)


def steps(case: Case, shape: Shape, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Measure the case's ways to step on the same users, with bfloat16 passes and float32 weights."""
    model = shape.model(device)
    if case.checkpointing:
        model.train()
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    runs = token_runs(case, shape)
    taken: dict[str, dict[str, Any]] = {}
    for name in case.ways:
        with recovering(name, taken):
            taken[name] = timed(name, model, runs, device)
    about = case.about
    found: list[Figure] = []
    first, *others = case.ways
    for name in others:
        # A step that does not fit has no time: its figure is infinite, or not a number, and fails.
        time_limit, memory_limit = LIMITS.get(name, (None, None))
        ratio = taken[name].get("seconds", math.inf) / taken[first].get("seconds", math.nan)
        memory = taken[name].get("allocated", math.inf) / taken[first].get("allocated", math.nan)
        found.append(Figure(f"{about}, {name}: step over {first}", ratio, time_limit))
        found.append(Figure(f"{about}, {name}: peak memory over {first}", memory, memory_limit))
    found += [
        # Frozen weights have no gradient: two products for each of them, not three.
        Figure(
            f"{about}, {name}: share of the card",
            share_of_card(shape, case.tokens, its["seconds"], device, 2 if name == "lora" else 3),
        )
        for name, its in taken.items()
        if "seconds" in its
    ]
    if case.rehearsed and "allocated" in taken["auto"]:
        said = _rehearsed(case, shape, runs, device)
        found.append(Figure(f"{about}, auto: peak memory over a rehearsal's", taken["auto"]["allocated"] / said))
    return found, {about: taken}


Runs = list[list[list[Tokens]]]  # each record of each user of each pass


def token_runs(case: Case, shape: Shape) -> Runs:
    generator = torch.Generator().manual_seed(1)
    size = (case.users, case.records, case.length + 1)
    drawn = torch.randint(0, shape.vocabulary, size, generator=generator).tolist()
    users = [[Tokens(ids) for ids in records] for records in drawn]
    return [users[first : first + case.users_a_pass] for first in range(0, case.users, case.users_a_pass)]


def _rehearsed(case: Case, shape: Shape, runs: Runs, device: torch.device) -> int:
    """Return the bytes that a rehearsal without numbers predicts for steps of this case."""

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, _: Spread | None) -> None:
        with autocast(arithmetic, torch.device("cpu")):
            total = clipped_sum(model, runs, 1.0, passes).gradients
        put_gradient(model, total, 1.0, 1.0, lambda _, size, where: torch.empty(size, device=where))

    step = Step(compute, case.users_a_pass * case.records, case.records)
    recipe = Recipe(checkpointing=case.checkpointing)
    memory = int(torch.cuda.get_device_properties(device).total_memory)
    return training_peak(lambda: shape.model(torch.device("cpu")), recipe, step, Planned("cuda", memory)).total


def timed(name: str, model: PreTrainedModel, runs: Runs, device: torch.device) -> dict[str, Any]:
    """Return medians over steps 5 to ``STEPS`` of the seconds of a step and of its phases, and the peak memory."""
    clock, stepped = Clock(device), Stepped(name, model, runs, device)
    phases: dict[str, list[float]] = {"gradients": [], "noise": [], "optimizer": []}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    whole = []
    for step in range(STEPS):
        if step == WARM:
            shutdown_compile_workers()  # they may still be starting, and take the host's cores
        began, marks = clock(), Marks(device)
        stepped(step, marks)
        whole.append(clock() - began)
        for phase, seconds in zip(phases, marks.spans(), strict=True):
            phases[phase].append(seconds)
    release_workspace(stepped.model)
    repeated.forget_recordings(stepped.model)  # the next way to step does not hold them
    memory = (
        {"allocated": torch.cuda.max_memory_allocated(device), "reserved": torch.cuda.max_memory_reserved(device)}
        if device.type == "cuda"
        else {}
    )
    medians = {phase: statistics.median(seconds[WARM:]) for phase, seconds in phases.items()}
    return {"seconds": statistics.median(whole[WARM:]), "phases": medians, "ways": stepped.passes.effort.ways, **memory}


class Stepped:
    """Training steps with Adam on the same users.

    A step is "plain", ULS by the functions ("auto"), ULS unit by unit ("loop"), or ULS of adapters next to frozen
    weights in half precision ("lora").

    Attributes:
        model: the model with its adapters.
        passes: limits of the passes, and how gradients were computed.
    """

    def __init__(self, name: str, model: PreTrainedModel, runs: Runs, device: torch.device) -> None:
        model.zero_grad(set_to_none=True)
        recipe = Recipe(learning_rate=1e-6, lora=Lora() if name == "lora" else None)
        model = with_adapters(model, recipe).to(device)
        if recipe.lora is not None:
            halve_frozen(model, keep=False)
        repeated.REPEATED, repeated.RECORDED = 0, 2  # steps are timed as they are in a long training
        self._name, self.model, self._runs, self._device = name, model, runs, device
        self._optimizer = optimizer_of(model, recipe)
        self._source = NoiseSource(NoiseGenerator.PHILOX, bytes(32))
        self.passes = Passes(max(sum(map(len, run)) for run in runs), budget=default_budget(device))

    def __call__(self, step: int, marks: Marks) -> None:
        """Take a step. Sets marks before and after gradients, noise and optimizer."""
        marks.mark()
        if self._name == "plain":
            _plain_gradient(self.model, self._runs, self.passes.most)
            marks.mark()
        else:
            with arithmetic("bf16", self._device):
                total = self._clipped()
            marks.mark()

            def noise(name: str, size: torch.Size, where: torch.device) -> torch.Tensor:
                with torch.profiler.record_function(NOISE):
                    return self._source.gaussian(step, name, size, 1.0, where)

            put_gradient(self.model, total, 1.0, sum(map(len, self._runs)), noise)
            del total  # as training does
        marks.mark()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        marks.mark()

    def _clipped(self) -> dict[str, torch.Tensor]:
        if self._name == "loop":
            return _looped(self.model, self._runs)
        return clipped_sum(self.model, self._runs, 1.0, self.passes).gradients


def _plain_gradient(model: PreTrainedModel, runs: Runs, most: int) -> None:
    plain_batch_gradient(model, [ids for run in runs for user in run for ids in user], most, "bf16")


def _looped(model: PreTrainedModel, runs: Runs) -> dict[str, torch.Tensor]:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for run in runs:
        found = clipped_gradient_sum(model, whole_units(run), clip_norm=1.0, engine="loop")
        for name, summed in total.items():
            summed += found.gradients[name]
        del found  # as training does
    return total
