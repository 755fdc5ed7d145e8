"""A forecast of the memory that a run would use on a GPU of a given size. The forecast needs only the config."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from heldin.base.wording import counted, in_bytes
from heldin.corpus.chat.columns import found_format
from heldin.defenses.mechanisms.contract import DefenseConfig
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.holding import PlainClipping, clipped_batch_gradient
from heldin.finetune.layer_choice import on_every_layer
from heldin.finetune.local_updates import clipped_difference_sum
from heldin.finetune.memory import EVALUATION, Peak, Step, fitting_peak, scoring_peak
from heldin.finetune.passes import Passes, clipped_sum, cut, put_gradient
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.recipe import Recipe
from heldin.finetune.sampled_units import LocalWork
from heldin.finetune.sharded_gradients import clipped_shards, put_shards, sharded_batch_gradient
from heldin.finetune.sharding import Spread
from heldin.models.devices import Planned
from heldin.models.loading import context_length
from heldin.models.tiny import tiny_config
from heldin.models.tokens import Pair, Tokens
from heldin.stages.run_config import RunConfig
from heldin.stages.train.objectives import preference_of


def run_memory(config: RunConfig, device: Planned, say: Callable[[str], None] = lambda _: None) -> dict[str, Peak]:
    """Return the peak memory of each part of a run whose records have full length.

    Args:
        say: receives a line about each rehearsal.

    Returns:
        Peaks by name of the part; for fine-tuning, the peak in each process. Empty for an adapter as base model, and
        for the filter, which keeps the gradients of all users.
    """
    shape, step = shape_of(config), step_of(config)
    if shape is None or step is None:
        return {}

    def make() -> PreTrainedModel:
        # transformers notes in it how a model attends, so each model gets its own.
        model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(shape), dtype=torch.float32)
        return model

    peaks: dict[str, Peak] = {}
    if config.model.pretrain is not None:
        recipe = config.model.pretrain.recipe
        peaks["pre-training"] = fitting_peak(make, recipe, plain_step(recipe), device, say)
    longest = min(context_length(shape), config.finetune.sequence_length)
    step = replace(step, scored=longest)
    peaks["fine-tuning"] = fitting_peak(make, on_every_layer(config.finetune), step, device, say)
    if config.attack.precision == "fp32":
        peaks["scoring"] = scoring_peak(make, longest, 2, device)
    return peaks


def memory_lines(peaks: dict[str, Peak], device: Planned) -> str:
    """Return the peaks as text, one line for each part of the run."""
    if not peaks:
        return "unknown for this model or this defense"
    top = f"on a GPU of {in_bytes(device.memory)}, for tensors, without the GPU's context and gaps between tensors"
    left = {name: in_bytes(device.memory - peak.total) for name, peak in peaks.items()}
    return "\n".join([top, *(f"{name}: {_in_words(peak)}, {left[name]} left" for name, peak in peaks.items())])


def does_not_fit(peaks: dict[str, Peak], device: Planned) -> list[str]:
    """Return a line for each part that does not fit into the GPU's memory, with both sizes and a remedy."""
    return [
        f"{name} takes {_in_words(peak)}, more than the {in_bytes(device.memory)} of the GPU:"
        f" {_remedy(name, peak, device)}"
        for name, peak in peaks.items()
        if peak.total > device.memory
    ]


def _remedy(name: str, peak: Peak, device: Planned) -> str:
    recipe = "model.pretrain.recipe" if name == "pre-training" else "finetune"
    # Weights, gradients and the optimizer's state: no pass is small enough.
    if peak.fixed > device.memory or peak.weights + peak.optimizer > 0.7 * peak.total:
        less = f"an optimizer with less state ({recipe}.optimizer: sgd)"
        if name == "pre-training":
            return f"use a smaller model, {less}, or a base model that is trained already (model.base)"
        if peak.processes > 1:
            return f"use a smaller model, {less}, or more processes (finetune.shard)"
        return f"use a smaller model, finetune.lora, {less}, or spread it over several GPUs (finetune.shard)"
    if name == "scoring" or peak.moment == EVALUATION:
        return "use a smaller model"
    if peak.processes > 1:
        limit = "defense.micro_records" if peak.ways else "finetune.micro_batch"
        fewer = f"lower {limit}, " if peak.records > 1 else ""
        return (
            f"{fewer}lower finetune.sequence_length, set finetune.checkpointing, or use more processes (finetune.shard)"
        )
    return f"lower {recipe}.sequence_length, set {recipe}.checkpointing, or use a smaller model"


def _in_words(peak: Peak) -> str:
    parts = {"weights": peak.weights, "optimizer": peak.optimizer, "activations and gradients": peak.work}
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
    split = ", a unit in several passes" if peak.splits else ""
    each = f" in each of {peak.processes} processes" if peak.processes > 1 else ""
    return f"{in_bytes(peak.total)}{each} in {peak.moment} ({listed}), {counted(peak.records, 'record')} a pass{split}"


def shape_of(config: RunConfig) -> PretrainedConfig | None:
    """Return the config of the run's model; None if the config cannot be read."""
    if config.model.pretrain is not None:
        return tiny_config(config.model.pretrain.shape, config.model.pretrain.shape.vocabulary, 0)
    # The config alone, of some kilobytes; a name that has none was told of as a problem.
    try:
        shape: PretrainedConfig = AutoConfig.from_pretrained(
            config.model.base, revision=config.model.revision, trust_remote_code=False
        )
    except (OSError, ValueError):
        return None
    return shape


