"""heldin: was this user held in? The command line; nothing but wiring.

A command's module is imported when it is called: what `heldin audit` loads does not grow with the other commands.
"""

import errno
import functools
import importlib
import inspect
import os
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

import typer
from typer.models import ArgumentInfo

from heldin.base.errors import ExitCode, InputError, ResumableError
from heldin.commands.finish import Interrupted
from heldin.commands.options import beginning

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
    "corpus": "corpus:app",
}

_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException of the click that typer brings
# Errors of the system that another file name helps with. All others, such as a full disk, leave a run that can be
# resumed.
_MISNAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
# The examples at the end of the help pages; tests/end_to_end/test_help_examples.py runs them in this order.
_FILES = "--held-in example/held_in.jsonl --held-out example/held_out.jsonl --user author --text body"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "corpus example": ("heldin corpus example --out example --models",),
    "corpus build": ("heldin corpus build example/corpus.jsonl --user author --text body",),
    "corpus stats": ("heldin corpus stats example/corpus.jsonl --user author --text body",),
    "corpus entities": ("heldin corpus entities example/corpus.jsonl --pattern email --user author --text body",),
    "corpus presets": ("heldin corpus presets",),
    "corpus formats": ("heldin corpus formats",),
    "audit": (
        f"heldin audit --model example/model --reference example/base {_FILES}",
        "heldin audit --config audit.yaml --fail-on leaks,inconclusive --out runs/gated",
    ),
    "audit-endpoint": (
        f"heldin audit-endpoint http://localhost:8000/v1 --model model --reference endpoint:base {_FILES}"
        " --tokenizer example/base --out runs/endpoint",
    ),
    "init": ("heldin init run --kind uls --out uls.yaml", "heldin init plant"),
    "config": ("heldin config run finetune.epochs", "heldin config audit"),
    "run": (
        "heldin run example/run.yaml --check",
        "heldin run example/run.yaml --set finetune.epochs=2 --out runs/two-epochs",
    ),
    "report": ("heldin report runs/two-epochs --html",),
    "compare": ("heldin compare runs/two-epochs runs/my-own --over finetune.epochs --out curves",),
    "export": ("heldin export runs/two-epochs --out public",),
    "verify": ("heldin verify runs/two-epochs", "heldin verify --exported public"),
    "purge": ("heldin purge runs/two-epochs --keep record,report,model",),
    "cache": ("heldin cache", "heldin cache scores --clear"),
    "sweep": ("heldin sweep sweep.yaml --check", "heldin sweep sweep.yaml --set blocks=1 --set decision=null --html"),
    "demo": ("heldin demo --html",),
    "plant": ("heldin plant plant.yaml --check", "heldin plant plant.yaml --out planted"),
    "audit-planted": ("heldin audit-planted planted --model example/model --claim epsilon=8,delta=1e-6,unit=user",),
    "retrain": ("heldin retrain uls.yaml --trainings 40",),
    "white-box": (
        "heldin white-box --kind uls --users 100 --cohort 10 --steps 20 --delta 1e-3 --target-epsilon 4 --canaries 200",
    ),
    "bound": ("heldin bound example/scores.csv --assignment coin --claim epsilon=1,delta=1e-5",),
    "power": (
        "heldin power --users 500 --auroc 0.75",
        "heldin power --users 200 --auroc 0.8 --claim epsilon=1,delta=1e-5",
    ),
    "account": (
        "heldin account uls --users 1024 --cohort 16 --steps 1000 --delta 1e-6 --target-epsilon 4",
        "heldin account runs/my-uls/plan.json",
    ),
    "choose": ("heldin choose --users 1024 --budget 512 --steps 1000 --target-epsilon 4",),
}
# By the type of a value, the word for it in help pages.
_VALUES: dict[type, str] = {Path: "FILE", str: "NAME", bool: "", int: "NUMBER", float: "NUMBER"}
_FOLDERS = ("out", "exported", "figures", "tables", "planted")


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
            complete(target, name)
            command = typer.main.get_command(target)
            command.name = name
            _say_no_types(command)
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
    epilog="Exit codes: " + "; ".join(f"{code} {code.meaning}" for code in ExitCode) + ".",
)
app.callback()(beginning)


def _flowing(doc: str) -> str:
    """Return a docstring with paragraphs on one line each: typer keeps the line ends of all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))


def _epilog(command: str) -> str | None:
    """Return the end of a command's help page; None without examples."""
    # Broken as a shell takes it: a terminal would break a longer line anywhere.
    filled = (
        textwrap.fill(line, 76, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in EXAMPLES.get(command, ())
    )
    lines = [line.replace("\n", " \\\n") for line in filled]
    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines]) if lines else None


def _name_values(command: Callable[..., None]) -> None:
    """Give every option and argument a word for its value, where it states none: FILE, NUMBER or NAME; a flag none."""
    for name, annotated in typing.get_type_hints(command, include_extras=True).items():
        # The parameter is the last of Annotated, which may be in a union with None.
        for info in getattr(annotated, "__metadata__", ()):
            kinds = {kind for part in (annotated.__origin__, *get_args(annotated.__origin__)) for kind in _kinds(part)}
            word = next((word for kind, word in _VALUES.items() if kind in kinds), None)
            if info.metavar is not None:
                continue
            if isinstance(info, ArgumentInfo):
                info.metavar = name.upper()
            elif word is not None:
                info.metavar = "FOLDER" if word == "FILE" and name in _FOLDERS else word


def _say_no_types(command: Any) -> None:
    """Leave Python's types of arguments out of help pages; the choices of one that has some stay."""
    for child in getattr(command, "commands", {}).values():
        _say_no_types(child)
    for parameter in command.params:
        shown = getattr(parameter, "display_type_rich", None)
        if parameter.param_type_name == "argument" and shown and "|" not in (shown(None) or ""):
            parameter.display_type_rich = lambda ctx: None


def _kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *get_args(hint))


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


def complete(commands: typer.Typer, name: str = "") -> None:
    """Give the commands of this group help that breaks where the terminal does, examples, and limits on numbers."""
    for command in commands.registered_commands:
        if command.callback is not None:
            if command.callback.__doc__:
                command.help = _flowing(command.callback.__doc__)
            own = (command.name or command.callback.__name__).replace("_", "-")
            command.epilog = _epilog(name if own == name else f"{name} {own}")
            _name_values(command.callback)
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
                f"error: {os.strerror(error.errno)}: '{error.filename}': name another file or folder",
                ExitCode.BAD_INPUT,
            )
        where = f": '{error.filename}'" if error.filename else ""
        _fail(f"stopped: {os.strerror(error.errno)}{where}; fix it and run the command again", ExitCode.RESUMABLE)
    if code == ExitCode.INTERRUPTED:  # before there was anything to resume
        _fail("interrupted", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: Any) -> NoReturn:
    """Return one line for a wrong option or command, as for any other wrong input; the help if no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(ExitCode.BAD_INPUT)
    context = getattr(error, "ctx", None)
    help_ = f" (see {context.command_path} --help)" if context else ""
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")  # pydantic's words
    _fail(f"error: {message}{help_}", ExitCode.BAD_INPUT)


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
