"""What the parts of a record share: frozen, and nothing in them that is not declared."""

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    """A part of a record: frozen, nothing in it that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)
