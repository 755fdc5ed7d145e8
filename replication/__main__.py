"""The command line of the replications. This module only connects the commands."""

import inspect

import typer

from heldin.commands.cli import call, complete
from heldin.commands.options import PagedGroup
from replication import experiments, studies

app = typer.Typer(
    cls=PagedGroup,
    help="Compute published results again with heldin.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _without_name(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(listing())


def listing() -> str:
    """Return one line for each result that can be recomputed."""
    summaries = {
        str(command.name): (command.help or inspect.getdoc(command.callback) or "").split("\n\n")[0].replace("\n", " ")
        for part in (studies.app, experiments.app)
        for command in part.registered_commands
    }
    width = max(map(len, summaries)) + 2
    lines = [f"{name.ljust(width)}{summary}" for name, summary in summaries.items()]
    closing = [
        "",
        "python -m replication NAME --help lists the options of a name. Runs of Kandpal et al. at full size, on a GPU:",
        "heldin run replication/configs/paper/enron.yaml, and the files next to it.",
    ]
    return "\n".join([*lines, *closing])


for commands in (studies.app, experiments.app):
    complete(commands)
    app.registered_commands += commands.registered_commands


if __name__ == "__main__":
    call(app, "python -m replication")
