"""`heldin audit`: a checkpoint or a model behind an endpoint from two files of texts, or many trainings of a config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from heldin.base.errors import InputError
from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import ExcludeAuroc, ExcludeTpr, IdColumn, Out, SkipBad, TextColumn, UserColumn, thresholds

if TYPE_CHECKING:
    from heldin.jobs.checkpoint.endpoint import Remote

PANEL = "A model behind an endpoint"


def audit(
    model: Annotated[str | None, typer.Option(help="Model folder or hub name; may be a LoRA adapter folder.")] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(help="Model not trained on these users, as the base model. Repeatable: the first leads."),
    ] = None,
    held_in: Annotated[Path | None, typer.Option(help="Texts of users that were trained on.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="Texts of users that were not.")] = None,
    out: Out = None,
    name: Annotated[str, typer.Option(help="Name of the audit, for the report.")] = "audit",
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    skip_bad_lines: SkipBad = False,
    max_texts_per_user: Annotated[int | None, typer.Option(min=1, help="Score at most so many texts a user.")] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Score the first so many characters of a text.")] = 4000,
    assignment: Annotated[
        str,
        typer.Option(
            help="How sides came about: coin (each user by its own fair coin; not an exact half, nor one of each pair),"
            " fixed (anything else that is known) or unknown."
        ),
    ] = "unknown",
    training: Annotated[
        Path | None,
        typer.Option(help="What the model was trained on, by the same columns: look whose texts are in it."),
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="What the texts are, if nobody looks: fresh, or training (trained on).")
    ] = None,
    exclude_auroc: ExcludeAuroc = None,
    exclude_tpr: ExcludeTpr = None,
    claim: Annotated[list[str] | None, typer.Option(help="Test epsilon=8,delta=1e-6. Repeatable.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Test the curve of this plan.json.")] = None,
    runs: Annotated[int | None, typer.Option(min=2, help="Train so many models, each by coin with a user.")] = None,
    config: Annotated[Path | None, typer.Option(help="With --runs: YAML of the run, whose plan is tested.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="With --runs: section.key=value. Repeatable.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="With --runs: at a time (default: cores).")] = None,
    target: Annotated[str, typer.Option(help="With --runs: train the config's defense, or none.")] = "defense",
    documents: Annotated[int | None, typer.Option(min=1, help="With --runs: of the worst-case user.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="With --runs: in place of the config's.")] = None,
    threshold: Annotated[float | None, typer.Option(help="With --runs: of the score, fixed before looking.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Address such as https://host/v1; --model is a name there.", rich_help_panel=PANEL),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Of the models there, folder or hub name; else texts are sent.", rich_help_panel=PANEL),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=3, help="Tokens they take, where the server is silent.", rich_help_panel=PANEL)
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Name of the variable that holds the API key.", rich_help_panel=PANEL)
    ] = None,
    requests_per_minute: Annotated[
        float | None, typer.Option(help="At most (default: no limit).", rich_help_panel=PANEL)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests in flight (default: 4).", rich_help_panel=PANEL)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds of silence before a new try (default: 120).", rich_help_panel=PANEL)
    ] = None,
    max_tries: Annotated[int | None, typer.Option(help="Of a request (default: 6).", rich_help_panel=PANEL)] = None,
    price_per_million: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="PRICE", help="Price of a million tokens, for the cost estimate.", rich_help_panel=PANEL
        ),
    ] = None,
    max_tokens_sent: Annotated[
        int | None, typer.Option(min=0, help="Refuse to send more than that.", rich_help_panel=PANEL)
    ] = None,
) -> None:
    """Audit a checkpoint that someone else trained (nothing is trained), or --runs many trainings of a config.

    A checkpoint, from two files of users' texts: --model, --reference, --held-in, --held-out. Exit code 4 if a claim is
    violated; never 3, since nobody but its maker knows who was held in.

    A model behind an OpenAI-compatible endpoint that returns log-probabilities of a prompt: --endpoint URL and --model
    NAME; a reference named endpoint:NAME stands there too (docs/endpoints.md). The same command goes on after a kill.

    Independent trainings: --runs 200 --config CONFIG trains so many small models, each with a worst-case user or
    without it by its own coin, and certifies by Clopper-Pearson. The same command goes on after a kill. Exit code 3 if
    a claim is violated.
    """
    files = {"--model": model, "--reference": reference, "--held-in": held_in, "--held-out": held_out}
    its = {"--set": set_, "--processes": processes, "--documents": documents, "--seed": seed, "--threshold": threshold}
    if runs is not None or config is not None:
        others = {**files, "--plan": plan, "--endpoint": endpoint, "--training": training, "--texts": texts}
        strange = next((option for option, value in others.items() if value), None)
        if runs is None or config is None or strange:
            wrong = f"{strange} is of the other form" if strange else f"--{'config' if runs else 'runs'} is missing"
            raise InputError(f"independent trainings take --runs and --config ({wrong}); a checkpoint takes neither")
        _audit_trials(config, set_, out, runs, processes, target, documents, seed, threshold, claim)
    strange = next((option for option, value in its.items() if value not in (None, [])), None)
    if model is None or not reference or held_in is None or held_out is None or strange:
        missing = (
            f"{strange} goes with --runs" if strange else f"{next(o for o, v in files.items() if not v)} is missing"
        )
        raise InputError(
            f"audit a checkpoint with --model, --reference, --held-in and --held-out ({missing}), or train many models"
            " with --runs and --config"
        )
    for option, value, choices in (("--assignment", assignment, _ASSIGNMENTS), ("--texts", texts, _TEXTS)):
        if value is not None and value not in choices:
            raise InputError(f"{option} {value}: choose {', '.join(choices)}")
    remote = _remote(
        endpoint,
        tokenizer=tokenizer,
        context=context,
        api_key_env=api_key_env,
        requests_per_minute=requests_per_minute,
        concurrency=concurrency,
        timeout=timeout,
        max_tries=max_tries,
        price_per_million=price_per_million,
        max_tokens_sent=max_tokens_sent,
    )
    _look_for([*([] if remote else [model]), *reference], [held_in, held_out, training, plan])

    from heldin.attacks.config import AttackConfig
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.bounds.claims import parse_claim, plan_claim
    from heldin.bounds.verdict import Assignment
    from heldin.corpus.sources.rows import Columns
    from heldin.jobs.checkpoint.audit import CheckpointAudit, audit_checkpoint

    claims = [parse_claim(text) for text in claim or []] + ([plan_claim(plan)] if plan else [])
    folder = out or Path("runs") / name
    job = CheckpointAudit(
        model=model,
        reference=reference[0],
        others=tuple(reference[1:]),
        held_in=held_in,
        held_out=held_out,
        columns=Columns(user=user, text=text, id=id),
        name=name,
        skip_bad_lines=skip_bad_lines,
        assignment=Assignment(assignment),
        claims=tuple(claims),
        plan=plan,
        training=training,
        documents=None if texts is None else "fresh" if texts == "fresh" else "training",
        max_texts_per_user=max_texts_per_user,
        attack=AttackConfig(max_characters=max_characters, reference=reference[0]),
        decision=thresholds(exclude_auroc, exclude_tpr),
        remote=remote,
    )
    with interruptible():
        finish(audit_checkpoint(job, folder, reporter_for_this_terminal(), command=command_line()), folder)


_ASSIGNMENTS = ("coin", "fixed", "unknown")
_TEXTS = ("fresh", "training")
_DATA = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst", ".bz2")


def _look_for(models: list[str], files: list[Path | None]) -> None:
    """Look at what is named before anything is imported, let alone asked of a hub."""
    for file in files:
        if file is not None and not file.exists():
            raise InputError(f"no such file or folder: '{file}'")
    for model in models:
        named = Path(model)
        if named.is_file():
            kind = "a file of texts" if named.suffix in _DATA else "a file"
            raise InputError(f"'{model}' is {kind}, and a model is a folder or a hub name: give texts by --held-in")
        beside = len(named.parts) > 1 and named.parent.is_dir()
        # Path drops a leading "./", so that the name itself is looked at
        if not named.exists() and (beside or model.startswith(("/", ".", "~")) or model.count("/") > 1):
            raise InputError(f"no such model folder: '{model}' (a hub name has no folder before it that exists here)")


def _remote(url: str | None, **options: Any) -> "Remote | None":
    """How the target is reached; None for a model that is loaded here."""
    given = {name: value for name, value in options.items() if value is not None}
    if url is None:
        if given:
            raise InputError(f"--{next(iter(given)).replace('_', '-')} goes with --endpoint")
        return None
    from heldin.jobs.checkpoint.endpoint import Remote
    from heldin.models.endpoint_client import Endpoint

    pace = {n: given[n] for n in ("requests_per_minute", "concurrency", "timeout", "max_tries") if n in given}
    return Remote(
        Endpoint(url, options["api_key_env"], **pace),
        tokenizer=options["tokenizer"],
        context=options["context"],
        price=options["price_per_million"],
        max_tokens_sent=options["max_tokens_sent"],
    )


def _audit_trials(
    path: Path,
    overrides: list[str] | None,
    out: Path | None,
    runs: int,
    processes: int | None,
    target: str,
    documents: int | None,
    seed: int | None,
    threshold: float | None,
    claims: list[str] | None,
) -> NoReturn:
    """The second form of ``heldin audit``."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.bounds.claims import parse_claim
    from heldin.jobs.config import load_config
    from heldin.jobs.retraining.engine import audit_trainings
    from heldin.jobs.retraining.job import TrainingsAudit, target_of

    config = load_config(path, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])
    stated = [parse_claim(text) for text in claims or []]
    job = TrainingsAudit(
        config=config,
        runs=runs,
        target=target_of(target),
        documents=documents,
        claims=tuple((claim.epsilon, claim.delta) for claim in stated),
        threshold=threshold,
    )
    folder = out or Path("runs") / config.name
    with interruptible():
        record = audit_trainings(job, folder, reporter_for_this_terminal(), command=command_line(), processes=processes)
        finish(record, folder)
