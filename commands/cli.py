"""heldin: was this user held in? The command line; nothing but wiring."""

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heldin.base.errors import InputError, ResumableError
from heldin.commands import account, audit, corpus, study
from heldin.commands import config as config_command
from heldin.commands.finish import Interrupted, command_line, finish, interruptible
from heldin.commands.options import (
    AsJson,
    ExcludeAuroc,
    ExcludeTpr,
    GroupSize,
    Noise,
    Out,
    Rate,
    Target,
    json_text,
    thresholds,
)

if TYPE_CHECKING:
    from heldin.jobs.config import RunConfig

_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException of the click that typer brings
BUG, BAD_INPUT, RESUMABLE, INTERRUPTED = 1, 2, 5, 130
_MISNAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}

app = typer.Typer(
    help="Was this user held in? Audit language models that were fine-tuned on people's text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 bug, 2 bad input or config, 3 certified violation, 4 indicative violation,"
    " 5 failed but can be resumed, 130 interrupted.",
)


app.add_typer(corpus.app, name="corpus")
app.add_typer(account.app, name="account")
app.add_typer(study.app, name="study")


@app.command()
def demo(out: Out = None) -> None:
    """Run the whole job on the built-in corpus, in a few minutes on two cores, and say where the PDF is."""
    from heldin.jobs.demo import demo_config

    _run(demo_config(), out)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="YAML configuration; see configs/.")],
    out: Out = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override: section.key=value. Repeatable.")] = None,
) -> None:
    """Corpus to report: split users by coin, fine-tune, attack, and write record.json and report.pdf.

    The same command again goes on where a killed run stopped.
    """
    from heldin.jobs.config import load_config

    _run(load_config(config, set_ or []), out)


app.command()(audit.audit)
app.command()(config_command.config)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or audit.")],
    people: Annotated[
        bool, typer.Option("--people", help="Print the most exposed users by name, from the owner-only people.parquet.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="With --people: at most so many of them.")] = 20,
) -> None:
    """Make report.pdf from a folder's record.json. With --people print single users, whom the report never names."""
    if people:
        from heldin.audit.exposure import people_table, read_people

        typer.echo(people_table(read_people(run / "people.parquet"), most))
        return
    from heldin.reports.pdf import write_report

    typer.echo(f"report: {write_report(run)}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    over: Annotated[
        str | None, typer.Option(help="Config key that differs (finetune.epochs), or parameters, users or records.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder for compare.svg and compare.json.")] = None,
    json: AsJson = False,
) -> None:
    """Set finished runs side by side: epsilon, validation loss, AUROC, TPR at low FPR, ceiling and verdict of each.

    With --to also as a figure: AUROC and loss over --over, ROC curves, and canary users by substring length.
    """
    from heldin.record import compare as engine

    compared = engine.compare(runs, over)
    fields = {"over": over, "runs": [row.as_dict() for row in compared.rows], "notes": compared.notes}
    if to is not None:
        from heldin.base.files import private_directory, write_text
        from heldin.reports.comparison import comparison_figure

        for name, content in (("compare.svg", comparison_figure(compared)), ("compare.json", json_text(fields))):
            write_text(private_directory(to) / name, content)
    typer.echo(json_text(fields) if json else engine.table(compared))


