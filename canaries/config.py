"""The canaries section of a config: which canary users are planted.

The numbers are public constants, so that the pool of canary users is fixed before any coin is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from heldin.base.errors import InputError
from heldin.base.section import Few, Many, Positive, Section
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement

# None, which stands for all records, is left to substring canaries: only a real user comes with some.
Documents = Annotated[tuple[Few, ...], Field(min_length=1)]


@dataclass(frozen=True)
class RecordStep:
    """What canary users do to the records of real users (docs/theory.md#rules-of-the-data).

    Attributes:
        name: what the step does.
        user_local: whether what becomes of a user's records depends on this user alone.
    """

    name: Statement
    user_local: bool


class CanaryConfig(Section):
    """A kind of canary users."""

    replaces_users: ClassVar[bool] = False
    """Whether they take the place of real users, whose documents they change."""
    named_only: ClassVar[bool] = False
    """Whether they are people who are named, and not users who write."""

    def certain_users(self) -> int:
        """Number of real users that become canary users for certain."""
        return 0

    def longest_mark(self) -> int:
        """Most tokens of a mark that training must not cut off."""
        return 0

    def written(self) -> list[int]:
        """The number of training records of each user who is added to the real ones and writes."""
        return []

    def record_steps(self) -> list[RecordStep]:
        """What they do to real users' records."""
        return []


class UnseenTokenCanaries(CanaryConfig):
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

    def written(self) -> list[int]:
        """``documents`` of each user."""
        return [*self.documents] * self.users

    def record_steps(self) -> list[RecordStep]:
        """With rarity "corpus" the tokens are those that the corpus lacks: a user decides about canary users' texts."""
        return [RecordStep(DataStepText.UNSEEN_TOKENS(), user_local=False)] if self.rarity == "corpus" else []


class HighTemperatureCanaries(CanaryConfig):
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

    def written(self) -> list[int]:
        """``documents`` of each user."""
        return [*self.documents] * self.users


class RarePhraseCanaries(CanaryConfig):
    """Users with ordinary made-up mail that always contains one phrase of their own."""

    kind: Literal["rare_phrase"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Records of a canary user that training may see; records set aside are added to this number."""
    phrase_words: Few = 5
    """Length of the phrase in words."""

    def written(self) -> list[int]:
        """``documents`` of each user."""
        return [*self.documents] * self.users


class NamedPersonCanaries(CanaryConfig):
    """Made-up people, each named in some ordinary made-up mails, for audits of guarantees to people who are named."""

    named_only: ClassVar[bool] = True

    kind: Literal["named_person"]
    users: Many
    """Number of names for each entry of ``documents``."""
    documents: Documents = (4,)
    """Records naming a person that training may see; records set aside are added to this number."""


class RealRowCanaries(CanaryConfig):
    """Users made of real rows, which are taken from users who are not audited: no filter on text can single them out.
    For heldin plant alone."""

    kind: Literal["real_rows"]
    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (1,)
    """Records of a canary user that training may see, all from one real user; records set aside are added to this
    number."""


class SubstringCanaries(CanaryConfig):
    """Algorithm 1 of Kandpal et al. (2024): copies of real users replace them, with one substring in all
    documents."""

    replaces_users: ClassVar[bool] = True

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

    def longest_mark(self) -> int:
        """The longest substring."""
        return max(self.lengths)

    def record_steps(self) -> list[RecordStep]:
        """Algorithm 1 changes a user's records by these and a public seed; ``users`` lets one displace another."""
        changed = RecordStep(DataStepText.SUBSTRING(), user_local=True)
        chosen = RecordStep(DataStepText.CANARY_USERS(), user_local=False)
        return [changed] if self.users is None else [changed, chosen]

    def certain_users(self) -> int:
        """``users`` of each group."""
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
    asked = sum(spec.certain_users() for spec in specs)
    if asked and asked > users - LEAST_REAL_USERS:
        raise InputError(
            f"canaries ask for {asked} real users to be made canary users, but {users} users pass corpus.users and"
            f" {LEAST_REAL_USERS} of them must stay as they are: lower users, lengths or documents"
        )
