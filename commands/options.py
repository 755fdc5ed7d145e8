"""Options that several commands share, and functions that print results."""

import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heldin.base.errors import InputError
from heldin.base.machine import be_quiet, is_quiet, version

if TYPE_CHECKING:
    from heldin.audit.decision import DecisionConfig
    from heldin.corpus.sources.bad_rows import OnBadRows


RUNNING = "How it runs, and what is printed"
READING = "How files are read"
_EVERYTHING = "heldin.help_all"


class PagedCommand(typer.core.TyperCommand):
    """A command with a help page of ``commands.help``, a module that is imported only when a page is needed."""

    rare: Sequence[Any] | None = None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page. Its last line states how many rare options it leaves out."""
        from heldin.commands.help import page

        with page(self, ctx, everything=_EVERYTHING in ctx.meta):
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return completions, including those of rare options."""
        from heldin.commands.help import describe

        describe(self, ctx.command_path)
        return super().shell_complete(ctx, incomplete)


class PagedGroup(typer.core.TyperGroup):
    """A group of commands with a help page of ``commands.help``."""

    rare: Sequence[Any] | None = None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page of the group."""
        from heldin.commands.help import page

        with page(self, ctx, everything=_EVERYTHING in ctx.meta):
            super().format_help(ctx, formatter)


def _show_everything(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_EVERYTHING] = True
        typer.echo(context.get_help())
        raise typer.Exit


# Without a row of its own: where there are rare options, the last line of the page names it.
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show all options.", hidden=True, is_eager=True, callback=_show_everything),
]


class FailOn(StrEnum):
    """Outcomes that make a command fail under ``--fail-on``; see ``finish.exit_code``."""

    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"
    CONTRADICTED = "contradicted"
    NOT_VALID = "not-valid"


def fail_on_of(text: str | None) -> frozenset[FailOn] | None:
    """Return the outcomes in ``--fail-on``; None if the option was not given. Raises InputError for an unknown word."""
    if text is None:
        return None
    try:
        return frozenset(FailOn(word.strip()) for word in text.split(","))
    except ValueError as error:
        raise InputError(f"--fail-on {text}: give one or more of {', '.join(FailOn)}, separated by commas") from error


def _hush(quiet: bool) -> bool:
    """Turn off progress if ``--quiet`` is given after a command; ``--quiet`` before the command was read earlier."""
    # Or: a command's --quiet that was not given must not undo the one before the command.
    be_quiet(quiet or is_quiet())
    return quiet


class _Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


def _use(device: _Device | None) -> _Device | None:
    """Store the value of ``--device`` in the environment, so child processes use the same device."""
    if device is not None:  # one that was not given must not undo the one before the command
        os.environ["HELDIN_DEVICE"] = device.value
    return device


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heldin {version()}")
        raise typer.Exit


def _set_batch(size: int | None) -> int | None:
    """Store the value of ``--batch-size`` in the environment. The batch size changes scores only by rounding."""
    if size is not None:
        os.environ["HELDIN_BATCH_SIZE"] = str(size)
    return size


DeviceOption = Annotated[
    _Device | None,
    typer.Option(
        "--device",
        help=("cpu, cuda, or auto to spread models over all GPUs and main memory (default: the GPU, if there is one)."),
        rich_help_panel=RUNNING,
        callback=_use,
        hidden=True,
    ),
]


def beginning(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only the answer and errors, without progress.", callback=be_quiet),
    ] = False,
    device: DeviceOption = None,
    help_all: HelpAll = False,
) -> None:
    """Read the options that precede the command name. typer shows the app's help text instead of this docstring."""


Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", file_okay=False, help="Folder for the results (default: runs/NAME)."),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the config. Repeatable.")
]
Claims = Annotated[
    list[str] | None, typer.Option("--claim", metavar="KEY=VALUE", help="Claim to test, such as epsilon=8,delta=1e-6.")
]
FailOnOption = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="WORD",
        help="Exit with code 8 for these results: leaks, inconclusive, not-valid, contradicted.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        help="Number of texts per forward pass.",
        callback=_set_batch,
        rich_help_panel=RUNNING,
        hidden=True,
    ),
]
UserColumn = Annotated[str, typer.Option(help="Column with user names.")]
TextColumn = Annotated[str, typer.Option(help="Column with texts.")]
IdColumn = Annotated[str | None, typer.Option(help="Column with unique record ids (default: made from user and text).")]
DateColumn = Annotated[str | None, typer.Option(help="Column with dates.")]
Rate = Annotated[float | None, typer.Option("--sampling-rate", help="Probability that a step samples a unit.")]
Noise = Annotated[float | None, typer.Option("--noise-multiplier", help="Standard deviation of noise / clip norm.")]
Target = Annotated[float | None, typer.Option("--target-epsilon", help="Calibrate the noise to this epsilon.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; null means unknown or infinite.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV; an empty cell means unknown.")]
AsHtml = Annotated[
    bool,
    typer.Option("--html", help="Also write report.html, for offline use.", rich_help_panel=RUNNING),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only the answer and errors.", callback=_hush, rich_help_panel=RUNNING),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also print statistics and conditions.",
        rich_help_panel=RUNNING,
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip unusable rows, and count them.", rich_help_panel=READING)
]
AdapterBase = Annotated[
    str | None,
    typer.Option(
        "--adapter-base",
        metavar="MODEL",
        help="Base model of the adapters (default: the base in the adapter's config).",
        rich_help_panel=RUNNING,
        hidden=True,
    ),
]
_reading = partial(typer.Option, rich_help_panel=READING, hidden=True)
Strict = Annotated[bool, _reading("--strict", help="Stop at a row without text instead of skipping it.")]
Encoding = Annotated[str | None, _reading("--encoding", metavar="NAME", help="Encoding of text files, such as cp1252.")]
Delimiter = Annotated[
    str | None, _reading("--delimiter", metavar="WORD", help="Character between the fields of a CSV file.")
]
TemplateFile = Annotated[
    Path | None,
    typer.Option("--template", dir_okay=False, hidden=True, help="File with a chat template (default: the model's)."),
]
RowsField = Annotated[
    str | None,
    _reading("--field", metavar="NAME", help="Key that holds the list of rows, in a JSON file that is one object."),
]
ExcludeAuroc = Annotated[
    float | None, typer.Option(help="'No leak found' needs an AUROC below this limit (default: 0.60).")
]
ExcludeTpr = Annotated[
    float | None,
    typer.Option(help="'No leak found' needs a TPR at 5 % FPR below this limit (default: 0.15)."),
]
Aliases = Annotated[Path | None, typer.Option(dir_okay=False, help="YAML file that lists each person's aliases.")]


