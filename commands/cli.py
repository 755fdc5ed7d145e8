"""The command line of heldin, without any logic of the commands.

heldin imports a command's module when the command is called, so other commands do not slow down `heldin audit`.
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

from heldin.base.errors import ExitCode, InputError, ResumableError
from heldin.commands.finish import Interrupted
from heldin.commands.options import HelpAll, PagedCommand, PagedGroup, beginning

# Where each command is, in the order of the help; "app" is a group of commands.
COMMANDS = {
    "demo": "sweep:demo",
    "run": "run:run",
    "sweep": "sweep:sweep",
    "audit": "audit:audit",
    "audit-endpoint": "audit:audit_endpoint",
    "plant": "planted:plant",
    "audit-planted": "planted:audit_planted",
    "retrain": "training:retrain",
    "white-box": "training:white_box",
    "report": "finished:report",
    "runs": "finished:runs",
    "compare": "finished:compare",
    "verify": "finished:verify",
    "export": "finished:export",
    "purge": "finished:purge",
    "cache": "finished:cache",
    "bound": "numbers:bound",
    "power": "numbers:power",
    "account": "numbers:account",
    "choose": "numbers:choose",
    "init": "config:init",
    "config": "config:config",
    "plugins": "plugins:plugins",
    "corpus": "corpus:app",
}

_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException of the click that typer brings
# Errors of the system that another file name helps with. All others, such as a full disk, leave a run that can be
# resumed.
_MISNAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported on first use."""

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


class _Group(PagedGroup):
    """The group of all commands, which imports a command only when it is needed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, without importing their modules."""
        return list(self.commands)


app = typer.Typer(
    cls=_Group,
    help="Test whether a language model reveals whose text it was fine-tuned on.",
    no_args_is_help=True,
    # typer's tracebacks show local variables, which hold users' names and texts.
    pretty_exceptions_enable=False,
    epilog="Exit codes: " + "; ".join(f"{code} {code.meaning}" for code in ExitCode) + ".",
)
app.callback()(beginning)


def complete(commands: typer.Typer) -> None:
    """Give each command of a group heldin's form of help page, and check the numbers in its options."""
    for command in commands.registered_commands:
        if command.callback is not None and command.cls is not PagedCommand:
            command.cls, command.callback = PagedCommand, _limited(command.callback)


def _limited(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with ``--help-all``, and with a check of every number against its limits."""

    @functools.wraps(command)
    def call(**options: Any) -> None:
        from heldin.base.arguments import require_within  # pydantic, which no help needs

        options.pop("help_all", None)
        for name, value in options.items():
            for number in value if isinstance(value, list | tuple) else (value,):
                if isinstance(number, int | float):
                    require_within(f"--{name.replace('_', '-')}", number)
        command(**options)

    own = inspect.signature(command, eval_str=True)
    help_all = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    # typer reads the parameters of a command from here.
    call.__signature__ = own.replace(parameters=[*own.parameters.values(), help_all])  # type: ignore[attr-defined]
    return call


def main() -> None:
    """Run heldin's command line and exit the process."""
    call(app, "heldin")


def call(commands: typer.Typer, name: str) -> NoReturn:
    """Run a command line and exit. Errors that a user can cause are printed on one line, and each kind has its own exit
    code.

    Args:
        commands: the commands of the program.
        name: name of the program, as the user types it.
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
        _fail(f"error: {error}", ExitCode.BAD_INPUT)
    except ResumableError as error:
        _fail(f"stopped: {error}", ExitCode.RESUMABLE)
    except Interrupted:
        _fail("interrupted: the same command resumes from the last checkpoint", ExitCode.INTERRUPTED)
    except OSError as error:
        # Not the system's: libraries raise OSError for what they cannot read, which heldin should have caught.
        if error.errno is None:
            raise
        if error.errno in _MISNAMED and error.filename:
            _fail(
                f"error: {os.strerror(error.errno)}: '{error.filename}'. Name another file or folder",
                ExitCode.BAD_INPUT,
            )
        where = f": '{error.filename}'" if error.filename else ""
        fix = "fix the cause, then run the same command again"
        _fail(f"stopped: {os.strerror(error.errno)}{where}; {fix}", ExitCode.RESUMABLE)
    if code == ExitCode.INTERRUPTED:  # before there was anything to resume
        _fail("interrupted", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: Any) -> NoReturn:
    """Exit after one line about a wrong option or command, or after the help page if no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(ExitCode.BAD_INPUT)
    context = getattr(error, "ctx", None)
    if context:
        from heldin.commands.help import describe

        describe(context.command, context.command_path)  # an argument is named as on its page
    help_ = f" (see {context.command_path} --help)" if context else ""
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")  # pydantic's words
    _fail(f"error: {message}{help_}", ExitCode.BAD_INPUT)


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
