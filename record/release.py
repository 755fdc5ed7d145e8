"""The recipients of a model and their access. The config declares both, and heldin does not check them."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError, field_validator

from heldin.base.section import MOST, Count, Section


class Release(Section):
    """People who will get the model. If the audit covers several levels of attackers, the report answers for the level
    of this release.
    """

    access: Literal["weights", "log-probabilities", "top-k", "text"]
    """Access of the people who get the model. weights: the model's files. log-probabilities: the log-probabilities of
    texts that people send. top-k: the log-probabilities of the most probable next tokens. text: only the text that the
    model writes. If the audited attacks have less access, the answer is never "no leak found".
    """
    rate_limit: Count | str | None = None
    """Limit on requests, as a number of queries per day or a description; null: not stated."""
    owner: str | None = None
    """Person or team responsible for the model, as shown on page one of the report; null: not stated."""
    purpose: str | None = None
    """Purpose of the model, in your words; null: not stated."""
    auditor: str | None = None
    """Person or team who ran the audit, as shown on page one of the report; null: not stated."""
    who: str | None = None
    """Who gets the model, in your words, such as "the staff of one hospital"; null: not stated."""

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
    """Return the release in a record's config; None if there is none, or if it is invalid."""
    stated = config.get("release")
    try:
        return None if stated is None else Release.model_validate(stated)
    except ValidationError:
        # Checked when the audit began: somebody changed the record.
        return None
