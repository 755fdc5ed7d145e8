"""Standard JSON, without NaN and Infinity: a number that is not finite is written as null.

The same holds in record.json and plan.json: an infinite epsilon, which promises nothing, is null.
"""

import json
import math
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Return a file's content. Raises OSError if it cannot be read, ValueError as ``parsed_json``."""
    return parsed_json(path.read_text(encoding="utf-8"))


def parsed_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
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
