"""The training loop. It is deterministic and resumable: a step depends only on its number and the state before it.

Ctrl-C and SIGTERM wait for the end of a step, so no part of the step is lost.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from heldin.base.errors import InputError
from heldin.finetune.effort import Effort
from heldin.finetune.filtered import Halted
from heldin.finetune.holding import PlainClipping
from heldin.finetune.ranks import processes
from heldin.finetune.recipe import Recipe
from heldin.finetune.training import Evaluate, begin
from heldin.finetune.units import PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.models.repeated import forget_recordings
from heldin.models.tokens import Tokens

if TYPE_CHECKING:
    from heldin.finetune.sharding import Spread

Log = Callable[[Mapping[str, float], float], object]


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        folder: folder of the chosen model.
        steps: number of optimizer steps done.
        history: one entry per evaluation.
        smallest_norm: smallest gradient norm of a clipping run; None otherwise.
        gradients: number of computed gradients of records.
        uncounted: number of records without a counted token, which have loss 0.
        halted: whether the filter ended the run after ``steps`` steps; a halted run has no model.
        effort: time, devices and memory of the run, over all its resumes.
    """

    folder: Path
    chosen_step: int
    steps: int
    history: tuple[Mapping[str, float], ...]
    seconds: float
    smallest_norm: float | None = None
    gradients: int = 0
    uncounted: int = 0
    halted: bool = False
    effort: Effort = field(default_factory=Effort)


def train(
    base: LanguageModel,
    sequences: Sequence[Tokens],
    recipe: Recipe,
    folder: Path,
    *,
    private: PrivateTraining | None = None,
    clipping: PlainClipping | None = None,
    evaluate: Evaluate | None = None,
    select_by: str | None = None,
    advance: Callable[[int], object] | None = None,
    say: Callable[[str], None] = lambda _: None,
    spread: "Spread | None" = None,
    log: Log | None = None,
) -> TrainingResult:
    """Train ``base`` on ``sequences``, and write the chosen model to ``folder``/final.

    If the process is killed, the same call continues from the last checkpoint and, on a CPU, ends with bitwise the same
    weights. With a single process, Ctrl-C and SIGTERM wait for the end of the step and write a checkpoint. A second
    signal acts at once. The call does not repeat a finished run. Under ``torchrun``, every process makes this call with
    the same arguments and ends with the same model. Only the first process writes.

    Args:
        sequences: tokens of each record (see ``finetune.batches.encode``). The model is trained on no other data.
        private: the mechanism to run instead of plain batches; it fixes the number of steps.
        clipping: clipping of plain batches, without noise; the result has the smallest norm. None: no clipping.
        evaluate: function that training calls at ``recipe.evaluation_steps``, with the number of completed steps and
            the model. Its metrics go into the history.
        select_by: name of the metric of ``evaluate`` that is smallest for the best model. Keeping the best model, and
            early stopping, need this metric.
        advance: called with 1 after every step, and once with the steps of a resumed run.
        say: receives a line when a run resumes, when heldin repeats a step in smaller passes because memory ran out,
            and about the method for per-unit gradients.
        spread: layout of ``base.model`` over the processes; None: each process holds the whole model.
        log: called after each evaluation with the new entry of the history, and the seconds of all steps so far.

    Raises:
        InputError: there are no records, no token counts, or ``folder`` has a checkpoint of another job.
        ResumableError: the weights or the loss of plain training are no longer finite, or the processes' weights
            differ. heldin keeps the last good checkpoint.
    """
    _require_possible(sequences, recipe, evaluate is not None and select_by is not None)
    training = begin(base, sequences, recipe, folder, private, clipping, spread, say)
    state = training.state
    if advance and state.step:
        advance(state.step)
    evaluation_steps = set(recipe.evaluation_steps(training.steps)) if evaluate else set()

    def stopped() -> bool:
        return select_by is not None and recipe.stops_after([point[select_by] for point in state.history])

    while state.step < training.steps and not stopped():
        # Where several train together, they would not all be asked to stop after the same step.
        with put_off() if processes() == 1 else nullcontext(lambda: False) as interrupted:
            try:
                training.take_step()
            except Halted as halted:
                # Halting is all that the mechanism puts out here: the model of the steps before is not released.
                return TrainingResult(folder, 0, halted.step, (), 0.0, halted=True)
            if advance:
                advance(1)
            if evaluate and state.step in evaluation_steps:
                training.evaluate(evaluate, select_by)
                if log:
                    log(state.history[-1], training.passes.effort.step_seconds)
            if state.step % recipe.checkpoint_every == 0 or state.step == training.steps or stopped() or interrupted():
                training.save()
    forget_recordings(training.model)
    if state.effort.clip_norm is not None:
        say(f"clip norm: {state.effort.clip_norm:.4g} after the last step")
    final = training.final_model()
    return TrainingResult(
        final,
        state.best_step if recipe.keeps_best else state.step,
        state.step,
        tuple(state.history),
        state.seconds,
        state.smallest_norm,
        state.gradients,
        state.uncounted,
        effort=state.effort,
    )


def _require_possible(sequences: Sequence[Tokens], recipe: Recipe, chooses: bool) -> None:
    if not sequences:
        raise InputError(
            "members have no record left to train on after set-asides, caps and data defenses: loosen one of"
            " these, or add records"
        )
    if recipe.looks_at_validation and not chooses:
        raise InputError(
            "finetune.select is best, or finetune.patience is set, but nothing is evaluated: set finetune.select to"
            " last and finetune.patience to null"
        )


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def put_off() -> Iterator[Callable[[], bool]]:
    """Postpone the first Ctrl-C or SIGTERM; a second signal acts at once.

    Yields a function that returns whether a signal came. At the end of the block, the signal has its usual effect. Only
    the main thread of a process can postpone signals. In other threads, signals act at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    came: list[int] = []

    def noted(number: int, frame: FrameType | None) -> None:
        if came:
            act(number, frame)
        came.append(number)

    def act(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number, handler in before.items():
        # One that is ignored, or was set by another language, stays.
        if callable(handler) or handler == signal.SIG_DFL:
            signal.signal(number, noted)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is noted:
                signal.signal(number, handler)
    if came:
        act(came[0], None)
