"""``heldin config`` prints every key of a config file. ``heldin init`` writes a commented file to start from."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.options import AsCsv, AsJson, answer, json_text

if TYPE_CHECKING:
    from pydantic import BaseModel


class Command(StrEnum):
    """The commands that read a config file."""

    RUN = "run"
    AUDIT = "audit"
    PLANT = "plant"
    SWEEP = "sweep"


Kind = Annotated[Command, typer.Argument(help="The command that reads the file: run, audit, plant or sweep.")]


def config(
    command: Kind,
    section: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print only this section or key, such as finetune.epochs.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema, for editors.")] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Print every key of a config file, with its default and meaning.

    Kinds from other packages are listed by name only, because heldin does not import these packages.
    """
    # Without torch: keys are printed in a moment (tests/jobs/test_config_keys.py).
    from heldin.stages import config_keys

    if sum((schema, csv, json)) > 1:
        raise InputError("give only one of --schema, --csv and --json")
    if section and schema:
        raise InputError("--schema prints the schema of the whole file: leave out the section")
    model = _model(command)
    if schema:
        typer.echo(json_text(config_keys.file_schema(model, f"A file for heldin {command}")))
        return
    everything = config_keys.blocks(model, installed=True)
    listed = config_keys.blocks_at(section, everything) if section else everything
    # Lines stay readable on a wide terminal, and whole on a narrow one.
    width = min(config_keys.WIDTH, shutil.get_terminal_size().columns)
    sections = [block.as_dict() for block in listed]
    rows = [{**key, "kinds": section["kinds"]} for section in sections for key in section["keys"]]
    answer("\n".join(config_keys.lines(listed, width)), {"sections": sections}, rows, json=json, csv=csv)


def init(
    command: Kind,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Kind of file (default: the first). run: none, uls, banded, els, group, example, user-entity, uedp,"
            " filter, clip, canaries, chat, preference; for your own corpus: own, own-chat, own-preference. audit:"
            " files, endpoint. plant: users, canaries.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", dir_okay=False, help="New file to write (default: COMMAND.yaml, such as run.yaml)."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a commented config file to start from."""
    from heldin.base.files import write_text
    from heldin.stages.starting.files import kinds, needed, starting_file

    file, kind = out or Path(f"{command}.yaml"), kind or kinds(command)[0]
    text = starting_file(command, kind, _model(command))
    # A config that somebody has edited is not overwritten.
    if file.exists():
        raise InputError(f"'{file}' already exists: name a new file with --out")
    write_text(file, text)
    next_ = f"heldin audit --config {file}" if command is Command.AUDIT else f"heldin {command} {file} --check"
    files = needed(command, kind, file.parent)
    missing = [] if files is None else [name for name in files.files if not Path(name).exists()]
    make = files.command if files is not None and missing else None
    if json:
        typer.echo(json_text({"file": str(file), "try": next_, "missing": missing, "make": make}))
        return
    if make:
        typer.echo(f"{file} names files that do not exist: {', '.join(missing)}")
        typer.echo(f"to make example files: {make}")
    typer.echo(f"edit {file}, then run: {next_}")


def _model(command: Command) -> "type[BaseModel]":
    match command:
        case Command.RUN:
            from heldin.stages.run_config import RunConfig

            return RunConfig
        case Command.AUDIT:
            from heldin.jobs.checkpoint.audit_config import CheckpointConfig

            return CheckpointConfig
        case Command.PLANT:
            from heldin.planting.plant_config import PlantConfig

            return PlantConfig
        case Command.SWEEP:
            from heldin.sweeps.sweep_config import SweepConfig

            return SweepConfig
