"""``heldin plugins``: list and check the kinds that installed packages add."""

import textwrap
from typing import Annotated

import typer

from heldin.base.errors import ExitCode
from heldin.commands.options import AsCsv, AsJson, answer

WIDTH = 78


def plugins(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="List only these kinds, each as NAME or FAMILY:NAME."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Import each kind, run its test suite (heldin.testing) and store the result."),
    ] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """List the kinds that installed packages add, and test them.

    A package registers its attacks, corpus sources, data defenses and other kinds as entry points. A config uses these
    kinds by name. Without --check, heldin imports no kind. With --check, the exit code is 2 if a test suite fails.
    """
    from heldin.testing.suites import checked, installed

    listed = installed()
    if check:
        listed = [checked(name) for name in names or [f"{plugin.family}:{plugin.name}" for plugin in listed]]
    elif names:
        listed = [plugin for plugin in listed if {plugin.name, f"{plugin.family}:{plugin.name}"} & {*names}]
    rows = [plugin.as_dict() for plugin in listed]
    answer(_text(rows), {"plugins": rows}, rows, json=json, csv=csv)
    if check and any(plugin.problems for plugin in listed):
        raise typer.Exit(ExitCode.BAD_INPUT)


def _text(rows: list[dict[str, object]]) -> str:
    if not rows:
        return "No installed package adds a kind. docs/extending.md describes how a package does this."
    lines = []
    for row in rows:
        lines.append(f"{row['name']} ({row['family']}): {row['package']} {row['version']}, suite {row['suite']}")
        lines.append(f"    {row['target']}")
        for problem in row["problems"] if isinstance(row["problems"], list) else ():
            lines += textwrap.wrap(f"- {problem}", WIDTH, initial_indent="    ", subsequent_indent="      ")
    return "\n".join(lines)
