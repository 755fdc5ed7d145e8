"""What a kind of canary users is: a section of a config that makes users whom the auditor plants.

Numbers of users and records are public constants, so the pool of canary users is fixed before any coin is drawn. No
kind is given coins. Code in the same process can read files all the same; ``heldin.testing.check_canaries`` looks at
what a kind makes.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import ConfigDict, Field

from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.base.section import Few, Many, Section
from heldin.canaries.users import Canary, CanaryUser
from heldin.corpus.split import records_to_train_on, set_aside_sizes
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.canaries.form import Forms
    from heldin.corpus.store import CorpusStore
    from heldin.models.loading import LanguageModel

LEAST_REAL_USERS = 2
# None, which means all records, is left to substring canaries: only a real user comes with some.
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


@dataclass(frozen=True, eq=False)
class CanaryInput:
    """What a kind may look at when it makes its users.

    Attributes:
        number: place of the kind's section among ``sections``.
        sections: all sections of the config.
        seed: public.
        base: gives the model before fine-tuning, with its tokenizer, in float32.
        public_texts: gives the texts that the base model was pre-trained on; none where these are not known.
        corpus: the corpus without canary users; None for a kind that does not declare ``reads_users``.
        left: audited users whom no section before has taken.
        before: the canary users of the sections before.
        attacker_fraction, evaluation_fraction: shares of every user's records that are set aside.
        visible_tokens: tokens of a record that training sees.
        visible_characters: characters of a text that the attack sees.
        forms: rows whose forms the records of made-up users will take; None: they have their own.
        reporter: shows progress.
    """

    number: int
    sections: Sequence["CanaryConfig"]
    seed: int
    base: "Callable[[], LanguageModel]"
    public_texts: Callable[[], list[str]]
    corpus: "CorpusStore | None"
    left: Sequence[str]
    before: Sequence[Canary]
    attacker_fraction: float
    evaluation_fraction: float
    visible_tokens: int
    visible_characters: int
    forms: "Forms | None"
    reporter: Reporter

    @property
    def store(self) -> "CorpusStore":
        """Return the corpus. Raises ValueError for a kind that does not declare ``reads_users``."""
        if self.corpus is None:
            raise ValueError("this kind of canary users reads users' records: declare reads_users = True")
        return self.corpus

    def records(self, documents: int) -> int:
        """Return how many records a user has who is to have so many in training: those set aside are added."""
        fractions = {"attacker_fraction": self.attacker_fraction, "evaluation_fraction": self.evaluation_fraction}
        return records_to_train_on(documents, **fractions)

    def texts(self, documents: int) -> int:
        """Return how many texts to make for a made-up user who is to have so many records in training."""
        records = self.records(documents)
        return self.forms.pieces(records) if self.forms else records

    def in_training(self, records: int) -> int:
        """Return how many of a user's records are left for training."""
        fractions = {"attacker_fraction": self.attacker_fraction, "evaluation_fraction": self.evaluation_fraction}
        return records - sum(set_aside_sizes(records, **fractions))


@dataclass(frozen=True)
class MarkRecipe:
    """A way in which marks were drawn: canary users whose marks are compared with marks that were never planted.

    Attributes:
        users: the canary users.
        draw: draws marks in the same way; fewer than asked for where no more can be had.
    """

    users: Sequence[str]
    draw: Callable[[], list[str]]


@dataclass(frozen=True, eq=False)
class MarkInput:
    """What a kind may look at when it draws marks that are planted nowhere.

    Attributes:
        made: what its users were made from.
        canaries: all canary users of the run.
        count: number of marks to draw for each recipe.
        dice: gives secret draws by recipe and by an identity within it, "" for none.
        waiting: gives, by recipe, users whose set-aside texts may be looked at, in a secret order.
        aside: gives the texts of a user that are set aside whatever the coins: nobody's training texts.
    """

    made: CanaryInput
    canaries: Sequence[Canary]
    count: int
    dice: Callable[[str, str], random.Random]
    waiting: Callable[[str], list[str]]
    aside: Callable[[str], list[str]]


