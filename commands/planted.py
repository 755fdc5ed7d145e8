"""``heldin plant`` and ``heldin audit-planted``: audit a training that somebody else runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heldin.base.errors import ExitCode, InputError
from heldin.base.wording import counted
from heldin.commands.finish import command_line, exit_code, findings_as_json, finish, interruptible, tell
from heldin.commands.options import (
    AdapterBase,
    AsHtml,
    AsJson,
    BatchSize,
    Claims,
    DeviceOption,
    FailOn,
    FailOnOption,
    Out,
    Quiet,
    Set,
    SkipBad,
    Strict,
    Verbose,
    dtype_option,
    fail_on_of,
    json_text,
    rows_set,
)
from heldin.models.model_config import PrecisionChoice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heldin.jobs.checkpoint.endpoint import Remote
    from heldin.planting.plant_config import PlantConfig
    from heldin.record.document import Record


def plant(
    config: Annotated[Path, typer.Argument(dir_okay=False, help="Config file. To list keys: heldin config plant.")],
    out: Out = None,
    canaries_only: Annotated[
        bool, typer.Option("--canaries-only", help="Audit only canary users; all real users are members.")
    ] = False,
    audit_fraction: Annotated[
        float | None,
        typer.Option(help="Probability that a real user is audited. Users who are not audited are members."),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help=(
                "What shows that the model was trained on the planted rows. callback: a log that"
                " heldin.AuditCallback or heldin.watch_training wrote; without this log, nothing is certified."
                " declared: a statement by the person in --declared-by."
            ),
        ),
    ] = None,
    looks: Annotated[
        int | None,
        typer.Option(
            help="Number of checkpoints to audit. heldin divides the error probability among the checkpoints."
        ),
    ] = None,
    set_: Set = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    check: Annotated[bool, typer.Option("--check", help="Only print problems, cost and power.")] = False,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Prepare an audit of a model that someone else trains.

    heldin flips a coin for each audited user, and writes a training set with canary users and without non-members to
    OUT/training/. Give the trainer training/ and manifest.json, but never ledger/. After training, run: heldin
    audit-planted OUT --model MODEL. If heldin is killed, run the same command again to resume.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.planting.plant import plant as do
    from heldin.planting.plant_config import load_plant
    from heldin.record.planted_files import MANIFEST, TRAINING

    modes = {"split.audit_fraction": audit_fraction, "looks": looks, "evidence": evidence}
    given = [f"{key}={value}" for key, value in modes.items() if value is not None]
    given += ["split.canaries_only=true"] if canaries_only else []
    given += rows_set(skip_bad_rows, strict, "bad_rows")
    checked = load_plant(config, [*given, *(set_ or [])])
    folder = out or Path("runs") / checked.name
    if check:
        _check(checked, config, json)
        return
    with interruptible():
        manifest = do(checked, folder, reporter_for_this_terminal())
    training = folder / TRAINING / manifest.file
    if json:
        typer.echo(json_text({**manifest.fields(), "folder": str(folder), "training": str(training)}))
        return
    typer.echo(f"training set, {manifest.rows:,} rows: {training}")
    typer.echo(
        f"you may send {folder / MANIFEST} with it; keep {folder / 'ledger'} to yourself, which lists the members"
    )
    typer.echo(f"after training, run: heldin audit-planted {folder} --model MODEL --declared-by NAME")


def _check(config: "PlantConfig", path: Path, json: bool) -> None:
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.planting.check_plan import check_plan, lines

    checked = check_plan(config, reporter_for_this_terminal())
    if json:
        typer.echo(json_text(checked.as_dict()))
        raise typer.Exit(ExitCode.BAD_INPUT if checked.problems else ExitCode.DONE)
    if checked.problems:
        raise InputError(f"{path}: {counted(len(checked.problems), 'problem')}\n  " + "\n  ".join(checked.problems))
    typer.echo("\n".join(lines(checked)))


def audit_planted(
    planted: Annotated[Path, typer.Argument(file_okay=False, help="Folder that heldin plant wrote.")],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Model trained on the planted training set. Repeatable, for checkpoints."),
    ] = None,
    claim: Claims = None,
    declared_by: Annotated[
        str | None,
        typer.Option(
            help=(
                "Name of the person who declares conditions that heldin cannot check, such as that the model was"
                " trained on this set and on no other texts by its users. The report lists the conditions."
            ),
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of a server. --model then names a model on this server."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Option of --endpoint, such as tokenizer=FOLDER or concurrency=8. Repeatable.",
            hidden=True,
        ),
    ] = None,
    dtype: Annotated[PrecisionChoice | None, dtype_option("the plan's")] = None,
    adapter_base: AdapterBase = None,
    batch_size: BatchSize = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            file_okay=False,
            help="Folder for the results (default: FOLDER/audits/1 for the first audit, and so on).",
        ),
    ] = None,
    fail_on: FailOnOption = None,
    html: AsHtml = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    device: DeviceOption = None,
) -> None:
    """Audit a model that was trained on a set from heldin plant.

    heldin plant fixed members, texts and attacks before training, so results can be certified. State the unit of a
    --claim, as in epsilon=8,delta=1e-6,unit=user. If every condition was checked or declared, a contradiction of a
    claim is certified. To list the options of an endpoint, run: heldin config audit endpoint.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.planting.audit import audit_planted as do
    from heldin.planting.plant_folder import read_planted
    from heldin.planting.target import PlantedAudit, require_distinct

    gate = fail_on_of(fail_on)
    if not model:
        raise InputError("no model was given: give --model with the folder or hub name of the trained model")
    if len(model) > 1 and out is not None:
        raise InputError(
            "--out is only for a single --model: leave out --out, and heldin writes to audits/1, audits/2 and so on"
            " in the planted folder"
        )
    remote = _remote(endpoint, set_ or [])
    jobs = [PlantedAudit(planted, name, tuple(claim or ()), declared_by, remote, dtype, adapter_base) for name in model]
    # All of them before the first is scored: a look that was taken is paid for.
    for job in jobs:
        job.check()
    with interruptible():
        if len(jobs) == 1:
            record, folder = do(jobs[0], out, reporter_for_this_terminal(), command=command_line())
            finish(record, folder, json=json, verbose=verbose, fail_on=gate, html=html)
        require_distinct(jobs, read_planted(jobs[0].planted)[0])
        looks = (do(job, None, reporter_for_this_terminal(), command=command_line()) for job in jobs)
        _finish_all(looks, json=json, verbose=verbose, fail_on=gate, html=html)