def dtype_option(default: str) -> Any:
    """Return the option ``--dtype`` with this default in its help text."""
    return typer.Option(
        "--dtype",
        help=f"Precision of scoring: fp32, auto, bf16, fp16, int8 or nf4 (default: {default}).",
        rich_help_panel=RUNNING,
        hidden=True,
    )


def rows_rule(skip_bad_rows: bool, strict: bool) -> "OnBadRows":
    """Return the rule for unusable rows. Raises InputError if both options are given."""
    from heldin.corpus.sources.bad_rows import OnBadRows

    if skip_bad_rows and strict:
        raise InputError("--strict stops at the rows that --skip-bad-rows skips: give only one of these options")
    return OnBadRows.SKIP if skip_bad_rows else OnBadRows.STRICT if strict else OnBadRows.SKIP_EMPTY


def rows_set(skip_bad_rows: bool, strict: bool, key: str) -> list[str]:
    """Return the rule of ``rows_rule`` as an override of a config key; no override if neither option is given."""
    return [f"{key}={rows_rule(skip_bad_rows, strict).value}"] if skip_bad_rows or strict else []


def json_text(fields: Any) -> str:
    """Return the fields as strict JSON; see ``strict_json``."""
    from heldin.base.files import strict_json

    return strict_json(fields)


def answer(table: str, fields: Any, rows: Sequence[Mapping[str, Any]], *, json: bool, csv: bool) -> None:
    """Print a command's result as a table, as one JSON object or as CSV.

    Args:
        table: text to print if neither ``json`` nor ``csv`` is true.
        fields: the result as a JSON object, or as a list of objects.
        rows: the result as rows of CSV.
        json: whether ``--json`` was given.
        csv: whether ``--csv`` was given.

    Raises:
        InputError: both ``json`` and ``csv`` are true.
    """
    if json and csv:
        raise InputError("give only one of --json and --csv")
    if csv:
        from heldin.base.tabular import csv_text

        typer.echo(csv_text(rows), nl=False)  # every row ends its line
    else:
        typer.echo(json_text(fields) if json else table)


def thresholds(auroc: float | None, tpr: float | None) -> "DecisionConfig":
    """Return the thresholds of the decision. None means the default. Raises InputError for an invalid threshold."""
    from pydantic import ValidationError

    from heldin.audit.decision import DecisionConfig

    # Without the options that were left out, the defaults stay those of the config and are written once.
    given = {name: value for name, value in (("auroc", auroc), ("tpr", tpr)) if value is not None}
    try:
        return DecisionConfig(**given)
    except ValidationError as error:
        # An error of a pair of thresholds has no place and no option of its own: its message names both.
        first = error.errors()[0]
        option = f"--exclude-{first['loc'][0]} {first['input']}: " if first["loc"] else ""
        raise InputError(f"{option}{first['msg'].removeprefix('Value error, ')}") from error


def confirm(lines: list[str], question: str, *, yes: bool) -> None:
    """Ask the user before removing files. Raises InputError unless the user agrees or ``yes`` is true."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask for confirmation: give --yes to remove the files")
    # On stderr, as the question: stdout holds the one line or JSON object that scripts read.
    typer.echo("\n".join(lines), err=True)
    if not typer.confirm(question, err=True):
        # Exit code 2: a script must not take a refusal for something removed.
        raise InputError(
            "heldin removed nothing, because you did not answer yes: run the command again, and answer yes"
        )
