"""What a run would hold in memory on a GPU of a named size, by its config alone."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from heldin.base.wording import counted, in_bytes
from heldin.defenses.config import (
    ClippingDefense,
    FilterDefense,
    NoDefense,
    PrivateDefense,
    SampledDefense,
    UedpDefense,
)
from heldin.finetune.clipped_sums import clipped_sum, put_gradient
from heldin.finetune.clipping import PlainClipping, clipped_batch_gradient
from heldin.finetune.local_updates import LocalWork, clipped_difference_sum
from heldin.finetune.memory import EVALUATION, Peak, Step, fitting_peak, scoring_peak
from heldin.finetune.passes import Passes, cut
from heldin.finetune.plain import plain_batch_gradient
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.recipe import Recipe
from heldin.jobs.config import RunConfig
from heldin.models.devices import Planned
from heldin.models.loading import context_length
from heldin.models.tiny import tiny_config

_CPU = torch.device("cpu")  # where a rehearsal's tensors stand, whatever it is for


def run_memory(config: RunConfig, device: Planned, say: Callable[[str], None] = lambda _: None) -> dict[str, Peak]:
    """The peak of each part of a run, with records of full length.

    Args:
        config: of the run.
        device: where it would run.
        say: receives what is being rehearsed.

    Returns:
        Peaks by the part's name. Empty for an adapter as base model, for one that is spread over processes, and for the
        filter, which holds all users' gradients.
    """
    shape = shape_of(config)
    if shape is None or config.finetune.shard or isinstance(config.defense, FilterDefense):
        return {}

    def make() -> PreTrainedModel:
        # transformers notes in it how a model attends, so each model gets its own.
        model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(shape), dtype=torch.float32)
        return model

    peaks: dict[str, Peak] = {}
    if config.model.pretrain is not None:
        recipe = config.model.pretrain.recipe
        peaks["pre-training"] = fitting_peak(make, recipe, _plain(recipe), device, say)
    longest = min(context_length(shape), config.finetune.sequence_length)
    step = replace(_step(config), scored=longest)
    peaks["fine-tuning"] = fitting_peak(make, config.finetune, step, device, say)
    if config.attack.precision == "fp32":
        peaks["scoring"] = scoring_peak(make, longest, 2, device)
    return peaks


def memory_lines(peaks: dict[str, Peak], device: Planned) -> str:
    """The peaks in words, a line for each part of the run."""
    if not peaks:
        return "not known for this model, for this defense, or with finetune.shard"
    top = f"on a GPU of {in_bytes(device.memory)}, of tensors; the GPU's context and gaps between tensors come on top"
    return "\n".join([top, *(f"{name}: {_in_words(peak)}" for name, peak in peaks.items())])


def does_not_fit(peaks: dict[str, Peak], device: Planned) -> list[str]:
    """A line for each part that does not fit, with what takes how much and what to change."""
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
        return f"use a smaller model, finetune.lora, {less}, or spread it over several GPUs (finetune.shard)"
    if name == "scoring" or peak.moment == EVALUATION:
        return "use a smaller model"
    return f"lower {recipe}.sequence_length, set {recipe}.checkpointing, or use a smaller model"


def _in_words(peak: Peak) -> str:
    parts = {"weights": peak.weights, "optimizer": peak.optimizer, "activations and gradients": peak.work}
    said = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
    split = ", a unit in several passes" if peak.splits else ""
    return f"{in_bytes(peak.total)} in {peak.moment} ({said}), {counted(peak.records, 'record')} a pass{split}"


def shape_of(config: RunConfig) -> PretrainedConfig | None:
    """The config of the run's model; None where it cannot be read."""
    if config.model.pretrain is not None:
        return tiny_config(config.model.pretrain.shape, config.model.pretrain.shape.vocabulary, 0)
    # The config alone, of some kilobytes; a name that has none was told of as a problem.
    try:
        found: PretrainedConfig = AutoConfig.from_pretrained(
            config.model.base, revision=config.model.revision, trust_remote_code=False
        )
    except (OSError, ValueError):
        return None
    return found


def _step(config: RunConfig) -> Step:
    match config.defense:
        case NoDefense():
            return _plain(config.finetune)
        case ClippingDefense(unit=unit, clip_norm=norm):
            # A copy of the base model waits while a plain run measures the norm.
            return replace(_clipped(config.finetune, unit), copies=int(norm is None))
        case SampledDefense() as defense:
            return _sampled(config.finetune, defense)
    raise TypeError(f"no step of {config.defense.kind}")


def _plain(recipe: Recipe) -> Step:
    most = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size)

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic) -> None:
        # Two passes tell what all do: from the second on there are gradients to add to.
        batch = _records(min(recipe.batch_size, 2 * passes.most), recipe)
        plain_batch_gradient(model, batch, passes.most, arithmetic)

    return Step(compute, most, without_dropout=False)


def _clipped(recipe: Recipe, unit: str) -> Step:
    clipping = PlainClipping("example" if unit == "example" else "batch", 1.0)

    def compute(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic) -> None:
        batch = _records(min(recipe.batch_size, 2 * passes.most), recipe)
        with autocast(arithmetic, _CPU):
            clipped_batch_gradient(model, clipping, batch, passes)

    return Step(compute, min(recipe.micro_batch or recipe.batch_size, recipe.batch_size))


def _sampled(recipe: Recipe, defense: SampledDefense) -> Step:
    local = defense.local if isinstance(defense, PrivateDefense | UedpDefense) else None
    unit = _records_of_a_unit(defense)
    if local is not None:
        # One user's steps, one after the other.
        size = local.batch_size

        def moved(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic) -> None:
            with autocast(arithmetic, _CPU):
                work = LocalWork(_records(size, recipe), [1.0] * size)
                total, _ = clipped_difference_sum(model, [work], local, 1.0)
            _put(model, total)

        return Step(moved, size, halves=False)
    # A cohort is drawn, and may be larger than expected.
    units = math.ceil(defense.cohort + 6 * math.sqrt(defense.cohort))

    def summed(model: PreTrainedModel, passes: Passes, arithmetic: Arithmetic) -> None:
        # The second pass is like all that follow: what it held is given back before the next, and its sums are added.
        runs = [[_records(unit, recipe) for _ in run] for run in cut([unit] * units, passes.most)[:2]]
        with autocast(arithmetic, _CPU):
            found = clipped_sum(model, runs, 1.0, passes)
        _put(model, found.gradients)

    return Step(summed, defense.micro_records, unit)


def _records_of_a_unit(defense: SampledDefense) -> int:
    match defense:
        case PrivateDefense(kind="uls", record_selection="all") | UedpDefense(group_size=None):
            # All records of a user whom nobody has read yet: as many as a pass.
            return defense.micro_records
        case PrivateDefense(kind="uls"):
            return defense.group_size
        case UedpDefense(group_size=int(size)):
            return size
        case _:
            return 1


def _put(model: PreTrainedModel, total: dict[str, torch.Tensor]) -> None:
    put_gradient(model, total, 1.0, 1.0, lambda _, shape, device: torch.empty(shape, device=device))


def _records(count: int, recipe: Recipe) -> list[Sequence[int]]:
    # One id more than is predicted.
    return [[1] * (recipe.sequence_length + 1)] * count
