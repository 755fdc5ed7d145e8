"""Options that several commands share, and how they print JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heldin.base.errors import InputError
from heldin.base.quiet import be_quiet, is_quiet

if TYPE_CHECKING:
    from heldin.audit.decision import DecisionConfig

BAD_INPUT = 2


def _hush(quiet: bool) -> bool:
    """After a command: what stands before it has been read."""
    be_quiet(quiet or is_quiet())
    return quiet


def _say_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"heldin {importlib.metadata.version('heldin')}")
        raise typer.Exit


def beginning(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_say_version)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress: the answer and errors alone.", callback=be_quiet)
    ] = False,
) -> None:
    """Options before the command; typer shows the help of the app in place of this line."""


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
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object; null stands for what is not known and for an infinite number.")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="The table as CSV; a cell that nobody knows is empty.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress: the answer and errors alone.", callback=_hush)]
StudyFolder = Annotated[Path, typer.Option("--to", help="Folder for the figure and the numbers.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad-lines", help="Count and skip unusable rows.")]
ExcludeAuroc = Annotated[
    float | None, typer.Option(help="Say 'no leak found' only if more than this AUROC is excluded (default: 0.60).")
]
ExcludeTpr = Annotated[
    float | None, typer.Option(help="And more than this share named at 5 % false positives (default: 0.15).")
]
Aliases = Annotated[Path | None, typer.Option(help="YAML file with a list of aliases for each person.")]


def json_text(fields: dict[str, Any]) -> str:
    """One JSON object, as strict as ``strict_json``."""
    from heldin.base.strict_json import strict_json

    return strict_json(fields)


def answer(table: str, fields: dict[str, Any], rows: Sequence[Mapping[str, Any]], *, json: bool, csv: bool) -> None:
    """Print what a command found: its table, or the same as one JSON object or as CSV."""
    if json and csv:
        raise InputError("one of --json and --csv at a time")
    if csv:
        from heldin.base.csv_text import csv_text

        typer.echo(csv_text(rows), nl=False)
    else:
        typer.echo(json_text(fields) if json else table)


def thresholds(auroc: float | None, tpr: float | None) -> "DecisionConfig":
    """The decision by these thresholds, or by default; raises InputError for what no audit could reach."""
    from pydantic import ValidationError

    from heldin.audit.decision import DecisionConfig

    given = {name: value for name, value in (("auroc", auroc), ("tpr", tpr)) if value is not None}
    try:
        return DecisionConfig(**given)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--exclude-{first['loc'][0]} {first['input']}: " if first["loc"] else ""
        raise InputError(f"{option}{first['msg'].removeprefix('Value error, ')}") from error
