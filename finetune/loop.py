"""The training loop. Deterministic and resumable: a step is a function of the state before it and of its number."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from heldin.base.errors import InputError, ResumableError
from heldin.defenses.gradients.engine_choice import default_budget
from heldin.finetune.batches import ShuffledBatches
from heldin.finetune.checkpointing import use_checkpointing
from heldin.finetune.checkpoints import TrainingState
from heldin.finetune.clipping import PlainClipping
from heldin.finetune.effort import Effort, Memory
from heldin.finetune.filtered import Halted
from heldin.finetune.frozen import halve_frozen
from heldin.finetune.holding import Holding, holding_of
from heldin.finetune.job_name import job_name
from heldin.finetune.optimizers import optimizer_of, with_adapters
from heldin.finetune.passes import Passes
from heldin.finetune.precision import arithmetic_of, autocast
from heldin.finetune.ranks import of_first, processes, rank, require_agreement, sum_over_ranks, wait_for_all
from heldin.finetune.recipe import Recipe
from heldin.finetune.sharding import Spread
from heldin.finetune.token_store import lengths_of
from heldin.finetune.units import PrivateTraining
from heldin.models.devices import begin_peak, device_name
from heldin.models.loading import LanguageModel

Evaluate = Callable[[int, PreTrainedModel], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        folder: of the chosen model.
        chosen_step: the step of that model.
        steps: optimizer steps done.
        history: one entry per evaluation.
        seconds: training time.
        smallest_norm: smallest gradient norm of a clipping run; None otherwise.
        gradients: number of records' gradients that were computed; None if an earlier version computed some.
        halted: whether the filter ended the run after ``steps`` steps; there is then no model.
        effort: what the run took over all its resumes; None if an earlier version did some of it.
    """

    folder: Path
    chosen_step: int
    steps: int
    history: tuple[Mapping[str, float], ...]
    seconds: float
    smallest_norm: float | None = None
    gradients: int | None = None
    halted: bool = False
    effort: Effort | None = None


