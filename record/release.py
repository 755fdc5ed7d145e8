"""To whom a model will be given, and how much of it: declared in the config, checked by nobody."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError, field_validator

from heldin.base.section import MOST, Count, Section


class Release(Section):
    """To whom the model will be given, for the report; of several levels of attackers it picks the one that decides."""

    access: Literal["weights", "log-probabilities", "top-k", "text"]
    """What those who get it can have of the model: "weights", the files themselves; "log-probabilities" of texts that
    they send; those of the "top-k" next tokens; or "text" that it writes, and nothing else. An audit whose attackers
    see less never answers "no leak found"."""
    rate_limit: Count | str | None = None
    """How much they can ask: queries a day, or in words; null: no limit is stated."""
    owner: str | None = None
    """Who is responsible for the model, for page one of the report; null: not stated."""
    purpose: str | None = None
    """What the model is for, in words; null: not stated."""
    auditor: str | None = None
    """Who ran the audit, for page one of the report; null: not stated."""
    who: str | None = None
    """Who gets it, in words, such as "the staff of one hospital"; null: not stated."""

    @field_validator("rate_limit", mode="before")
    @classmethod
    def _some(cls, value: object) -> object:
        # Before the types are tried, of which each would have an error of its own.
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST
        if not (whole or value is None or (isinstance(value, str) and value.strip())):
            raise ValueError(
                "rate_limit must be a number of queries per day of at least 1, or a text that describes the limit"
            )
        return value


def release_of(config: Mapping[str, Any]) -> Release | None:
    """Return what a record's config declares; None if it declares nothing, or what no audit accepts."""
    stated = config.get("release")
    try:
        return None if stated is None else Release.model_validate(stated)
    except ValidationError:
        # Checked when the audit began: somebody changed the record.
        return None
