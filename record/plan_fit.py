"""A plan compared with its data: the numbers, and the sentences for people."""

from typing import Literal

from heldin.base.section import Facts
from heldin.words.guarantee import PlanFitText, PromiseCaution
from heldin.words.statement import Statement

DIFFERS = 0.2  # of what a plan states, from which on its data are said not to fit it


class PlanFit(Facts):
    """The numbers in a plan, and the actual numbers in the data, measured on private people.

    Attributes:
        unit: unit of the stated population; under group privacy, copies of records count.
        population: the stated number.
        units: number in training (for many trainings: with the worst-case user); before training, the expected number.
        planned: gradients of records per step, if the population is right and every drawn user has the group size; null
            if the plan does not determine it.
        gradients: mean number of computed gradients per step, or the expected number; or null.
        group_size: number of records per user that the plan assumes; null if it assumes none.
        users: number of users.
        short: number of users with fewer records than ``group_size``; null if that is null, and for one to nine users.
        protected: number of users, or records at the example level, that the guarantee covers.
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
    """Return the plan's and the data's numbers together."""
    short = [] if fit.short is None else [PlanFitText.SHORT]
    return [code(**fit.model_dump()) for code in [*_stated(fit), *short]]


def differences_of(fit: PlanFit) -> list[Statement]:
    """Return the numbers that differ by a fifth, and the number of users that may explain them; empty if none
    differ."""
    far = [code for code, (number, stated) in _stated(fit).items() if abs(number - stated) >= DIFFERS * stated]
    # Users below the group size are no difference in themselves: a group size above the median is a choice.
    short = [PlanFitText.SHORT] if far and fit.short else []
    return [code(**fit.model_dump()) for code in [*far, *short]]


def warnings_of(fit: PlanFit, delta: float | None) -> list[Statement]:
    """Return warnings about the plan.

    Args:
        delta: delta of the guarantee; None without one, or if the warning was already given.
    """
    differences, units = differences_of(fit), max(1, fit.protected)
    warnings = [PlanFitText.MISFIT(differences=differences)] if differences else []
    # By the users who are there: a population that is stated too small would hide it.
    if delta is not None and delta > 1.0 / units:
        warnings.append(PromiseCaution.LARGE_DELTA(delta=delta, units=units, most=units**-1.1))
    return warnings


def _stated(fit: PlanFit) -> dict[PlanFitText, tuple[float, float]]:
    """Return the number in the data, and the plan's number."""
    stated: dict[PlanFitText, tuple[float, float]] = {PlanFitText.UNITS: (fit.units, fit.population)}
    if fit.gradients is not None and fit.planned is not None:
        stated[PlanFitText.GRADIENTS] = (fit.gradients, fit.planned)
    return stated
