"""heldin: was this user held in? The command line; nothing but wiring."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from corpus.errors import InputError, ResumableError

if TYPE_CHECKING:
    from audit.account import AccountRow
    from audit.config import RunConfig
    from audit.record import Record
    from corpus.store import CorpusStore

BUG, BAD_INPUT, RESUMABLE, INTERRUPTED = 1, 2, 5, 130

app = typer.Typer(
    help="Was this user held in? Audit language models that were fine-tuned on people's text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 bug, 2 bad input or config, 3 certified violation, 4 indicative violation,"
    " 5 failed but can be resumed, 130 interrupted.",
)
corpus_app = typer.Typer(help="Build a corpus, or say what is in it.", no_args_is_help=True)
app.add_typer(corpus_app, name="corpus")


class _AccountGroup(typer.core.TyperGroup):
    """Lets a plan file stand where a subcommand would: `heldin account plan.json`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0].endswith(".json"):
            args = ["plan", *args]
        return super().resolve_command(ctx, args)


account_app = typer.Typer(
    cls=_AccountGroup,
    help="What a mechanism costs: noise, epsilon, and the bound on any attacker, without training.",
    no_args_is_help=True,
)
app.add_typer(account_app, name="account")

Out = Annotated[Path | None, typer.Option(help="Folder for the results (default: runs/NAME).")]
UserColumn = Annotated[str, typer.Option(help="Column that names the user.")]
TextColumn = Annotated[str, typer.Option(help="Column that holds the text.")]
IdColumn = Annotated[str | None, typer.Option(help="Column with unique record ids (default: made from user and text).")]
DateColumn = Annotated[str | None, typer.Option(help="Column with dates.")]
Steps = Annotated[int, typer.Option(help="Optimizer steps T.")]
Delta = Annotated[float, typer.Option(help="delta of the guarantee, at least 1e-11.")]
Rate = Annotated[float | None, typer.Option("--sampling-rate", help="Poisson sampling rate of a unit in a step.")]
Noise = Annotated[float | None, typer.Option("--noise-multiplier", help="Noise standard deviation over clip norm.")]
Target = Annotated[float | None, typer.Option("--target-epsilon", help="Find the noise multiplier for this epsilon.")]
Examples = Annotated[int | None, typer.Option(help="Public number of examples.")]
Batch = Annotated[float | None, typer.Option(help="Expected examples a step.")]
GroupSize = Annotated[int, typer.Option("--group-size", help="Examples of one user at most.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object (an infinite epsilon is Infinity).")]
SkipBad = Annotated[bool, typer.Option("--skip-bad-lines", help="Count and skip unusable rows.")]
Aliases = Annotated[Path | None, typer.Option(help="YAML file 'person: [alias, ...]'.")]


@app.command()
def demo(out: Out = None) -> None:
    """Run the whole job on the built-in corpus, in a few minutes on two cores, and say where the PDF is."""
    from audit.demo import demo_config

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
    from audit.config import load_config

    _run(load_config(config, set_ or []), out)


@app.command()
def audit(
    model: Annotated[str, typer.Option(help="Model folder or hub name under audit; may be a LoRA adapter folder.")],
    reference: Annotated[str, typer.Option(help="Model not trained on these users, such as the base model.")],
    held_in: Annotated[Path, typer.Option(help="Texts of users that were trained on.")],
    held_out: Annotated[Path, typer.Option(help="Texts of users that were not.")],
    out: Out = None,
    name: Annotated[str, typer.Option(help="Name of the audit, for the report.")] = "audit",
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    skip_bad_lines: SkipBad = False,
    max_texts_per_user: Annotated[int | None, typer.Option(min=1, help="Score at most so many texts a user.")] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Score the first so many characters of a text.")] = 4000,
    assignment: Annotated[str, typer.Option(help="How sides came about: coin, fixed or unknown.")] = "unknown",
    claim: Annotated[list[str] | None, typer.Option(help="Test epsilon=8,delta=1e-6. Repeatable.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Test the curve of this plan.json.")] = None,
) -> None:
    """Audit a checkpoint that someone else trained, from two files of users' texts. Nothing is trained.

    Exit codes: 4 if a claim is violated; never 3, since nobody but its maker knows who was held in.
    """
    from audit.bound_scores import parse_claim, plan_claim
    from audit.checkpoint import CheckpointAudit, audit_checkpoint
    from audit.config import AttackConfig
    from audit.progress import reporter_for_this_terminal
    from audit.verdict import Assignment
    from corpus.sources import Columns

    if assignment not in tuple(Assignment):
        raise InputError(f"--assignment {assignment}: choose {', '.join(Assignment)}")
    claims = [parse_claim(text) for text in claim or []] + ([plan_claim(plan)] if plan else [])
    folder = out or Path("runs") / name
    job = CheckpointAudit(
        model=model,
        reference=reference,
        held_in=held_in,
        held_out=held_out,
        columns=Columns(user=user, text=text, id=id),
        name=name,
        skip_bad_lines=skip_bad_lines,
        assignment=Assignment(assignment),
        claims=tuple(claims),
        max_texts_per_user=max_texts_per_user,
        attack=AttackConfig(max_characters=max_characters),
    )
    with _interruptible():
        _finish(audit_checkpoint(job, folder, reporter_for_this_terminal(), command=_command()), folder)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Folder of a finished run or audit.")]) -> None:
    """Make report.pdf from a folder's record.json."""
    from reports.pdf import write_report

    typer.echo(f"report: {write_report(run)}")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Path, typer.Option(help="New folder for what may leave.")],
) -> None:
    """Write what may leave: the model folder with a model card and the public plan, nothing else."""
    from audit.export import export_run

    typer.echo(f"{to}: {', '.join(export_run(run, to))}")