def _finish_all(
    looks: "Iterator[tuple[Record, Path]]",
    *,
    json: bool,
    verbose: bool,
    fail_on: frozenset[FailOn] | None,
    html: bool,
) -> NoReturn:
    """Print the findings on each model as they are ready, then one line per model. Exit with the most serious code.

    Args:
        looks: the record and the folder of each audit; each audit runs when it is requested.
        json: whether to print one JSON object at the end instead.
        verbose: whether to print every condition and count.
        fail_on: outcomes that make the command fail.
        html: whether to write each report as a web page, too.
    """
    lines: list[str] = []
    objects: list[dict[str, Any]] = []
    codes, failed = set[int](), None
    try:
        for record, folder in looks:
            assert record.planted is not None
            lines.append(_look_line(record))
            code = exit_code(record, fail_on)
            codes.add(code)
            if json:
                objects.append(findings_as_json(record, folder, code, html=html))
            else:
                typer.echo(f"look {record.planted.look}: {record.target.name}")
                tell(record, folder, code, verbose=verbose, html=html)
    except InputError as error:
        if not lines:
            raise
        # What was found stands: each look was paid for.
        failed = error
    # The graver code is the lower one: a certified contradiction before an indicative one, and that before a gate.
    code = min(codes - {ExitCode.DONE}, default=ExitCode.BAD_INPUT if failed else ExitCode.DONE)
    if json:
        why = {} if failed is None else {"error": str(failed)}
        typer.echo(json_text({"audits": objects, "exit_code": code, **why}))
    else:
        typer.echo("\n".join(lines))
    if failed is not None:
        typer.echo(f"error: {failed}", err=True)
    raise typer.Exit(code)


def _look_line(record: "Record") -> str:
    assert record.planted is not None
    auroc = record.primary().auroc
    training = record.planted.training
    epochs = "" if training is None or training.epochs is None else f" ({training.epochs:.3g} epochs)"
    at = "" if training is None else f", step {training.steps}{epochs}"
    return (
        f"look {record.planted.look} of {record.planted.looks}{at}: AUROC {auroc.value:.3f}"
        f" ({auroc.lower:.3f} to {auroc.upper:.3f}), {record.decision.decision.answer.value}: {record.target.name}"
    )


def _remote(url: str | None, overrides: list[str]) -> "Remote | None":
    """Return the connection to a model behind an endpoint; None if no URL is given."""
    if url is None:
        if overrides:
            raise InputError("--set is only for --endpoint, because heldin plant fixed all other keys: leave out --set")
        return None
    from heldin.base.config_errors import checked
    from heldin.jobs.checkpoint.audit_config import EndpointConfig
    from heldin.jobs.checkpoint.endpoint import remote_in
    from heldin.stages.config_files import with_overrides

    return remote_in(checked(EndpointConfig, with_overrides({"url": url}, overrides), "--endpoint"))
