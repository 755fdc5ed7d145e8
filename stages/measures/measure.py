"""A measure: a table of values in a job's folder, what it is made from, how it is computed, and what follows from it.

A job and its verification are the same call: ``MeasureFolder`` computes a table that is missing, or refuses if it may
only read. Values never know who is held in; facts for the record follow from them and membership.
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
    """A model, or the record's facts about one: enough to recognise the values of the model."""

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the tokenizer."""
        ...


class Measure(ABC, Generic[V]):
    """One measurement of a job.

    Attributes:
        name: key of its facts in the record; of a measure that a config asks for, the name there (``AskedMeasure``).
        file: name of its table, which is readable by its owner only and is removed by ``heldin purge``.
        stage: stage of a job whose seconds it adds to.
    """

    name: str = ""
    file: str = ""
    stage: str = "measures"

    @abstractmethod
    def made_from(self) -> str:
        """Return a hash of the models, texts and options that the values follow from."""

    @abstractmethod
    def compute(self, reporter: Reporter) -> V:
        """Run the models. Raises InputError if they cannot be used."""

    @abstractmethod
    def columns(self, values: V) -> Mapping[str, Any]:
        """Return the values as columns of the table."""

    @abstractmethod
    def values(self, table: pa.Table) -> V:
        """Return the values of a table; the inverse of ``columns``."""

    def facts(self, values: V, member: Mapping[str, bool]) -> Facts | None:
        """Return what the record keeps, without names and texts; None if nothing can be said.

        Args:
            member: whether each audited user and canary user is held in.
        """
        return None


@dataclass(frozen=True)
class MeasuredUsers:
    """The users of a job and their texts, as a measure may see them: not who is held in.

    Attributes:
        texts: the attacker's texts by user.
        known: returns by user at most so many documents (None: all) that training saw or would have seen.
        key: secret of the job, or public where it has none; draws that a measure makes follow from it.
        visible: tokens of a text that training sees; None: not known.
        training: gives, for every training text, its owners and the text; None: not known.
        public: gives the public texts.
        canaries: how each canary user was made.
        marks: draws marks that might have been planted; None where no canary user has one.
        marks_from: what these follow from.
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
    """A kind of ``measures``: options of a measurement that a config asks for."""

    needs_weights: ClassVar[bool] = True
    """Whether it runs the audited model itself, which a model behind an endpoint does not allow."""
    needs_canaries: ClassVar[bool] = False
    """Whether it is about canary users alone."""
    of_training_texts: ClassVar[bool] = False
    """Whether it is about texts that the model was trained on, so that fresh texts say nothing."""

    @abstractmethod
    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> Measure[Any]:
        """Return the measure.

        Args:
            models: target and leading reference, or what a record says of them.
        """

    def check(self, subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
        """Check what can be known before anything takes long.

        Args:
            subjects: None: they are not known yet, and the model alone is checked.
            model: the audited model, or the one that it will be made from.

        Raises:
            InputError: this cannot be measured.
        """

    def check_lengths(self, limits: Mapping[str, int]) -> None:
        """Check options against what a config says.

        Args:
            limits: numbers of tokens that a text may have, by the key that says so.

        Raises:
            ValueError: a limit is too low.
        """

    def described(self) -> str:
        """Return what it would do, for ``heldin run --check``."""
        return "measured"

    @classmethod
    def examples(cls, kind: str, folder: Path) -> list["MeasureOptions"]:
        """Return options to try in its suite; a kind with keys that are required gives its own.

        Args:
            kind: the name under which it was found.
            folder: for files that they need.
        """
        return [cls()]


def no_timer(stage: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


@dataclass(frozen=True)
class MeasureFolder:
    """The folder in which a job keeps its tables.

    Attributes:
        read_only: whether a missing table is refused, for ``heldin verify``; else it is computed.
        afresh: whether everything is computed, whatever tables are there, and written by ``write`` alone: for a job
            without a ledger or a config in its folder that would tell whose tables they are.
        timed: measures the seconds of a stage.
    """

    path: Path
    reporter: Reporter
    read_only: bool = False
    afresh: bool = False
    timed: Callable[[str], AbstractContextManager[None]] = no_timer
    _computed: dict[str, tuple[Measure[Any], Any]] = field(default_factory=dict, repr=False)

    def values_of(self, measure: Measure[V]) -> V:
        """Return a measure's values, from the table if that was made from the same inputs.

        Raises:
            InputError: the table is missing or damaged and must not be made, or the models cannot be used.
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
        """Write the tables of everything that was computed afresh."""
        for measure, values in self._computed.values():
            write_table(measure.columns(values), self.path / measure.file, made_from=measure.made_from())

    def facts_of(
        self, measures: Sequence[Measure[Any]], member: Callable[[], Mapping[str, bool]]
    ) -> dict[str, dict[str, Any]]:
        """Return the facts of each measure by name, as the record keeps them; measures without facts are left out.

        Args:
            member: asked once all values are there.
        """
        values = [(measure, self.values_of(measure)) for measure in measures]
        with self.timed("statistics"):
            sides = member()
            facts = {measure.name: measure.facts(measured, sides) for measure, measured in values}
        return {name: fact.model_dump(mode="json") for name, fact in facts.items() if fact is not None}


def named_model(name: str | None) -> Statement:
    """Return what a record calls a model of this name; None: the base model that was pre-trained here."""
    return ModelText.PRETRAINED() if name is None else ModelText.NAMED(name=name)


def model_facts(model: "LanguageModel", name: Statement) -> ModelFacts:
    """Return the record's facts about a model that is loaded here."""
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
    """Return a model with which texts can be scored. Raises TypeError for what a record says of a model."""
    if isinstance(model, ModelFacts):
        raise TypeError(f"'{model.name}' was not loaded: a verification runs no model")
    return cast("ScoredModel", model)


def loaded_here(model: Fingerprinted) -> "LanguageModel":
    """Return a model whose weights are here. Raises TypeError for one behind an endpoint."""
    # By what it has: its class would load torch into every process that reads a config.
    if not hasattr(model, "model"):
        raise TypeError(f"{model} is not a model that was loaded")
    return cast("LanguageModel", model)
