"""The interface of a data-side defense: a step on training records. A step declares the data that it depends on.

heldin applies the steps after the set-asides, in the configured order (docs/theory.md#rules-of-the-data). The source is
Kandpal et al. (2024), section 4.2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from pydantic import ConfigDict

from heldin.base.kinds import Family, OfKind
from heldin.base.progress import Reporter
from heldin.base.wording import NO_VERSION, counted
from heldin.corpus.document import Document
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.defenses.choices import Choice, DataStep
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement


@dataclass(frozen=True)
class TrainingRecord:
    """A record in the form for data-side defenses.

    Attributes:
        row: row number in the corpus.
        user: the user to whom the text belongs.
        id: unique id of the record.
        document: the text, with the parts that count.
    """

    row: int
    user: str
    id: str
    document: Document

    @property
    def text(self) -> str:
        """The whole text."""
        return self.document.text


@dataclass(frozen=True)
class Removal:
    """The records that a step removed or changed.

    Attributes:
        users: number of users who lost records, or whose texts changed.
        changed: number of records with a changed text; None for a step that removes records.
    """

    name: Statement
    before: int
    removed: int
    users: int
    changed: int | None = None

    def line(self) -> str:
        """Describe the step's effect, for the terminal."""
        number, did = (self.removed, "left out") if self.changed is None else (self.changed, "changed")
        records, users = counted(self.before, "training record"), counted(self.users, "user")
        return f"{self.name}: {number:,} of {records} {did}, of {users}"


Measure = Callable[[Sequence[Document]], Sequence[float]]


@dataclass(frozen=True)
class StepInput:
    """The inputs of a step other than the records.

    Attributes:
        lengths: function from documents to numbers of counted tokens.
        losses: function from documents to mean losses under the base model.
        seed: public seed of random choices.
    """

    lengths: Measure
    losses: Measure
    seed: int
    reporter: Reporter


class DataSideDefense(Choice, ABC):
    """A kind of ``data_defenses``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: str
    """Name of the kind, or "package.module:Class"."""

    rewrites: ClassVar[bool] = False
    """Whether the step changes texts but keeps all records."""

    user_local: ClassVar[bool | None] = None
    """Whether the step's decisions about a user's records depend only on these records. A user-level epsilon is void
    unless ``user_local`` or ``record_local`` is true."""
    record_local: ClassVar[bool | None] = None
    """Whether the result for a record depends only on that record; None counts as false."""

    def name(self) -> Statement:
        """Return the step's name in a plan and a record.

        For a package's kind, the name has version and hash of the code.

        Raises InputError if the package cannot be found.
        """
        origin = DATA_DEFENSES.origin(self.kind)
        assert origin is not None  # each of ours has a name
        stated = DataStepText.UNDECLARED if self.user_local is None else DataStepText.OF_PACKAGE
        version = origin.version or NO_VERSION
        return stated(kind=self.kind, package=origin.package, version=version, code=origin.sha256[:16])

    def declared(self) -> DataStep:
        """Return the step for a plan. The plan lists the data that the step depends on."""
        # What looks at one record only looks at one user only.
        user_local = bool(self.user_local or self.record_local)
        return DataStep(name=self.name(), user_local=user_local, record_local=bool(self.record_local))

    @abstractmethod
    def apply(self, records: Sequence[TrainingRecord], given: StepInput) -> list[TrainingRecord]:
        """Return the remaining records, in order, with their texts for training.

        Args:
            records: records of all users; the records of a user are adjacent.
        """

    @property
    def most_records(self) -> int | None:
        """Return the maximum number of a user's records that the step keeps; None if there is no limit."""
        return None

    @property
    def ranks_by_base(self) -> bool:
        """Return whether the step needs the base model, with its tokenizer."""
        return False

    @property
    def searched_by(self) -> EntitySourceConfig | None:
        """Return the source that finds the people and things named in a record; None if the step needs no source."""
        return None


def by_user(records: Iterable[TrainingRecord]) -> Mapping[str, list[TrainingRecord]]:
    """Return the records of each user. Users and records stay in the given order."""
    records_of: dict[str, list[TrainingRecord]] = {}
    for record in records:
        records_of.setdefault(record.user, []).append(record)
    return records_of


DATA_DEFENSES = Family[DataSideDefense](
    "defenses",
    DataSideDefense,
    {
        "deduplicate": "heldin.defenses.data_side.deduplicate:Deduplicate",
        "cap": "heldin.defenses.data_side.cap:Cap",
        "deidentify": "heldin.defenses.data_side.deidentify:DeIdentify",
    },
)
DataDefense: TypeAlias = Annotated[DataSideDefense, OfKind(DATA_DEFENSES)]
