"""A measure: a table of values in a job's folder, the inputs and computation of the values, and the facts for the
record.

A job and its verification make the same call: ``MeasureFolder`` computes a missing table, or refuses if it may only
read. Values never depend on who is held in; facts for the record follow from values and membership.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

import pyarrow as pa

from heldin.base.artefacts import read_table, write_table
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.base.section import Facts, Section
from heldin.record.facts import AdapterFacts, ModelFacts
from heldin.words.guarantee import ModelText
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.attacks.scoring import AttackTexts
    from heldin.canaries.users import Canary
    from heldin.corpus.document import Document
    from heldin.models.loading import LanguageModel
    from heldin.models.score_cache import ScoredModel


V = TypeVar("V")
# By recipe, names of its canary users, and marks that were drawn and not planted.
Drawn = dict[str, tuple[list[str], list[str]]]


class Fingerprinted(Protocol):
    """A model, or the record's facts about a model: enough to find the values computed with the model."""

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the tokenizer."""
        ...


class Measure(ABC, Generic[V]):
    """A measurement of a job.

    Attributes:
        name: key of the facts in the record; for a measure in a config, its name there (``AskedMeasure``).
        file: name of the table, which only its owner can read and ``heldin purge`` removes.
        stage: stage of the job to which the measure's seconds are added.
    """

    name: str = ""
    file: str = ""
    stage: str = "measures"

    @abstractmethod
    def made_from(self) -> str:
        """Return a hash of the models, texts and options that determine the values."""

    @abstractmethod
    def compute(self, reporter: Reporter) -> V:
        """Run the models. Raises InputError if they cannot be used."""

    @abstractmethod
    def columns(self, values: V) -> Mapping[str, Any]:
        """Return the values as columns of the table."""

    @abstractmethod
    def values(self, table: pa.Table) -> V:
        """Return the values in a table; the inverse of ``columns``."""

    def facts(self, values: V, member: Mapping[str, bool]) -> Facts | None:
        """Return facts for the record, without names and texts; None if there are none.

        Args:
            member: whether each audited user and canary user is held in.
        """
        return None


@dataclass(frozen=True)
class MeasuredUsers:
    """The users of a job and their texts, in the view of a measure, which does not show who is held in.

    Attributes:
        texts: the attacker's texts of each user.
        known: returns, for each user, at most this many documents (None: all) that training saw or would have seen.
        key: secret of the job, or a public key if it has none; determines a measure's random draws.
        visible: number of tokens of a text that training sees; None: unknown.
        training: yields, for every training text, its owners and the text; None: unknown.
        public: returns the public texts.
        canaries: how each canary user was made.
        marks: draws marks that might have been planted; None if no canary user has a mark.
        marks_from: values that determine the drawn marks.
    """

    texts: "AttackTexts"
    known: "Callable[[int | None], Mapping[str, Sequence[Document]]]"
    key: bytes
    visible: int | None = None
    training: Callable[[], Iterable[tuple[Collection[str], str]]] | None = None
    public: Callable[[], Sequence[str]] = tuple
    canaries: "Mapping[str, Canary]" = field(default_factory=dict)
    marks: Callable[[], Drawn] | None = None
    marks_from: Sequence[str] = ()


class MeasureOptions(Section, ABC):
    """A kind of ``measures``, with the options of the measure in a config."""

    needs_weights: ClassVar[bool] = True
    """Whether the measure runs the audited model itself, which is impossible for a model behind an endpoint."""
    needs_canaries: ClassVar[bool] = False
    """Whether the measure concerns canary users only."""
    of_training_texts: ClassVar[bool] = False
    """Whether the measure concerns the model's training texts, so the measure cannot use fresh texts."""

    @abstractmethod
    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> Measure[Any]:
        """Return the measure.

        Args:
            models: target and primary reference, or the record's facts about them.
        """

    def check(self, subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
        """Check what is known before any long computation.

        Args:
            subjects: users of the job; None: they are unknown yet, and only the model is checked.
            model: the audited model, or the model from which it will be made.

        Raises:
            InputError: the measure is impossible.
        """

    def check_lengths(self, limits: Mapping[str, int]) -> None:
        """Check options against limits in the config.

        Args:
            limits: maximum number of tokens of a text, by the key that sets it.

        Raises:
            ValueError: a limit is too low.
        """

    def described(self) -> str:
        """Return a description of the measure, for ``heldin run --check``."""
        return "measured"

    @classmethod
    def examples(cls, kind: str, folder: Path) -> list["MeasureOptions"]:
        """Return options for the test suite of the kind; a kind with required keys returns its own.

        Args:
            kind: registered name of the kind.
            folder: folder for files that the options need.
        """
        return [cls()]


def no_timer(stage: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


@dataclass(frozen=True)
class MeasureFolder:
    """The folder in which a job keeps its tables.

    Attributes:
        read_only: whether a missing table is refused, for ``heldin verify``; otherwise it is computed.
        afresh: whether all values are computed, even if tables exist, and only ``write`` writes them: for a job whose
            folder has no ledger or config to show to which job the tables belong.
        timed: measures the seconds of a stage in a block.
    """

    path: Path
    reporter: Reporter
    read_only: bool = False
    afresh: bool = False
    timed: Callable[[str], AbstractContextManager[None]] = no_timer
    _computed: dict[str, tuple[Measure[Any], Any]] = field(default_factory=dict, repr=False)

    def values_of(self, measure: Measure[V]) -> V:
        """Return a measure's values, from the table if it was made from the same inputs.

        Raises:
            InputError: the table is missing or damaged and may not be made, or the models cannot be used.
        """
        if self.afresh:
            if measure.file not in self._computed:
                with self.timed(measure.stage):
                    self._computed[measure.file] = measure, measure.compute(self.reporter)
            values: V = self._computed[measure.file][1]
            return values
        path, made_from = self.path / measure.file, measure.made_from()
        with self.timed(measure.stage):
            table = read_table(path, made_from=made_from, say=self.reporter.say)
            if table is not None:
                return measure.values(table)
            if self.read_only:
                raise InputError(
                    f"'{path}' is missing, damaged, or for other models or texts than those of the record: restore it"
                )
            values = measure.compute(self.reporter)
            write_table(measure.columns(values), path, made_from=made_from)
            return values

    def write(self) -> None:
        """Write the tables of all values computed with ``afresh``."""
        for measure, values in self._computed.values():
            write_table(measure.columns(values), self.path / measure.file, made_from=measure.made_from())

    def facts_of(
        self, measures: Sequence[Measure[Any]], member: Callable[[], Mapping[str, bool]]
    ) -> dict[str, dict[str, Any]]:
        """Return the facts of each measure by name, for the record; measures without facts are left out.

        Args:
            member: returns membership; called after all values are computed.
        """
        values = [(measure, self.values_of(measure)) for measure in measures]
        with self.timed("statistics"):
            sides = member()
            facts = {measure.name: measure.facts(measured, sides) for measure, measured in values}
        return {name: fact.model_dump(mode="json") for name, fact in facts.items() if fact is not None}


def named_model(name: str | None) -> Statement:
    """Return the record's text for a model with this name; None: the base model pre-trained by this run."""
    return ModelText.PRETRAINED() if name is None else ModelText.NAMED(name=name)


def model_facts(model: "LanguageModel", name: Statement) -> ModelFacts:
    """Return the record's facts about a locally loaded model."""
    adapter = model.adapter
    return ModelFacts(
        name=name,
        parameters=model.parameters(),
        fingerprint=model.fingerprint,
        architecture=model.architecture,
        stored=model.stored.format or model.stored.precision,
        adapter=adapter and AdapterFacts(base=adapter.name, named=adapter.named, beside=len(adapter.beside)),
    )


def loaded(model: Fingerprinted) -> "ScoredModel":
    """Return the model, which can score texts. Raises TypeError for a record's facts about a model."""
    if isinstance(model, ModelFacts):
        raise TypeError(f"'{model.name}' was not loaded: a verification runs no model")
    return cast("ScoredModel", model)


def loaded_here(model: Fingerprinted) -> "LanguageModel":
    """Return the model, with weights on this machine. Raises TypeError for a model behind an endpoint."""
    # By what it has: its class would load torch into every process that reads a config.
    if not hasattr(model, "model"):
        raise TypeError(f"{model} is not a model that was loaded")
    return cast("LanguageModel", model)
