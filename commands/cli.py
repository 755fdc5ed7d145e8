"""heldin: was this user held in? The command line; nothing but wiring.

A command's module is imported when it is called: what `heldin audit` loads does not grow with the other commands.
"""

import errno
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import typer

from heldin.base.errors import InputError, ResumableError
from heldin.commands.finish import Interrupted
from heldin.commands.options import BAD_INPUT, beginning

# Where each command is, in the order of the help; "app" is a group of commands.
COMMANDS = {
    "demo": "sweep:demo",
    "run": "run:run",
    "sweep": "sweep:sweep",
    "config": "config:config",
    "audit": "audit:audit",
    "plant": "planted:plant",
    "audit-training": "training:audit_training",
    "audit-trainer": "training:audit_trainer",
    "report": "finished:report",
    "compare": "finished:compare",
    "verify": "finished:verify",
    "export": "finished:export",
    "purge": "finished:purge",
    "cache": "finished:cache",
    "bound": "scores:bound",
    "power": "scores:power",
    "corpus": "corpus:app",
    "account": "account:app",
}

_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException of the click that typer brings
BUG, RESUMABLE, INTERRUPTED = 1, 5, 130
# Errors of the system that another file name helps with. All others, such as a full disk, leave a run that can be
# resumed.
_MISNAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported when it is looked up."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        place = COMMANDS[name]
        if name not in self._imported:
            module, attribute = place.split(":")
            target = getattr(importlib.import_module(f"heldin.commands.{module}"), attribute)
            if not isinstance(target, typer.Typer):
                function, target = target, typer.Typer(add_completion=False)
                target.command(name)(function)
            complete(target)
            command = typer.main.get_command(target)
            command.name = name
            self._imported[name] = command
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(typer.core.TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names, without importing any."""
        return list(self.commands)


app = typer.Typer(
    cls=_Group,
    help="Was this user held in? Audit language models that were fine-tuned on people's text.",
    no_args_is_help=True,
    # typer's tracebacks show local variables, which hold users' names and texts.
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 bug, 2 bad input or config, 3 certified violation of a claim, 4 indicative violation,"
    " 5 failed but can be resumed, 6 trainer unsafe on input that is not finite (audit-trainer), 130 interrupted."
    " The answer itself, also 'leaks', has no exit code: a gate reads .decision.decision.answer of --json or"
    " record.json.",
)
app.callback()(beginning)


def _flowing(doc: str) -> str:
    """Return a docstring with paragraphs on one line each: typer keeps the line ends of all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))


def _limited(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every number among the options held to the limits of ``base.section``."""

    @functools.wraps(command)
    def call(**options: Any) -> None:
        from heldin.base.arguments import require_within  # pydantic, which no help needs

        for name, value in options.items():
            for number in value if isinstance(value, list | tuple) else (value,):
                if isinstance(number, int | float):
                    require_within(f"--{name.replace('_', '-')}", number)
        command(**options)

    return call


def complete(commands: typer.Typer) -> None:
    """Give the commands of this group help that breaks where the terminal does, and limits on numbers."""
    for command in commands.registered_commands:
        if command.callback is not None:
            if command.callback.__doc__:
                command.help = _flowing(command.callback.__doc__)
            command.callback = _limited(command.callback)


def main() -> None:
    """Run heldin's command line."""
    call(app, "heldin")


def call(commands: typer.Typer, name: str) -> NoReturn:
    """Run a command line; errors that a user can cause become one line and an exit code.

    Args:
        name: what the user types before them.
    """
    # Before the commands import what reads them; a value that the user has set stays.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Threads that wait for each other sleep: beside other processes that are busy, spinning makes two threads several
    # times slower than one. On an idle machine a step takes as long either way.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        # Otherwise click would print errors in its own form and exit by itself, past the handlers below.
        code = commands(standalone_mode=False, prog_name=name)
    except _WrongUse as error:
        _fail_usage(error)
    except InputError as error:
        _fail(f"error: {error}", BAD_INPUT)
    except ResumableError as error:
        _fail(f"stopped: {error}", RESUMABLE)
    except Interrupted:
        _fail("interrupted: the same command resumes from the last checkpoint", INTERRUPTED)
    except OSError as error:
        # Not the system's: libraries raise OSError for what they cannot read, which heldin should have caught.
        if error.errno is None:
            raise
        if error.errno in _MISNAMED and error.filename:
            _fail(f"error: {os.strerror(error.errno)}: '{error.filename}': name another file or folder", BAD_INPUT)
        where = f": '{error.filename}'" if error.filename else ""
        _fail(f"stopped: {os.strerror(error.errno)}{where}; fix it and run the command again", RESUMABLE)
    if code == INTERRUPTED:  # before there was anything to resume
        _fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: Any) -> NoReturn:
    """Return one line for a wrong option or command, as for any other wrong input; the help if no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(BAD_INPUT)
    context = getattr(error, "ctx", None)
    help_ = f" (see {context.command_path} --help)" if context else ""
    _fail(f"error: {' '.join(error.format_message().split()).rstrip('.')}{help_}", BAD_INPUT)


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
