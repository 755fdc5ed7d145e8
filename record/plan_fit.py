"""How a plan fits its data: the numbers, and sentences about them."""

from typing import Literal

from heldin.base.section import Facts
from heldin.words.guarantee import PlanFitText, PromiseCaution
from heldin.words.statement import Statement

DIFFERS = 0.2  # of what a plan states, from which on its data are said not to fit it


class PlanFit(Facts):
    """The numbers in a plan, and the actual numbers in the data, measured on private people.

    Attributes:
        unit: unit of the stated population; under group privacy, copies of records.
        population: the number of units that the plan states.
        units: number of units in training; for independent trainings, with the worst-case user; before training, the
            expected number.
        planned: number of records' gradients per step, if the population is right and every drawn user has the group
            size; null if the plan does not determine it.
        gradients: mean number of computed gradients per step, or the expected number; null if unknown.
        group_size: number of records per user that the plan assumes; null if it assumes no number.
        users: number of users.
        short: number of users with fewer records than ``group_size``; null without a group size, and for one to nine
            users.
        protected: number of users that the guarantee covers; at the example level, number of records.
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
    """Return statements that give the plan's numbers and the data's numbers."""
    short = [] if fit.short is None else [PlanFitText.SHORT]
    return [code(**fit.model_dump()) for code in [*_stated(fit), *short]]


def differences_of(fit: PlanFit) -> list[Statement]:
    """Return the numbers that differ by at least a fifth, and the users who may explain the difference; empty if no
    number differs."""
    far = [code for code, (number, stated) in _stated(fit).items() if abs(number - stated) >= DIFFERS * stated]
    # Users below the group size are no difference in themselves: a group size above the median is a choice.
    short = [PlanFitText.SHORT] if far and fit.short else []
    return [code(**fit.model_dump()) for code in [*far, *short]]


def warnings_of(fit: PlanFit, delta: float | None) -> list[Statement]:
    """Return warnings about the plan.

    Args:
        delta: delta of the guarantee; None without a guarantee, or to omit the warning about delta.
    """
    differences, units = differences_of(fit), max(1, fit.protected)
    warnings = [PlanFitText.MISFIT(differences=differences)] if differences else []
    # By the users who are there: a population that is stated too small would hide it.
    if delta is not None and delta > 1.0 / units:
        warnings.append(PromiseCaution.LARGE_DELTA(delta=delta, units=units, most=units**-1.1))
    return warnings


def _stated(fit: PlanFit) -> dict[PlanFitText, tuple[float, float]]:
    """Return pairs of the number in the data and the number in the plan."""
    stated: dict[PlanFitText, tuple[float, float]] = {PlanFitText.UNITS: (fit.units, fit.population)}
    if fit.gradients is not None and fit.planned is not None:
        stated[PlanFitText.GRADIENTS] = (fit.gradients, fit.planned)
    return stated
