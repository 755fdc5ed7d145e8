"""A training in progress: its steps, evaluations and checkpoints. Each of them depends only on the state before it."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from heldin.base.artefacts import State, state_of
from heldin.base.errors import InputError, ResumableError
from heldin.base.files import text_sha256
from heldin.defenses.gradients.engine_choice import default_budget
from heldin.finetune.batches import ShuffledBatches
from heldin.finetune.checkpoints import TrainingState
from heldin.finetune.declared import declared_gradient
from heldin.finetune.effort import Memory
from heldin.finetune.filtered import filtered_gradient
from heldin.finetune.holding import Holding, PlainClipping, whole_holding
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic, arithmetic_of, autocast
from heldin.finetune.preparation import halve_frozen, optimizer_of, use_checkpointing, with_adapters
from heldin.finetune.private import private_gradient
from heldin.finetune.ranks import (
    least_over_ranks,
    of_first,
    processes,
    rank,
    require_agreement,
    sum_over_ranks,
    wait_for_all,
)
from heldin.finetune.recipe import Recipe
from heldin.finetune.sampled_units import Units
from heldin.finetune.token_store import bearing_of, lengths_of, sequences_digest
from heldin.finetune.units import PrivateTraining
from heldin.models.devices import begin_peak, device_name, seed_generators
from heldin.models.loading import LanguageModel
from heldin.models.tokens import Tokens

if TYPE_CHECKING:
    from heldin.finetune.sharding import Spread

_SHAPES_NOTHING = ("checkpoint_every", "checkpointing", "shard", "report_to", "report_unnoised")
Evaluate = Callable[[int, PreTrainedModel], Mapping[str, float]]


@dataclass(frozen=True)
class OngoingTraining:
    """A training in progress: the objects that a step needs, and the current state.

    Attributes:
        base: the model with which training began.
        sequences: tokens of each record.
        private: the mechanism; None: plain batches.
        clipping: clipping of plain batches; None: none.
        held: layout of the model over the processes, with the operations for this layout.
        model: the trained model, adapters included.
        optimizer: optimizer of the trainable weights.
        steps: number of optimizer steps of the whole run.
        batches: rows of each plain batch.
        state: current state of the run.
        passes: limits of a pass, and the amount of work since the last count.
        started: start time on the monotonic clock, minus the seconds of earlier calls.
    """

    base: LanguageModel
    sequences: Sequence[Tokens]
    recipe: Recipe
    folder: Path
    private: PrivateTraining | None
    clipping: PlainClipping | None
    held: Holding
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    arithmetic: Arithmetic
    steps: int
    batches: ShuffledBatches
    state: TrainingState
    passes: Passes
    started: float

    def take_step(self) -> None:
        """Take one optimizer step.

        Raises Halted if a filter ends the run. Raises ResumableError if a plain loss is not finite.
        """
        began = time.monotonic()
        state = self.state
        # Of dropout; by the step's number, so that a resumed run draws the same. Seeds are below 2^31, so that it fits
        # the 64 bits that torch takes.
        seed_generators(self.recipe.seed * 2**32 + state.step, self.base.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(state.step, self.steps)
        loss = self._plain_gradient() if self.private is None else self._private_gradient(self.private)
        # Under a mechanism ``.grad`` holds the noised mean: momentum and weight decay are post-processing of it.
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.passes.effort.step_seconds += time.monotonic() - began
        state.step += 1
        if loss is not None:
            state.loss_sum += loss
            state.loss_steps += 1

    def _private_gradient(self, private: PrivateTraining) -> float | None:
        with autocast(self.arithmetic, self.base.device, keeps_casts=self.held.keeps_casts):
            return self.held.private_gradient(self.model, private, self.state.step, self.sequences, self.passes)

    def _plain_gradient(self) -> float:
        state, batch = self.state, [self.sequences[row] for row in self.batches.rows(self.state.step)]
        loss, norms = self.held.batch_gradient(self.model, batch, self.clipping, self.passes, self.arithmetic)
        if self.clipping is not None:
            # A process knows the norms of its own examples, and may have none of a small batch.
            least = least_over_ranks(min(norms, default=math.inf), self.base.device)
            state.smallest_norm = least if state.smallest_norm is None else min(least, state.smallest_norm)
        # Under a mechanism only the weights are checked, which is post-processing: stopping for the loss of a
        # sampled unit would leak.
        if not math.isfinite(loss):
            raise _diverged("loss", state.step + 1, self.folder)
        return loss

    def evaluate(self, evaluate: Evaluate, select_by: str | None) -> None:
        """Measure the current model. Keep the model if it is the best so far and the recipe selects the best."""
        self._require_finite()
        # Beside adapters frozen weights may be halved: only autocast multiplies them.
        halved = self.recipe.lora is not None
        with autocast(self.arithmetic, self.base.device) if halved else nullcontext():
            metrics = self._evaluated(evaluate)
        if self.recipe.keeps_best and select_by is not None:
            self._keep_best(metrics[select_by])

    def _evaluated(self, evaluate: Evaluate) -> Mapping[str, float]:
        """Return the metrics for the history, with the mean training loss since the last evaluation."""
        state = self.state
        self.model.eval()
        # On every process: the best step and the end of patience must be the same for all.
        metrics = of_first(dict(evaluate(state.step, self.model)))
        self.model.train()
        state.history.append(
            {
                "step": float(state.step),
                "epoch": state.step / self.batches.per_epoch,
                "train_loss": state.loss_sum / max(1, state.loss_steps),
                **metrics,
            }
        )
        state.loss_sum, state.loss_steps = 0.0, 0
        return metrics

    def _keep_best(self, metric: float) -> None:
        # Strictly: of equal metrics the earlier step is kept.
        if self.state.best_metric is None or metric < self.state.best_metric:
            self.state.best_metric, self.state.best_step = metric, self.state.step
            self.held.save_model(self.folder / "best", self.model, self.base.tokenizer)

    def save(self) -> None:
        """Write a checkpoint."""
        # Before the state is written, so that the last checkpoint is always one to go on from.
        self._require_finite()
        self.state.seconds = time.monotonic() - self.started
        self._count()
        self._require_alike()
        self.held.save(self.folder / "resume", self.state, self.model, self.optimizer)

    def _require_finite(self) -> None:
        # Of the weights after the noise, never of a unit's gradient: see docs/theory.md#rules-of-a-private-step.
        if not self.held.finite(self.model):
            raise _diverged("weights", self.state.step, self.folder)

    def _count(self) -> None:
        """Add the work of all processes since the last count, and note the memory settings."""
        state, passes = self.state, self.passes
        count = torch.tensor([passes.gradients, passes.tokens], dtype=torch.int64, device=self.base.device)
        sum_over_ranks([count])
        gradients, tokens = count.tolist()
        passes.gradients = passes.tokens = 0
        state.gradients += gradients
        passes.effort.tokens += tokens
        passes.effort.measure(self.base.device)
        if passes.effort.memory is not None and passes.lowered:
            passes.effort.memory.most, passes.effort.memory.splits = passes.most, passes.splits

    def _require_alike(self) -> None:
        """Require equal weights on all processes.

        Copies may differ, because noise depends on the GPU model and sums depend on the libraries.
        """
        if processes() > 1:
            remedy = (
                "use GPUs of one model, with the same drivers and versions, and start again: training continues"
                " from the last checkpoint"
            )
            step = self.state.step
            require_agreement(f"weights after step {step}", remedy, step, self.held.checksum(self.model))

    def final_model(self) -> Path:
        """Return the folder of the chosen model, which exists only after the run has finished."""
        final = self.folder / "final"
        there = state_of(final) is State.WHOLE
        wait_for_all()  # before the first process makes it, which the others would else find there
        if not there and not self.recipe.keeps_best:
            self.held.save_model(final, self.model, self.base.tokenizer)
        elif not there and rank() == 0:
            (self.folder / "best").rename(final)
        wait_for_all()
        return final


def holding_of(spread: "Spread | None", private: PrivateTraining | None) -> Holding:
    """Return the holding of a model with layout ``spread``; None: every process holds the whole model.

    Raises InputError if the mechanism needs whole models and the model is spread.
    """
    filters = private is not None and private.mechanism.clip.filters
    declared = private is not None and private.mechanism.declared is not None
    if spread is None:
        own = filtered_gradient if filters else private_gradient
        return whole_holding(declared_gradient if declared else own)
    if declared:
        raise InputError(
            "finetune.shard: the step of a package's mechanism needs whole models. Leave finetune.shard out"
        )
    whole = () if private is None else (private.mechanism.local, private.mechanism.clip_quantile)
    if filters or any(part is not None for part in whole):
        raise InputError(
            "finetune.shard: local updates, the concentration filter and a clip quantile need whole models. Leave"
            " finetune.shard out"
        )
    # Sharding is no part of a training on one device.
    from heldin.finetune.sharded_holding import sharded_holding

    return sharded_holding(spread)


def begin(
    base: LanguageModel,
    sequences: Sequence[Tokens],
    recipe: Recipe,
    folder: Path,
    private: PrivateTraining | None,
    clipping: PlainClipping | None,
    spread: "Spread | None",
    say: Callable[[str], None],
) -> OngoingTraining:
    """Make model and optimizer, and continue from the last checkpoint if there is one.

    Args:
        private: the mechanism to run; None: plain batches.
        clipping: clipping of plain batches, without noise; None: no clipping.
        spread: layout of ``base.model`` over the processes; None: each process holds the whole model.
        say: function that receives lines for the user.

    Raises InputError if ``folder`` has a checkpoint of another job.
    """
    device = base.device
    begin_peak(device)
    arithmetic = arithmetic_of(recipe.precision, device)
    if recipe.lora is not None and recipe.lora.dropout and (private is not None or clipping is not None):
        raise InputError(
            f"finetune.lora.dropout is {recipe.lora.dropout}, but per-unit gradients are computed without dropout:"
            " set finetune.lora.dropout to 0"
        )
    # Before the adapters are made, whose initial weights it decides.
    seed_generators(recipe.seed, device)
    model = (base.model if spread else with_adapters(base.model, recipe).to(device)).train()
    held = holding_of(spread, private)
    if recipe.lora is not None and arithmetic == "bf16":
        halve_frozen(model)
    if recipe.checkpointing:
        use_checkpointing(model, without_dropout=private is not None or clipping is not None)
    optimizer = optimizer_of(model, recipe)
    steps = private.mechanism.steps if private else recipe.steps(len(sequences))
    if state_of(folder / "final") in (State.CHANGED, State.UNLISTED):
        discard_model(folder / "final", recipe, say)
    state = TrainingState(job=job_name(base, sequences, recipe, private, clipping))
    state = held.load(folder / "resume", state.job, model, optimizer, say=say) or state
    state.uncounted = _uncounted(sequences, say)
    if 0 < state.step < steps:
        say(f"training continues from step {state.step:,} of {steps:,}")
    most = private.micro_records if private else recipe.micro_batch or recipe.batch_size
    passes = Passes(most, say, effort=state.effort)
    others = passes.effort.goes_on(arithmetic, device, processes())
    if others:
        say(f"an earlier part of this training ran on {', '.join(others)}")
    _settle_memory(passes, device)
    return OngoingTraining(
        base=base,
        sequences=sequences,
        recipe=recipe,
        folder=folder,
        private=private,
        clipping=clipping,
        held=held,
        model=model,
        optimizer=optimizer,
        arithmetic=arithmetic,
        steps=steps,
        batches=ShuffledBatches(
            lengths_of(sequences), recipe.batch_size, recipe.seed, group_by_length=recipe.group_by_length
        ),
        state=state,
        passes=passes,
        started=time.monotonic() - state.seconds,  # so that the seconds of a resumed run add up
    )


def _uncounted(sequences: Sequence[Tokens], say: Callable[[str], None]) -> int:
    """Count the records without a counted token. Raises InputError if no record has a counted token."""
    uncounted = int((bearing_of(sequences) == 0).sum())
    if uncounted == len(sequences):
        raise InputError(
            "no token of any training record counts, so there is nothing to learn: raise finetune.sequence_length,"
            " or correct the column in corpus.source.columns.spans"
        )
    if uncounted:
        say(
            f"training: {uncounted:,} of {len(sequences):,} records have no token that counts within"
            " finetune.sequence_length, and add nothing to the loss"
        )
    return uncounted


def discard_model(final: Path, recipe: Recipe, say: Callable[[str], object]) -> None:
    """Remove a finished model that was changed after training, so heldin makes it again from the last checkpoint.

    Every process must call this. Raises InputError if only the whole training could make the model again.
    """
    if recipe.keeps_best:
        raise InputError(
            f"'{final}' is damaged or was changed, and there is no other copy of the best model: restore '{final}',"
            " or start a new run folder"
        )
    say(f"'{final}' is damaged or was changed, so heldin makes the model again from the last checkpoint")
    wait_for_all()
    if rank() == 0:
        shutil.rmtree(final)
    wait_for_all()


def _settle_memory(passes: Passes, device: torch.device) -> None:
    """Use the memory settings of this device.

    If there are none, determine them now, while memory has no step's tensors.
    """
    kept = passes.effort.memory
    if kept is None:
        kept = passes.effort.memory = Memory(device_name(device), default_budget(device))
    passes.budget, passes.splits = kept.budget, kept.splits
    passes.most = passes.most if kept.most is None else min(passes.most, kept.most)


def _diverged(quantity: str, step: int, folder: Path) -> ResumableError:
    return ResumableError(
        f"training stopped, because the {quantity} became NaN or infinite at step {step}: lower"
        f" finetune.learning_rate, and use a new run folder (the last good checkpoint is in '{folder}')"
    )


def job_name(
    base: LanguageModel,
    sequences: Sequence[Tokens],
    recipe: Recipe,
    private: PrivateTraining | None,
    clipping: PlainClipping | None = None,
) -> str:
    """Return a hash of all inputs that affect the weights. A checkpoint resumes only the job with the same name.

    Args:
        base: the model to start from.
        recipe: hyperparameters; the fields in ``_SHAPES_NOTHING`` are not hashed.
        private: the mechanism with its key and units, or None.
        clipping: clipping of plain batches, or None.
    """
    shaping = {k: v for k, v in asdict(recipe).items() if k not in _SHAPES_NOTHING}
    mechanism = repr(clipping) if clipping else ""
    if private:
        units = private.units if isinstance(private.units, Units) else Units.of(private.units)
        plan = private.mechanism.model_dump_json()
        # With the key: a checkpoint that was made under another one belongs to another run.
        parts = [plan, private.key.hex(), private.noise, units.digest(), repr(private.chunk)]
        if private.records.named is not None:
            # Whom a record names decides in which steps it is used.
            parts += private.records.named.parts()
        mechanism = text_sha256(*parts)
    return text_sha256(base.fingerprint, repr(shaping), mechanism, sequences_digest(sequences))
