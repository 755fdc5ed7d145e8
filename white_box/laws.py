"""P-values that are valid at any level, and the smallest deviation that each test detects with probability 0.99.

Every p-value is exact if the stated value is true, or an upper bound (Chernoff). A check rejects far out in the tail,
where approximations fail first. If a test has several values, its p-value is corrected for their number (Bonferroni).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Array = NDArray[np.float64]

SEEN = 0.99  # the probability with which a stated deviation would have been seen
_Z = float(special.ndtri(SEEN))
_TINY = 1e-300


@dataclass(frozen=True)
class LawResult:
    """The result of one test.

    Attributes:
        p_value: the p-value, corrected for the number of values.
        measured: the most deviant value.
        smallest: the deviation that the test detects with probability 0.99.
        below: the detectable deviation in the other direction, if this deviation differs; NaN if there is no other
            direction, or no deviation is detectable.
        from_count: for counts, the smallest count that the test rejects as too large.
    """

    p_value: float
    measured: float
    smallest: float
    below: float = math.nan
    from_count: int = 0

    @property
    def times(self) -> str:
        """Return a text about the detectable factor of a deviation."""
        below = "" if math.isnan(self.below) else f" or {self.below:.3g}"
        return f"{self.smallest:.3g}{below} times"


def deviations(sums: Array, freedom: int, level: float) -> LawResult:
    """Test whether any standard deviation differs from 1. Each sum is of ``freedom`` squares of N(0, 1) numbers.

    The test is chi-squared, two-sided and exact.

    ``smallest`` and ``below``: the larger and the smaller deviation of a single sum that the test detects.
    """
    values = np.asarray(sums, dtype=np.float64).ravel()
    ends = (float(values.min()), float(values.max()))  # the least likely of all is one of the two
    p_value = min(1.0, values.size * min(2.0 * min(_chi2_tails(v, freedom)) for v in ends))
    worst = max(ends, key=lambda v: abs(math.log(max(v, _TINY) / freedom)))
    return LawResult(p_value, math.sqrt(worst / freedom), *_seen_deviations(freedom, level / values.size))


def means(sums: Array, terms: int, level: float) -> LawResult:
    """Test whether any mean differs from zero. Each sum is of ``terms`` N(0, 1) numbers; ``smallest`` is in
    deviations."""
    values = np.abs(np.asarray(sums, dtype=np.float64)).ravel()
    worst = float(values.max())
    threshold = -float(special.ndtri(level / (2 * values.size)))
    p_value = min(1.0, values.size * 2.0 * float(special.ndtr(-worst / math.sqrt(terms))))
    return LawResult(p_value, worst / terms, (threshold + _Z) / math.sqrt(terms))


def correlations(values: Array, sizes: Array, level: float, tests: int | None = None) -> LawResult:
    """Test whether correlations of independent vectors of n normals differ from zero. Exact: r^2 is Beta(1/2, (n -
    1)/2).

    ``smallest`` and ``below``: the detectable correlations in the longest and in the shortest vectors, by Fisher's
    approximation.

    Args:
        values: the correlations, or only the largest correlation for each size.
        sizes: length n of the vectors behind each value.
        tests: number of correlations, if ``values`` has only the largest ones.
    """
    r: Array = np.minimum(np.abs(np.ravel(values)), 1.0)
    n: Array = np.ravel(sizes).astype(np.float64)
    r, n = r[n > 1], n[n > 1]  # two single numbers always have one of 1 or -1
    number = tests or r.size
    if not r.size:
        return LawResult(1.0, 0.0, math.nan)
    tails = np.asarray(stats.beta.sf(np.square(r), 0.5, (n - 1) / 2))
    worst = int(np.argmin(tails))
    smallest, below = (_seen_between(float(size), level / number) for size in (n.max(), n.min()))
    return LawResult(min(1.0, number * float(tails[worst])), float(r[worst]), smallest, below)


def products(sums: Array, pairs: Array, level: float, least: float | None = None) -> LawResult:
    """Test whether any correlation differs from zero. Each sum is of ``pairs`` products x_i x_(i + lag) of N(0, 1)
    numbers.

    The numbers are independent if the stated value is true. A Chernoff bound is valid for every number of pairs. In
    chains of neighbours, the eigenvalues a of the quadratic form are in [-1, 1], and their squares add up to pairs / 2.
    The cumulant generating function at s is the sum of -log(1 - 4 s^2 a^2) / 4, which is at most -(pairs / 8) log(1 - 4
    s^2). Its transform is largest at s = (sqrt(n^2 + 16 q^2) - n) / 8 q. ``smallest`` is the detectable correlation at
    a lag with ``least`` pairs.

    Args:
        sums: the sum of products at each lag.
        pairs: number of products in each sum.
        least: number of pairs for ``smallest``; None: half of the largest number.
    """
    q, n = np.abs(np.asarray(sums, dtype=np.float64)), np.asarray(pairs, dtype=np.float64)
    rate = _chernoff(q, n)
    worst = int(np.argmax(rate))
    p_value = min(1.0, q.size * 2.0 * math.exp(-float(rate[worst])))
    smallest = _seen_correlation(least or float(n.max()) / 2.0, math.log(2.0 * q.size / level))
    return LawResult(p_value, float(q[worst] / n[worst]), smallest)


def counts(observed: Array, trials: NDArray[Any] | int, rate: float, level: float) -> LawResult:
    """Test whether any rate of binomial counts differs from the stated rate. Two-sided and exact.

    ``smallest`` and ``below``: the higher and the lower rate that are detectable in the count with the most trials.
    """
    values = np.asarray(observed, dtype=np.float64).ravel()
    n = np.broadcast_to(np.asarray(trials, dtype=np.float64), values.shape)
    tails = np.minimum(stats.binom.cdf(values, n, rate), stats.binom.sf(values - 1, n, rate))
    worst = int(np.argmin(tails))
    p_value = min(1.0, values.size * 2.0 * float(tails[worst]))
    return LawResult(
        p_value, float(values[worst] / n[worst]), *_seen_rates(int(n.max()), rate, level / (2 * values.size))
    )


def squares(observed: Array, trials: int, rate: float, level: float) -> LawResult:
    """Test the spread of independent binomial counts about their mean. Two-sided, by the exact law of the sum of
    squares.

    ``smallest`` and ``below``: the detectable factors of the variance.
    """
    values = np.asarray(observed, dtype=np.float64).ravel()
    centre, law = law_of_squares(trials, rate, values.size)
    upto = np.cumsum(law)
    spread = round(float(np.square(values - centre).sum()))  # whole numbers about a whole centre
    at_most = float(upto[min(spread, law.size - 1)])
    at_least = float(law[min(spread, law.size) :].sum())
    p_value = min(1.0, 2.0 * max(0.0, min(at_most, at_least)))
    from_top = np.cumsum(law[::-1])[::-1]
    high = int(np.searchsorted(-from_top, -level / 2, side="left"))
    low = int(np.searchsorted(upto, level / 2, side="right")) - 1
    first, last = (int(np.searchsorted(upto, share)) for share in (1.0 - SEEN, SEEN))
    mean = float(law @ np.arange(law.size))
    below = low / max(1, last) if low >= 0 else math.nan
    return LawResult(p_value, spread / max(mean, _TINY), high / max(1, first), below)


def distances(samples: list[Array], level: float) -> LawResult:
    """Compare each sample with N(0, 1) (Kolmogorov-Smirnov). ``smallest`` is a distance between distribution
    functions."""
    comparisons = [stats.kstest(sample, "norm") for sample in samples]
    p_value = min(1.0, len(samples) * min(float(f.pvalue) for f in comparisons))
    fewest = min(sample.size for sample in samples)  # in the smallest sample a distance is hardest to see
    smallest = _seen_distance(fewest, level / len(samples))
    return LawResult(p_value, max(float(f.statistic) for f in comparisons), smallest)


def tails(values: Array, beyond: tuple[float, ...], level: float) -> LawResult:
    """Test the number of N(0, 1) numbers beyond each of ``beyond`` deviations from zero. Exact, by the binomial law.

    ``smallest`` and ``below``: the detectable multiples of the stated number beyond the last deviation.
    """
    size = np.abs(values)
    each = level / len(beyond)
    chances = [2.0 * float(special.ndtr(-at)) for at in beyond]
    findings = [counts(np.array((size > at).sum()), size.size, p, each) for at, p in zip(beyond, chances, strict=True)]
    worst = min(range(len(findings)), key=lambda i: findings[i].p_value)
    p_value, measured = min(1.0, len(beyond) * findings[worst].p_value), findings[worst].measured / chances[worst]
    return LawResult(p_value, measured, findings[-1].smallest / chances[-1], findings[-1].below / chances[-1])


def of_cosines(cosines: Array, size: int) -> Array:
    """Map cosines between vectors of ``size`` normals and independent directions to squares of N(0, 1) numbers. Exact.

    The square of a cosine is Beta(1/2, (n - 1)/2) for any deviation. The map takes quantiles of this law to quantiles.
    """
    # The tail beyond, as 1 minus the distribution function has no digits left far out.
    beyond = special.betainc((size - 1) / 2.0, 0.5, 1.0 - np.minimum(np.square(cosines), 1.0))
    return np.asarray(np.square(special.ndtri(np.maximum(beyond, _TINY) / 2.0)))


def of_ratios(first: Array, second: Array, size: int) -> Array:
    """Map pairs of sums of ``size`` squared normals of equal deviation to squares of N(0, 1) numbers, by their ratio.
    Exact.

    The share of either sum is Beta(n/2, n/2) for any deviation. Equal sums are mapped to 0.
    """
    total = first + second
    share = np.where(total > 0.0, np.minimum(first, second) / np.maximum(total, _TINY), 0.5)  # two zeros are equal
    lower = special.betainc(size / 2.0, size / 2.0, share)
    return np.asarray(np.square(special.ndtri(np.clip(lower, _TINY, 0.5))))


def of_spans(outside: Array, before: Array, size: int) -> Array:
    """Map the shares of a vector's square outside the span of ``before`` vectors of ``size`` normals to N(0, 1). Exact.

    The share is Beta((n - b)/2, b/2), independent of earlier vectors' shares. A positive number means that a larger
    share is inside the span.
    """
    inner, outer = before / 2.0, (size - before) / 2.0
    low = special.betainc(inner, outer, 1.0 - outside)
    high = special.betainc(outer, inner, outside)
    # Each from its own tail; the smaller one has the digits.
    low_side, high_side = (special.ndtri(np.maximum(p, _TINY)) for p in (low, high))
    return np.asarray(np.where(low < high, low_side, -high_side))


def either(findings: Sequence[LawResult]) -> LawResult:
    """Combine tests that share a level. Return the most deviant result, with the first test's detectable deviations."""
    worst = min(findings, key=lambda f: f.p_value)
    p_value = min(1.0, len(findings) * worst.p_value)
    return LawResult(p_value, worst.measured, findings[0].smallest, findings[0].below)


