"""The keys of a config that ask for measurements: one for each, the same for runs, audits and planted audits."""

from heldin.base.section import Section
from heldin.stages.measures.extraction_measure import ExtractionOptions
from heldin.stages.measures.measure import MeasureOptions


class MeasureKeys(Section):
    """Measurements that a config asks for."""

    extraction: ExtractionOptions | None = None
    """Whether sampling from the model would emit users' training texts; null: this is not measured."""

    def measures(self) -> dict[str, MeasureOptions]:
        """Return the options of each wanted measurement, by key."""
        options = {name: getattr(self, name) for name in MeasureKeys.model_fields}
        return {name: value for name, value in options.items() if value is not None}
