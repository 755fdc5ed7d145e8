"""The key of a config that asks for measurements: the same for runs, audits and planted audits."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from heldin.base.kinds import KindsByName
from heldin.base.section import Section
from heldin.stages.measures.kinds import MEASURES
from heldin.stages.measures.losses import Losses
from heldin.stages.measures.measure import OF_MEASURE, MeasureOptions
from heldin.stages.measures.precision import PrecisionShift
from heldin.stages.measures.scores import TextScores


class MeasureKeys(Section):
    """Measurements that a config asks for."""

    measures: Annotated[dict[str, MeasureOptions], KindsByName(MEASURES)] = Field({})
    """What is measured besides the attacks, each by its name: heldin's own, or "package.module:Class" of another
    package."""


def tables_in(folder: Path) -> list[str]:
    """Return the names of the tables that measures may have left in a folder. No measure's code is imported."""
    asked = sorted(path.name for path in folder.glob(f"{OF_MEASURE}*.parquet"))
    return [*sorted(measure.file for measure in (TextScores, Losses, PrecisionShift)), *asked]
