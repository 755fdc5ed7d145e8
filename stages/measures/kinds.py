"""The kinds of ``measures``."""

from heldin.base.kinds import Family
from heldin.stages.measures.measure import MeasureOptions

MEASURES = Family[MeasureOptions](
    "measures",
    MeasureOptions,
    {
        "extraction": "heldin.stages.measures.extraction_measure:ExtractionOptions",
        "marks": "heldin.stages.measures.marks:MarkOptions",
    },
)