@app.command()
def bound(
    scores: Annotated[Path, typer.Argument(help="CSV with the columns user, score, member.")],
    higher_is: Annotated[str, typer.Option(help="Whom a higher score speaks for: member or non-member.")] = "member",
    assignment: Annotated[str, typer.Option(help="How membership came about: coin, fixed or unknown.")] = "unknown",
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
    from audit import bound_scores as engine

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
    typer.echo(_json(result.as_dict()) if json else engine.table(result))
    raise typer.Exit(result.verdict.exit_code)


@app.command()
def power(
    users: Annotated[int, typer.Option(help="Users whose membership is decided by coin.")],
    auroc: Annotated[float, typer.Option(help="AUROC that the attack is expected to reach.")],
    delta: Annotated[float, typer.Option(help="delta of the statements.")] = 1e-5,
    claim: Annotated[list[str] | None, typer.Option(help="epsilon=4,delta=1e-6. Repeatable.")] = None,
    json: AsJson = False,
) -> None:
    """What an audit could certify or falsify, before it is paid for."""
    from audit import bound_scores as engine
    from audit import power as planning

    found = planning.power(users, auroc, delta, claims=tuple(engine.parse_claim(text) for text in claim or []))
    typer.echo(_json(found.as_dict()) if json else planning.table(found))


@corpus_app.command()
def build(
    path: Annotated[Path, typer.Argument(help="File (.jsonl, .jsonl.gz, .csv, .parquet) or save_to_disk folder.")],
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    date: DateColumn = None,
    aliases: Aliases = None,
    skip_bad_lines: SkipBad = False,
) -> None:
    """Build the store of a corpus, or find it built before, and say where it is."""
    store = _store(path, user, text, id, date, aliases, skip_bad_lines)
    typer.echo(f"{len(store.users)} users, {len(store)} records: {store.folder}")
    if store.report.skipped:
        typer.echo(f"{store.report.skipped} rows skipped, the first: {store.report.first_skipped}")


@corpus_app.command()
def stats(
    path: Annotated[Path, typer.Argument(help="File (.jsonl, .jsonl.gz, .csv, .parquet) or save_to_disk folder.")],
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    date: DateColumn = None,
    aliases: Aliases = None,
    skip_bad_lines: SkipBad = False,
    tokenizer: Annotated[str | None, typer.Option(help="Count tokens with this model's tokenizer, else words.")] = None,
) -> None:
    """Users, records, sizes, a histogram, and texts that stand more than once. Prints people's text."""
    from corpus.statistics import corpus_statistics
    from corpus.statistics_table import statistics_table

    store = _store(path, user, text, id, date, aliases, skip_bad_lines)
    if tokenizer is None:
        found = corpus_statistics(store)
    else:
        from models.loading import load_tokenizer

        encode = load_tokenizer(tokenizer)
        found = corpus_statistics(
            store, count_tokens=lambda t: len(encode(t, add_special_tokens=False)["input_ids"]), token_unit="tokens"
        )
    typer.echo(statistics_table(found))


@account_app.command()
def uls(
    steps: Steps,
    delta: Delta,
    users: Annotated[int | None, typer.Option(help="Public number of users N.")] = None,
    cohort: Annotated[float | None, typer.Option(help="Expected users a step M; the rate is M / N.")] = None,
    sampling_rate: Rate = None,
    cap: Annotated[int | None, typer.Option(help="Hard cap on the cohort.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
) -> None:
    """User-level sampling (Charles et al., Algorithm 2): epsilon per user."""
    from audit.account import account_uls

    _account(
        account_uls(
            steps=steps,
            delta=delta,
            users=users,
            cohort=cohort,
            sampling_rate=sampling_rate,
            cap=cap,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
        ),
        json,
    )


def _account_els(
    context: typer.Context,
    steps: Steps,
    delta: Delta,
    group_size: GroupSize,
    examples: Examples = None,
    batch: Batch = None,
    sampling_rate: Rate = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
) -> None:
    from audit.account import account_els

    row = account_els(
        steps=steps,
        delta=delta,
        group_size=group_size,
        examples=examples,
        batch=batch,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        method=str(context.info_name),
    )
    _account(row, json)


account_app.command(
    "els", help="Example-level sampling with at most G examples a user (Charles et al., Theorem 1): epsilon per user."
)(_account_els)
account_app.command(
    "group", help="Group privacy with exactly k records a user (Chua et al.): epsilon per user, tight and black-box."
)(_account_els)


@account_app.command()
def example(
    steps: Steps,
    delta: Delta,
    examples: Examples = None,
    batch: Batch = None,
    sampling_rate: Rate = None,
    group_size: Annotated[int | None, typer.Option(help="Bound attackers on users of so many examples.")] = None,
    noise_multiplier: Noise = None,
    target_epsilon: Target = None,
    json: AsJson = False,
) -> None:
    """Example-level DP-SGD: epsilon per example. It promises nothing finite about a user without a group size."""
    from audit.account import account_example

    _account(
        account_example(
            steps=steps,
            delta=delta,
            examples=examples,
            batch=batch,
            sampling_rate=sampling_rate,
            group_size=group_size,
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
        ),
        json,
    )


@account_app.command()
def plan(
    path: Annotated[Path, typer.Argument(help="plan.json of a run folder.")],
    json: AsJson = False,
) -> None:
    """The numbers of a plan that a run wrote: `heldin account RUN/plan.json`."""
    from audit.account import account_plan
    from defenses.plan_file import read_plan

    _account(account_plan(read_plan(path)), json)


def _account(row: "AccountRow", as_json: bool) -> None:
    from audit.account_table import account_table

    typer.echo(_json(row.as_dict()) if as_json else account_table(row))


def _json(fields: dict[str, Any]) -> str:
    import json

    return json.dumps(fields)


def _store(
    path: Path,
    user: str,
    text: str,
    id_: str | None,
    date: str | None,
    aliases: Path | None,
    skip_bad_lines: bool,
) -> "CorpusStore":
    from corpus.aliases import load_aliases
    from corpus.files import cache_directory
    from corpus.sources import Columns, open_source
    from corpus.store import build_store

    return build_store(
        open_source(path, Columns(user, text, id_, date)),
        cache_directory(),
        aliases=load_aliases(aliases) if aliases else None,
        skip_bad_rows=skip_bad_lines,
    )


def _run(config: "RunConfig", out: Path | None) -> None:
    from audit.pipeline import run as run_pipeline
    from audit.progress import reporter_for_this_terminal

    folder = out or Path("runs") / config.name
    with _interruptible():
        _finish(run_pipeline(config, folder, reporter_for_this_terminal(), command=_command()), folder)


def _finish(record: "Record", folder: Path) -> None:
    """Make the report and say what was found."""
    from reports.findings import findings
    from reports.pdf import write_report

    said = findings(record)
    for warning in said.warnings:
        typer.echo(f"note: {warning}")
    typer.echo(said.headline)
    typer.echo(dict(said.paragraphs)["How well the attack did"])
    typer.echo(dict(said.paragraphs)["What is certified"])
    typer.echo(f"report: {write_report(folder)}")
    raise typer.Exit(record.judgement.exit_code)


class _Interrupted(Exception):
    """Ctrl-C during work that can be resumed; typer would otherwise only say that it was aborted."""


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise _Interrupted from error


def _command() -> str:
    return shlex.join(["heldin", *sys.argv[1:]])


def main() -> None:
    """Run the command line; turn errors that a user can cause into one line and an exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        app(standalone_mode=True)
    except InputError as error:
        _fail(f"error: {error}", BAD_INPUT)
    except ResumableError as error:
        _fail(f"stopped: {error}", RESUMABLE)
    except _Interrupted:
        _fail("interrupted: the same command goes on from the last checkpoint", INTERRUPTED)
    except OSError as error:
        if error.errno is None:
            raise
        _fail(
            f"stopped: {os.strerror(error.errno)}: {error.filename or ''}; mend it and run the command again", RESUMABLE
        )


def _fail(line: str, code: int) -> None:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
