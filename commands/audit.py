"""``heldin audit``: a checkpoint, or a model behind an endpoint, audited with two files of texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from heldin.base.errors import InputError
from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import AT_ENDPOINT, AsJson, DeviceOption, Out, Quiet, Verbose
from heldin.models.model_config import ScoringPrecision

READING = "How the files are read"
KNOWN = "What is known about the two groups"
DECIDING = "Claims, and thresholds of the answer"
ENDPOINT = "A model behind an endpoint"
PLANTED = "A model trained on a planted training set"


def audit(
    called: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model folder or hub name; may be a LoRA adapter folder. With --planted repeatable: checkpoints of one"
            " training, each a look."
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="Model not trained on these users, such as the base model. Repeatable; the first is the main one."
        ),
    ] = None,
    held_in: Annotated[Path | None, typer.Option(help="Texts of users the model was trained on.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="Texts of users it was not trained on.")] = None,
    user: Annotated[str | None, typer.Option(help="Column that names the user (default: user).")] = None,
    text: Annotated[str | None, typer.Option(help="Column that holds the text (default: text).")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with these options as keys, and more; options on the command line win."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the audit in the report (default: audit).")] = None,
    out: Out = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    device: DeviceOption = None,
    json: AsJson = False,
    id: Annotated[
        str | None,
        typer.Option(help="Column with unique record ids (default: made from user and text).", rich_help_panel=READING),
    ] = None,
    skip_bad_lines: Annotated[
        bool | None, typer.Option("--skip-bad-lines", help="Skip and count unusable rows.", rich_help_panel=READING)
    ] = None,
    precision: Annotated[
        ScoringPrecision | None,
        typer.Option(
            help="Load models in fp32 (default), bf16, int8 or nf4; measures how far it moves scores.",
            rich_help_panel=READING,
        ),
    ] = None,
    max_texts_per_user: Annotated[
        int | None, typer.Option(help="Score at most this many texts per user.", rich_help_panel=READING)
    ] = None,
    max_characters: Annotated[
        int | None,
        typer.Option(help="Score only this many characters of each text (default: 4000).", rich_help_panel=READING),
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option(
            help="How users came to be held in or out. coin: an independent fair coin for each user. fixed: any other"
            " known way, such as an exact half or one of each pair. unknown: you do not know.",
            rich_help_panel=KNOWN,
        ),
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(
            help="The training data, with the same columns: check which users' texts are in it.",
            rich_help_panel=KNOWN,
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="Without --training: whether the held-in texts are fresh or training (trained on).",
            rich_help_panel=KNOWN,
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(help="Claim to test, such as epsilon=8,delta=1e-6. Repeatable.", rich_help_panel=DECIDING),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="plan.json whose privacy curve is tested.", rich_help_panel=DECIDING)
    ] = None,
    exclude_auroc: Annotated[
        float | None,
        typer.Option(
            help="Answer 'no leak found' only if an AUROC above this is excluded (default: 0.60).",
            rich_help_panel=DECIDING,
        ),
    ] = None,
    exclude_tpr: Annotated[
        float | None,
        typer.Option(
            help="Likewise for the true-positive rate at 5 % FPR (default: 0.15).",
            rich_help_panel=DECIDING,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Base URL, such as https://host/v1; --model is then a model name there.", rich_help_panel=ENDPOINT
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer of the models there (default: send texts, not tokens).", rich_help_panel=ENDPOINT),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of a pass, for a model that does not state them; with --endpoint of a request (default:"
            " the server's context length, at most 2048).",
            rich_help_panel=READING,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.", rich_help_panel=ENDPOINT)
    ] = None,
    requests_per_minute: Annotated[
        float | None, typer.Option(help="Maximum request rate (default: no limit).", rich_help_panel=ENDPOINT)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Maximum number of requests in flight (default: 4).", rich_help_panel=ENDPOINT)
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds without an answer before a retry (default: 120).", rich_help_panel=ENDPOINT),
    ] = None,
    max_tries: Annotated[
        int | None, typer.Option(help="Maximum tries per request (default: 6).", rich_help_panel=ENDPOINT)
    ] = None,
    price_per_million: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", help="Price per million tokens, for the cost estimate.", rich_help_panel=ENDPOINT
        ),
    ] = None,
    max_tokens_sent: Annotated[
        int | None, typer.Option(help="Refuse an audit that would send more tokens.", rich_help_panel=ENDPOINT)
    ] = None,
    planted: Annotated[
        Path | None,
        typer.Option(
            help="Folder that heldin plant wrote: --model was trained on its training set.", rich_help_panel=PLANTED
        ),
    ] = None,
    declared_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who declares what cannot be checked, such as that the model was trained on that set and no other text"
            " of its users; each condition is printed, and stands in the report.",
            rich_help_panel=PLANTED,
        ),
    ] = None,
) -> None:
    """Audit a checkpoint that someone else trained, from two files of users' texts; nothing is trained.

    Needs --model, --reference, --held-in and --held-out, here or in --config. If killed, the same command resumes.
    Exit code 4 if a claim is violated; never 3, since only the model's maker knows who was held in.

    With --planted, the model was trained on a set that heldin plant wrote, so that heldin knows who was held in. Needs
    --model; a --claim states its unit, as in epsilon=8,delta=1e-6,unit=user. Exit code 3 if a claim is violated and
    every condition is checked or declared (docs/plant.md).

    To audit a model behind an OpenAI-compatible endpoint that returns log-probabilities of a prompt, give --endpoint
    URL and --model NAME; a reference behind the same endpoint is endpoint:NAME (docs/endpoints.md).
    """
    if planted is not None:
        from heldin.commands.planted import audit_planted

        audit_planted(called)
        return
    if declared_by is not None:
        raise InputError("--declared-by goes with --planted")
    # Every option becomes a key of the config, so that both are checked by one model
    # and a file may hold what no option has.
    if model is not None and len(model) > 1:
        raise InputError("one --model at a time: several go with --planted")
    given = {**called.params, "model": model[0] if model else None}
    content = _content(config, _nested({_KEYS.get(name, name): value for name, value in given.items()}))
    # With a key that no config has, one that is needed may be missing: the check of the whole says which was meant.
    if not _unknown(content):
        references = content["reference"]
        # A bare name in the file is not yet the list that validation makes of it.
        models = [*references] if isinstance(references, list) else [references]
        # With an endpoint --model is a name on that server, and no folder has to exist.
        models += [] if content.get("endpoint") else [content["model"]]
        # Before the imports below, which take seconds and which a mistyped path should not wait for.
        _look_for(models, [content[key] for key in _FILES if key in content])

    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.checkpoint.audit import audit_checkpoint
    from heldin.jobs.checkpoint.audit_config import parse_checkpoint

    checked = parse_checkpoint(content, "" if config is None else str(config), _options(called))
    folder = out or Path("runs") / checked.name
    with interruptible():
        record = audit_checkpoint(checked.job(), folder, reporter_for_this_terminal(), command=command_line())
        finish(record, folder, json=json, verbose=verbose)


# the config key that an option sets, if it is not the option's own name; "" sets none
_KEYS = {
    "claim": "claims",
    "user": "columns.user",
    "text": "columns.text",
    "id": "columns.id",
    "max_characters": "attack.max_characters",
    "precision": "attack.precision",
    "exclude_auroc": "decision.auroc",
    "exclude_tpr": "decision.tpr",
    "endpoint": "endpoint.url",
    **{name: f"endpoint.{name}" for name in AT_ENDPOINT if name != "context"},
    # About this call, not about what is audited: they set no key.
    **dict.fromkeys(("config", "out", "quiet", "json", "planted", "declared_by", "verbose"), ""),
}
_SERVED_CONTEXT = "endpoint.context"  # what --context sets where the model is behind an endpoint
_NEEDED = ("model", "reference", "held_in", "held_out")
_FILES = ("held_in", "held_out", "training", "plan")  # keys of the config that name files
_DATA = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst", ".bz2")


def _options(called: typer.Context) -> dict[str, str]:
    """Return the options that were given, as typed on the command line, by the config key they set."""
    # typer gives an empty tuple to a repeatable option that was left out.
    given = [name for name, value in called.params.items() if value not in (None, [], ())]
    # Those that set no key are left out: an error of the whole config is none of theirs.
    keys = {key: f"--{name.replace('_', '-')}" for name in given if (key := _KEYS.get(name, name))}
    return {**keys, **({_SERVED_CONTEXT: keys["context"]} if "context" in keys else {})}


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options, nested from dotted keys into config sections."""
    content: dict[str, Any] = {}
    for key, value in options.items():
        # Zero is a value: --max-tokens-sent 0 prints the cost and stops.
        if key and value not in (None, [], ()):
            *sections, last = key.split(".")
            section = content
            for part in sections:
                section = section.setdefault(part, {})
            section[last] = str(value) if isinstance(value, Path) else value
    return content


