"""The base classes of config sections and of a record's parts. They are frozen and refuse unknown keys.

A config key is documented only below its field, because ``heldin config`` prints these docstrings. Paths and names in a
config may contain environment variables.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

# The limits of every number that a person may give. A number without one is an array that no memory holds, or a wait of
# days, before anything is refused.
FEW = 10_000  # of what is started or laid out at once: processes, blocks of a sweep, layers
MANY = 1_000_000  # of what an array has an element for: resamples, a vocabulary, records of one user
MOST = 2**31 - 1  # of what is only counted: users, records, steps
LARGEST = 1e30  # of what is measured
SEEDS = 2**63


class CheckedNames(BaseModel):
    """A model that refuses names that are not its fields. pydantic would ignore or set such a name.

    Calls that exclude, include or replace fields pass names as text, so no type checker can check them.
    """

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy. Raises TypeError if a name in ``update`` is not a field."""
        _require_fields(type(self), update)
        return super().model_copy(update=update, deep=deep)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the fields by name. Raises TypeError if a name in ``include`` or ``exclude`` is not a field."""
        _require_fields(type(self), options.get("include"), options.get("exclude"))
        return super().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Return the fields as JSON. Raises TypeError like ``model_dump``."""
        _require_fields(type(self), options.get("include"), options.get("exclude"))
        return super().model_dump_json(**options)


def _require_fields(model: type[BaseModel], *named: Collection[str] | None) -> None:
    unknown = {name for names in named for name in names or ()} - model.model_fields.keys()
    if unknown:
        raise TypeError(f"{model.__name__} has no field {', '.join(sorted(unknown))}")


class Facts(CheckedNames):
    """A part of a record: frozen, no undeclared fields."""

    # A field that this version does not know is an error: to ignore it would be to read half a record.
    model_config = ConfigDict(extra="forbid", frozen=True)


class Section(CheckedNames):
    """A part of a config."""

    # A misspelt key is an error; if it were ignored, the run would go on with a default that nobody asked for.
    # A record would hold infinity and "not a number" as null, which a reader takes for a key that is not set.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def _expanded(value: object) -> object:
    if not isinstance(value, str):
        return value
    expanded = os.path.expandvars(value)
    # ``expandvars`` leaves the name of an unset variable in the text.
    # A name with a real "$" is refused with it: the two cannot be told apart.
    if "$" in expanded:
        raise ValueError(f"'{value}' uses an environment variable that is not set: export the variable")
    return expanded


# ``__pydantic_config__`` of the plain dataclasses that serve as config sections
DATACLASS_SECTION: ConfigDict = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

Few = Annotated[int, Field(ge=1, le=FEW)]
Many = Annotated[int, Field(ge=1, le=MANY)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]

ExpandedPath = Annotated[Path, BeforeValidator(_expanded)]
ExpandedName = Annotated[str, BeforeValidator(_expanded)]

NAME = r"^[A-Za-z0-9._-]+$"
JobName = Annotated[str, StringConstraints(pattern=NAME)]
