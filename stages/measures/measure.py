"""A measure computes a table of values in a job's folder, and facts for the record from that table.

A job and its verification make the same call. ``MeasureFolder`` computes a missing table, or raises an error if it may
only read. Values never depend on membership. Facts for the record follow from values and membership.
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
    """A model, or the record's facts about a model. Either suffices to find the values that heldin computed with the
    model."""

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the tokenizer."""
        ...


class Measure(ABC, Generic[V]):
    """A measurement that a job makes on its models.

    Attributes:
        name: key of the facts in the record; for a measure in a config, the name in the config (``AskedMeasure``).
        file: name of the table. Only its owner can read the table, and ``heldin purge`` removes it.
        stage: stage of the job that includes the measure's seconds.
    """

    name: str = ""
    file: str = ""
    stage: str = "measures"

    @abstractmethod
    def made_from(self) -> str:
        """Return a hash of the models, texts and options that determine the values."""

    @abstractmethod
    def compute(self, reporter: Reporter) -> V:
        """Run the models, and return the values. Raises InputError if the models cannot be used."""

    @abstractmethod
    def columns(self, values: V) -> Mapping[str, Any]:
        """Return the values as columns of the table."""

    @abstractmethod
    def values(self, table: pa.Table) -> V:
        """Return the values from a table. This is the inverse of ``columns``."""

    def facts(self, values: V, member: Mapping[str, bool]) -> Facts | None:
        """Return facts for the record, without names and texts; None if there are no facts.

        Args:
            member: whether each audited user and canary user is a member.
        """
        return None


@dataclass(frozen=True)
class MeasuredUsers:
    """The users of a job and their texts, without membership.

    Attributes:
        texts: the attacker's texts of each user.
        known: function that returns, for each user, at most this many documents (None: all) that are training texts, or
            would be if the user were a member.
        key: secret of the job, or a public key if the job has no secret. The key determines a measure's random draws.
        visible: number of tokens of a text that training reads; None if unknown.
        training: function that yields every training text with its owners; None if unknown.
        public: function that returns the public texts.
        canaries: how each canary user was made.
        marks: function that draws marks that might have been planted; None if no canary user has a mark.
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
    """Whether the measurement needs the audited model itself, and so cannot run against an endpoint."""
    needs_canaries: ClassVar[bool] = False
    """Whether the measurement applies only to canary users."""
    of_training_texts: ClassVar[bool] = False
    """Whether the measurement needs texts that training used, so fresh texts are not enough."""

    @abstractmethod
    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> Measure[Any]:
        """Return the measure.

        Args:
            models: target and primary reference, or the record's facts about them.
        """

    def check(self, subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
        """Check, before any long computation, that the measure is possible.

        Args:
            subjects: users of the job; None if the users are not known yet; the measure then checks only the model.
            model: the audited model, or the model that training will start from.

        Raises:
            InputError: the measure is impossible.
        """

    def check_lengths(self, limits: Mapping[str, int]) -> None:
        """Check the options against limits in the config.

        Args:
            limits: maximum number of tokens of a text, by the key that sets it.

        Raises:
            ValueError: a limit is too low.
        """

    def described(self) -> str:
        """Return a text about the measure for ``heldin run --check``."""
        return "measured"

    @classmethod
    def examples(cls, kind: str, folder: Path) -> list["MeasureOptions"]:
        """Return options for the test suite of the kind. A kind with required keys overrides this method.

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
        read_only: whether a missing table is an error, as for ``heldin verify``; otherwise the table is computed.
        afresh: whether to compute all values even if tables exist, and to write tables only in ``write``. Use this for
            a folder without ledger or config, because nothing there identifies the job of the tables.
        timed: function that measures the seconds of a stage during a block.
    """

    path: Path
    reporter: Reporter
    read_only: bool = False
    afresh: bool = False
    timed: Callable[[str], AbstractContextManager[None]] = no_timer
    _computed: dict[str, tuple[Measure[Any], Any]] = field(default_factory=dict, repr=False)

    def values_of(self, measure: Measure[V]) -> V:
        """Return a measure's values, from its table if the table was made from the same inputs.

        Raises:
            InputError: the table is missing or damaged and the folder is read-only, or the models cannot be used.
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
                    f"'{path}' is missing, damaged, or does not match the models or texts of the record: restore"
                    " this file"
                )
            values = measure.compute(self.reporter)
            write_table(measure.columns(values), path, made_from=made_from)
            return values

    def write(self) -> None:
        """Write the tables of all values that were computed with ``afresh``."""
        for measure, values in self._computed.values():
            write_table(measure.columns(values), self.path / measure.file, made_from=measure.made_from())

    def facts_of(
        self, measures: Sequence[Measure[Any]], member: Callable[[], Mapping[str, bool]]
    ) -> dict[str, dict[str, Any]]:
        """Return the facts of each measure by name, for the record. Omits measures without facts.

        Args:
            member: function that returns membership; called after all values are computed.
        """
        values = [(measure, self.values_of(measure)) for measure in measures]
        with self.timed("statistics"):
            sides = member()
            facts = {measure.name: measure.facts(measured, sides) for measure, measured in values}
        return {name: fact.model_dump(mode="json") for name, fact in facts.items() if fact is not None}


def named_model(name: str | None) -> Statement:
    """Return the record's text for a model with this name; None is the base model that this run pre-trained."""
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
    """Return the model as a model that can score texts. Raises TypeError for a record's facts about a model."""
    if isinstance(model, ModelFacts):
        raise TypeError(f"'{model.name}' was not loaded: a verification runs no model")
    return cast("ScoredModel", model)


def loaded_here(model: Fingerprinted) -> "LanguageModel":
    """Return the model as a model on this machine. Raises TypeError for a model behind an endpoint."""
    # By what it has: its class would load torch into every process that reads a config.
    if not hasattr(model, "model"):
        raise TypeError(f"{model} is not a model that was loaded")
    return cast("LanguageModel", model)