def train(
    base: LanguageModel,
    sequences: Sequence[Sequence[int]],
    recipe: Recipe,
    folder: Path,
    *,
    private: PrivateTraining | None = None,
    clipping: PlainClipping | None = None,
    evaluate: Evaluate | None = None,
    select_by: str | None = None,
    advance: Callable[[int], object] | None = None,
    say: Callable[[str], None] = lambda _: None,
    spread: Spread | None = None,
) -> TrainingResult:
    """Train ``base`` on ``sequences`` and leave the chosen model in ``folder``/final.

    After a kill the same call continues from the last checkpoint and, on a CPU, ends with bitwise the same weights. A
    finished run is not repeated. Under ``torchrun`` every process makes this call with the same arguments and ends with
    the same model; only the first process writes.

    Args:
        base: the model to start from; its weights are changed in place.
        sequences: token ids of each record (see ``finetune.batches.encode``); nothing else is ever trained on.
        recipe: hyperparameters.
        folder: for checkpoints.
        private: the mechanism to run instead of plain batches; it fixes the number of steps.
        clipping: clip plain batches, without noise; the smallest norm goes into the result.
        evaluate: called at ``recipe.evaluation_steps`` with the number of completed steps and the model; the metrics it
            returns go into the history.
        select_by: the metric of ``evaluate`` whose smallest value marks the best model; needed to keep the best model
            or to stop early.
        advance: called with 1 after every step, and once with the steps of a resumed run.
        say: receives a line when a run resumes, when a step that ran out of memory is retried in smaller passes, and
            how per-unit gradients are computed.
        spread: how ``base.model`` lies over the processes; None: each holds all of it.

    Raises:
        InputError: there are no records, or ``folder`` has a checkpoint of another job.
        ResumableError: weights, or the loss of plain training, became non-finite, or the processes' weights differ; the
            last good checkpoint is kept.
    """
    if not sequences:
        raise InputError(
            "there is no record to train on: the held-in users have none left after set-asides, caps and data defenses"
        )
    if recipe.looks_at_validation and (evaluate is None or select_by is None):
        raise InputError("finetune.select keeps the best or patience is set, but nothing is evaluated to choose by")
    device = base.device
    begin_peak(device)
    arithmetic = arithmetic_of(recipe.precision, device)
    # Before the adapters are made, whose initial weights it decides.
    torch.manual_seed(recipe.seed)
    model = (base.model if spread else with_adapters(base.model, recipe).to(device)).train()
    held = holding_of(spread, private)
    if recipe.lora is not None and arithmetic == "bf16":
        halve_frozen(model)
    if recipe.checkpointing:
        use_checkpointing(model, without_dropout=private is not None or clipping is not None)
    optimizer = optimizer_of(model, recipe)
    steps = private.mechanism.steps if private else recipe.steps(len(sequences))
    state = TrainingState(job=job_name(base, sequences, recipe, private, clipping), gradients=0, effort=Effort())
    state = held.load(folder / "resume", state.job, model, optimizer) or state
    if 0 < state.step < steps:
        say(f"training goes on from step {state.step:,} of {steps:,}")
    if advance and state.step:
        advance(state.step)
    batches = ShuffledBatches(
        lengths_of(sequences), recipe.batch_size, recipe.seed, group_by_length=recipe.group_by_length
    )
    evaluation_steps = set(recipe.evaluation_steps(steps)) if evaluate else set()
    passes = _passes(state, private.micro_records if private else recipe.micro_batch or recipe.batch_size, say)
    others = passes.effort.goes_on(arithmetic, device, processes())
    if others:
        say(f"an earlier part of this training ran on {', '.join(others)}")
    _settle_memory(passes, device)
    started = time.monotonic() - state.seconds  # so that the seconds of a resumed run add up

    def stopped() -> bool:
        return select_by is not None and recipe.stops_after([point[select_by] for point in state.history])

    while state.step < steps and not stopped():
        began = time.monotonic()
        # Of dropout; by the step's number, so that a resumed run draws the same. Seeds are below 2^31, so that it fits
        # the 64 bits that torch takes.
        torch.manual_seed(recipe.seed * 2**32 + state.step)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(state.step, steps)
        if private:
            with autocast(arithmetic, device, keeps_casts=spread is None):
                try:
                    loss = held.private_gradient(model, private, state.step, sequences, passes)
                except Halted as halted:
                    # Halting is all that the mechanism puts out here: the model of the steps before is not released.
                    return TrainingResult(folder, 0, halted.step, (), 0.0, halted=True)
        else:
            batch = [sequences[row] for row in batches.rows(state.step)]
            loss, norms = held.batch_gradient(model, batch, clipping, passes, arithmetic)
            if norms:
                state.smallest_norm = min([*norms, math.inf if state.smallest_norm is None else state.smallest_norm])
            # Under a mechanism only the weights are checked, which is post-processing: stopping for the loss of a
            # sampled unit would leak.
            if not math.isfinite(loss):
                raise _diverged("loss", state.step + 1, folder)
        # Under a mechanism ``.grad`` holds the noised mean: momentum and weight decay are post-processing of it.
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        passes.effort.step_seconds += time.monotonic() - began
        state.step += 1
        if loss is not None:
            state.loss_sum += loss
            state.loss_steps += 1
        if advance:
            advance(1)
        if evaluate and state.step in evaluation_steps:
            _require_finite(held, model, state.step, folder)
            # Beside adapters frozen weights may be halved: only autocast multiplies them.
            with autocast(arithmetic, device) if recipe.lora is not None else nullcontext():
                metrics = _evaluated(evaluate, model, state, batches.per_epoch)
            if recipe.keeps_best and select_by is not None:
                _keep_best(held, state, metrics[select_by], folder, model, base)
        if state.step % recipe.checkpoint_every == 0 or state.step == steps or stopped():
            # Before the state is written, so that the last checkpoint is always one to go on from.
            _require_finite(held, model, state.step, folder)
            state.seconds = time.monotonic() - started
            _count(state, passes, device)
            _require_alike(held, model, state.step)
            held.save(folder / "resume", state, model, optimizer)

    final = _final_model(held, folder, model, base, keeps_best=recipe.keeps_best)
    chosen = state.best_step if recipe.keeps_best else state.step
    return TrainingResult(
        final,
        chosen,
        state.step,
        tuple(state.history),
        state.seconds,
        state.smallest_norm,
        state.gradients,
        effort=state.effort,
    )