@app.command()
def verify(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run or audit.")] = None,
    exported: Annotated[
        Path | None, typer.Option(help="In place of a run: a folder that heldin export wrote; compare its files.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute every number of a record from its scores, ledger and plan, and say which differ (exit code 2).

    With --exported DIR show that every file of an exported model is the one that its plan names.
    """
    if (run is None) == (exported is None):
        raise InputError("name the folder of a finished run, or --exported and the folder that heldin export wrote")
    if exported is not None:
        from heldin.jobs.export import verify_exported

        said = verify_exported(exported)
        typer.echo(json_text({"exported": str(exported), "agrees": True, "found": said}) if json else said)
        return
    assert run is not None
    from heldin.base.progress import LineReporter, reporter_for_this_terminal
    from heldin.jobs import verify as engine

    found = engine.verify(run, LineReporter(lambda _: None) if json else reporter_for_this_terminal())
    typer.echo(json_text(found.as_dict()) if json else engine.table(found))
    raise typer.Exit(BAD_INPUT if found.differences else 0)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Path, typer.Option(help="New folder for what may leave.")],
) -> None:
    """Write what may leave: the model folder with a model card and the public plan, nothing else."""
    from heldin.jobs.export import export_run

    typer.echo(f"{to}: {', '.join(export_run(run, to))}")


@app.command()
def bound(
    scores: Annotated[Path, typer.Argument(help="CSV with the columns user, score, member.")],
    higher_is: Annotated[str, typer.Option(help="Whom a higher score speaks for: member or non-member.")] = "member",
    assignment: Annotated[
        str,
        typer.Option(
            help="How membership came about. coin: one fair coin for each user, independent of all others; not an exact"
            " half, not one of each pair, not by hand or by time. fixed: any of these. unknown."
        ),
    ] = "unknown",
    independent_trials: Annotated[
        bool, typer.Option("--independent-trials", help="Every row comes from a training of its own.")
    ] = False,
    delta: Annotated[float | None, typer.Option(help="delta of the bounds; the first claim's if not given.")] = None,
    claim: Annotated[list[str] | None, typer.Option(help="epsilon=4,delta=1e-6. Repeatable.")] = None,
    plan: Annotated[Path | None, typer.Option(help="plan.json whose curve is the claim.")] = None,
    guesses: Annotated[int | None, typer.Option(help="Number of guesses registered before looking.")] = None,
    threshold: Annotated[list[float] | None, typer.Option(help="Fixed before looking. Repeatable.")] = None,
    attacks: Annotated[int, typer.Option(min=1, help="Of how many attacks these scores are the best.")] = 1,
    json: AsJson = False,
) -> None:
    """Bounds and verdict for any tool's scores: what is valid for this design, what is refused and why.

    Exit codes: 3 certified violation of a claim, 4 indicative violation.
    """
    from heldin.bounds import catalogue as engine

    claims = [engine.parse_claim(text) for text in claim or []] + ([engine.plan_claim(plan)] if plan else [])
    result = engine.bound_scores(
        scores,
        higher_is=higher_is,
        assignment=assignment,
        independent_trials=independent_trials,
        delta=delta,
        claims=claims,
        guesses=guesses,
        thresholds=threshold or (),
        attacks=attacks,
    )
    typer.echo(json_text(result.as_dict()) if json else engine.table(result))
    raise typer.Exit(result.verdict.exit_code)


@app.command()
def power(
    users: Annotated[int, typer.Option(help="Users whose membership is decided by coin.")],
    auroc: Annotated[float, typer.Option(help="AUROC that the attack is expected to reach.")],
    delta: Annotated[float, typer.Option(help="delta of the statements.")] = 1e-5,
    claim: Annotated[list[str] | None, typer.Option(help="epsilon=4,delta=1e-6. Repeatable.")] = None,
    scores: Annotated[int, typer.Option(help="Scores that are judged together: attacks by ways to aggregate.")] = 15,
    exclude_auroc: ExcludeAuroc = None,
    exclude_tpr: ExcludeTpr = None,
    json: AsJson = False,
) -> None:
    """What an audit could certify, falsify or exclude, before it is paid for."""
    from heldin.audit.exclusion import exclusion, lines
    from heldin.bounds import catalogue as engine
    from heldin.bounds import power as planning

    claims = tuple(engine.parse_claim(text) for text in claim or [])
    found = planning.power(users, auroc, delta, claims=claims)
    excluded = exclusion(users, thresholds(exclude_auroc, exclude_tpr), scores=scores)
    if json:
        typer.echo(json_text({**found.as_dict(), "no_leak_found": excluded.as_dict()}))
    else:
        typer.echo("\n".join([planning.table(found), "", *lines(excluded, users)]))


@app.command("audit-trainer")
def audit_trainer(
    plan: Annotated[Path | None, typer.Option(help="Audit the trainer under this plan.json.")] = None,
    kind: Annotated[str | None, typer.Option(help="Without a plan: uls, els or example.")] = None,
    population: Annotated[int | None, typer.Option(help="Public number of users (uls) or examples.")] = None,
    cohort: Annotated[float | None, typer.Option(help="Expected number of them in a step.")] = None,
    sampling_rate: Rate = None,
    group_size: GroupSize = 1,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps T.")] = None,
    delta: Annotated[float | None, typer.Option(help="delta of the guarantee.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    canaries: Annotated[int, typer.Option(min=2, help="Canary users of each training, each in by a coin.")] = 2000,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings, each with its own key, coins and canaries.")] = 3,
    directions: Annotated[str, typer.Option(help="Of the canaries' gradients: coordinate or random.")] = "coordinate",
    one_process: Annotated[bool, typer.Option("--one-process", help="Do not train in two processes too.")] = False,
    json: AsJson = False,
) -> None:
    """White-box audit of heldin's own trainer: canary users by coin, every step watched, and the step taken apart.

    Exit codes: 3 certified violation of the accountant's curve, 4 the trainer is not the stated mechanism.
    """
    from heldin.base.coins import new_key
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.white_box import engine
    from heldin.white_box.power import chosen_mechanism, power_table, trainer_power

    mechanism = chosen_mechanism(
        plan,
        kind=kind,
        population=population,
        cohort=cohort,
        sampling_rate=sampling_rate,
        group_size=group_size,
        steps=steps,
        delta=delta,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
    )
    where = engine.directions_of(directions)
    if not json:
        typer.echo(power_table(trainer_power(mechanism, canaries * seeds)))
    parts = engine.parts(seeds, processes=not one_process)
    with reporter_for_this_terminal().track("white-box audit", parts, "parts") as advance:
        found = engine.audit_trainer(
            mechanism,
            [new_key() for _ in range(seeds)],
            canaries=canaries,
            directions=where,
            processes=not one_process,
            advance=advance,
        )
    typer.echo(json_text(found.as_dict()) if json else engine.table(found))
    raise typer.Exit(found.exit_code)


def _run(config: "RunConfig", out: Path | None) -> None:
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.run.pipeline import run as run_pipeline

    folder = out or Path("runs") / config.name
    with interruptible():
        record = run_pipeline(config, folder, reporter_for_this_terminal(), command=command_line())
        if record is not None:
            finish(record, folder)


def main() -> None:
    """Run the command line; turn errors that a user can cause into one line and an exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        code = app(standalone_mode=False, prog_name="heldin")
    except _WrongUse as error:
        _fail_usage(error)
    except InputError as error:
        _fail(f"error: {error}", BAD_INPUT)
    except ResumableError as error:
        _fail(f"stopped: {error}", RESUMABLE)
    except Interrupted:
        _fail("interrupted: the same command goes on from the last checkpoint", INTERRUPTED)
    except OSError as error:
        if error.errno is None:
            raise
        if error.errno in _MISNAMED and error.filename:
            _fail(f"error: {os.strerror(error.errno)}: '{error.filename}': name another file or folder", BAD_INPUT)
        where = f": '{error.filename}'" if error.filename else ""
        _fail(f"stopped: {os.strerror(error.errno)}{where}; mend it and run the command again", RESUMABLE)
    if code == INTERRUPTED:  # before there was anything to go on with
        _fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: Any) -> NoReturn:
    """One line for a wrong option or command, as for any other wrong input; the help where nothing was asked for."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(BAD_INPUT)
    context = getattr(error, "ctx", None)
    help_ = f" (see {context.command_path} --help)" if context else ""
    _fail(f"error: {' '.join(error.format_message().split()).rstrip('.')}{help_}", BAD_INPUT)


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
