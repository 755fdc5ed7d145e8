"""The memory that training and scoring would hold on a device, found by rehearsing a step of the training code itself.

Counted are the bytes of tensors, as torch's allocator counts them on a CPU. What kernels use inside, a GPU's context
and the allocator's gaps come on top.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from heldin.defenses.gradients.model_parts import take_apart
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic
from heldin.finetune.preparation import halve_frozen, optimizer_of, use_checkpointing, with_adapters
from heldin.finetune.recipe import Precision, Recipe
from heldin.finetune.rehearsal import AutocastOfGpu, Rehearsal
from heldin.finetune.sharding import Spread, spread
from heldin.models.attention import use_exact_attention
from heldin.models.devices import Planned, planning_for
from heldin.models.logprobs import batch_scores, tokens_per_batch

EVALUATION, OPTIMIZING = "an evaluation", "the optimizer's step"  # as moments of a peak


@dataclass(frozen=True)
class Step:
    """The gradient of a step.

    Attributes:
        compute: given the model, the limits of a pass, the arithmetic, and how the model lies over processes (None:
            each holds all of it), puts a gradient into ``.grad``.
        most: records of a pass.
        unit: records of the largest unit; 1 where records are clipped alone, or nothing is.
        splits: whether a unit of more records may be taken in several passes.
        without_dropout: whether the step computes per-unit gradients.
        copies: copies of the weights that are held beside the model.
        scored: tokens of the longest text that an evaluation scores between steps; None: there is no evaluation.
        halves: whether training takes fewer records in a pass when memory runs out.
    """

    compute: Callable[[PreTrainedModel, Passes, Arithmetic, Spread | None], object]
    most: int
    unit: int = 1
    splits: bool = False
    without_dropout: bool = True
    copies: int = 0
    scored: int | None = None
    halves: bool = True


@dataclass(frozen=True)
class Peak:
    """The most that is held at one time, in bytes.

    Attributes:
        moment: when.
        weights: weights and buffers of all models in memory.
        optimizer: the optimizer's state.
        work: all else: activations, gradients, their sums, temporary tensors.
        records: of a pass.
        splits: whether a unit of more records is taken in several passes.
        ways: how per-unit gradients are computed, in words; "" if they are not.
        fixed: most bytes at the optimizer's step, which smaller passes hardly change; 0 without one.
        processes: that hold one copy of the model together; all else is of one of them.
    """

    moment: str
    weights: int
    optimizer: int
    work: int
    records: int
    splits: bool
    ways: str = ""
    fixed: int = 0
    processes: int = 1

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.optimizer + self.work


def fitting_peak(
    make: Callable[[], PreTrainedModel],
    recipe: Recipe,
    step: Step,
    device: Planned,
    say: Callable[[str], None] = lambda _: None,
) -> Peak:
    """The peak of training with as many records in a pass as fit, or with a single one if none do.

    As training does when memory runs out, passes are halved, and a unit that is larger is split.

    Args:
        say: receives a line before each rehearsal, of which one may take half a minute.
    """
    while True:
        say(f"memory: rehearsing steps with {step.most:,} records a pass")
        peak = training_peak(make, recipe, step, device)
        tried = step.most if step.splits else max(step.most, step.unit)
        # Smaller passes of training leave an evaluation as it is.
        # What stands whatever a pass holds does not shrink with it.
        fits = peak.total <= device.memory
        if fits or peak.fixed > device.memory or tried == 1 or not step.halves or peak.moment == EVALUATION:
            return peak
        half = max(1, tried // 2)
        step = replace(step, most=half, splits=step.splits or half < step.unit)


def training_peak(make: Callable[[], PreTrainedModel], recipe: Recipe, step: Step, device: Planned) -> Peak:
    """Return the peak of a training's first two steps: the first checks layer rules, the second has optimizer state."""
    arithmetic = arithmetic_on(recipe.precision, device)
    rehearsal = Rehearsal()

    def adapt(model: PreTrainedModel) -> PreTrainedModel:
        use_exact_attention(model)
        return with_adapters(model, recipe)

    model = rehearsal.model(make, adapt).train()
    take_apart(model)  # what its layers are is found by numbers, and remembered
    with rehearsal.one_of(recipe.shard) if recipe.shard else nullcontext(), _rehearsing(rehearsal, device):
        spread_of_step = spread(model, recipe, model.device)
        if recipe.checkpointing:
            # torch runs a backward pass outside of modes like this one.
            again = AutocastOfGpu if device.kind == "cuda" else nullcontext
            use_checkpointing(model, without_dropout=step.without_dropout, again=again)
        if recipe.lora is not None and arithmetic == "bf16":
            halve_frozen(model, keep=False)
        weights = rehearsal.alive
        budget = (device.memory - weights) // 2 if device.kind == "cuda" else device.memory // 4
        passes = Passes(step.most, splits=step.splits, budget=max(0, budget))
        optimizer = optimizer_of(model, recipe)
        peaks: list[tuple[str, int, int]] = []  # moment, most bytes, of them the optimizer's
        state = 0
        for moment in ("the first step", "a later step"):
            rehearsal.begin()
            step.compute(model, passes, arithmetic, spread_of_step)
            peaks.append((moment, rehearsal.most, state))
            with_gradients = rehearsal.begin()
            optimizer.step()
            state += rehearsal.alive - with_gradients
            peaks.append((OPTIMIZING, rehearsal.most, state))
            optimizer.zero_grad(set_to_none=True)
        # A workspace is part of the step, whose gradients are gone by now.
        if step.scored is not None:
            peaks.append((EVALUATION, _score(model.eval(), step.scored, rehearsal)[0], state))
        moment, most, state = max(peaks, key=lambda peak: peak[1])
    copies = step.copies * weights
    ways = passes.effort.ways[0] if passes.effort.ways else ""
    fixed = copies + max(bytes_of for phase, bytes_of, _ in peaks if phase == OPTIMIZING)
    work, processes = most - weights - state, recipe.shard or 1
    return Peak(moment, weights + copies, state, work, step.most, step.splits, ways, fixed, processes)


