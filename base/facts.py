"""The base class of a record's parts: frozen, no undeclared fields."""

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    """A part of a record: frozen, no undeclared fields."""

    # A field that this version does not know is an error: to ignore it would be to read half a record.
    model_config = ConfigDict(extra="forbid", frozen=True)
