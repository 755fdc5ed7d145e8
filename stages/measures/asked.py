"""The measures in a config. Their names in the config are also the names of their facts and tables."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.kinds import in_one_line
from heldin.base.progress import Reporter
from heldin.base.section import Facts
from heldin.stages.measures.kinds import MEASURES
from heldin.stages.measures.measure import Fingerprinted, Measure, MeasuredUsers, MeasureOptions

if TYPE_CHECKING:
    from heldin.models.loading import LanguageModel

V = TypeVar("V")
OF_MEASURE = "measure-"  # how the names of tables of measures begin that a config asks for


@dataclass(frozen=True)
class AskedMeasure(Measure[V]):
    """A measure under its name in the config, which is also the name of its facts and of its table."""

    measure: Measure[V]
    name: str = ""

    @property
    def file(self) -> str:  # type: ignore[override]
        """Name of the table, which differs from the names of heldin's own tables."""
        return table_name(self.name)

    @property
    def stage(self) -> str:  # type: ignore[override]
        """Stage of the measure."""
        return self.measure.stage

    def made_from(self) -> str:
        """Return the hash of the measure's inputs."""
        with self._in_one_line():
            return self.measure.made_from()

    def compute(self, reporter: Reporter) -> V:
        """Run the measure."""
        with self._in_one_line():
            return self.measure.compute(reporter)

    def columns(self, values: V) -> Mapping[str, Any]:
        """Return the measure's values as columns."""
        with self._in_one_line():
            return self.measure.columns(values)

    def values(self, table: pa.Table) -> V:
        """Return the measure's values from a table."""
        with self._in_one_line():
            return self.measure.values(table)

    def facts(self, values: V, member: Mapping[str, bool]) -> Facts | None:
        """Return the measure's facts. Raises InputError for a number that is not finite, because JSON has no such
        number."""
        with self._in_one_line():
            facts = self.measure.facts(values, member)
        if facts is not None and not is_finite(facts.model_dump()):
            raise InputError(
                f"measures.{self.name} computed a number that is not finite, so nothing is recorded: remove"
                f" measures.{self.name}, or correct the code of this measure"
            )
        return facts

    def _in_one_line(self) -> AbstractContextManager[None]:
        return in_one_line(f"measures.{self.name}", ours=self.name in MEASURES.ours)


def is_finite(value: object) -> bool:
    """Return whether all numbers in nested lists and mappings are finite."""
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(map(is_finite, value.values()))
        case list() | tuple():
            return all(map(is_finite, value))
    return True


def table_name(measure: str) -> str:
    """Return the name of the table of a measure in a config."""
    return f"{OF_MEASURE}{re.sub(r'[^A-Za-z0-9_]', '.', measure)}.parquet"


def measures_asked(
    options: Mapping[str, MeasureOptions], subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]
) -> Sequence[Measure[Any]]:
    """Return the measures in a config, by name. Raises InputError for a measure that is impossible."""
    asked = []
    for name, each in options.items():
        with in_one_line(f"measures.{name}", ours=name in MEASURES.ours):
            asked.append(AskedMeasure(each.measure(subjects, models), name))
    return asked


def check_asked(options: Mapping[str, MeasureOptions], subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
    """Check the measures before any long computation. Raises InputError for a measure that is impossible."""
    for name, each in options.items():
        with in_one_line(f"measures.{name}", ours=name in MEASURES.ours):
            each.check(subjects, model)
