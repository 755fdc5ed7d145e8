"""heldin: was this user held in? The command line; nothing but wiring."""

import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from heldin.base.arguments import require_within
from heldin.base.errors import InputError, ResumableError
from heldin.commands import (
    account,
    audit,
    cache,
    config,
    corpus,
    finished,
    planted,
    run,
    sweep,
    trainer,
    training,
)
from heldin.commands.finish import Interrupted
from heldin.commands.options import (
    BAD_INPUT,
    AsCsv,
    AsJson,
    ExcludeAuroc,
    ExcludeTpr,
    answer,
    beginning,
    thresholds,
)

_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException of the click that typer brings
BUG, RESUMABLE, INTERRUPTED = 1, 5, 130
# Errors of the system that another file name mends. All others, such as a full disk, leave a run that can be resumed.
_MISNAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}

app = typer.Typer(
    help="Was this user held in? Audit language models that were fine-tuned on people's text.",
    no_args_is_help=True,
    # typer's tracebacks show local variables, which hold users' names and texts.
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 bug, 2 bad input or config, 3 certified violation of a claim, 4 indicative violation,"
    " 5 failed but can be resumed, 6 trainer unsafe on input that is not finite (audit-trainer), 130 interrupted."
    " The answer itself, also 'leaks', has no exit code: a gate reads .decision.decision.answer of --json or"
    " record.json.",
)


app.callback()(beginning)
app.command()(sweep.demo)
app.command()(run.run)
app.command()(sweep.sweep)
app.command()(config.config)
app.command()(audit.audit)
app.command()(planted.plant)
app.command("audit-training")(training.audit_training)
app.command("audit-trainer")(trainer.audit_trainer)
for command in (finished.report, finished.compare, finished.verify, finished.export, finished.purge, cache.cache):
    app.command()(command)
app.add_typer(corpus.app, name="corpus")
app.add_typer(account.app, name="account")


