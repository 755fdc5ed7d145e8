"""The interface of a kind of canary users. A kind is a config section that makes users whom the auditor plants.

The numbers of users and records are public constants, so the pool of canary users is fixed before any coin is drawn. A
kind gets no coins. Its code runs in this process, and could read files. ``heldin.testing.check_canaries`` checks the
users that a kind makes.
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
    """A change that canary users make to the records of real users (docs/theory.md#rules-of-the-data).

    Attributes:
        name: description of the change.
        user_local: whether the change to a user's records depends on no other user.
    """

    name: Statement
    user_local: bool


@dataclass(frozen=True, eq=False)
class CanaryInput:
    """The inputs from which a kind makes its users.

    Attributes:
        number: index of the kind's section in ``sections``.
        sections: all sections of the config.
        seed: public seed.
        base: function that returns the model before fine-tuning, with its tokenizer, in float32.
        public_texts: function that returns the pre-training texts of the base model; no texts if they are unknown.
        corpus: the corpus without canary users; None for a kind that does not declare ``reads_users``.
        left: audited users whom no earlier section uses.
        before: the canary users of earlier sections.
        attacker_fraction, evaluation_fraction: shares of every user's records that are set aside.
        visible_tokens: number of tokens of a record that training sees.
        visible_characters: number of characters of a text that the attack sees.
        forms: rows with the forms that records of made-up users copy; None if the records have their own form.
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
        """Return the number of records of a user with ``documents`` training records, set-aside records included."""
        fractions = {"attacker_fraction": self.attacker_fraction, "evaluation_fraction": self.evaluation_fraction}
        return records_to_train_on(documents, **fractions)

    def texts(self, documents: int) -> int:
        """Return the number of texts to make for a made-up user with ``documents`` training records."""
        records = self.records(documents)
        return self.forms.pieces(records) if self.forms else records

    def in_training(self, records: int) -> int:
        """Return the number of a user's records that remain for training."""
        fractions = {"attacker_fraction": self.attacker_fraction, "evaluation_fraction": self.evaluation_fraction}
        return records - sum(set_aside_sizes(records, **fractions))


@dataclass(frozen=True)
class MarkRecipe:
    """A way of drawing marks. heldin compares the marks of its canary users with marks that were never planted.

    Attributes:
        users: the canary users.
        draw: function that draws marks in this way; it returns fewer marks than requested if no more exist.
    """

    users: Sequence[str]
    draw: Callable[[], list[str]]


@dataclass(frozen=True, eq=False)
class MarkInput:
    """The inputs from which a kind draws marks that are never planted.

    Attributes:
        made: the inputs of the kind's users.
        canaries: all canary users of the run.
        count: number of marks to draw for each recipe.
        dice: function that returns secret random draws for a recipe and an identity within the recipe ("" for no
            identity).
        waiting: function that returns, for a recipe, the users whose set-aside texts may be used, in a secret order.
        aside: function that returns the texts of a user that are set aside under any coins, and so are never training
            texts.
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
    """Whether each canary user of this kind replaces a real user, with changed copies of the real user's documents."""
    named_only: ClassVar[bool] = False
    """If true, canary users of this kind write no texts and appear only by name, in texts by others."""
    needs_rows: ClassVar[bool] = False
    """Whether canary users of this kind need rows of real users. Only ``heldin plant`` can use such a kind."""

    whole_marks: ClassVar[bool] = True
    """Whether each record contains the whole mark of its user. If false, most tokens of a record come from the mark,
    but in a different order.
    """

    @property
    def reads_users(self) -> bool:
        """Whether the kind reads real users' records."""
        return self.replaces_users or self.needs_rows

    @abstractmethod
    def count(self) -> int | None:
        """Return the number of the section's users; None if the corpus decides."""

    @abstractmethod
    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's users. Each has ``given.texts`` records, or as many as the replaced real user.

        Every record of a user has the user's mark (``whole_marks``). A user's texts depend only on the name and public
        inputs.

        Raises:
            InputError: the users cannot be made.
        """

    def longest_mark(self) -> int:
        """Length in tokens of the longest mark, which training must not cut off."""
        return 0

    def written(self) -> list[int]:
        """Return the number of training records of each added user who writes texts. Replaced users are not added."""
        return []

    def record_steps(self) -> list[RecordStep]:
        """Return the changes to real users' records.

        A kind that reads such records without declaring a change voids an epsilon.
        """
        undeclared = RecordStep(DataStepText.UNDECLARED_CANARIES(kind=self.kind), user_local=False)
        return [undeclared] if self.reads_users else []

    def prefix(self, number: int) -> str:
        """Return the beginning of the names of the section's users.

        Args:
            number: index of the section.
        """
        return f"canary/{self.kind}/{number}/"

    def users_of(self, number: int, canaries: Collection[Canary]) -> list[Canary]:
        """Return the canary users that the section may have made.

        Args:
            number: index of the section.
            canaries: the canary users of the run.
        """
        return [canary for canary in canaries if canary.user.startswith(self.prefix(number))]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return the recipes of the section's marks by name; empty if there are no marks, or no way to redraw them."""
        return {}


class NumberedCanaries(CanaryConfig, ABC):
    """A kind with a fixed number of users for each number of documents."""

    users: Many
    """Number of canary users for each entry of ``documents``."""
    documents: Documents = (20,)
    """Number of training records per canary user, if the canary user is a member. heldin adds further records for the
    attacker and the evaluation."""

    def count(self) -> int:
        """Number of users: ``users`` times the number of distinct values of ``documents``."""
        return self.users * len(set(self.documents))

    @classmethod
    def examples(cls, kind: str, folder: Path) -> list["NumberedCanaries"]:
        """Return sections for the kind's test suite. A kind with further required keys must override this method.

        Args:
            kind: the kind's name in the config.
            folder: folder for files that the sections need.
        """
        return [cls.model_validate({"kind": kind, "users": 4, "documents": [3, 2]})]

    def written(self) -> list[int]:
        """Return the number of documents of each user."""
        return sorted(set(self.documents)) * self.users

    def names(self, number: int) -> Iterator[tuple[int, list[str]]]:
        """Yield, for each number of documents, the users' names, which are public constants.

        Args:
            number: index of the section.
        """
        # By config alone: the pool of canary users is fixed whatever the corpus holds.
        for documents in sorted(set(self.documents)):
            yield documents, [f"{self.prefix(number)}{documents}/{i:05d}" for i in range(self.users)]

    def one_recipe(self, given: MarkInput, draw: Callable[[random.Random], list[str]]) -> dict[str, MarkRecipe]:
        """Return the recipe of a kind whose users' marks all have one distribution.

        Args:
            draw: draws ``given.count`` marks.
        """
        name = f"{self.kind} {given.made.number}"
        users = [canary.user for canary in self.users_of(given.made.number, given.canaries)]
        return {name: MarkRecipe(users, lambda: draw(given.dice(name, "")))}


def check_enough_users(specs: Sequence[CanaryConfig], users: int) -> None:
    """Raise InputError if canary users replace more real users than there are."""
    asked = sum(spec.count() or 0 for spec in specs if spec.replaces_users)
    if asked and asked > users - LEAST_REAL_USERS:
        raise InputError(
            f"canaries: {asked} real users would become canary users, but only {users} users pass corpus.users,"
            f" and {LEAST_REAL_USERS} users must stay real. Lower users, lengths or documents"
        )
