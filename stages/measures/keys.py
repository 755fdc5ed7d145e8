"""The keys of a config that ask for measurements: one for each, the same for runs, audits and planted audits."""

import importlib
import pkgutil

import heldin.stages.measures
from heldin.base.section import Section
from heldin.stages.measures.extraction_measure import ExtractionOptions
from heldin.stages.measures.measure import Measure, MeasureOptions


class MeasureKeys(Section):
    """Measurements that a config asks for."""

    extraction: ExtractionOptions | None = None
    """Whether sampling from the model would emit users' training texts; null: this is not measured."""

    def measures(self) -> dict[str, MeasureOptions]:
        """Return the options of each wanted measurement, by key."""
        options = {name: getattr(self, name) for name in MeasureKeys.model_fields}
        return {name: value for name, value in options.items() if value is not None}


def table_names() -> list[str]:
    """Return the names of the tables that the measures of this package leave, as each declares its own."""
    for module in pkgutil.iter_modules(heldin.stages.measures.__path__):
        importlib.import_module(f"heldin.stages.measures.{module.name}")
    return sorted({measure.file for measure in Measure.__subclasses__()})