def _passes(state: TrainingState, most: int, say: Callable[[str], None]) -> Passes:
    """The passes of a run; a state of an earlier version knows no effort, and gets none that would be of a part."""
    return Passes(most, say, effort=state.effort or Effort())


def _settle_memory(passes: Passes, device: torch.device) -> None:
    """Take what was settled on this device before, or settle it now, while no step's tensors are in memory."""
    kept = passes.effort.memory
    if kept is None:
        kept = passes.effort.memory = Memory(device_name(device), default_budget(device))
    passes.budget, passes.splits = kept.budget, kept.splits
    passes.most = passes.most if kept.most is None else min(passes.most, kept.most)


def _evaluated(
    evaluate: Evaluate, model: PreTrainedModel, state: TrainingState, steps_per_epoch: float
) -> Mapping[str, float]:
    """The metrics of the model as it is, which go into the history with the mean loss since the last evaluation."""
    model.eval()
    # On every process: the best step and the end of patience must be the same for all.
    metrics = of_first(dict(evaluate(state.step, model)))
    model.train()
    state.history.append(
        {
            "step": float(state.step),
            "epoch": state.step / steps_per_epoch,
            "train_loss": state.loss_sum / max(1, state.loss_steps),
            **metrics,
        }
    )
    state.loss_sum, state.loss_steps = 0.0, 0
    return metrics


def _final_model(held: Holding, folder: Path, model: PreTrainedModel, base: LanguageModel, *, keeps_best: bool) -> Path:
    """The folder of the chosen model. The best one's is renamed: "final" is there only once the run has finished."""
    final = folder / "final"
    there = (final / "config.json").is_file()
    wait_for_all()  # before the first process makes it, which the others would else find there
    if not there and not keeps_best:
        held.save_model(final, model, base.tokenizer)
    elif not there and rank() == 0:
        (folder / "best").rename(final)
    wait_for_all()
    return final


def _count(state: TrainingState, passes: Passes, device: torch.device) -> None:
    """Add what all processes computed since the last count, and note what was settled."""
    count = torch.tensor([passes.gradients, passes.tokens], dtype=torch.int64, device=device)
    sum_over_ranks([count])
    gradients, tokens = count.tolist()
    passes.gradients = passes.tokens = 0
    state.gradients = None if state.gradients is None else state.gradients + gradients
    passes.effort.tokens += tokens
    passes.effort.measure(device)
    if passes.effort.memory is not None and passes.lowered:
        passes.effort.memory.most, passes.effort.memory.splits = passes.most, passes.splits


def _keep_best(
    held: Holding, state: TrainingState, metric: float, folder: Path, model: PreTrainedModel, base: LanguageModel
) -> None:
    # Strictly: of equal metrics the earlier step is kept.
    if state.best_metric is None or metric < state.best_metric:
        state.best_metric, state.best_step = metric, state.step
        held.save_model(folder / "best", model, base.tokenizer)


def _require_finite(held: Holding, model: PreTrainedModel, step: int, folder: Path) -> None:
    # Of the weights after the noise, never of a unit's gradient: see docs/theory.md#rules-of-a-private-step.
    if not held.finite(model):
        raise _diverged("weights", step, folder)


def _require_alike(held: Holding, model: PreTrainedModel, step: int) -> None:
    """Noise on a GPU depends on its model, and sums on the libraries: copies that part are no copies any more."""
    if processes() > 1:
        remedy = (
            "use GPUs of one model, and the same drivers and versions, for all, and start again: training goes on from"
            " the last checkpoint"
        )
        require_agreement(f"weights after step {step}", remedy, step, held.checksum(model))


def _diverged(what: str, step: int, folder: Path) -> ResumableError:
    return ResumableError(
        f"training stopped: the {what} became NaN or infinite at step {step}; lower finetune.learning_rate and use a"
        f" new run folder (the last good checkpoint is kept under '{folder}')"
    )