def step_of(config: RunConfig) -> Step | None:
    """Return one step of the run's fine-tuning, to rehearse or to measure; None if heldin cannot rehearse such a
    step."""
    defense, recipe = config.defense, recipe_of_rows(config)
    if defense.is_private:
        return None if defense.cohort_size is None else _sampled(recipe, defense, defense.cohort_size)
    clip = defense.clips_plainly
    if clip is None:
        return plain_step(recipe)
    # A copy of the base model waits while a plain run measures the norm.
    return replace(_clipped(recipe, clip), copies=int(defense.measured_clip is not None))


def recipe_of_rows(config: RunConfig) -> Recipe:
    """Return the fine-tuning recipe, with the objective for rows like the corpus's first row."""
    source, stated = config.corpus.source, config.corpus.format
    form, _ = found_format(source.first_row(), source.named_columns(), stated)
    return replace(config.finetune, objective=preference_of(config.finetune).name if form.has_pairs else None)


def plain_step(recipe: Recipe) -> Step:
    """Return the step of plain training."""
    # Of each process, which all have one copy of the model together.
    share = math.ceil(recipe.batch_size / (recipe.shard or 1))
    most = min(recipe.micro_batch or recipe.batch_size, share)

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, spread: Spread | None) -> None:
        # Two passes tell what all do: from the second on there are gradients to add to.
        batch = _records(min(share, 2 * passes.most) * (recipe.shard or 1), recipe)
        if spread is None:
            plain_batch_gradient(model, batch, passes.most, arithmetic)
            return
        with autocast(arithmetic, model.device, keeps_casts=False):
            sharded_batch_gradient(model, batch, passes.most, spread)

    return Step(compute, most, without_dropout=False, halves=recipe.shard is None)


def _clipped(recipe: Recipe, unit: Literal["example", "batch"]) -> Step:
    clipping = PlainClipping(unit, 1.0)

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, _: Spread | None) -> None:
        batch = _records(min(recipe.batch_size, 2 * passes.most), recipe)
        with autocast(arithmetic, model.device):
            clipped_batch_gradient(model, clipping, batch, passes)

    return Step(compute, min(recipe.micro_batch or recipe.batch_size, recipe.batch_size))


def _sampled(recipe: Recipe, defense: DefenseConfig, cohort: int) -> Step:
    local = defense.local_updates
    unit = records_of_a_unit(defense, recipe.shard)
    if local is not None:
        # One user's steps, one after the other.
        size = local.batch_size

        def moved(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, _: Spread | None) -> None:
            with autocast(arithmetic, model.device):
                work = LocalWork(_records(size, recipe), [1.0] * size)
                total = clipped_difference_sum(model, [work], local, 1.0)[0]
            _put(model, total, defense.carries_noise)

        return Step(moved, size, halves=False)
    if recipe.shard is not None:
        return _sharded(recipe, defense, unit)
    # A cohort is drawn, and may be larger than expected.
    units = math.ceil(cohort + 6 * math.sqrt(cohort))

    def summed(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, _: Spread | None) -> None:
        # The second pass is like all that follow: what it held is given back before the next, and its sums are added.
        runs = [[_records(unit, recipe) for _ in run] for run in cut([unit] * units, passes.most)[:2]]
        with autocast(arithmetic, model.device):
            gradient_sum = clipped_sum(model, runs, 1.0, passes)
        _put(model, gradient_sum.gradients, defense.carries_noise)

    return Step(summed, defense.pass_records, unit)


def _sharded(recipe: Recipe, defense: DefenseConfig, unit: int) -> Step:
    """Return a step of a shard group. The group processes one unit at a time, and divides its records among
    processes."""
    assert recipe.shard is not None
    most = min(defense.pass_records, math.ceil(unit / recipe.shard))
    # Two units tell what all do: gradients of the second are added to the first one's.
    units = [_records(unit, recipe)] * 2

    def summed(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic, spread: Spread | None) -> None:
        assert spread is not None
        with autocast(arithmetic, model.device, keeps_casts=False):
            total = clipped_shards(model, units, 1.0, passes, spread)[0]
        # Of its noise a process draws the part that it adds.
        put_shards(
            model, total, 1.0, 1.0, lambda name, _, device: _noise(total[name].shape, device, defense.carries_noise)
        )

    return Step(summed, most, halves=False)


def records_of_a_unit(defense: DefenseConfig, shard: int | None) -> int:
    """Return the number of records per sampled unit in one step."""
    # All records of a user whom nobody has read yet: as many as a pass, of each process.
    return defense.records_of_a_unit or defense.pass_records * (shard or 1)


def _put(model: PreTrainedModel, total: dict[str, torch.Tensor], carries: bool) -> None:
    put_gradient(model, total, 1.0, 1.0, lambda _, shape, device: _noise(shape, device, carries))


def _noise(shape: torch.Size, device: torch.device, carries: bool) -> torch.Tensor:
    noise = torch.empty(shape, device=device)
    if carries:
        # Of what is carried along, the part of this step and tensor alone is on the device.
        noise.sub_(torch.empty(shape, device=device))
    return noise


def _records(count: int, recipe: Recipe) -> list[Tokens]:
    # One id more than is predicted.
    record = Tokens([1] * (recipe.sequence_length + 1))
    if recipe.objective is None:
        return [record] * count
    return [replace(Pair.of(record, record), objective=preference_of(recipe))] * count
