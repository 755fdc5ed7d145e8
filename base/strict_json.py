"""JSON as its standard has it: no NaN, no Infinity. null stands where there is no finite number.

So it is in record.json and plan.json too: an infinite epsilon, which promises nothing, is null.
"""

import json
import math
from typing import Any


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; tuples are lists, and numbers that are not finite are null."""
    return json.dumps(finite(value), allow_nan=False, indent=indent)


def finite(value: Any) -> Any:
    """The value with null for every number in it that is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(part) for key, part in value.items()}
        case tuple() | list():
            return [finite(part) for part in value]
        case _:
            return value
