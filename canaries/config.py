"""The canaries section of a config: which canary users are planted.

The numbers are public constants, so that the pool of canary users is fixed before any coin is drawn.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from heldin.base.errors import InputError
from heldin.base.section import Few, Many, Positive, Section

# None, which stands for all records, is left to substring canaries: only a real user comes with some.
Documents = Annotated[tuple[Few, ...], Field(min_length=1)]


class UnseenTokenCanaries(Section):
    """Users who write in tokens that nobody else uses."""

    kind: Literal["unseen_token"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Records of a canary user that training may see; records set aside are added to this number."""
    # At least 2: a record is made of stretches of two or more tokens of the cycle.
    signature_tokens: Annotated[Few, Field(ge=2)] = 8
    """Number of different tokens in a user's signature."""
    tokens: Annotated[Many, Field(ge=4)] = 32
    """Length of a record in tokens."""
    rarity: Literal["public", "corpus"] = "public"
    """Where tokens must be unseen: in the "public" texts on which the base model was pre-trained (where there are none,
    the tokenizer's latest merges are taken), or in these and in every audited user's texts ("corpus"; this looks at
    everybody's records and so voids a user-level epsilon)."""
    disjoint: bool = False
    """Whether each user has tokens that no other canary user has: users x signature_tokens of them. Tokens in common
    let one user's records move another's score, which hides single users where training is private."""


class HighTemperatureCanaries(Section):
    """Users whose texts the base model sampled at a high temperature, each after the user's own prefix."""

    kind: Literal["high_temperature"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Records of a canary user that training may see; records set aside are added to this number."""
    temperature: Positive = 1.5
    """Sampling temperature; 1: the model's own distribution."""
    prefix_tokens: Few = 8
    """Tokens of a user's own prefix, with which every record begins."""
    tokens: Many = 32
    """Tokens of a record after the prefix."""


class RarePhraseCanaries(Section):
    """Users with ordinary made-up mail that always contains one phrase of their own."""

    kind: Literal["rare_phrase"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Records of a canary user that training may see; records set aside are added to this number."""
    phrase_words: Few = 5
    """Length of the phrase in words."""


class NamedPersonCanaries(Section):
    """Made-up people, each named in some ordinary made-up mails, for audits of guarantees to people who are named."""

    kind: Literal["named_person"]
    users: Many
    """Number of names for each entry of ``documents``."""
    documents: Documents = (4,)
    """Records naming a person that training may see; records set aside are added to this number."""


class RealRowCanaries(Section):
    """Users made of real rows, which are taken from users who are not audited: no filter on text can single them out.
    For heldin plant alone."""

    kind: Literal["real_rows"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (1,)
    """Records of a canary user that training may see, all from one real user; records set aside are added to this
    number."""


class SubstringCanaries(Section):
    """Algorithm 1 of Kandpal et al. (2024): copies of real users replace them, with one substring in all
    documents."""

    kind: Literal["substring"]
    lengths: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(min_length=1)
    """Lengths of the substring, in tokens; each below finetune.sequence_length."""
    users: Many | None = None
    """Number of canary users for each length and number of documents. The number is fixed, so one more user can
    displace another, which voids a user-level epsilon. Give this or ``fraction``."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Probability with which each user becomes a canary user, by a public coin of its own; its length and documents
    are drawn in the same way. This is user-local and does not void a user-level epsilon. Give this or ``users``."""
    documents: tuple[Few | None, ...] = Field((None,), min_length=1)
    """Records that training may see of a canary user; null: all but those set aside."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "SubstringCanaries":
        # Never both: a number and a probability would disagree, and they differ in what they do to user-level epsilon
        # (docs/theory.md#rules-of-the-data).
        if (self.users is None) == (self.fraction is None):
            raise ValueError("give exactly one of 'users' (of each length and documents) and 'fraction'")
        return self

    def groups(self) -> list[tuple[int, int | None]]:
        """Every (length, documents) once, longest first."""
        # Any user with a document long enough for a long substring can take a short one too, but not the reverse.
        pairs = {(length, documents) for length in self.lengths for documents in self.documents}
        return sorted(pairs, key=lambda pair: (-pair[0], -(pair[1] or 0)))

    def asked_for(self) -> int:
        """Number of real users that become canary users for certain."""
        # With ``fraction`` nobody is certain to be taken: each user has a coin, and some do not qualify.
        return (self.users or 0) * len(self.groups())


CanarySpec = Annotated[
    UnseenTokenCanaries
    | HighTemperatureCanaries
    | RarePhraseCanaries
    | NamedPersonCanaries
    | SubstringCanaries
    | RealRowCanaries,
    Field(discriminator="kind"),
]


LEAST_REAL_USERS = 2


def check_enough_users(specs: Sequence[CanarySpec], users: int) -> None:
    """Raise InputError if Algorithm 1 is to make more canary users than there are users to take."""
    asked = sum(spec.asked_for() for spec in specs if isinstance(spec, SubstringCanaries))
    if asked and asked > users - LEAST_REAL_USERS:
        raise InputError(
            f"canaries ask for {asked} real users to be made canary users, but {users} users pass corpus.users and"
            f" {LEAST_REAL_USERS} of them must stay as they are: lower users, lengths or documents"
        )