class CanaryConfig(Section, ABC):
    """A kind of ``canaries``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str
    """Name of the kind, or "package.module:Class"."""

    replaces_users: ClassVar[bool] = False
    """Whether they take the place of real users, whose documents they change."""
    named_only: ClassVar[bool] = False
    """Whether they are people who are named, and not users who write."""
    needs_rows: ClassVar[bool] = False
    """Whether they are made of rows that no real user has any more, which ``heldin plant`` alone can take out."""

    whole_marks: ClassVar[bool] = True
    """Whether a record has its user's whole mark; else most of its tokens are the mark's, in another order."""

    @property
    def reads_users(self) -> bool:
        """Whether it looks at real users' records."""
        return self.replaces_users or self.needs_rows

    @abstractmethod
    def count(self) -> int | None:
        """Return the number of its users; None if the corpus decides."""

    @abstractmethod
    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return its users, with ``given.texts`` records each, or as many as the real user has who is replaced.

        A user's mark is in every record (``whole_marks``). What a user writes follows from name and public inputs.

        Raises:
            InputError: they cannot be made.
        """

    def longest_mark(self) -> int:
        """Most tokens of a mark that training must not cut off."""
        return 0

    def written(self) -> list[int]:
        """The number of training records of each user who is added to the real ones and writes."""
        return []

    def record_steps(self) -> list[RecordStep]:
        """What they do to real users' records. A kind that looks at these and declares nothing voids an epsilon."""
        undeclared = RecordStep(DataStepText.UNDECLARED_CANARIES(kind=self.kind), user_local=False)
        return [undeclared] if self.reads_users else []

    def prefix(self, number: int) -> str:
        """Return how the names of the users of its section begin.

        Args:
            number: place of the section.
        """
        return f"canary/{self.kind}/{number}/"

    def users_of(self, number: int, canaries: Collection[Canary]) -> list[Canary]:
        """Return the canary users that its section may have made.

        Args:
            number: place of the section.
            canaries: those of the run.
        """
        return [canary for canary in canaries if canary.user.startswith(self.prefix(number))]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return how its marks were drawn, by name; none if they cannot be drawn again, or there are no marks."""
        return {}


class NumberedCanaries(CanaryConfig, ABC):
    """A kind of so many users for each number of documents."""

    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Number of records of a canary user that training may see; records set aside are added to this number."""

    def count(self) -> int:
        """``users`` for each number of documents."""
        return self.users * len(set(self.documents))

    @classmethod
    def examples(cls, kind: str, folder: Path) -> list["NumberedCanaries"]:
        """Return sections to try in its suite; a kind with further keys that are required gives its own.

        Args:
            kind: the name under which it was found.
            folder: for files that they need.
        """
        return [cls.model_validate({"kind": kind, "users": 4, "documents": [3, 2]})]

    def written(self) -> list[int]:
        """The number of documents of each user."""
        return sorted(set(self.documents)) * self.users

    def names(self, number: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the users' names by number of documents; they are public constants.

        Args:
            number: place of the section.
        """
        # By config alone: the pool of canary users is fixed whatever the corpus holds.
        for documents in sorted(set(self.documents)):
            yield documents, [f"{self.prefix(number)}{documents}/{i:05d}" for i in range(self.users)]

    def one_recipe(self, given: MarkInput, draw: Callable[[random.Random], list[str]]) -> dict[str, MarkRecipe]:
        """Return the recipe of a kind whose users all have marks of one distribution.

        Args:
            draw: draws ``given.count`` marks.
        """
        name = f"{self.kind} {given.made.number}"
        users = [canary.user for canary in self.users_of(given.made.number, given.canaries)]
        return {name: MarkRecipe(users, lambda: draw(given.dice(name, "")))}


def check_enough_users(specs: Sequence[CanaryConfig], users: int) -> None:
    """Raise InputError if more canary users are to replace real users than there are users to take."""
    asked = sum(spec.count() or 0 for spec in specs if spec.replaces_users)
    if asked and asked > users - LEAST_REAL_USERS:
        raise InputError(
            f"canaries: {asked} real users would become canary users, but only {users} users pass corpus.users, and"
            f" {LEAST_REAL_USERS} of them must stay real. Lower users, lengths or documents"
        )
