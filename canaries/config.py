"""The canaries section of a config: which canary users are planted, checked for what cannot be.

The numbers here are public constants, so that the pool of canary users is fixed before any coin is drawn.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Documents = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]


class _Canaries(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UnseenTokenCanaries(_Canaries):
    """Users who write in tokens that nobody else writes.

    Attributes:
        users: of each number of documents.
        documents: records of each that training may see; the set-asides come on top.
        signature_tokens: different tokens in a user's signature.
        tokens: of a record.
        rarity: where tokens must be unseen: in the "public" texts that the base model was pre-trained on (where there
            are none, the tokenizer's latest merges are taken), or in these and in every audited user's texts ("corpus";
            this looks at everybody's records, so that a user-level epsilon is void).
    """

    kind: Literal["unseen_token"]
    users: int = Field(ge=1)
    documents: Documents = (20,)
    signature_tokens: int = Field(8, ge=2)
    tokens: int = Field(32, ge=4)
    rarity: Literal["public", "corpus"] = "public"


class HighTemperatureCanaries(_Canaries):
    """Users whose text the base model wrote at a high temperature, each after an own prefix."""

    kind: Literal["high_temperature"]
    users: int = Field(ge=1)
    documents: Documents = (20,)
    temperature: float = Field(1.5, gt=0)
    prefix_tokens: int = Field(8, ge=1)
    tokens: int = Field(32, ge=1)


class RarePhraseCanaries(_Canaries):
    """Users of ordinary made-up mail in which one phrase of their own always stands."""

    kind: Literal["rare_phrase"]
    users: int = Field(ge=1)
    documents: Documents = (20,)
    phrase_words: int = Field(5, ge=1)


class SubstringCanaries(_Canaries):
    """Algorithm 1 of Kandpal et al. (2024): real users whose documents all carry one substring. They replace them.

    Attributes:
        lengths: of the substring, in tokens.
        users: canary users of each length and number of documents; a fixed number, so that who else is there decides
            who is taken: it voids a user-level epsilon.
        fraction: instead, each user becomes a canary user with this probability by a public coin of its own, and its
            length and documents are drawn likewise: user-local.
        documents: records that training may see of a canary user; null: all but those set aside.
    """

    kind: Literal["substring"]
    lengths: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(min_length=1)
    users: int | None = Field(None, ge=1)
    fraction: float | None = Field(None, gt=0, le=1)
    documents: tuple[Annotated[int, Field(ge=1)] | None, ...] = Field((None,), min_length=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> "SubstringCanaries":
        if (self.users is None) == (self.fraction is None):
            raise ValueError("give exactly one of 'users' (of each length and documents) and 'fraction'")
        return self

    def groups(self) -> list[tuple[int, int | None]]:
        """Every (length, documents), once each, longest first: where those find users, shorter ones do."""
        pairs = {(length, documents) for length in self.lengths for documents in self.documents}
        return sorted(pairs, key=lambda pair: (-pair[0], -(pair[1] or 0)))

    def asked_for(self) -> int:
        """Real users that are taken for certain."""
        return (self.users or 0) * len(self.groups())


CanarySpec = Annotated[
    UnseenTokenCanaries | HighTemperatureCanaries | RarePhraseCanaries | SubstringCanaries,
    Field(discriminator="kind"),
]
