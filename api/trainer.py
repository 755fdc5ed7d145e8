"""White-box audit of a private training step, heldin's own or another trainer's."""

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
    """Check that ``step`` runs ``mechanism``: insert canary gradients by coin, and watch and test every noised step.

    Args:
        step: one private step, with the signature of ``finetune.private.private_gradient``: it takes the model, the
            training, the number of the step and all token sequences, and writes the noised gradient to ``.grad``
            (docs/white-box.md). None: heldin's own trainer.
        mechanism: the mechanism that the step should run, or its plan.json.
        trainer: a whole trainer in place of a step: it trains ``base.model`` in place and calls ``training.watch`` with
            the gradients that its optimizer reads. A method ``optimizer`` states its optimizer (docs/white-box.md).
        trainings: number of trainings; each has a separate key, coins and canaries.
        canaries: number of canaries in each training.
        directions: directions of the canaries' gradients: "coordinate" is tight against the accountant, "random" covers
            all parameters.
        processes: also train in two processes; ``step`` must then be a function of a module that can be imported.
        model: tiny model for the audit: "gpt-neo" or "gpt2".
        tied: whether the model's head is its embedding table, as in the released models.
        accept: findings that do not count towards ``exit_code``, although the outcome still states them. The only such
            finding is "non-finite": a unit with a gradient that is not finite breaks the step.

    Returns:
        The outcome, the bounds and verdict from the coins, every check, and each alarm with its kind.

    Raises:
        InputError: this audit does not test the mechanism, there are too few or too many canaries, ``accept`` has an
            unknown finding, or both a step and a trainer are given.
    """
    if step is not None and trainer is not None:
        raise InputError("give exactly one of step (to audit one step) and trainer (to audit a whole trainer)")
    if directions not in get_args(Directions):
        raise InputError(f"directions is {directions!r}: choose {' or '.join(get_args(Directions))}")
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
