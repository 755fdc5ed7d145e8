"""``heldin retrain`` (audit many trainings) and ``heldin white-box`` (audit the code of a trainer)."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import (
    AsHtml,
    AsJson,
    Claims,
    DeviceOption,
    FailOnOption,
    Noise,
    Quiet,
    Rate,
    Set,
    SkipBad,
    Strict,
    Target,
    Verbose,
    fail_on_of,
    json_text,
    rows_set,
)
from heldin.white_box.outcome import Acceptable, accepted_kinds

HOW = "How the audit is done"
RECORDS = "For els and example, which sample records"


def retrain(
    config: Annotated[
        Path,
        typer.Argument(dir_okay=False, help="Config file of a run. heldin tests the run's training and plan."),
    ],
    trainings: Annotated[
        int,
        typer.Option(
            min=2, help="Number of training runs. Each run includes the worst-case user with probability 1/2."
        ),
    ] = 200,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            file_okay=False,
            help="Folder for the results (default: runs/NAME-retrained).",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of parallel training runs (default: the number of cores).")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="WORD", help="Defense during training. defense: as in the config. none: no defense, as a control."
        ),
    ] = "defense",
    documents: Annotated[
        int | None,
        typer.Option(min=1, help="Number of documents of the worst-case user (default: the group size).", hidden=True),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Score threshold, fixed beforehand (default: computed from the first quarter of the training runs).",
            hidden=True,
        ),
    ] = None,
    claim: Claims = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    fail_on: FailOnOption = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Public seed (default: the seed in the config).", hidden=True)
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    device: DeviceOption = None,
    html: AsHtml = False,
    json: AsJson = False,
) -> None:
    """Audit a training procedure with many small training runs.

    A coin decides whether a training run includes a worst-case user. Each training run uses the config's whole defense
    with a separate key, and yields one score. Clopper-Pearson limits at one threshold then certify a lower bound on
    epsilon per user (docs/retraining.md). If heldin is killed, run the same command again to resume.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.bounds.verdict import parse_claim
    from heldin.jobs.retraining.engine import audit_trainings
    from heldin.jobs.retraining.job import TrainingsAudit, target_of
    from heldin.stages.run_config import load_config

    gate = fail_on_of(fail_on)
    # --seed last, so that it wins over ``--set seed=...``.
    rows = rows_set(skip_bad_rows, strict, "corpus.bad_rows")
    checked = load_config(config, [*(set_ or []), *rows, *([] if seed is None else [f"seed={seed}"])])
    # Before the first training, and as numbers: a curve is only tested from the config's own plan.
    stated = [parse_claim(text) for text in claim or []]
    job = TrainingsAudit(
        config=checked,
        runs=trainings,
        target=target_of(target),
        documents=documents,
        claims=tuple((claim.epsilon, claim.delta) for claim in stated),
        threshold=threshold,
    )
    folder = out or Path("runs") / f"{checked.name}-retrained"  # ``heldin run`` of the config writes to runs/NAME
    with interruptible():
        record = audit_trainings(job, folder, reporter_for_this_terminal(), command=command_line(), processes=processes)
        finish(record, folder, json=json, verbose=verbose, fail_on=gate, html=html)


