"""A limit that an organisation sets, before it measures, for the defenses of a sweep or the model of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from heldin.base.section import LARGEST, Section

Limit = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Measure = Literal["epsilon_per_user", "auroc", "loss", "loss_gain_over_base"]
# Whether more of it is better.
MEASURES: dict[str, bool] = {"epsilon_per_user": False, "auroc": False, "loss": False, "loss_gain_over_base": True}


class RequirementConfig(Section):
    """An upper or lower limit that a model must meet before release."""

    of: Measure
    """Quantity to limit. epsilon_per_user: epsilon of the plan. auroc: largest AUROC of all attacks. loss: loss on
    non-members' test texts. loss_gain_over_base: loss of the base model minus loss of the trained model, both on
    non-members' test texts."""
    at_most: Limit | None = None
    """Largest value allowed. heldin compares this value with an upper confidence limit of the quantity."""
    at_least: Limit | None = None
    """Smallest value allowed. heldin compares this value with a lower confidence limit of the quantity."""
    limit: Literal["upper", "lower"] | None = None
    """Confidence limit to compare: upper with at_most, lower with at_least. You may omit this key, which only makes the
    file easier to read."""

    @model_validator(mode="after")
    def _one_limit(self) -> "RequirementConfig":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("give exactly one of at_most and at_least")
        if self.limit not in (None, "upper" if self.at_most is not None else "lower"):
            raise ValueError(
                "limit contradicts at_most or at_least: set limit to upper with at_most, and to lower with at_least"
            )
        return self

    def requirement(self) -> "Requirement":
        """The limit."""
        return Requirement(self.of, self.at_most, self.at_least)


@dataclass(frozen=True)
class Requirement:
    """A limit that a defense must meet.

    Attributes:
        at_most: upper limit; None for a lower limit.
        at_least: lower limit; None for an upper limit.
    """

    measure: str
    at_most: float | None = None
    at_least: float | None = None

    def room(self, values: Sequence[float]) -> np.ndarray:
        """Return the distance of each value from the limit; a value that breaks the limit has a negative distance."""
        measured = np.asarray(values, dtype=np.float64)
        return self.at_most - measured if self.at_most is not None else measured - (self.at_least or 0.0)

    def words(self) -> str:
        """Return the requirement in words."""
        which, limit = ("least", self.at_least) if self.at_most is None else ("most", self.at_most)
        return f"{self.measure} at {which} {limit:g}"
