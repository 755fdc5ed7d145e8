"""The smallest level at which a verdict's test would reject a claim, and Holm's step-down over several claims."""

from collections.abc import Sequence

from heldin.bounds import one_run
from heldin.bounds.design import Design
from heldin.bounds.one_run import Guesses
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Claim

_LEAST, _MOST = 1e-12, 1.0 - 1e-6
_FACTOR = 1.01  # a p-value is at most this much above the smallest rejecting level


def p_value(scores: LabelledScores, claim: Claim, design: Design) -> float | None:
    """The p-value of the one-run test behind a verdict, at most 1 % too large and never below 1e-12.

    The numbers of guesses are those of the design's own level, fixed before any score is seen, each with its share; the
    verdict at that level rejects iff the p-value is at most alpha / attacks. A test's level may then be lowered freely:
    both theorems' tests reject at every level above one at which they reject.

    Args:
        scores: joined to membership.
        design: how the scores were obtained.

    Returns:
        The p-value; None for independent trainings, whose bands are not tests at any level.
    """
    if design.independent_trainings:
        return None
    whole = design.alpha / design.attacks
    tries = one_run.paid_tries(scores.scores.size, design.guesses, design.alpha, design.attacks)
    return min(
        1.0,
        *(_smallest_level(one_run.guess(scores, attempt.made), claim) * whole / attempt.level for attempt in tries),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of K tests (Holm 1979): rejecting those at most alpha errs anywhere with probability alpha.

    Valid under any dependence of the tests.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        # Never below an earlier one: a test is reached only where all before it rejected.
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _smallest_level(game: Guesses, claim: Claim) -> float:
    """A level at which the game rejects the claim, at most 1 % above the smallest; 1 if it rejects at none."""
    if not claim.rejected_by(game, _MOST):
        return 1.0
    if claim.rejected_by(game, _LEAST):
        return _LEAST
    low, high = _LEAST, _MOST
    while high > _FACTOR * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if claim.rejected_by(game, middle) else (middle, high)
    return high