def areas(measured: float, error: float, limit: float, number: int, level: float) -> LawResult:
    """Test whether an AUROC is above ``limit``, one-sided. The p-value is exp(-n KL(measured || limit)).

    n is the size of the smaller group. By Hoeffding (1963), section 5b, a two-sample U-statistic is a mean over
    pairings of means of n independent terms, so his Theorem 1 applies. ``smallest`` is the detectable AUROC; NaN if no
    AUROC up to 1 is detectable.

    Args:
        limit: the largest allowed AUROC.
        number: n, the size of the smaller group.
    """
    p_value = math.exp(-number * _divergence(measured, limit)) if measured > limit else 1.0
    reach = number * _divergence(1.0, limit) > -math.log(level)
    if not reach:
        return LawResult(p_value, measured, math.nan)
    threshold = optimize.brentq(lambda a: number * _divergence(a, limit) + math.log(level), limit, 1.0)
    smallest = float(threshold) + _Z * error
    # There is no AUROC above 1: none could be relied on to be seen.
    return LawResult(p_value, measured, smallest if smallest <= 1.0 else math.nan)


def close_pairs(values: Array, within: float, level: float) -> LawResult:
    """Test whether more pairs of N(0, 1) numbers are within ``within`` than by chance, as on a grid. A Poisson bound.

    P(|X - Y| < w) is at most w / sqrt(pi). ``smallest`` is the detectable width of a grid, ``below`` the largest
    expected number.
    """
    number = values.size
    # Between neighbours in order, of which there are at most as many as close pairs.
    near = int((np.diff(np.sort(values)) < within).sum())
    expected = number * (number - 1) / 2 * within / math.sqrt(math.pi)
    width = _seen_width(number, within, expected, level)
    return LawResult(float(stats.poisson.sf(near - 1, expected)), float(near), width, expected)


