"""Reference models in addition to the primary reference model. Each class is a kind of ``attack.references``."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, Field

from heldin.base.section import Count, ExpandedName, Section
from heldin.corpus.user_filter import UserFilter


class ReferenceTraining(Protocol):
    """The corpus, base model and recipes of a run, from which it can make a reference model."""

    def pretrain(self, seed: int, label: str) -> Path:
        """Pre-train a model like the base model from another seed, and return its folder."""

    def finetune(self, users: UserFilter, most: int | None, label: str) -> Path:
        """Fine-tune the base model on public users, with at most ``most`` records each, and return its folder.

        Raises InputError if no user fits.
        """

    def public_rows(self, users: UserFilter, most: int | None) -> list[int]:
        """Return the rows that ``finetune`` would train on. Raises InputError if no user fits."""


class ReferenceConfig(Section, ABC):
    """A kind of ``attack.references``."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The model's name in the record."""

    @property
    def model_name(self) -> str | None:
        """Hub name or folder of an existing model; None for a model that this run trains."""
        return None

    @property
    def fresh_seed(self) -> int | None:
        """Seed of a model that is pre-trained from scratch; None for other models."""
        return None

    def rows(self, training: ReferenceTraining) -> list[int]:
        """Return the corpus rows for fine-tuning the model; empty if this run does not fine-tune it.

        Raises InputError if no public user has rows.
        """
        return []

    @abstractmethod
    def made_by(self, training: ReferenceTraining) -> str:
        """Train the model if needed, and return the name or folder for loading the model. Raises InputError if training
        fails."""


class NamedReference(ReferenceConfig):
    """A model with a hub name or folder, such as an independent model of the same size."""

    kind: Literal["named"]
    name: ExpandedName
    """Hub name or folder. In a list of references, the name alone is enough."""

    @property
    def label(self) -> str:
        """The model's name."""
        return self.name

    @property
    def model_name(self) -> str:
        """The hub name or folder."""
        return self.name

    def made_by(self, training: ReferenceTraining) -> str:
        """Return the model's name."""
        return self.name


class PretrainedReference(ReferenceConfig):
    """An independent model of the same size. heldin pre-trains it like the base model, on the same texts."""

    kind: Literal["pretrained"]
    seed: int = Field(ge=1, lt=2**31)
    """Seed for the initial weights and the order of records. This seed must differ from the seed in
    model.pretrain.recipe.
    """

    @property
    def label(self) -> str:
        """How it was trained."""
        return f"pre-trained anew, seed {self.seed}"

    @property
    def fresh_seed(self) -> int:
        """The seed."""
        return self.seed

    def made_by(self, training: ReferenceTraining) -> str:
        """Pre-train the model and return its folder."""
        return str(training.pretrain(self.seed, self.label))


class PublicReference(ReferenceConfig):
    """The base model, which heldin fine-tunes on unaudited users, with the run's recipe and no defense."""

    kind: Literal["public"]
    users: UserFilter = UserFilter(min_records=1)
    """Which unaudited users to choose. heldin fine-tunes this reference model on texts by the chosen users."""
    max_records_per_user: Count | None = None
    """Maximum number of records per user. heldin takes the first records. null: all."""

    @property
    def label(self) -> str:
        """How it was trained."""
        return "fine-tuned on public users"

    def rows(self, training: ReferenceTraining) -> list[int]:
        """Return the rows of the public users."""
        return training.public_rows(self.users, self.max_records_per_user)

    def made_by(self, training: ReferenceTraining) -> str:
        """Fine-tune the base model on the public users and return its folder."""
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