def white_box(
    plan: Annotated[Path | None, typer.Option(dir_okay=False, help="plan.json of the mechanism to audit.")] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="WORD", help="Mechanism, if no --plan is given: uls, els or example.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="For uls: public number of users.")] = None,
    cohort: Annotated[float | None, typer.Option(help="For uls: expected number of users per step.")] = None,
    examples: Annotated[int | None, typer.Option(help="Public number of examples.", rich_help_panel=RECORDS)] = None,
    batch: Annotated[
        float | None, typer.Option(help="Expected number of examples per step.", rich_help_panel=RECORDS)
    ] = None,
    group_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of examples per user.", rich_help_panel=RECORDS)
    ] = 1,
    sampling_rate: Rate = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer steps T.")] = None,
    delta: Annotated[float | None, typer.Option(help="delta of the guarantee.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    step: Annotated[
        str | None,
        typer.Option(help="Step function to audit, as MODULE:NAME (default: heldin's trainer).", rich_help_panel=HOW),
    ] = None,
    canaries: Annotated[
        int,
        typer.Option(
            min=2,
            help="Number of canary users per training run. A fair coin decides the membership of each user.",
            rich_help_panel=HOW,
        ),
    ] = 2000,
    trainings: Annotated[
        int,
        typer.Option(
            min=1, help="Number of training runs, each with its own key, coins and canaries.", rich_help_panel=HOW
        ),
    ] = 3,
    directions: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Directions of the canary users' gradients: coordinate or random.",
            rich_help_panel=HOW,
            hidden=True,
        ),
    ] = "coordinate",
    model: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Architecture of the tiny model for the audit: gpt-neo or gpt2.",
            rich_help_panel=HOW,
            hidden=True,
        ),
    ] = "gpt-neo",
    untied: Annotated[
        bool,
        typer.Option(
            "--untied",
            help="Give the model a separate output head instead of tied embeddings.",
            rich_help_panel=HOW,
            hidden=True,
        ),
    ] = False,
    one_process: Annotated[
        bool,
        typer.Option(
            "--one-process",
            help="Skip the check that repeats the training in two processes.",
            rich_help_panel=HOW,
            hidden=True,
        ),
    ] = False,
    accept: Annotated[
        list[Acceptable] | None,
        typer.Option(
            help=(
                "Finding to report without changing the exit code. Repeatable. non-finite: a gradient "
                "with infinite or NaN values breaks the step."
            ),
            rich_help_panel=HOW,
            hidden=True,
        ),
    ] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Audit the code of a trainer: watch and check each step.

    Coins decide which canary users each training run includes. Without --step, the command audits heldin's trainer.
    With --step, it audits your step function in one process. docs/white-box.md describes the signature of this
    function. To audit Opacus, give --step heldin.white_box.opacus_step:opacus.

    Exit codes: 0 no alarm; 3 the accountant's curve is contradicted; 6 the trainer runs the stated mechanism on finite
    input only (0 with --accept non-finite); 7 the trainer does not run the stated mechanism.
    """
    from heldin.base.coins import new_key
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.white_box import engine
    from heldin.white_box.findings import WIDTH, wrapped
    from heldin.white_box.power import chosen_mechanism, power_table, trainer_power
    from heldin.white_box.stage import stage_model
    from heldin.white_box.trainers import imported_step, loop_trainer, stepwise

    trainer = loop_trainer if step is None else stepwise(imported_step(step))
    processes = step is None and not one_process
    mechanism = chosen_mechanism(
        plan,
        kind=kind,
        users=users,
        cohort=cohort,
        examples=examples,
        batch=batch,
        sampling_rate=sampling_rate,
        group_size=group_size,
        steps=steps,
        delta=delta,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
    )
    where, on = engine.directions_of(directions), stage_model(model, tied=not untied)
    # Before the work: whoever sees that these canaries cannot reject enough can stop here.
    width = min(WIDTH, shutil.get_terminal_size().columns)
    if not json:
        power = power_table(trainer_power(mechanism, canaries * trainings))
        typer.echo("\n".join(wrapped(power.splitlines(), width)))
    parts = engine.parts(trainings, processes=processes)
    with reporter_for_this_terminal().track("white-box audit", parts, "parts") as advance:
        audited = engine.audit_trainer(
            mechanism,
            # A fresh secret key for each training, not a seed: coins under a public seed are seen
            # (docs/theory.md#keys-and-coins).
            [new_key() for _ in range(trainings)],
            canaries=canaries,
            directions=where,
            trainer=trainer,
            processes=processes,
            advance=advance,
            model=on,
            accepted=accepted_kinds(accept or []),
        )
    typer.echo(json_text(audited.as_dict()) if json else engine.table(audited, width))
    raise typer.Exit(audited.exit_code)
