"""``heldin audit`` and ``heldin audit-endpoint``: audit a model with two files of texts."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heldin.base.errors import InputError
from heldin.commands.finish import command_line, finish, interruptible
from heldin.commands.options import (
    RUNNING,
    AdapterBase,
    AsHtml,
    AsJson,
    BatchSize,
    Claims,
    Delimiter,
    DeviceOption,
    Encoding,
    FailOnOption,
    Out,
    Quiet,
    RowsField,
    Set,
    SkipBad,
    Strict,
    TemplateFile,
    Verbose,
    dtype_option,
    fail_on_of,
    rows_rule,
)
from heldin.models.model_config import PrecisionChoice

KNOWN = "What is known about the two groups"
_pace = partial(typer.Option, rich_help_panel="Requests and cost")

References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="MODEL",
        help="Model not trained on the users. Repeatable.",
    ),
]
HeldIn = Annotated[Path | None, typer.Option("--held-in", help="Texts by users in the training data.")]
HeldOut = Annotated[Path | None, typer.Option("--held-out", help="Texts by users not in the training data.")]
User = Annotated[str | None, typer.Option("--user", help="Column that names the user (default: user).")]
Text = Annotated[str | None, typer.Option("--text", help="Column that holds the text (default: text).")]
Turns = Annotated[
    Literal["all", "user", "assistant", "completion"] | None,
    typer.Option("--turns", hidden=True, help="Turns of a chat to score (default: assistant)."),
]
AccessOption = Annotated[
    list[str] | None,
    typer.Option(
        "--access",
        metavar="NAME",
        help="Access: text, top-k, log-probabilities. Repeatable.",
        rich_help_panel=RUNNING,
    ),
]
Config = Annotated[Path | None, typer.Option("--config", dir_okay=False, help="YAML file with these options and more.")]
# The words are here and not from ``bounds.design``, whose import takes seconds: a mistyped one should not wait for it.
AssignmentOption = Annotated[
    Literal["coin", "fixed", "unknown"] | None,
    typer.Option(
        "--assignment",
        help="Rule that assigned users to the groups: coin, fixed or unknown (default: unknown).",
        rich_help_panel=KNOWN,
    ),
]
TrainingOption = Annotated[
    Path | None,
    typer.Option("--training", help="Training data to search for audited texts.", rich_help_panel=KNOWN),
]
TextsOption = Annotated[
    Literal["fresh", "training"] | None,
    typer.Option("--texts", help="Members' texts: fresh (unused) or training.", rich_help_panel=KNOWN),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=4,
        help="Maximum number of users to audit.",
        rich_help_panel=RUNNING,
        hidden=True,
    ),
]


def audit(
    called: typer.Context,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub name of a model or adapter.")
    ] = None,
    reference: References = None,
    held_in: HeldIn = None,
    held_out: HeldOut = None,
    user: User = None,
    text: Text = None,
    turns: Turns = None,
    template: TemplateFile = None,
    access: AccessOption = None,
    claim: Claims = None,
    config: Config = None,
    set_: Set = None,
    out: Out = None,
    fail_on: FailOnOption = None,
    assignment: AssignmentOption = None,
    training: TrainingOption = None,
    texts: TextsOption = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    field: RowsField = None,
    limit: Limit = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Public seed of all random draws (default: 0).", rich_help_panel=RUNNING, hidden=True),
    ] = None,
    batch_size: BatchSize = None,
    dtype: Annotated[PrecisionChoice | None, dtype_option("fp32, or auto if fp32 does not fit")] = None,
    adapter_base: AdapterBase = None,
    device: DeviceOption = None,
    html: AsHtml = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Audit a model with texts by members and non-members.

    Give --model, --reference, --held-in and --held-out. To list the row formats, run: heldin corpus formats. If heldin
    is killed, run the same command again to resume. Give --assignment coin only if a separate fair coin decided each
    membership, not an exact half.
    """
    _audit(called, config, set_, out, fail_on, json=json, verbose=verbose, html=html)


