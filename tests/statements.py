"""What a statement states, whatever its sentence: the codes within it, each with its values."""

import re
from collections.abc import Iterator
from typing import Any

from heldin.words.statement import Code, Statement


def statements_in(statement: Statement | list[Statement]) -> Iterator[Statement]:
    """Yield a statement, or each of a list, and those within it."""
    for each in statement if isinstance(statement, list) else [statement]:
        yield each
        for value in each.values.values():
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, Statement):
                    yield from statements_in(inner)


def states(statement: Statement | list[Statement], *codes: Code) -> bool:
    """Return whether a statement has all of these codes, by itself or within it."""
    stated = {each.code for each in statements_in(statement)}
    return stated >= {code.code for code in codes}


def answer_in(printed: str) -> str:
    """Return the answer that a command printed, which is the first thing on the terminal."""
    found = re.match(r"answer:\s+([^.]+)\.", printed)
    assert found is not None, printed
    return found[1].lower()


def line_in(printed: str, label: str) -> str:
    """Return the text that a command printed after a label, whatever the width of the terminal."""
    found = re.search(rf"^{label}:\s+(.+(?:\n\s+.+)*)", printed, re.MULTILINE)
    assert found is not None, printed
    return " ".join(found[1].split())


def values_of(statement: Statement | list[Statement], code: Code) -> dict[str, Any]:
    """Return the values of the first statement of this code, by itself or within another."""
    stated = list(statements_in(statement))
    values = next((each.values for each in stated if each.states(code)), None)
    assert values is not None, f"{code} is not in {[each.code for each in stated]}"
    return values
