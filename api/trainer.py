"""White-box audit of any private training step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from heldin.base.coins import new_key
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter, reporter_for_this_terminal
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import stated_plan
from heldin.white_box import engine
from heldin.white_box.engine import TrainerAudit
from heldin.white_box.outcome import accepted_kinds
from heldin.white_box.stage import Architecture, stage_model
from heldin.white_box.trainers import PrivateStep, Trainer, loop_trainer, stepwise

Directions = Literal["coordinate", "random"]


def audit_trainer(
    step: PrivateStep | None,
    mechanism: Mechanism | str | Path,
    *,
    trainer: Trainer | None = None,
    trainings: int = 3,
    canaries: int = 2000,
    directions: Directions = "coordinate",
    processes: bool = False,
    model: Architecture = "gpt-neo",
    tied: bool = True,
    accept: Sequence[str] = (),
    quiet: bool = False,
) -> TrainerAudit:
    """Check that ``step`` runs ``mechanism``: insert canary gradients by coin, watch every noised step, test the step.

    Args:
        step: one private step, with the signature of ``finetune.private.private_gradient``: takes the model, the
            training, the step number and all token sequences, and leaves in ``.grad`` the noised gradient for the
            optimizer (docs/white-box.md). None audits heldin's own trainer.
        mechanism: the mechanism that the step claims to run, or its plan.json.
        trainer: a whole trainer instead of a step. It trains ``base.model`` in place and calls ``training.watch`` with
            the input of its optimizer. A method ``optimizer`` states the trainer's optimizer (docs/white-box.md).
        trainings: number of trainings, each with its own key, coins and canaries.
        canaries: number of canaries per training.
        directions: directions of the canaries' gradients: "coordinate" is tight against the accountant, "random" covers
            all parameters.
        processes: whether to train in two processes as well; ``step`` must then be a function of an importable module.
        model: tiny model for the audit: "gpt-neo" or "gpt2".
        tied: whether the head is the embedding table, as in the released models; False gives the model a separate head.
        accept: findings that do not count towards ``exit_code``, though the outcome reports them: "non-finite" means
            that a unit whose gradient is not finite breaks the step.

    Returns:
        The outcome, the bounds and verdict from the coins, every check, and the alarms with their kinds.

    Raises:
        InputError: this audit does not test the mechanism, there are too few or too many canaries, a finding cannot be
            accepted, or both a step and a trainer are given.
    """
    if step is not None and trainer is not None:
        raise InputError("step and trainer are both given: audit either one step, with step, or a whole trainer")
    if directions not in get_args(Directions):
        raise InputError(f"directions = {directions!r}: choose {' or '.join(get_args(Directions))}")
    accepted = accepted_kinds(accept)
    # Read before any step runs: it is what the audit compares the step with.
    stated = stated_plan(mechanism)
    reporter = LineReporter(lambda line: None) if quiet else reporter_for_this_terminal()
    parts = engine.parts(trainings, processes=processes)
    with reporter.track("white-box audit", parts, "parts") as advance:
        return engine.audit_trainer(
            stated,
            # A key for each training: under one key their noise would be equal, and their coins would not be
            # independent (docs/theory.md#keys-and-coins).
            [new_key() for _ in range(trainings)],
            canaries=canaries,
            directions=directions,
            trainer=trainer or (loop_trainer if step is None else stepwise(step)),
            processes=processes,
            advance=advance,
            model=stage_model(model, tied=tied),
            accepted=accepted,
        )
