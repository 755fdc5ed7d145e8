"""Help pages: placeholders of values, defaults, rare options and examples. Loaded only for help and usage errors."""

import inspect
import textwrap
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from heldin.base.wording import counted

# The words for values of options and arguments. A page lists the words that a WORD may be.
PLACEHOLDERS = ("FILE", "FOLDER", "NAME", "NUMBER", "MODEL", "KEY=VALUE", "WORD", "URL", "DATE", "COMMAND")
# By the type of a value, the word where the option states none. A path is a folder if no file is accepted.
_WORDS: dict[type, str] = {Path: "FILE", bool: "", int: "NUMBER", float: "NUMBER", Enum: "WORD", str: "NAME"}
_WIDTH = 76  # of an example; the page has a margin
# The examples at the end of the help pages; tests/commands/test_help_examples.py runs them in this order.
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
    "plugins": ("heldin plugins", "heldin plugins --check"),
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
        "heldin account compose runs/my-uls/plan.json --times 52",
    ),
    "choose": ("heldin choose --users 1024 --budget 512 --steps 1000 --target-epsilon 4",),
}


@contextmanager
def page(command: Any, context: Any, *, everything: bool) -> Iterator[None]:
    """While a command's page is written, hide its rare options and state how many are hidden. ``everything``: hide
    none."""
    name = context.command_path
    describe(command, name)
    rare, epilog = [] if everything else command.rare, command.epilog
    if rare:
        more = f"{counted(len(rare), 'more option')}: {name} --help-all"
        command.epilog = f"{epilog}\n\n{more}" if epilog else more
    for option in rare:
        option.hidden = True
    # typer adds --help, --show-completion and the like to a command that is described.
    for parameter in command.get_params(context):
        parameter.metavar = parameter.metavar or ""
    try:
        yield
    finally:
        command.epilog = epilog
        for option in rare:
            option.hidden = False


def _flowing(doc: str) -> str:
    """Return a docstring with each paragraph on one line, since typer keeps line ends after the first paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))


def _epilog(examples: Sequence[str]) -> str | None:
    """Return the examples at the end of a command's help page; None if there are no examples."""
    # Broken as a shell takes it: a terminal would break a longer line anywhere.
    filled = (
        textwrap.fill(line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in examples
    )
    lines = [line.replace("\n", " \\\n") for line in filled]
    return "\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines]) if lines else None


def describe(command: Any, name: str) -> None:
    """Set the placeholders, defaults, rare options and examples of a command's help page.

    An option that is declared with ``hidden=True`` is rare. Shell completion and the documentation show every option.

    Args:
        command: the command to change; a second call changes nothing.
        name: the command as the user types it, such as "heldin corpus build".
    """
    if command.rare is not None:  # described before
        return
    hints = typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    for parameter in command.params:
        if parameter.name in hints:
            _describe(parameter, hints[parameter.name])
        else:
            parameter.metavar = ""
    # --help-all is named by the page's last line and has no row.
    hidden = [parameter for parameter in command.params if getattr(parameter, "hidden", False)]
    command.rare = [option for option in hidden if option.name != "help_all"]
    for option in command.rare:
        option.hidden = False
    command.help = _flowing(command.help or "")
    command.epilog = command.epilog or _epilog(EXAMPLES.get(name.removeprefix("heldin "), ()))


def _describe(parameter: Any, hint: Any) -> None:
    kinds = _kinds(hint)
    if parameter.metavar is None:
        (info, *_) = hint.__metadata__
        folder = not getattr(info, "file_okay", True)
        parameter.metavar = "FOLDER" if Path in kinds and folder else next(filter(None, map(_word, kinds)), "")
    if parameter.param_type_name == "argument":
        # The word alone: a type, or a list of all choices, would be a second one.
        parameter.display_type_rich = lambda ctx: None
    # Ranges widen the column of all options; a value outside of one is refused with the range.
    parameter._get_number_range_help_str = lambda: None
    default = parameter.default
    if not callable(default) and default not in (None, False, [], ()):
        value = default.value if isinstance(default, Enum) else default
        parameter.help = f"{(parameter.help or '').removesuffix('.')} (default: {value})."
    parameter.show_default = False


def _kinds(hint: Any) -> list[Any]:
    """Return a type hint and all types inside it; ``Literal`` counts as Enum."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return [Enum]
    return [hint, *(kind for part in get_args(hint) for kind in _kinds(part))]


def _word(kind: Any) -> str | None:
    return next((word for base, word in _WORDS.items() if isinstance(kind, type) and issubclass(kind, base)), None)
