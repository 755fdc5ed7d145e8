"""The config key for measures: the same in runs, audits and planted audits."""

from typing import Annotated

from pydantic import Field

from heldin.base.kinds import KindsByName
from heldin.base.section import Section
from heldin.stages.measures.kinds import MEASURES
from heldin.stages.measures.measure import MeasureOptions


class MeasureKeys(Section):
    """Further measurements."""

    measures: Annotated[dict[str, MeasureOptions], KindsByName(MEASURES)] = Field({})
    """Measurements in addition to the attacks. Each key is the name of a measurement in heldin, or
    "package.module:Class"."""