def audit_endpoint(
    called: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Base URL of the server's API: https://host/v1.")],
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Name of the model on the server.")] = None,
    reference: References = None,
    held_in: HeldIn = None,
    held_out: HeldOut = None,
    user: User = None,
    text: Text = None,
    turns: Turns = None,
    template: TemplateFile = None,
    access: AccessOption = None,
    claim: Claims = None,
    config: Config = None,
    set_: Set = None,
    out: Out = None,
    fail_on: FailOnOption = None,
    chat: Annotated[bool | None, _pace("--chat", help="Use /chat/completions (level text).")] = None,
    tokenizer: Annotated[str | None, _pace(metavar="MODEL", help="Tokenizer of the models on the server.")] = None,
    context: Annotated[
        int | None, _pace(hidden=True, help="Maximum tokens per request (default: the server's limit).")
    ] = None,
    api_key_env: Annotated[str | None, _pace(help="Environment variable with the API key.")] = None,
    requests_per_minute: Annotated[float | None, _pace(help="Maximum requests per minute.")] = None,
    concurrency: Annotated[int | None, _pace(hidden=True, help="Maximum concurrent requests (default: 4).")] = None,
    timeout: Annotated[float | None, _pace(hidden=True, help="Seconds to wait for an answer (default: 120).")] = None,
    max_tries: Annotated[int | None, _pace(hidden=True, help="Maximum attempts per request (default: 6).")] = None,
    price_per_million: Annotated[
        float | None, _pace(hidden=True, help="Price per million tokens, to compute the cost.")
    ] = None,
    max_tokens_sent: Annotated[int | None, _pace(help="Refuse audits above this many tokens.")] = None,
    max_requests: Annotated[int | None, _pace(hidden=True, help="Refuse audits above this many requests.")] = None,
    max_price: Annotated[float | None, _pace(hidden=True, help="Refuse audits above this cost.")] = None,
    max_minutes: Annotated[float | None, _pace(hidden=True, help="Refuse audits above this many minutes.")] = None,
    assignment: AssignmentOption = None,
    training: TrainingOption = None,
    texts: TextsOption = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    field: RowsField = None,
    limit: Limit = None,
    adapter_base: AdapterBase = None,
    html: AsHtml = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Audit a model behind an OpenAI-compatible endpoint.

    The attacks use the server's strongest access, unless you give --access. References run on this machine, except
    endpoint:NAME. Without --tokenizer, heldin sends texts, not tokens. For the cost only, give --max-tokens-sent 0.
    """
    _audit(called, config, set_, out, fail_on, json=json, verbose=verbose, html=html)


def _audit(
    called: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    out: Path | None,
    fail_on: str | None,
    *,
    json: bool,
    verbose: bool,
    html: bool,
) -> None:
    gate = fail_on_of(fail_on)
    # Every option becomes a key of the config, so that both are checked by one model
    # and a file may hold what no option has.
    options = {KEYS_OF_OPTIONS.get(name, name): value for name, value in called.params.items()}
    skip, strict = called.params["skip_bad_rows"], called.params["strict"]
    options["bad_rows"] = rows_rule(skip, strict).value if skip or strict else None
    _require_one_of_each(_typed(called), overrides or [])
    content = _content(config, _nested(options), overrides or [])
    # With a key that no config has, one that is needed may be missing: the check of the whole says which was meant.
    if not _unknown(content):
        references = content["reference"]
        # A bare name in the file is not yet the list that validation makes of it.
        models = [*references] if isinstance(references, list) else [references]
        # With an endpoint --model is a name on that server, and no folder has to exist.
        models += [] if content.get("endpoint") else [content["model"]]
        models += [content["adapter_base"]] if content.get("adapter_base") else []
        # Before the imports below, which take seconds and which a mistyped path should not wait for.
        _look_for(models, [content[key] for key in _FILES if key in content])

    from heldin.jobs.checkpoint.audit_config import parse_checkpoint

    checked = parse_checkpoint(content, "" if config is None else str(config), _typed(called))
    # Headers before the imports below, which take seconds and which a mistyped column should not wait for.
    for source in checked.sources().values():
        source.look()

    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.checkpoint.audit import audit_checkpoint
    from heldin.jobs.checkpoint.job import job_of

    folder = out or Path("runs") / checked.name
    with interruptible():
        record = audit_checkpoint(job_of(checked), folder, reporter_for_this_terminal(), command=command_line())
        finish(record, folder, json=json, verbose=verbose, fail_on=gate, html=html)


# the config key that an option sets, if it is not the option's own name; "" sets none
KEYS_OF_OPTIONS = {
    "claim": "claims",
    "user": "columns.user",
    "text": "columns.text",
    "limit": "max_users",
    "dtype": "attack.precision",
    "turns": "attack.turns",
    "access": "attack.access",
    "template": "rows.template",
    "url": "endpoint.url",
    **{name: f"format.{name}" for name in ("encoding", "delimiter", "field")},
    **{
        name: f"endpoint.{name}"
        for name in (
            *("tokenizer", "context", "api_key_env", "requests_per_minute", "concurrency", "timeout", "max_tries"),
            *("price_per_million", "max_tokens_sent", "chat", "max_requests", "max_price", "max_minutes"),
        )
    },
    # About this call, not about what is audited: they set no key.
    **dict.fromkeys(("config", "set_", "out", "quiet", "json", "verbose", "fail_on", "device", "batch_size"), ""),
    **dict.fromkeys(("skip_bad_rows", "strict"), ""),
    **dict.fromkeys(("html", "help_all"), ""),
}
_NEEDED = ("model", "reference", "held_in", "held_out")
_FILES = ("held_in", "held_out", "training", "plan")  # keys of the config that name files
_DATA = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst", ".bz2")


def _typed(called: typer.Context) -> dict[str, str]:
    """Return, for each config key that an option of this call sets, the option as typed on the command line."""
    # typer gives an empty tuple to a repeatable option that was left out.
    given = [name for name, value in called.params.items() if value not in (None, [], ())]
    # Those that set no key are left out: an error of the whole config is none of theirs.
    return {key: f"--{name.replace('_', '-')}" for name in given if (key := KEYS_OF_OPTIONS.get(name, name))}


def _require_one_of_each(options: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Raise InputError if an option and --set set the same key, since one value would be lost."""
    for key in (override.partition("=")[0] for override in overrides):
        twice = next((value for name, value in options.items() if name == key or name.startswith(f"{key}.")), None)
        if twice is not None:
            raise InputError(f"{twice} and --set {key} set the same key: give only one of them")


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options as nested config sections; a dot in a key separates section and key."""
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


def _content(config: Path | None, given: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the content of the file, in which options and --set replace keys.

    Raises InputError if a key that an audit needs is missing.
    """
    content = given
    if config is not None or overrides:
        from heldin.stages.config_files import merged, read_config, with_overrides

        # Given options over the file's keys, section by section: --user alone leaves the file's other columns.
        content = merged(read_config(config), given) if config is not None else given
        content = with_overrides(content, overrides)
    missing = next((key for key in _NEEDED if not content.get(key)), None)
    # A key that is misspelt in the file is missing too: the check of the whole names what was meant.
    if missing is not None and not _unknown(content):
        raise InputError(
            f"--{missing.replace('_', '-')} is missing: give --model, --reference, --held-in and --held-out, as"
            " options or as keys in --config"
        )
    return content


def _unknown(content: Mapping[str, Any]) -> bool:
    """Return whether the content has a key that no audit config has."""
    from heldin.jobs.checkpoint.audit_config import CheckpointConfig

    return not content.keys() <= CheckpointConfig.model_fields.keys()


def _look_for(models: Sequence[Any], files: Sequence[Any]) -> None:
    """Raise InputError if a file or folder in the call does not exist, before slow imports and requests to a hub."""
    for file in files:
        # Environment variables are expanded by validation only: until then such a path cannot be looked for.
        if isinstance(file, str) and "$" not in file and not Path(file).exists():
            raise InputError(f"no such file or folder: '{file}'. Correct the path")
    for model in models:
        if not isinstance(model, str) or "$" in model:
            continue
        named = Path(model)
        if named.is_file():
            kind = "a file of texts" if named.suffix in _DATA else "a file"
            raise InputError(
                f"'{model}' is {kind}, not a model. Give the folder or hub name of a model, and give texts with"
                " --held-in"
            )
        # ``org/model`` may be on the hub; it is a mistyped folder if ``org`` is a folder here.
        beside = len(named.parts) > 1 and named.parent.is_dir()
        # Path drops a leading "./", so that the name itself is looked at
        if not named.exists() and (beside or model.startswith(("/", ".", "~")) or model.count("/") > 1):
            raise InputError(f"no such model folder: '{model}'. Correct the path, or give a hub name")
