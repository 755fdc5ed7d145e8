"""Epsilon of trainings together with releases by pure mechanisms, such as a private median."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

from scipy import stats

from heldin.base.errors import InputError

MOST_LOSSES = 10_000
_RELATIVE = 1e-5  # of the epsilon that is searched


def check_pure(pure: Sequence[float]) -> None:
    """Raise InputError unless every epsilon is a number above 0."""
    for spent in pure:
        if not (math.isfinite(spent) and spent > 0.0):
            raise InputError(f"pure epsilon is {spent}: give a number above 0")


def epsilon_with_pure(delta_at: Callable[[float], float], pure: Sequence[float], delta: float, most: float) -> float:
    """Return epsilon(delta) of trainings together with releases by pure mechanisms, rounded up.

    Of all mechanisms with pure epsilon s, randomised response loses most. Its loss is s with probability p = 1 / (1 +
    exp(-s)), and -s otherwise. So delta at epsilon e is the mean of delta'(e - t) over the sums t of these losses,
    where delta' is the delta of the trainings (docs/theory.md#several-releases).

    Args:
        delta_at: function delta' of the trainings at epsilon >= 0, for the worse of the two directions.
        pure: the pure epsilons.
        most: an epsilon that is certainly large enough.

    Raises:
        InputError: there are too many different pure epsilons.
    """
    losses = _losses(pure)

    def delta_of_all(epsilon: float) -> float:
        return math.fsum(share * _at(delta_at, epsilon - loss) for loss, share in losses)

    low, high = 0.0, most
    while high - low > _RELATIVE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if delta_of_all(middle) <= delta else (middle, high)
    return high


def _losses(pure: Sequence[float]) -> list[tuple[float, float]]:
    """Return the sums of losses and their probabilities. Equal epsilons follow the binomial law."""
    counts = sorted(Counter(pure).items())
    if math.prod(count + 1 for _, count in counts) > MOST_LOSSES:
        raise InputError(
            f"{len(counts)} different pure epsilons have too many sums: round the pure epsilons up to fewer values"
        )
    each = []
    for spent, count in counts:
        law = stats.binom(count, 1.0 / (1.0 + math.exp(-spent)))
        each.append([((2 * k - count) * spent, float(law.pmf(k))) for k in range(count + 1)])
    return [(sum(loss for loss, _ in parts), math.prod(p for _, p in parts)) for parts in itertools.product(*each)]


def _at(delta_at: Callable[[float], float], epsilon: float) -> float:
    """Return delta at any epsilon. Below 0, it follows from the other direction, which delta' includes."""
    if epsilon >= 0.0:
        return delta_at(epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * delta_at(-epsilon)
