"""Help pages: one word for each type of value, one form of default, and rare options on ``--help-all`` alone."""

import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from heldin.base.wording import counted

# The words for values of options and arguments. A page lists the words that a WORD may be.
PLACEHOLDERS = ("FILE", "FOLDER", "NAME", "NUMBER", "MODEL", "KEY=VALUE", "WORD", "URL", "DATE", "COMMAND")
# By the type of a value, the word where the option states none. A path is a folder if no file is accepted.
_WORDS: dict[type, str] = {Path: "FILE", bool: "", int: "NUMBER", float: "NUMBER", Enum: "WORD", str: "NAME"}
_EVERYTHING = "heldin.help_all"
_WIDTH = 76  # of an example; the page has a margin


class Command(typer.core.TyperCommand):
    """A command whose rare options are on its help page with ``--help-all`` alone.

    An option that is declared with ``hidden=True`` is rare. Completion and the documentation list every option.
    """

    rare: Sequence[Any] | None = None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page, which ends with the number of rare options that it leaves out."""
        with _page(self, ctx):
            super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``, which takes no value."""
        return _flag(super().get_help_option(ctx))


class Group(typer.core.TyperGroup):
    """A group of commands, with rare options as for ``Command``."""

    rare: Sequence[Any] | None = None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page, which ends with the number of rare options that it leaves out."""
        with _page(self, ctx):
            super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``, which takes no value."""
        return _flag(super().get_help_option(ctx))


@contextmanager
def _page(command: Any, ctx: Any) -> Iterator[None]:
    """Hide rare options while a page is written, unless all were asked for, and say how many."""
    if command.rare is None:
        describe(command)
    rare, epilog = [] if _EVERYTHING in ctx.meta else command.rare, command.epilog
    if rare:
        more = f"{counted(len(rare), 'more option')}: {ctx.command_path} --help-all"
        command.epilog = f"{epilog}\n\n{more}" if epilog else more
    for option in rare:
        option.hidden = True
    # typer adds --show-completion and the like after ``describe``.
    for parameter in command.params:
        parameter.metavar = parameter.metavar or ""
    try:
        yield
    finally:
        command.epilog = epilog
        for option in rare:
            option.hidden = False


def _flag(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def _show_everything(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_EVERYTHING] = True
        typer.echo(context.get_help())
        raise typer.Exit


# Without a row of its own: where there are rare options, the last line of the page names it.
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show all options.", hidden=True, is_eager=True, callback=_show_everything),
]


def complete(commands: typer.Typer, examples: Mapping[str, Sequence[str]], name: str = "") -> None:
    """Give the commands of a group what every command has: ``--help-all``, examples, and limits on numbers.

    Args:
        commands: the group.
        examples: lines for the end of the pages, for each command's name.
        name: name of the group; that of the command if it is the only one.
    """
    for command in commands.registered_commands:
        function = command.callback
        if function is None or command.cls is Command:  # a group is imported once, and has one command line or more
            continue
        own = (command.name or function.__name__).replace("_", "-")
        command.cls = Command
        if function.__doc__:
            command.help = _flowing(function.__doc__)
        command.epilog = _epilog(examples.get(name if own == name else f"{name} {own}", ()))
        command.callback = _limited(function)


def _flowing(doc: str) -> str:
    """Return a docstring with paragraphs on one line each: typer keeps the line ends of all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))


def _epilog(examples: Sequence[str]) -> str | None:
    """Return the end of a command's help page; None without examples."""
    # Broken as a shell takes it: a terminal would break a longer line anywhere.
    filled = (
        textwrap.fill(line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in examples
    )
    lines = [line.replace("\n", " \\\n") for line in filled]
    return "\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines]) if lines else None


def _limited(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with ``--help-all``, and with every number held to the limits of ``base.section``."""

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


def describe(command: Any) -> None:
    """Name the values and the defaults of a command, or of the commands of a group, all in one form."""
    for child in getattr(command, "commands", {}).values():
        describe(child)
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
    """Return a type, and the types that it is made of."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return [Enum]
    return [hint, *(kind for part in get_args(hint) for kind in _kinds(part))]


def _word(kind: Any) -> str | None:
    return next((word for base, word in _WORDS.items() if isinstance(kind, type) and issubclass(kind, base)), None)