def lag_sums(rows: Array) -> tuple[Array, Array]:
    """Return the sums of products at lags 1 .. L - 1 along the last axis, summed over all other axes; and their numbers
    of products."""
    size = rows.shape[-1]
    spectrum = np.fft.rfft(rows.reshape(-1, size), 2 * size, axis=1)  # padded with zeros, or lags would wrap around
    sums = np.fft.irfft(np.square(np.abs(spectrum)).sum(axis=0), 2 * size)[1:size]
    return sums, (rows.size // size) * np.arange(size - 1, 0, -1, dtype=np.float64)


# What a test would have seen follows from its sizes and level, which many tests share.


@functools.lru_cache(maxsize=1024)
def _seen_deviations(freedom: int, each: float) -> tuple[float, float]:
    """Return the larger and the smaller deviation that ``deviations`` detects if each sum has level ``each``."""
    high, low = float(stats.chi2.isf(each / 2, freedom)), float(stats.chi2.ppf(each / 2, freedom))
    # A deviation t makes the sum t^2 times chi-squared, of which the share SEEN lies beyond the quantile used here.
    up = math.sqrt(high / float(stats.chi2.isf(SEEN, freedom)))
    return up, math.sqrt(low / float(stats.chi2.ppf(SEEN, freedom)))


@functools.lru_cache(maxsize=1024)
def _seen_between(size: float, each: float) -> float:
    """Return the correlation that ``correlations`` detects in vectors of this size at level ``each``."""
    threshold = math.sqrt(float(stats.beta.isf(each, 0.5, (size - 1) / 2)))
    return math.tanh(math.atanh(min(threshold, 1.0 - 1e-15)) + _Z / math.sqrt(size - 1))


@functools.lru_cache(maxsize=1024)
def _seen_correlation(pairs: float, target: float) -> float:
    """Return the correlation that ``products`` detects over ``pairs`` pairs, if its rate must reach ``target``."""
    highest = pairs + 10.0 * target  # where the rate is above the target
    threshold = optimize.brentq(lambda x: float(_chernoff(np.array([x]), np.array([pairs]))[0]) - target, 0.0, highest)
    return float((threshold + _Z * math.sqrt(pairs)) / pairs)


@functools.lru_cache(maxsize=1024)
def _seen_rates(trials: int, rate: float, each: float) -> tuple[float, float, int]:
    """Return the higher and the lower rate that ``counts`` detects, and the smallest count that ``counts`` rejects as
    too large.

    Args:
        each: level for each side of a count.
    """
    high = int(stats.binom.isf(each, trials, rate)) + 1
    low = int(stats.binom.ppf(each, trials, rate)) - 1
    # Rates at which ``high`` or more, or ``low`` or fewer, come up with probability SEEN, as quantiles of Beta laws.
    up = float(stats.beta.ppf(SEEN, high, trials - high + 1)) if high <= trials else math.nan
    down = float(stats.beta.ppf(1.0 - SEEN, low + 1, trials - low)) if low >= 0 else math.nan
    return up, down, high


@functools.lru_cache(maxsize=1024)
def _seen_distance(size: int, each: float) -> float:
    """Return the distance between distribution functions that ``distances`` detects in a sample of this size."""
    # P(D_n < distance - x) <= 2 exp(-2 n x^2), Massart
    slack = math.sqrt(math.log(2.0 / (1.0 - SEEN)) / (2.0 * size))
    return float(stats.kstwo.isf(each, size)) + slack


@functools.lru_cache(maxsize=1024)
def _seen_width(number: int, within: float, expected: float, level: float) -> float:
    """Return the width of a grid that ``close_pairs`` detects; NaN if it detects none."""
    least = float(stats.poisson.isf(level, expected)) + 1.0
    at = stats.norm.pdf(np.linspace(-6.0, 6.0, 2401))

    def seen(width: float) -> float:
        """Return the margin of detection: numbers that share a grid cell with a lower number, minus the smallest
        rejected number and the spread."""
        of_cell = number * width * at
        shared = float((of_cell + np.expm1(-of_cell)).sum() * 0.005 / width)  # 0.005: step of the points in ``at``
        return shared - _Z * math.sqrt(shared) - least

    return float(optimize.brentq(seen, within, 1.0)) if seen(1.0) > 0.0 else math.nan


def _chernoff(q: Array, n: Array) -> Array:
    """Return the rate of ``products`` at sums q over n pairs."""
    safe = np.maximum(q, _TINY)
    s = (np.sqrt(np.square(n) + 16.0 * np.square(safe)) - n) / (8.0 * safe)
    return np.asarray(np.where(q > 0.0, s * q + n / 8.0 * np.log1p(-np.minimum(4.0 * s * s, 1.0 - 1e-15)), 0.0))


def _divergence(a: float, b: float) -> float:
    """Return the KL divergence of two Bernoulli distributions, in nats."""
    return float(special.rel_entr(a, b) + special.rel_entr(1.0 - a, 1.0 - b))


def _chi2_tails(value: float, freedom: int) -> tuple[float, float]:
    return float(stats.chi2.cdf(value, freedom)), float(stats.chi2.sf(value, freedom))


@functools.lru_cache(maxsize=32)
def law_of_squares(trials: int, rate: float, number: int) -> tuple[int, Array]:
    """Return the integer nearest the mean, and the probabilities 0, 1, ... of the sum of ``number`` squared distances
    to it.

    The probabilities come from powers of the discrete Fourier transform, and are exact to about 1e-15.
    """
    centre = round(trials * rate)  # a whole number, so that squared distances are whole too
    whole = stats.binom.pmf(np.arange(trials + 1), trials, rate)
    values = np.flatnonzero(whole > 1e-18)
    weights = whole[values]
    law_of_one = np.bincount(np.square(values - centre), weights=weights).astype(np.float64)
    reach = _reach(law_of_one, number)
    size = 1 << (reach - 1).bit_length()
    law = np.fft.irfft(np.fft.rfft(law_of_one, size) ** number, size)
    return centre, np.clip(law, 0.0, None)


def _reach(law: Array, number: int) -> int:
    """Return a length that a sum of ``number`` squared distances exceeds with probability below 1e-15 (Bernstein)."""
    at = np.arange(law.size)
    mean = float(law @ at)
    variance = float(law @ np.square(at)) - mean**2
    x = math.log(1e15)
    bound = number * mean + math.sqrt(2.0 * number * variance * x) + law.size * x / 3.0
    return max(law.size, min(number * (law.size - 1) + 1, int(bound) + 2))
