"""The config key for measures: the same in runs, audits and planted audits."""

from typing import Annotated

from pydantic import Field

from heldin.base.kinds import KindsByName
from heldin.base.section import Section
from heldin.stages.measures.kinds import MEASURES
from heldin.stages.measures.measure import MeasureOptions


class MeasureKeys(Section):
    """The measures in a config."""

    measures: Annotated[dict[str, MeasureOptions], KindsByName(MEASURES)] = Field({})
    """What is measured besides the attacks, each by its name: heldin's own, or "package.module:Class" of another
    package."""
