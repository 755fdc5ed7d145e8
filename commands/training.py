"""``heldin audit-training``: many independent trainings of a config, with a worst-case user or without, by coin."""

from pathlib import Path
from typing import Annotated

import typer

from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import AsJson, DeviceOption, Out, Quiet


def audit_training(
    config: Annotated[Path, typer.Argument(help="YAML of the run whose training and plan are tested.")],
    runs: Annotated[
        int, typer.Option(min=2, help="Number of trainings; each includes the worst-case user with probability 1/2.")
    ] = 200,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override: section.key=value. Repeatable.")] = None,
    out: Out = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Trainings in parallel (default: cores).")] = None,
    target: Annotated[
        str, typer.Option(help="What to train: defense (the config's), or none as a control.")
    ] = "defense",
    documents: Annotated[
        int | None, typer.Option(min=1, help="Documents of the worst-case user (default: the group size).")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Score threshold, fixed beforehand (default: a quarter of the trainings picks it)."),
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(help="Also test a claim such as epsilon=8,delta=1e-6. Repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the config's.")] = None,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Audit how models are trained: train many small ones, with or without a worst-case user, and bound epsilon below.

    Each training runs the config's whole defense under its own key and yields one score; Clopper-Pearson limits at one
    threshold certify a lower bound on epsilon per user (docs/independent-trainings.md). If killed, the same command
    resumes. Exit code 3 if a claim is violated.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.bounds.claims import parse_claim
    from heldin.jobs.retraining.engine import audit_trainings
    from heldin.jobs.retraining.job import TrainingsAudit, target_of
    from heldin.stages.config import load_config

    # --seed last, so that it wins over ``--set seed=...``.
    checked = load_config(config, [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    # Before the first training, and as numbers: a curve is only tested from the config's own plan.
    stated = [parse_claim(text) for text in claim or []]
    job = TrainingsAudit(
        config=checked,
        runs=runs,
        target=target_of(target),
        documents=documents,
        claims=tuple((claim.epsilon, claim.delta) for claim in stated),
        threshold=threshold,
    )
    folder = out or Path("runs") / checked.name
    with interruptible():
        record = audit_trainings(job, folder, reporter_for_this_terminal(), command=command_line(), processes=processes)
        finish(record, folder, json=json)
