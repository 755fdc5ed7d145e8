"""The ideal attacker of Kandpal et al. (2024), Appendix B, who knows the training users of shadow models.

Its result is a ceiling for attacks that need no training. This module does not use torch.

Each user is a member of half of the K shadow models. A user's scores are a_u + gap / 2 + shift_u as a member and a_u -
gap / 2 - shift_u as a non-member, plus noise with the user's own variance. With few models, variance and shift are
uncertain. Both therefore have a prior that is estimated from all users (empirical Bayes), conjugate as in BaVarIA
(Brännvall 2026, arXiv 2603.11799). The likelihood ratio is then a ratio of Student-t predictive densities.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from heldin.base.errors import InputError

Array = NDArray[np.float64]
LEAST_SHADOW_MODELS = 2
MOST_FREEDOM = 1e6  # of the prior of the variance, where users' variances do not differ


@dataclass(frozen=True)
class ShadowPrior:
    """The prior of one user's scores, estimated from all users.

    Attributes:
        gap: mean difference between scores with and without the user.
        trust: weight of a user's own shift, in [0, 1); 0 means that all users react alike.
        freedom: degrees of freedom of the inverse-gamma prior of a user's variance.
        variance: scale of the inverse-gamma prior.
    """

    gap: float
    trust: float
    freedom: float
    variance: float


@dataclass(frozen=True, eq=False)
class _Fits:
    """Each user's own estimates, shape (n,): the middle a_u, the mean of in - out, and the sum of squared residuals."""

    middle: Array
    gap: Array
    left: Array


def shadow_likelihood_ratio(target: Array, shadows: Array, included: NDArray[np.bool_]) -> Array:
    """Return, for every user's score, its log predictive density as a member minus that as a non-member.

    The densities are Student-t with freedom + K - 1 degrees of freedom, around the user's own middle.

    Args:
        target: scores of n users under the audited model, shape (n,).
        shadows: scores of the users under K shadow models, shape (K, n).
        included: the training users of each shadow model, shape (K, n); each user is in half of the models.

    Returns:
        Scores of shape (n,); higher means more likely a member.

    Raises:
        InputError: a user is not in half of the shadow models, there are fewer than two models, or all scores are
            equal.
    """
    models = len(included)
    fits, prior = _fits(shadows, included), shadow_prior(shadows, included)
    # (n,): half of the user's own departure from the common gap
    shift = (fits.gap - prior.gap) / 2
    freedom = prior.freedom + models - 1
    squares = prior.freedom * prior.variance + fits.left + (1 - prior.trust) * models * shift**2
    # The noise of the score at hand, of the middle and of the shift.
    scale = np.sqrt(squares / freedom * (1 + (1 + prior.trust) / models))
    half = prior.gap / 2 + prior.trust * shift
    inside, outside = (stats.t.logpdf((target - fits.middle - side * half) / scale, freedom) for side in (1, -1))
    return np.asarray(inside - outside)


def shadow_prior(shadows: Array, included: NDArray[np.bool_]) -> ShadowPrior:
    """Estimate the prior by moments over users.

    The prior of the variance is fitted to the logarithms of users' variances (Smyth 2004, section 6.2). With two shadow
    models, a user's shift cannot be separated from noise. heldin then assumes that all users react alike, and estimates
    the noise from the spread of their gaps.

    Args:
        shadows: scores of n users under K shadow models, shape (K, n).
        included: the training users of each shadow model, shape (K, n).

    Raises:
        InputError: for the reasons of ``shadow_likelihood_ratio``.
    """
    models, users = shadows.shape
    fits = _fits(shadows, included)
    gap = float(fits.gap.mean())
    spread = float(((fits.gap - gap) ** 2).sum() / 4 / max(1, users - 1))
    if models == LEAST_SHADOW_MODELS:
        trust, left, degrees = 0.0, models * ((fits.gap - gap) / 2) ** 2, 1
    else:
        left, degrees = fits.left, models - 2
        noise = float(left.mean()) / degrees
        own = max(0.0, spread - noise / models)
        trust = models * own / (noise + models * own) if noise else 0.0
    if not left.any():
        raise InputError("the shadow models give every user the same score: check that the shadow models were trained")
    freedom, variance = _variances(left / degrees, degrees)
    return ShadowPrior(gap, trust, freedom, variance)


def _fits(shadows: Array, included: NDArray[np.bool_]) -> _Fits:
    models = len(included)
    if models < LEAST_SHADOW_MODELS or (2 * included.sum(axis=0) != models).any():
        raise InputError("give at least two shadow models, and train half of the models on each user")
    # (K, n) -> (n,)
    inside = np.where(included, shadows, 0.0).sum(axis=0) / (models / 2)
    outside = np.where(included, 0.0, shadows).sum(axis=0) / (models / 2)
    left = ((shadows - np.where(included, inside, outside)) ** 2).sum(axis=0)
    return _Fits((inside + outside) / 2, inside - outside, left)


def _variances(variances: Array, degrees: int) -> tuple[float, float]:
    """Return degrees of freedom and scale of the prior of users' variances, from the estimates in ``variances``."""
    # A variance of 0 by rounding has no logarithm.
    logs = np.log(np.maximum(variances, variances.mean() * 1e-6))
    centred = logs - special.digamma(degrees / 2) + np.log(degrees / 2)
    spread = (centred.var(ddof=1) if centred.size > 1 else 0.0) - special.polygamma(1, degrees / 2)
    freedom = MOST_FREEDOM
    if spread > special.polygamma(1, MOST_FREEDOM / 2):
        # The trigamma function falls from infinity to 0.
        freedom = 2 * optimize.brentq(lambda half: special.polygamma(1, half) - spread, 1e-3, MOST_FREEDOM / 2)
    return freedom, float(np.exp(centred.mean() + special.digamma(freedom / 2) - np.log(freedom / 2)))
