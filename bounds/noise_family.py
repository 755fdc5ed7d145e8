"""Bounds on epsilon for a trainer that differs from its plan only in its noise: the plan's family of curves.

Nobody checks this condition. A trainer that samples, clips or counts differently from the plan has another family, so
these bounds do not apply to it. The bounds are never a certificate and no basis for a verdict
(docs/theory.md#noise-family).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from heldin.bounds.one_run import Guesses, InverseRoc, OneRunBound, fdp_rejects, games_of
from heldin.bounds.scores import LabelledScores

_EXCESS = 1.002  # an accountant's epsilon is at most this above the exact one
_LOWEST, _HIGHEST = -5.0, 10.0  # powers of two of the stated noise
_STEPS = tuple(2.0**-i for i in range(1, 8))


@dataclass(frozen=True, eq=False)
class NoiseFamily:
    """A plan at any noise multiplier, with everything else equal. More noise gives a lower curve.

    Attributes:
        stated: the plan's own noise multiplier.
        inverse: function from noise multiplier to F^-1 of the accountant's curve.
        epsilon: function from (noise multiplier, delta) to epsilon, at most 0.2 % above the exact value.
    """

    stated: float
    inverse: Callable[[float], InverseRoc]
    epsilon: Callable[[float, float], float]


def family_bound(
    labelled: LabelledScores,
    family: NoiseFamily,
    delta: float,
    *,
    alpha: float = 0.05,
    made: int | None = None,
    attacks: int = 1,
) -> OneRunBound:
    """Return a lower bound on epsilon for a trainer that differs from the plan only in its noise.

    The bound is epsilon at the least noise multiplier whose curve the test rejects. It is never a certificate.

    Args:
        family: the plan at any noise multiplier.
        delta: delta of the bound, in (0, 1).
        alpha: total error probability.
        made: number of guesses r, registered beforehand; None: the numbers of ``paid_tries``, each with its share of
            alpha.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.
    """

    paid = games_of(labelled, made, alpha, attacks)
    games = list(paid.play())
    best, least = games[0][0], fdp_noise(games[0][0], family, games[0][1])
    # A search takes many tests, so a game is searched only if it rejects at slightly less noise than the best so far.
    for game, level in games[1:]:
        if least is None or fdp_rejects(game, family.inverse(least * math.exp2(-_STEPS[-1])), level):
            # ``or``: a search that finds nothing must not erase the bound of another game.
            best, least = game, fdp_noise(game, family, level) or least
    # The accountant's epsilon may be above the exact one by this factor, which a lower bound must not be.
    epsilon = 0.0 if least is None else family.epsilon(least, delta) / _EXCESS
    return OneRunBound(epsilon, alpha, best, paid.made)


@functools.lru_cache(maxsize=65536)
def fdp_noise(guesses: Guesses, family: NoiseFamily, alpha: float = 0.05) -> float | None:
    """Return the least noise multiplier found (to 0.5 %) whose curve is rejected; None if no curve is rejected.

    The search covers noise from 1/64 to 1024 times the stated noise. A rejected curve rules out all lower curves.
    """

    # Rejection at one noise means rejection at all larger ones, whose curves are lower: so bisection finds the least.
    def rejected(octave: float) -> bool:
        return fdp_rejects(guesses, family.inverse(family.stated * math.exp2(octave)), alpha)

    # From the stated noise in whole octaves, down while it is rejected, or up until it is.
    at = 0.0
    if rejected(at):
        while at > _LOWEST and rejected(at - 1.0):
            at -= 1.0
    else:
        at = 1.0
        while not rejected(at):
            at += 1.0
            if at > _HIGHEST:
                return None
    for step in _STEPS:  # bisection in octaves: rejected at ``at``, and not at 2 * step below it
        at -= step if rejected(at - step) else 0.0
    return family.stated * math.exp2(at)
