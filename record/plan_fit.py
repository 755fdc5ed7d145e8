"""What people read of a plan that is held against its data."""

from heldin.record.facts import PlanFit
from heldin.words.guarantee import PlanFitText, PromiseCaution
from heldin.words.statement import Statement

DIFFERS = 0.2  # of what a plan states, from which on its data are said not to fit it


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
