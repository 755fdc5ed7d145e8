"""Reference models besides the leading one: a kind of ``attack.references`` each."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, Field

from heldin.base.section import Count, ExpandedName, Section
from heldin.corpus.user_filter import UserFilter


class ReferenceTraining(Protocol):
    """What a run offers to make a reference model with: its corpus, its base model and its recipes."""

    def pretrain(self, seed: int, label: str) -> Path:
        """Pre-train a model like the base model from another seed; return its folder."""

    def finetune(self, users: UserFilter, most: int | None, label: str) -> Path:
        """Fine-tune the base model on public users, at most so many records of each; return the folder.

        Raises InputError if there is no such user.
        """

    def public_rows(self, users: UserFilter, most: int | None) -> list[int]:
        """Return the rows that ``finetune`` would train on. Raises InputError if there is no such user."""


class ReferenceConfig(Section, ABC):
    """A kind of ``attack.references``."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in the record."""

    @property
    def model_name(self) -> str | None:
        """Hub name or folder of a model that exists; None for one that is trained here."""
        return None

    @property
    def fresh_seed(self) -> int | None:
        """Seed of a model that is pre-trained from scratch; None for others."""
        return None

    def rows(self, training: ReferenceTraining) -> list[int]:
        """Return the rows of the run's corpus that it is fine-tuned on. Raises InputError if there are none."""
        return []

    @abstractmethod
    def made_by(self, training: ReferenceTraining) -> str:
        """Return what it is loaded by, after it was trained if it has to be. Raises InputError if it cannot be."""


class NamedReference(ReferenceConfig):
    """A model given by hub name or folder, such as an independent model of the same size."""

    kind: Literal["named"]
    name: ExpandedName
    """Hub name or folder; in a list of references you may write only the name."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name

    @property
    def model_name(self) -> str:
        """The hub name or folder."""
        return self.name

    def made_by(self, training: ReferenceTraining) -> str:
        """Return its name."""
        return self.name


class PretrainedReference(ReferenceConfig):
    """An independent model of the same size, pre-trained like the base model on the same texts, from ``seed``."""

    kind: Literal["pretrained"]
    seed: int = Field(ge=1, lt=2**31)
    """Seed of its initialisation and of the order of records; must differ from the seed of model.pretrain.recipe."""

    @property
    def label(self) -> str:
        """How it was trained."""
        return f"pre-trained anew, seed {self.seed}"

    @property
    def fresh_seed(self) -> int:
        """The seed."""
        return self.seed

    def made_by(self, training: ReferenceTraining) -> str:
        """Pre-train it."""
        return str(training.pretrain(self.seed, self.label))


class PublicReference(ReferenceConfig):
    """The base model, fine-tuned without a defense on users who are not audited, with the run's recipe."""

    kind: Literal["public"]
    users: UserFilter = UserFilter(min_records=1)
    """Users, among those not audited, that the model is fine-tuned on."""
    max_records_per_user: Count | None = None
    """Maximum number of records per user, taking the first ones; null: all."""

    @property
    def label(self) -> str:
        """How it was trained."""
        return "fine-tuned on public users"

    def rows(self, training: ReferenceTraining) -> list[int]:
        """Return the rows of these users."""
        return training.public_rows(self.users, self.max_records_per_user)

    def made_by(self, training: ReferenceTraining) -> str:
        """Fine-tune the base model on these users."""
        return str(training.finetune(self.users, self.max_records_per_user, self.label))


_Reference = Annotated[NamedReference | PretrainedReference | PublicReference, Field(discriminator="kind")]
Reference = Annotated[
    _Reference,
    # A bare name becomes a section before pydantic looks for ``kind``, so that errors speak of one form only.
    BeforeValidator(
        lambda value: {"kind": "named", "name": value} if isinstance(value, str) else value,
        json_schema_input_type=str | _Reference,
    ),
]
