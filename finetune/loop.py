"""The one training loop. Deterministic, resumable: a step is a function of the state before it and of its number."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from corpus.errors import InputError, ResumableError
from corpus.files import text_sha256
from finetune.batches import ShuffledBatches, collate, record_losses
from finetune.checkpoints import TrainingState, load_state, save_model, save_state
from finetune.private import PrivateTraining, private_gradient
from finetune.recipe import Optimizer, Precision, Recipe, Select
from models.loading import LanguageModel, quiet_transformers

Evaluate = Callable[[int, PreTrainedModel], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: where the chosen model is, and the curve of evaluations."""

    folder: Path
    chosen_step: int
    steps: int
    history: tuple[Mapping[str, float], ...]
    seconds: float


def train(
    base: LanguageModel,
    sequences: Sequence[Sequence[int]],
    recipe: Recipe,
    folder: Path,
    *,
    private: PrivateTraining | None = None,
    evaluate: Evaluate | None = None,
    select_by: str | None = None,
    advance: Callable[[int], object] | None = None,
) -> TrainingResult:
    """Train ``base`` on ``sequences`` and leave the chosen model in ``folder``/final.

    The same call after a kill goes on from the last checkpoint and, on a CPU, ends with bitwise the same weights. A
    finished run is not run again.

    Args:
        base: the model to start from; its weights are changed in place.
        sequences: token ids of each record (see ``finetune.batches.encode``); nothing else is ever trained on.
        recipe: hyperparameters.
        folder: for checkpoints.
        private: the mechanism to run in place of plain batches; it fixes the number of steps.
        evaluate: called with the number of completed steps and the model at ``recipe.evaluation_steps``; what it
            returns joins the history.
        select_by: the metric of ``evaluate`` whose smallest value marks the best model; needed for ``Select.BEST``.
        advance: called with 1 after every step.

    Raises:
        InputError: no records, or a checkpoint of another job in ``folder``.
        ResumableError: loss (of plain training) or weights became non-finite; the last good checkpoint is kept. Under a
            mechanism only the weights are looked at, which is post-processing: stopping for a unit's loss would leak.
    """
    if not sequences:
        raise InputError("there is no record to train on: the held-in users have none left after the set-asides")
    if recipe.select is Select.BEST and (evaluate is None or select_by is None):
        raise InputError("finetune.select is 'best', but nothing is evaluated to choose by: set it to 'last'")
    accelerator = Accelerator(mixed_precision=_mixed_precision(recipe.precision), cpu=base.device.type == "cpu")
    torch.manual_seed(recipe.seed)
    model = _with_adapters(base.model, recipe).to(accelerator.device).train()
    optimizer = _optimizer(model, recipe)
    steps = private.mechanism.steps if private else recipe.steps(len(sequences))
    state = TrainingState(job=job_name(base, sequences, recipe, private))
    state = load_state(folder / "resume", state.job, model, optimizer) or state
    if advance and state.step:
        advance(state.step)
    batches = ShuffledBatches(
        [len(s) for s in sequences], recipe.batch_size, recipe.seed, group_by_length=recipe.group_by_length
    )
    evaluation_steps = set(recipe.evaluation_steps(steps)) if evaluate else set()
    started = time.monotonic() - state.seconds

    while state.step < steps:
        torch.manual_seed(recipe.seed * 2**32 + state.step)  # dropout, where a model has it
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(state.step, steps)
        if private:
            with accelerator.autocast():
                loss = private_gradient(model, private, state.step, sequences)
        else:
            batch = [sequences[row] for row in batches.rows(state.step)]
            loss = _accumulate_gradient(model, batch, recipe.micro_batch or len(batch), accelerator)
            if not math.isfinite(loss):
                raise _diverged("loss", state.step + 1, folder)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state.step += 1
        if loss is not None:
            state.loss_sum += loss
            state.loss_steps += 1
        if advance:
            advance(1)
        if evaluate and state.step in evaluation_steps:
            _require_finite(model, state.step, folder)
            model.eval()
            metrics = dict(evaluate(state.step, model))
            model.train()
            state.history.append(
                {
                    "step": float(state.step),
                    "epoch": state.step / batches.per_epoch,
                    "train_loss": state.loss_sum / max(1, state.loss_steps),
                    **metrics,
                }
            )
            state.loss_sum, state.loss_steps = 0.0, 0
            if recipe.select is Select.BEST and select_by is not None:
                _keep_best(state, metrics[select_by], folder, model, base)
        if state.step % recipe.checkpoint_every == 0 or state.step == steps:
            _require_finite(model, state.step, folder)
            state.seconds = time.monotonic() - started
            save_state(folder / "resume", state, model, optimizer)

    final = folder / "final"
    if not (final / "config.json").is_file():
        if recipe.select is Select.BEST:
            (folder / "best").rename(final)
        else:
            save_model(final, model, base.tokenizer)
    chosen = state.best_step if recipe.select is Select.BEST else steps
    return TrainingResult(final, chosen, steps, tuple(state.history), state.seconds)


