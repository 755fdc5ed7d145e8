"""``heldin config``: every key of a run's configuration, its JSON schema, and files to start from."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from heldin.base.errors import InputError
from heldin.commands.options import AsCsv, AsJson, answer, json_text


def config(
    section: Annotated[
        str | None, typer.Argument(help="Only this section or key, such as finetune or defense.clip_norm.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema, for editors.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in docs/configuration.md.")] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="The keys of a file for heldin audit --config instead of a run's.")
    ] = False,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Print a commented file to start from. KIND: none, uls, els, group, example, user_entity, uedp,"
            " filter, clip, canaries, or own (your own corpus).",
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="With --init: write to this new file instead.")] = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Print every key of a configuration: its default, its allowed values and its meaning."""
    # Without torch: keys are printed in a moment (tests/jobs/test_config_keys.py).
    from heldin.jobs import config_keys

    # --json goes with --init, where it wraps the file's text.
    if sum((schema, markdown, csv, json and not init, init is not None)) > 1:
        raise InputError("one of --schema, --markdown, --init, --csv and --json at a time")
    if section and (schema or init):
        raise InputError("--schema and --init are for the whole file: leave the section out")
    if audit and init is not None:
        raise InputError("--init writes files for heldin run: leave --audit out")
    if to is not None and init is None:
        raise InputError("--to says where --init KIND writes: name a kind, such as --init none")
    if init is not None:
        _start(init, to, json)
        return
    from heldin.jobs.checkpoint.audit_config import CheckpointConfig
    from heldin.stages.run_config import RunConfig

    model = CheckpointConfig if audit else RunConfig
    if schema:
        typer.echo(json_text(config_keys.file_schema(model, "An audit by heldin" if audit else "A run of heldin")))
        return
    listed = config_keys.blocks_at(section, model) if section else config_keys.blocks(model)
    if markdown:
        typer.echo(config_keys.markdown(listed, config_keys.AUDIT_PAGE if audit else config_keys.RUN_PAGE))
        return
    # Lines stay readable on a wide terminal, and whole on a narrow one.
    width = min(config_keys.WIDTH, shutil.get_terminal_size().columns)
    sections = [block.as_dict() for block in listed]
    rows = [{**key, "kinds": section["kinds"]} for section in sections for key in section["keys"]]
    answer("\n".join(config_keys.lines(listed, width)), {"sections": sections}, rows, json=json, csv=csv)


def _start(kind: str, to: Path | None, json: bool) -> None:
    from heldin.base.files import write_text
    from heldin.jobs.starting_files import starting_file

    text = starting_file(kind)
    if to is None:
        typer.echo(json_text({"kind": kind, "text": text}) if json else text, nl=json)
        return
    # A config that somebody has edited is not overwritten.
    if to.exists():
        raise InputError(f"'{to}' already exists: name a new file")
    write_text(to, text)
    again = f"heldin run {to} --check"
    typer.echo(json_text({"kind": kind, "file": str(to), "try": again}) if json else f"{to}: look it over with {again}")
