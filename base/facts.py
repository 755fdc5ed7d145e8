"""The base class of a record's parts: frozen, no undeclared fields."""

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    """A part of a record: frozen, no undeclared fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
