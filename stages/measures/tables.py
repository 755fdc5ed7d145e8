"""The tables that measures leave in a job's folder, by name: no code of a package is imported to find them."""

from pathlib import Path

from heldin.stages.measures.asked import OF_MEASURE
from heldin.stages.measures.losses import Losses
from heldin.stages.measures.precision import PrecisionShift
from heldin.stages.measures.scores import TextScores


def tables_in(folder: Path) -> list[str]:
    """Return the names of the tables that measures may have left in a folder."""
    asked = sorted(path.name for path in folder.glob(f"{OF_MEASURE}*.parquet"))
    return [*sorted(measure.file for measure in (TextScores, Losses, PrecisionShift)), *asked]
