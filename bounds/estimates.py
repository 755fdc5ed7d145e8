"""Estimates of epsilon, by Andrew et al. 2024 from gradient canaries and by Zanella-Beguelin et al. 2022 from counts.

Neither estimate is a bound, because no theorem states how often its interval misses. heldin prints their measured
coverage (docs/coverage.md) with them, and no decision uses them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from heldin.base.errors import InputError
from heldin.bounds.scores import check_alpha
from heldin.bounds.thresholds import Counts
from heldin.defenses.accounting.closed_forms import check_delta, gaussian_epsilon

Array = NDArray[np.float64]

ENOUGH_CANARIES = 1000  # docs/theory.md#gradient-canaries
_NODES = 501  # of the posterior of the FPR


@dataclass(frozen=True)
class EpsilonEstimate:
    """A point estimate with an interval whose confidence is nominal, not guaranteed.

    Attributes:
        lower: lower end of the interval.
        upper: upper end of the interval.
        mu: estimate of mu, if the estimator assumes mu-GDP.
        warning: why the estimate may be poor; None if no reason is known.
    """

    epsilon: float
    lower: float
    upper: float
    confidence: float
    mu: float | None = None
    warning: str | None = None


def andrew_estimate(
    observed: Array,
    delta: float,
    *,
    unobserved: Array | None = None,
    dimension: int | None = None,
    confidence: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
) -> EpsilonEstimate:
    """Return the one-shot estimate from k canaries with random directions, by pooled variance.

    The method is Algorithm 2 of Andrew et al. 2024.

    The scores are g_j = sqrt(d) cos(canary, released vector), and have the distribution N(0, 1) for a left-out canary.
    With one common variance the two Gaussians give mu-GDP. mu is mean(observed) under the exact null N(0, 1). If
    left-out canaries were scored too, mu is the difference of means over the pooled standard deviation. The interval is
    a bootstrap over canaries.

    Args:
        observed: scores of included canaries, shape (k,), k >= 2.
        delta: delta of the estimated epsilon, in (0, 1).
        unobserved: scores of left-out canaries, shape (k0,), k0 >= 2; None: the exact null.
        dimension: d, for the warning that canaries disturb each other if k / d is above 0.01.
        confidence: nominal confidence of the interval.
    """
    check_delta(delta, 1)
    check_alpha(1.0 - confidence)
    for name, values in (("included", observed), ("left-out", unobserved)):
        if values is not None and (values.size < 2 or not np.isfinite(values).all()):
            raise InputError(
                f"the {values.size} scores of {name} canaries are too few or not finite: give at least two finite"
                " numbers"
            )
    # One pooled variance: the paper's two variances overstate epsilon at small k (docs/theory.md#gradient-canaries).
    rng = np.random.default_rng(seed)
    # (resamples, k): canaries are resampled, each side by itself.
    drawn = observed[rng.integers(0, observed.size, (resamples, observed.size))]
    if unobserved is None:
        mu, again = float(observed.mean()), drawn.mean(axis=1)
    else:
        null = unobserved[rng.integers(0, unobserved.size, (resamples, unobserved.size))]
        mu = float(_pooled_mu(observed[None], unobserved[None])[0])
        again = _pooled_mu(drawn, null)
    low, high = np.quantile(again, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    # A mean at or below zero shows no leak, and a Gaussian of mu 0 is (0, 0)-DP.
    epsilon, lower, upper = (gaussian_epsilon(float(v), delta) if v > 0.0 else 0.0 for v in (mu, low, high))
    return EpsilonEstimate(epsilon, lower, upper, confidence, mu, _canary_warning(observed.size, dimension))


def bayesian_interval(counts: Counts, delta: float, *, confidence: float = 0.9, prior: float = 0.5) -> EpsilonEstimate:
    """Return the equal-tailed credible interval of epsilon, with the median as the estimate.

    The method is from Zanella-Beguelin et al. 2022, section 4.

    FPR and FNR of one attack at a pre-registered threshold have independent Beta posteriors. P(epsilon <= e) is the
    posterior mass of the region that (e, delta)-DP allows: e^e FPR + FNR >= 1 - delta, FPR + e^e FNR >= 1 - delta, and
    the same for the reversed attack. The interval is a credible interval for the attack's own (FPR, FNR). It needs
    independent trainings, and its coverage is measured, not proved.

    Args:
        delta: delta of the estimated epsilon, in (0, 1).
        confidence: posterior mass of the interval.
        prior: both parameters of the Beta prior; 1/2 is Jeffreys'.
    """
    check_alpha(1.0 - confidence)
    check_delta(delta, 1)
    # Averages over the posterior of the FPR by its quantiles at the midpoints of equal shares.
    u = (np.arange(_NODES) + 0.5) / _NODES
    fp, tn = counts.false_positives, counts.non_members - counts.false_positives
    fn, tp = counts.members - counts.true_positives, counts.true_positives
    fpr = special.betaincinv(fp + prior, tn + prior, u)

    def at_most(epsilon: float) -> float:
        # At each FPR node, the FNRs that (epsilon, delta)-DP allows are an interval: its Beta mass is averaged.
        up, down = math.exp(epsilon), math.exp(-epsilon)
        least = np.maximum(1.0 - delta - up * fpr, (1.0 - delta - fpr) * down)
        most = np.minimum(up + delta - up * fpr, (up + delta - fpr) * down)  # the reversed attack: 1 - FPR, 1 - FNR
        inside = special.betainc(fn + prior, tp + prior, np.clip(most, 0.0, 1.0))
        inside = inside - special.betainc(fn + prior, tp + prior, np.clip(least, 0.0, 1.0))
        return float(np.maximum(inside, 0.0).mean())

    def quantile(level: float) -> float:
        # That much of the posterior is allowed by epsilon 0, below which there is none.
        if at_most(0.0) >= level:
            return 0.0
        return float(optimize.brentq(lambda e: at_most(e) - level, 0.0, 64.0, xtol=1e-6))

    half = (1.0 - confidence) / 2.0
    return EpsilonEstimate(quantile(0.5), quantile(half), quantile(1.0 - half), confidence)


def _pooled_mu(observed: Array, unobserved: Array) -> Array:
    """Return the difference of means over the pooled deviation, by row; shapes (b, k) and (b, k0) to (b,)."""
    k, k0 = observed.shape[1], unobserved.shape[1]
    pooled = ((k - 1) * observed.var(axis=1, ddof=1) + (k0 - 1) * unobserved.var(axis=1, ddof=1)) / (k + k0 - 2)
    # A resample without any variance gives a huge mu, not a NaN in the quantiles.
    return np.asarray((observed.mean(axis=1) - unobserved.mean(axis=1)) / np.sqrt(np.maximum(pooled, 1e-300)))


def _canary_warning(canaries: int, dimension: int | None) -> str | None:
    if canaries < ENOUGH_CANARIES:
        return f"{canaries} canaries are few: use at least {ENOUGH_CANARIES} canaries"
    if dimension is not None and canaries / dimension > 0.01:
        return f"{canaries} canaries in {dimension} dimensions disturb each other: keep k / d below 0.01"
    return None