@app.command()
def bound(
    scores: Annotated[Path, typer.Argument(help="CSV with the columns user, score, member.")],
    higher_is: Annotated[str, typer.Option(help="Whom a higher score indicates: member or non-member.")] = "member",
    assignment: Annotated[
        str,
        typer.Option(
            help="How membership was decided. coin: an independent fair coin for each user, not an exact half"
            " and not one of each pair. fixed: any other known way, by hand or by date included. unknown: you do not"
            " know."
        ),
    ] = "unknown",
    independent_trainings: Annotated[
        bool, typer.Option("--independent-trainings", help="Each row comes from its own independent training.")
    ] = False,
    delta: Annotated[float | None, typer.Option(help="delta of the bounds (default: the first claim's).")] = None,
    claim: Annotated[
        list[str] | None, typer.Option(help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="plan.json whose privacy curve is tested as a claim.")] = None,
    guesses: Annotated[int | None, typer.Option(help="Number of guesses, chosen before looking at the scores.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Score threshold chosen before looking at the scores. Repeatable.")
    ] = None,
    attacks: Annotated[
        int, typer.Option(min=1, help="Number of attacks tried, if these scores are the best of several.")
    ] = 1,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Bounds and verdict from any tool's scores: which are valid for this design, which are refused and why.

    Exit codes: 3 certified violation of a claim, 4 indicative violation.
    """
    from heldin.bounds import judgement as engine
    from heldin.bounds.claims import parse_claim, plan_claim
    from heldin.bounds.csv_scores import bound_scores, read_scores
    from heldin.bounds.design import Design, assignment_named

    claims = [parse_claim(text) for text in claim or []] + ([plan_claim(plan)] if plan else [])
    # Only who made the scores knows how membership came about: the design is taken at the user's word.
    design = Design(
        assignment_named(assignment),
        independent_trainings,
        coins_stated=True,  # not witnessed by heldin
        guesses=guesses,
        thresholds=tuple(threshold or ()),
        attacks=attacks,
    )
    result = bound_scores(read_scores(scores), design, higher_is=higher_is, delta=delta, claims=claims)
    answer(engine.table(result), result.as_dict(), result.rows(), json=json, csv=csv)
    # After the answer is printed: a violation is a result, not an error.
    raise typer.Exit(result.exit_code)


@app.command()
def power(
    users: Annotated[int, typer.Option(help="Number of users whose membership is decided by coin.")],
    auroc: Annotated[float, typer.Option(help="Expected AUROC of the attack.")],
    delta: Annotated[float, typer.Option(help="delta of the epsilons.")] = 1e-5,
    claim: Annotated[
        list[str] | None, typer.Option(help="Claim to test, such as epsilon=4,delta=1e-6. Repeatable.")
    ] = None,
    scores: Annotated[
        int, typer.Option(help="Number of scores judged together: attacks times ways to aggregate.")
    ] = 15,
    exclude_auroc: ExcludeAuroc = None,
    exclude_tpr: ExcludeTpr = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Estimate what an audit could certify, falsify or exclude, before you pay for it."""
    from heldin.audit.exclusion import exclusion, lines
    from heldin.bounds import power as planning
    from heldin.bounds.claims import parse_claim

    claims = tuple(parse_claim(text) for text in claim or [])
    found = planning.power(users, auroc, delta, claims=claims)
    excluded = exclusion(users, thresholds(exclude_auroc, exclude_tpr), scores=scores)
    fields = {**found.as_dict(), "no_leak_found": excluded.as_dict()}
    # A row of CSV for each claim, and one without claims.
    rows = [{**fields, "claims": asked} for asked in fields["claims"]] or [{**fields, "claims": {}}]
    answer("\n".join([planning.table(found), "", *lines(excluded, users)]), fields, rows, json=json, csv=csv)


def _flowing(doc: str) -> str:
    """A docstring whose paragraphs break where the terminal does: typer keeps the line ends of all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))


def _limited(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every number among its options held to the limits of ``base.section``."""

    @functools.wraps(command)
    def call(**options: Any) -> None:
        for name, value in options.items():
            for number in value if isinstance(value, list | tuple) else (value,):
                if isinstance(number, int | float):
                    require_within(f"--{name.replace('_', '-')}", number)
        command(**options)

    return call


def complete(commands: typer.Typer) -> None:
    """Give the commands of this group help that breaks where the terminal does, and limits on numbers."""
    for command in commands.registered_commands:
        if command.callback is not None:
            if command.callback.__doc__:
                command.help = _flowing(command.callback.__doc__)
            command.callback = _limited(command.callback)


GROUPS = (app, corpus.app, account.app)
for commands in GROUPS:
    complete(commands)


def main() -> None:
    """Run heldin's command line."""
    call(app, "heldin")


def call(commands: typer.Typer, name: str) -> NoReturn:
    """Run a command line; errors that a user can cause become one line and an exit code.

    Args:
        commands: the commands.
        name: what the user types before them.
    """
    # Before the commands import what reads them; a value that the user has set stays.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Threads that wait for each other sleep: beside other processes that are busy, spinning makes two threads several
    # times slower than one. On an idle machine a step takes as long either way.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        # Otherwise click would print errors in its own form and exit by itself, past the handlers below.
        code = commands(standalone_mode=False, prog_name=name)
    except _WrongUse as error:
        _fail_usage(error)
    except InputError as error:
        _fail(f"error: {error}", BAD_INPUT)
    except ResumableError as error:
        _fail(f"stopped: {error}", RESUMABLE)
    except Interrupted:
        _fail("interrupted: the same command resumes from the last checkpoint", INTERRUPTED)
    except OSError as error:
        # Not the system's: libraries raise OSError for what they cannot read, which heldin should have caught.
        if error.errno is None:
            raise
        if error.errno in _MISNAMED and error.filename:
            _fail(f"error: {os.strerror(error.errno)}: '{error.filename}': name another file or folder", BAD_INPUT)
        where = f": '{error.filename}'" if error.filename else ""
        _fail(f"stopped: {os.strerror(error.errno)}{where}; fix it and run the command again", RESUMABLE)
    if code == INTERRUPTED:  # before there was anything to resume
        _fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: Any) -> NoReturn:
    """One line for a wrong option or command, as for any other wrong input; the help if no command was given."""
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
