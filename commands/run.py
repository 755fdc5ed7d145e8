"""``heldin run``: train a model, attack it, and write the report."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import ExitCode, InputError
from heldin.base.wording import counted
from heldin.commands.finish import command_line, finish, finish_without_model, interruptible
from heldin.commands.options import (
    AsHtml,
    AsJson,
    DeviceOption,
    FailOn,
    FailOnOption,
    Out,
    Quiet,
    Set,
    SkipBad,
    Strict,
    Verbose,
    fail_on_of,
    json_text,
    rows_set,
)

if TYPE_CHECKING:
    from heldin.stages.run_config import RunConfig


def run(
    config: Annotated[
        Path, typer.Argument(dir_okay=False, help="Config file. To list its keys, run: heldin config run.")
    ],
    out: Out = None,
    set_: Set = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Train nothing. Print every problem (exit code 2), or the steps of the run."),
    ] = False,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help=(
                "With --check: GPU memory in GiB. Print the memory that the run needs, and refuse the run"
                " if that is more (default: the memory of this machine's GPU, if there is one)."
            ),
            hidden=True,
        ),
    ] = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    fail_on: FailOnOption = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    device: DeviceOption = None,
    html: AsHtml = False,
    json: AsJson = False,
) -> None:
    """Train a model, attack it, and write the report.

    heldin splits users by coin flips, fine-tunes a model, attacks it, and writes record.json and report.pdf to --out.
    If heldin is killed, run the same command again to resume. Paths in a config are relative to the current folder.
    """
    from heldin.stages.run_config import load_config

    if gpu_memory is not None and not check:
        raise InputError("--gpu-memory is only for --check: leave out --gpu-memory, or add --check")
    gate = fail_on_of(fail_on)
    overrides = [*(set_ or []), *rows_set(skip_bad_rows, strict, "corpus.bad_rows")]
    if check and gate is not None:
        raise InputError("--check makes no answer, so --fail-on has no effect: leave out one of these options")
    if check:
        _check(config, overrides, out, json, gpu_memory)
        return
    _run(load_config(config, overrides), out, json=json, verbose=verbose, fail_on=gate, html=html)


def _check(path: Path, overrides: list[str], out: Path | None, json: bool, gpu_memory: float | None) -> None:
    from heldin.stages.run_config import load_config

    try:
        config = load_config(path, overrides)
    except InputError as error:
        if not json:
            raise
        # Several lines are a heading and a line for each problem; a single line is the problem itself.
        head, *others = str(error).splitlines()
        problems = [line.strip() for line in others or [head]]
        typer.echo(json_text({"ok": False, "problems": problems, "would": {}}))
        raise typer.Exit(ExitCode.BAD_INPUT) from error
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.check.check_run import check_run, lines
    from heldin.models.devices import planned_gpu

    reporter = reporter_for_this_terminal()
    checked = check_run(config, out or Path("runs") / config.name, planned_gpu(gpu_memory), reporter.say)
    if json:
        typer.echo(json_text(checked.as_dict()))
        raise typer.Exit(ExitCode.BAD_INPUT if checked.problems else ExitCode.DONE)
    if checked.problems:
        raise InputError(f"{path}: {counted(len(checked.problems), 'problem')}\n  " + "\n  ".join(checked.problems))
    typer.echo("\n".join(lines(checked)))


def _run(
    config: "RunConfig",
    out: Path | None,
    *,
    json: bool,
    verbose: bool,
    fail_on: frozenset[FailOn] | None,
    html: bool,
) -> None:
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.run import run as run_pipeline
    from heldin.stages.train.tracking import log_results

    folder = out or Path("runs") / config.name
    # Typesetting is inside too: the same command makes the report again.
    with interruptible():
        reporter = reporter_for_this_terminal()
        record = run_pipeline(config, folder, reporter, command=command_line())
        # ``finish`` does not return: what follows is for a run without a record.
        if record is not None:
            try:
                finish(record, folder, json=json, verbose=verbose, fail_on=fail_on, html=html)
            finally:
                # After the report, which is one of the files that are logged.
                log_results(config, folder, record, reporter.say)
    # Only the first of torchrun's processes prints. A RANK without others is somebody else's variable.
    if os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0":
        finish_without_model(folder, fail_on, json=json)