def _content(config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the file's content, overridden by the options; raises InputError if something required is missing."""
    content = given
    if config is not None:
        from heldin.stages.config_files import merged, read_config

        # Given options over the file's keys, section by section: --user alone leaves the file's other columns.
        content = merged(read_config(config), given)
    # The server's own is the option's; what is loaded beside it sees as much.
    if "context" in given and isinstance(content.get("endpoint"), dict):
        content = {**content, "endpoint": {**content["endpoint"], "context": given["context"]}}
        content.pop("context")
    missing = next((key for key in _NEEDED if not content.get(key)), None)
    # A key that is misspelt in the file is missing too: the check of the whole names what was meant.
    if missing is not None and not _unknown(content):
        raise InputError(
            f"audit a checkpoint with --model, --reference, --held-in and --held-out, here or in --config"
            f" (--{missing.replace('_', '-')} is missing); heldin audit-training audits how models are trained"
        )
    options = content.get("endpoint")
    # The model would name the missing key endpoint.url, which nobody typed.
    if isinstance(options, dict) and "url" not in options:
        raise InputError(f"--{next(iter(options)).replace('_', '-')} goes with --endpoint")
    return content


def _unknown(content: Mapping[str, Any]) -> bool:
    """Check if there is a key that no config of an audit has."""
    from heldin.jobs.checkpoint.audit_config import CheckpointConfig

    return not content.keys() <= CheckpointConfig.model_fields.keys()


def _look_for(models: Sequence[Any], files: Sequence[Any]) -> None:
    """Check that named files and folders exist, before the slow imports and before any request to a hub."""
    for file in files:
        # Environment variables are expanded by validation only: until then such a path cannot be looked for.
        if isinstance(file, str) and "$" not in file and not Path(file).exists():
            raise InputError(f"no such file or folder: '{file}'")
    for model in models:
        if not isinstance(model, str) or "$" in model:
            continue
        named = Path(model)
        if named.is_file():
            kind = "a file of texts" if named.suffix in _DATA else "a file"
            raise InputError(f"'{model}' is {kind}, and a model is a folder or a hub name: give texts by --held-in")
        # ``org/model`` may be on the hub; it is a mistyped folder if ``org`` is a folder here.
        beside = len(named.parts) > 1 and named.parent.is_dir()
        # Path drops a leading "./", so that the name itself is looked at
        if not named.exists() and (beside or model.startswith(("/", ".", "~")) or model.count("/") > 1):
            raise InputError(f"no such model folder: '{model}' (a hub name has no folder before it that exists here)")
