"""``heldin plant``, and the part of ``heldin audit`` that judges a model trained on what it planted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.commands.finish import command_line, findings_as_json, finish, interruptible, tell
from heldin.commands.options import AT_ENDPOINT, BAD_INPUT, AsJson, DeviceOption, Out, Quiet, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heldin.jobs.checkpoint.endpoint import Remote
    from heldin.jobs.planted.plant_config import PlantConfig
    from heldin.record.document import Record

AT_PLANTED = ("model", "claim", "declared_by", "out", "quiet", "json", "planted", "device", "precision", "verbose")


def plant(
    config: Annotated[Path, typer.Argument(help="YAML file: the training set, who is audited, and the audit.")],
    out: Out = None,
    canaries_only: Annotated[
        bool, typer.Option("--canaries-only", help="Audit canary users alone; all real users stay in.")
    ] = False,
    audit_fraction: Annotated[
        float | None, typer.Option(help="Audit a real user with this probability; all others stay in.")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            help="How it will be known what the model was given. callback: by the log of heldin.AuditCallback or"
            " heldin.watch_training; without it nothing is certified. declared: by the person who signs."
        ),
    ] = None,
    looks: Annotated[int | None, typer.Option(help="Checkpoints that will be audited, which share the level.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override, in YAML: seed=3. Repeatable.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show all problems, cost and power; throw no coin and write nothing.")
    ] = False,
    quiet: Quiet = False,
    device: DeviceOption = None,
    json: AsJson = False,
) -> None:
    """Prepare an audit of a training that somebody else runs: draw coins, and write a training set to train on.

    OUT/training has a file or folder of the same name, format and columns as
    yours, without the rows of held-out users and with those of canary users.
    OUT/manifest.json may go with it; OUT/ledger must stay with you. Train on it,
    and then audit it: heldin audit --planted OUT --model MODEL. If killed, the
    same command goes on.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.planted.plant import plant as do
    from heldin.jobs.planted.plant_config import load_plant
    from heldin.watch.planted_files import MANIFEST, TRAINING

    modes = {"split.audit_fraction": audit_fraction, "looks": looks, "evidence": evidence}
    given = [f"{key}={value}" for key, value in modes.items() if value is not None]
    given += ["split.canaries_only=true"] if canaries_only else []
    checked = load_plant(config, [*given, *(set_ or [])])
    folder = out or Path("runs") / checked.name
    if check:
        _check(checked, config, json)
        return
    with interruptible():
        manifest = do(checked, folder, reporter_for_this_terminal())
    training = folder / TRAINING / manifest.file
    if json:
        typer.echo(json_text({**vars(manifest), "folder": str(folder), "training": str(training)}))
        return
    typer.echo(f"{manifest.rows:,} rows to train on: {training}")
    typer.echo(f"may go with them: {folder / MANIFEST}; stays with you: {folder / 'ledger'} (who is held in)")
    typer.echo(f"afterwards: heldin audit --planted {folder} --model MODEL --declared-by NAME")


def _check(config: "PlantConfig", path: Path, json: bool) -> None:
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.planted.check_plan import check_plan, lines

    checked = check_plan(config, reporter_for_this_terminal())
    if json:
        typer.echo(json_text(checked.as_dict()))
        raise typer.Exit(BAD_INPUT if checked.problems else 0)
    if checked.problems:
        raise InputError(f"{path}: {counted(len(checked.problems), 'problem')}\n  " + "\n  ".join(checked.problems))
    typer.echo("\n".join(lines(checked)))


def audit_planted(called: typer.Context) -> None:
    """Audit a model that was trained on a planted training set, with the options of ``heldin audit``."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.planted.audit import audit_planted as do
    from heldin.jobs.planted.plant_folder import read_planted
    from heldin.jobs.planted.target import PlantedAudit, require_distinct

    # Zero is a value: --max-tokens-sent 0 prints the cost and stops.
    given = {name: value for name, value in called.params.items() if value is not False and value not in (None, [], ())}
    remote = _remote({name: given.pop(name) for name in ("endpoint", *AT_ENDPOINT) if name in given})
    other = next((name for name in given if name not in AT_PLANTED), None)
    if other is not None:
        raise InputError(
            f"--{other.replace('_', '-')} does not go with --planted: heldin plant fixed users, texts and attacks"
        )
    if "model" not in given:
        raise InputError("--planted needs --model: the folder or hub name of the model that was trained")
    models, out, verbose = given["model"], given.get("out"), bool(given.get("verbose"))
    if len(models) > 1 and out is not None:
        raise InputError("--out goes with one --model: several go to audits/LOOK in the planted folder")
    claims = tuple(given.get("claim", ()))
    jobs = [
        PlantedAudit(given["planted"], model, claims, given.get("declared_by"), remote, given.get("precision"))
        for model in models
    ]
    # All of them before the first is scored: a look that was taken is paid for.
    for job in jobs:
        job.check()
    with interruptible():
        if len(jobs) == 1:
            record, folder = do(jobs[0], out, reporter_for_this_terminal(), command=command_line())
            finish(record, folder, json=bool(given.get("json")), verbose=verbose)
        require_distinct(jobs, read_planted(jobs[0].planted)[0])
        looks = (do(job, None, reporter_for_this_terminal(), command=command_line()) for job in jobs)
        _finish_all(looks, json=bool(given.get("json")), verbose=verbose)


def _finish_all(looks: "Iterator[tuple[Record, Path]]", *, json: bool, verbose: bool) -> NoReturn:
    """Print the findings on each model when they are ready, then a line for each, and exit with the gravest code.

    Args:
        looks: records and their folders, each made when it is asked for.
        json: print one object at the end.
        verbose: print every condition and count.
    """
    lines: list[str] = []
    objects: list[dict[str, Any]] = []
    code, failed = 0, None
    try:
        for record, folder in looks:
            assert record.planted is not None
            lines.append(_look_line(record))
            # A certified violation (3) is graver than an indicative one (4).
            code = min({code, record.judgement.exit_code} - {0}, default=0)
            if json:
                objects.append(findings_as_json(record, folder))
            else:
                typer.echo(f"look {record.planted.look}: {record.target.name}")
                tell(record, folder, verbose=verbose)
    except InputError as error:
        if not lines:
            raise
        # What was found stands: each look was paid for.
        failed = error
    code = code or (BAD_INPUT if failed else 0)
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


def _remote(options: dict[str, Any]) -> "Remote | None":
    """Return how to reach a model behind an endpoint, from the options about it; None without any."""
    if not options:
        return None
    if "endpoint" not in options:
        raise InputError(f"--{next(iter(options)).replace('_', '-')} goes with --endpoint")
    from heldin.base.config_errors import checked
    from heldin.jobs.checkpoint.audit_config import EndpointConfig

    content = {"url": options.pop("endpoint"), **options}
    return checked(EndpointConfig, content, "--endpoint").remote()
