"""Heuristics that choose a mechanism before training: compute budgets, noise variances, group and cohort sizes, delta.

No heuristic is part of a guarantee. Data for a heuristic must come from public users, or cost part of epsilon.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.defenses.accounting.events import check_count
from heldin.defenses.choices import DeltaRule
from heldin.words.guarantee import DeltaText
from heldin.words.statement import Statement


@dataclass(frozen=True)
class BudgetChoice:
    """A split of a compute budget: records per user and step (``group_size``), and expected ``cohort``."""

    group_size: int
    cohort: int

    @property
    def budget(self) -> int:
        """Expected number of gradients per step."""
        return compute_budget(self.group_size, self.cohort)


def settled_delta(
    delta: float | DeltaRule | None, units: int | None, examples: int | None
) -> tuple[float, Statement | None]:
    """Return delta, and the statement of its rule; the statement is None if delta is a number.

    The exponent is from Charles et al. (section 5, following Ponomareva et al., 2023, section 5.3.2), who count
    examples.

    Args:
        delta: a number, or a rule; None: "units^-1.1".
        units: public number of protected units.
        examples: public number of examples before any cap.

    Raises:
        InputError: the number that the rule needs is missing.
    """
    if isinstance(delta, float | int):
        return float(delta), None
    over_examples = delta == "examples^-1.1"
    number = examples if over_examples else units
    if number is None:
        raise InputError(
            f"delta {delta or 'units^-1.1'} needs the public number of {'examples' if over_examples else 'users'}:"
            " give this number, or a number as delta"
        )
    check_count("examples" if over_examples else "users", number)
    rule = DeltaText.OVER_EXAMPLES if over_examples else DeltaText.OVER_UNITS
    return float(number**-1.1), rule(number=number)


def compute_budget(group_size: int, cohort: int) -> int:
    """Return B = G M gradients per step of ULS (Charles et al., section 2). ELS at this cost has batch size B."""
    check_count("group size", group_size, MANY)
    check_count("cohort", cohort)
    return group_size * cohort


def els_rate(budget: int, group_size: int, users: int) -> float:
    """Return p = B / (G N), the rate of examples at budget B and G examples per user (Charles et al., section 3)."""
    check_count("group size", group_size, MANY)
    rate = budget / (group_size * users)
    if rate > 1.0:
        raise InputError(f"budget {budget} is larger than the {group_size * users} examples: lower the budget")
    return rate


def els_noise_variance(noise_multiplier: float, clip_norm: float, budget: float) -> float:
    """Return (s L_ELS / B)^2, the variance per coordinate of ELS's noise (Charles et al., eq. (5))."""
    return (noise_multiplier * clip_norm / budget) ** 2


def uls_noise_variance(noise_multiplier: float, clip_norm: float, cohort: float) -> float:
    """Return (s L_ULS / M)^2, the variance per coordinate of ULS's noise (Charles et al., eq. (6))."""
    return (noise_multiplier * clip_norm / cohort) ** 2


def median_group_size(records_per_user: Sequence[int]) -> int:
    """Return the median number of records per user, at least 1: the group size for ELS (Charles et al., section 6).

    ``records_per_user`` must come from public users only, because a private median costs part of epsilon.
    """
    if not records_per_user:
        raise InputError("the median group size needs the record count of at least one public user: give public users")
    return max(1, int(statistics.median(records_per_user)))  # an even number of users may have a median of n + 1/2


def estimate_and_double(
    lipschitz: Callable[[int], float],
    noise_multiplier: Callable[[int], float],
    budget: int,
    start: BudgetChoice = BudgetChoice(group_size=1, cohort=32),
) -> list[BudgetChoice]:
    """Double G or M, whichever reduces the noise more, from a start up to the budget (Charles et al., Algorithm 3).

    The noise on the mean is L(G) sigma(M) / M (eq. (6)).

    Args:
        lipschitz: function from G to the median norm of a user's mean gradient over G records at the pre-trained model.
            The norms must come from public users, or cost part of epsilon.
        noise_multiplier: function from cohort M to the calibrated noise multiplier.
        budget: number of gradients per step.
        start: first choice.

    Returns:
        All choices from the start to the end. The last is the first choice with G M >= budget.

    Raises:
        InputError: the start exceeds the budget.
    """
    if start.budget > budget:
        raise InputError(
            f"the starting point costs {start.budget} gradients per step, above the budget of {budget}: raise the"
            " budget, or start lower"
        )
    trail = [start]
    while trail[-1].budget < budget:
        g, m = trail[-1].group_size, trail[-1].cohort
        shrink_by_group = lipschitz(2 * g) / lipschitz(g)
        # Eq. (11) has sigma(2M) / sigma(M), which with sigma of eq. (3) is never below 1 and would never double M;
        # "increasing M decreases sigma" (section 6) holds for sigma / M, which is compared here.
        shrink_by_cohort = noise_multiplier(2 * m) / (2.0 * noise_multiplier(m))
        trail.append(BudgetChoice(2 * g, m) if shrink_by_group < shrink_by_cohort else BudgetChoice(g, 2 * m))
    return trail
