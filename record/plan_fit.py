"""A plan next to its data: the numbers, and what people read of them."""

from typing import Literal

from heldin.base.section import Facts
from heldin.words.guarantee import PlanFitText, PromiseCaution
from heldin.words.statement import Statement

DIFFERS = 0.2  # of what a plan states, from which on its data are said not to fit it


class PlanFit(Facts):
    """The numbers that a plan states, next to those of its data. Measured on private people.

    Attributes:
        unit: what the stated population counts; under group privacy copies of records count.
        population: the stated number.
        units: the number in training (of many trainings: with the worst-case user); before, the number to expect.
        planned: gradients of records in a step, if the population is right and every drawn user has the group size;
            null where the plan does not decide it.
        gradients: the mean number that was computed in a step, or the number to expect; or null.
        group_size: records of a user that the plan counts on; null if it counts on none.
        users: number of users.
        short: number of users with fewer records than that; null likewise, and for one to nine.
        protected: number of users, or at the example level of records, that the guarantee is for.
    """

    unit: Literal["users", "records"]
    population: int
    units: int
    planned: float | None
    gradients: float | None
    group_size: int | None
    users: int
    short: int | None
    protected: int


def figures_of(fit: PlanFit) -> list[Statement]:
    """Return the numbers side by side."""
    short = [] if fit.short is None else [PlanFitText.SHORT]
    return [code(**fit.model_dump()) for code in [*_stated(fit), *short]]


def differences_of(fit: PlanFit) -> list[Statement]:
    """Return the numbers that differ by a fifth, and the number of users that may explain them; none if none do."""
    far = [code for code, (number, stated) in _stated(fit).items() if abs(number - stated) >= DIFFERS * stated]
    # Users below the group size are no difference in themselves: a group size above the median is a choice.
    short = [PlanFitText.SHORT] if far and fit.short else []
    return [code(**fit.model_dump()) for code in [*far, *short]]


def warnings_of(fit: PlanFit, delta: float | None) -> list[Statement]:
    """Return what to read with the plan.

    Args:
        delta: of the guarantee; None without one, and if it was warned of before.
    """
    differences, units = differences_of(fit), max(1, fit.protected)
    warnings = [PlanFitText.MISFIT(differences=differences)] if differences else []
    # By the users who are there: a population that is stated too small would hide it.
    if delta is not None and delta > 1.0 / units:
        warnings.append(PromiseCaution.LARGE_DELTA(delta=delta, units=units, most=units**-1.1))
    return warnings


def _stated(fit: PlanFit) -> dict[PlanFitText, tuple[float, float]]:
    """Return the number in the data, and the plan's."""
    stated: dict[PlanFitText, tuple[float, float]] = {PlanFitText.UNITS: (fit.units, fit.population)}
    if fit.gradients is not None and fit.planned is not None:
        stated[PlanFitText.GRADIENTS] = (fit.gradients, fit.planned)
    return stated