def scoring_peak(make: Callable[[], PreTrainedModel], positions: int, models: int, device: Planned) -> Peak:
    """The peak of scoring texts.

    Args:
        positions: L, tokens of the longest text, at most the model's context.
        models: how many models of this size are in memory.
    """
    rehearsal = Rehearsal()

    def adapt(model: PreTrainedModel) -> PreTrainedModel:
        use_exact_attention(model)
        return model

    model = rehearsal.model(make, adapt).eval()
    weights = rehearsal.alive
    with _rehearsing(rehearsal, device):
        most, records = _score(model, positions, rehearsal)
    return Peak("a batch", models * weights, 0, most - weights, records, splits=False)


def arithmetic_on(precision: Precision, device: Planned) -> Arithmetic:
    """Return the arithmetic of a recipe's precision on an absent device; a GPU is taken to have bfloat16."""
    return "bf16" if precision is Precision.BF16 or (precision is Precision.AUTO and device.kind == "cuda") else "fp32"


def _score(model: PreTrainedModel, positions: int, rehearsal: Rehearsal) -> tuple[int, int]:
    """Most bytes that are alive while a batch of such texts is scored, and its records."""
    records = max(1, tokens_per_batch(model) // positions)
    ids = torch.zeros(records, positions, dtype=torch.long)
    rehearsal.begin()
    with torch.no_grad():
        batch_scores(model, ids, ids, moments=False, ranks=False)
    return rehearsal.most, records


@contextmanager
def _rehearsing(rehearsal: Rehearsal, device: Planned) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(rehearsal)
        stack.enter_context(planning_for(device))
        if device.kind == "cuda":
            stack.enter_context(AutocastOfGpu())
        yield
