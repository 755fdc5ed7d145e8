"""Statements in documents: a code, with values for its sentence. Records store statements; people read sentences."""

import importlib
import math
import pkgutil
import re
import string
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from heldin.base.errors import InputError
from heldin.base.section import Facts
from heldin.words.people import AUDITED

_CAPITAL = re.compile("(?<!^)(?=[A-Z])")


class Statement(Facts):
    """A code with values, from which heldin makes a sentence. No code compares or parses the sentence.

    Attributes:
        code: the code of the sentence.
        values: numbers, names and other statements that are parts of the sentence, by name.
    """

    code: str
    values: dict[str, "Statement | bool | int | float | str | list[Statement] | None"] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.code, repr(self.values)))

    def __str__(self) -> str:
        return render(self)

    def states(self, code: "Code") -> bool:
        """Return whether the statement has this code."""
        return self.code == code.code


class Code(Enum):
    """The possible statements, each with its sentence as a format string. A call of a member makes a statement.

    Attributes:
        separator: text between two of these statements.
    """

    sentence: str
    separator: str

    def __new__(cls, sentence: str, separator: str = "; ") -> Self:
        """Make a member. Its value is a number, because two members may have equal sentences."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.sentence, member.separator = sentence, separator
        return member

    @property
    def code(self) -> str:
        """Name in documents, made of class and member, such as "relation.add_remove"."""
        return f"{_CAPITAL.sub('_', type(self).__name__)}.{self.name}".lower()

    def __call__(self, **values: Any) -> Statement:
        """Return the statement with these values. Infinite numbers are stored by name, because JSON has none."""
        kept = {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        return Statement(code=self.code, values=kept)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        # The name of an infinite number, or nothing, in the place of a number.
        return value if isinstance(value, str) else super().format_field(value, format_spec)


def render(statement: Statement) -> str:
    """Return the sentence of a statement. The sentences of a list of statements are joined, and None is omitted.

    For a value ``audited``, the sentence receives ``what``: the words for the units whose membership is audited.

    Raises InputError for a code that this version does not know.
    """
    values: dict[str, Any] = {
        name: joined(value) if isinstance(value, list) else "" if value is None else value
        for name, value in statement.values.items()
    }
    if "audited" in values:
        values["what"] = AUDITED[values["audited"]]
    return _Formatter().format(code_named(statement.code).sentence, **values)


def joined(statements: Sequence[Statement]) -> str:
    """Return the sentences of several statements, joined by the first statement's separator."""
    return code_named(statements[0].code).separator.join(map(str, statements)) if statements else ""


def all_codes() -> Iterator[Code]:
    """Yield every code of the package ``words``."""
    for codes in Code.__subclasses__():
        yield from codes


_known: dict[str, Code] = {}


def code_named(name: str) -> Code:
    """Return the code with this name. Raises InputError for a code that this version does not know."""
    if name not in _known:
        _known.update({code.code: code for code in all_codes()})
    if name not in _known:
        # Whoever reads a document may have imported few modules of words.
        for module in pkgutil.iter_modules([str(Path(__file__).parent)], "heldin.words."):
            importlib.import_module(module.name)
        _known.update({code.code: code for code in all_codes()})
    if name not in _known:
        raise InputError(
            f"this version of heldin has no statement '{name}': read the file with the version that wrote it"
        )
    return _known[name]
