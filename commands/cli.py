"""The command line of heldin; nothing but wiring.

A command's module is imported when it is called: what `heldin audit` loads does not grow with the other commands.
"""

import errno
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import typer

from heldin.base.errors import ExitCode, InputError, ResumableError
from heldin.commands.finish import Interrupted
from heldin.commands.help import Group, complete, describe
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
    "runs": ("heldin runs", "heldin runs --html"),
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
            complete(target, EXAMPLES, name)
            command = typer.main.get_command(target)
            command.name = name
            describe(command)
            self._imported[name] = command
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(Group):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        describe(self)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names, without importing any."""
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
