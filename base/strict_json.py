"""Standard JSON, without NaN and Infinity: a number that is not finite is written as null.

The same holds in record.json and plan.json: an infinite epsilon, which promises nothing, is null.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json(path: Path, *, constant: Callable[[str], Any] | None = None) -> Any:
    """Return a file's content; arguments and errors of ``parsed_json``. Raises OSError if it cannot be read."""
    return parsed_json(path.read_text(encoding="utf-8"), constant=constant)


def parsed_json(text: str, *, constant: Callable[[str], Any] | None = None) -> Any:
    """Return the content of a JSON text.

    Args:
        text: JSON.
        constant: called for NaN and the infinities; None: they are Python's.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; tuples become lists and non-finite numbers null."""
    # Python would write NaN, which is not JSON; the flag makes one that is left an error.
    return json.dumps(finite(value), allow_nan=False, indent=indent)


def finite(value: Any) -> Any:
    """The value with every non-finite number in it replaced by None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(part) for key, part in value.items()}
        case tuple() | list():
            return [finite(part) for part in value]
        case _:
            return value