def _accumulate_gradient(
    model: PreTrainedModel, batch: Sequence[Sequence[int]], micro_batch: int, accelerator: Accelerator
) -> float:
    """Add the gradient of the batch's mean record loss to ``.grad``, micro-batch by micro-batch; return that loss."""
    total = 0.0
    for start in range(0, len(batch), micro_batch):
        inputs, targets = collate(batch[start : start + micro_batch], accelerator.device)
        with accelerator.autocast():
            loss = record_losses(model, inputs, targets).sum() / len(batch)
        torch.autograd.backward(loss)
        total += float(loss.detach())
    return total


def _keep_best(state: TrainingState, metric: float, folder: Path, model: PreTrainedModel, base: LanguageModel) -> None:
    if state.best_metric is None or metric < state.best_metric:
        state.best_metric, state.best_step = metric, state.step
        save_model(folder / "best", model, base.tokenizer)


def _with_adapters(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    if recipe.lora is None:
        return model
    from peft import LoraConfig, get_peft_model  # slow to import, and only adapters need it

    targets = recipe.lora.targets
    config = LoraConfig(
        r=recipe.lora.rank,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with quiet_transformers():
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise InputError(
                f"finetune.lora.targets = {targets!r} does not fit the model: {str(error)[:120]}"
            ) from error


def _optimizer(model: PreTrainedModel, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    match recipe.optimizer:
        case Optimizer.ADAM:
            return torch.optim.Adam(parameters, recipe.learning_rate, weight_decay=recipe.weight_decay)
        case Optimizer.ADAMW:
            return torch.optim.AdamW(parameters, recipe.learning_rate, weight_decay=recipe.weight_decay)
        case Optimizer.SGD:
            return torch.optim.SGD(parameters, recipe.learning_rate, momentum=0.9, weight_decay=recipe.weight_decay)


def _mixed_precision(precision: Precision) -> str:
    if precision is Precision.AUTO:
        return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
    return "bf16" if precision is Precision.BF16 else "no"


def job_name(
    base: LanguageModel, sequences: Sequence[Sequence[int]], recipe: Recipe, private: PrivateTraining | None
) -> str:
    """Name of the job: base model, data, mechanism, key, and every hyperparameter that shapes the weights."""
    shaping = {k: v for k, v in asdict(recipe).items() if k != "checkpoint_every"}
    mechanism = ""
    if private:
        units = [(unit.name, unit.rows) for unit in private.units]
        mechanism = text_sha256(private.mechanism.model_dump_json(), private.key.hex(), private.noise, repr(units))
    return text_sha256(base.fingerprint, repr(shaping), mechanism, *(repr(list(s)) for s in sequences))


def _require_finite(model: PreTrainedModel, step: int, folder: Path) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad):
        raise _diverged("weights", step, folder)


def _diverged(what: str, step: int, folder: Path) -> ResumableError:
    return ResumableError(
        f"training stopped: the {what} became NaN or infinite at step {step}; lower finetune.learning_rate and use a"
        f" new run folder (the last good checkpoint is kept under '{folder}')"
    )
