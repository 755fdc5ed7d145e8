"""Proposition 1 of Kandpal et al. ("User Inference Attacks on Large Language Models"), if every probability is known.

With r = D_u(x) / D_-u(x), the statistic of the exact mixture (equation 5) is T = E log(1 + alpha_u (r - 1)), x ~ D_u.
The proposition is log(alpha_u) + KL <= T <= alpha_u chi2, for D_u against D_-u. Jensen's inequality gives tighter
bounds: log(1 + alpha_u (e^KL - 1)) <= T <= log(1 + alpha_u chi2). The reason is that log(1 + alpha (e^s - 1)) is convex
in s = log r, and the logarithm is concave. T is concave in alpha_u, with slopes chi2 >= 0 at 0 and 1 - E[1 / r] = 0 at
1. So T grows with alpha_u.

P and Q are mixtures of the same users' chains, which Proposition 2 also needs. Up to a million sequences are summed
exactly. With more, KL and T are means over draws of P with Student intervals. This does not work for chi2 + 1, the mean
of r over P: sequences that are too rare to be drawn contribute most of it. A sample without them gives a narrow
interval that is far too low, with weights that look even. So chi2 + 1 comes from ``FILTERS`` independent particle
filters (``log_second_moment``). Its interval is refused if ``PILOTS`` other filters vary too much, and then only the
proved limits remain.

Axes: n chains, V words, L tokens, B sequences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from heldin.base.errors import InputError
from replication.markov import Chain, MarkovCorpus, chain_of, draw, log_probability, user_weights
from replication.mean_estimation_sweeps import ALPHA, Interval

Array = NDArray[np.float64]

LARGEST_ENUMERATION = 1_000_000
FILTERS = 32  # they share the draws
PILOTS = 16  # separate ones decide whether the filters are trusted, so that the estimate is not selected by itself
LARGEST_SPREAD = 0.25  # of the pilots, their standard deviation over their mean
_BLOCK = 2048  # draws worked on together


@dataclass(frozen=True, eq=False)
class Pair:
    """Two distributions of sequences, P and Q, which are mixtures of the same chains.

    No probability in a chain is 0, so any sequence is possible under both distributions.

    Attributes:
        chains: the n chains.
        p: weights of P, shape (n,), sum 1.
        q: weights of Q, shape (n,), sum 1.
        length: number of tokens per sequence.
    """

    chains: tuple[Chain, ...]
    p: Array
    q: Array
    length: int

    @property
    def sequences(self) -> int:
        """Return the number of sequences, V^L."""
        return int(self.chains[0].initial.size ** self.length)

    @property
    def enumerable(self) -> bool:
        """Return whether there are at most a million sequences."""
        return self.sequences <= LARGEST_ENUMERATION


@dataclass(frozen=True)
class ChiSquared:
    """chi2(P || Q).

    Attributes:
        estimate: value with its interval; None if the sampled interval was refused.
        floor: proved lower limit, e^KL - 1; if KL is sampled, with the lower limit of KL.
        ceiling: proved upper limit: the exact chi2, averaged over the components of P and Q.
        spread: standard deviation of the pilots, divided by their mean; None if enumerated.
    """

    estimate: Interval | None
    floor: float
    ceiling: float
    spread: float | None

    @property
    def limits(self) -> tuple[float, float]:
        """Return the limits of the interval, if there is one; otherwise the proved limits."""
        return (self.estimate.low, self.estimate.high) if self.estimate else (self.floor, self.ceiling)


@dataclass(frozen=True)
class Point:
    """T at one alpha_u, and its distance in nats from each bound. A distance is positive if the bound holds.

    If chi2 was refused, ``under_upper`` and ``under_jensen`` use the proved floor of chi2.

    Attributes:
        alpha: the user's share alpha_u.
        statistic: T.
        over_lower: T - log(alpha_u) - KL.
        over_jensen: T - log(1 + alpha_u (e^KL - 1)).
        under_upper: alpha_u chi2 - T.
        under_jensen: log(1 + alpha_u chi2) - T.
    """

    alpha: float
    statistic: Interval
    over_lower: Interval
    over_jensen: Interval
    under_upper: Interval
    under_jensen: Interval


@dataclass(frozen=True)
class Measured:
    """All measurements of one pair.

    Each interval has 95 % confidence. For an enumerated value, both limits equal the value.

    Attributes:
        kl: KL(P || Q), nats.
        chi_squared: chi2(P || Q).
        points: T and its distance from the bounds at each alpha_u.
        growth: T at each alpha_u minus T at the previous alpha_u.
        draws: number of sequences drawn; None if enumerated.
    """

    kl: Interval
    chi_squared: ChiSquared
    points: tuple[Point, ...]
    growth: tuple[Interval, ...]
    draws: int | None


def user_against_rest(spec: MarkovCorpus, user: int = 0) -> Pair:
    """Return D_u against D_-u, the weighted mixture of all other users. Raises InputError if there are no other
    users."""
    if spec.users < 2:
        raise InputError("markov corpus: users is 1, so there are no other users: set users to 2 or more")
    chains = tuple(chain_of(spec, each) for each in range(spec.users))
    of_user = np.eye(spec.users)[user]
    # D_-u is without the user, so the others' weights are scaled up to one again.
    others = user_weights(spec) * (1.0 - of_user)
    return Pair(chains, of_user, others / others.sum(), spec.length)


def mixed(pair: Pair, kept_p: float, kept_q: float) -> Pair:
    """Return P' = lambda P + (1 - lambda) Q and Q' = mu Q + (1 - mu) P, the mislabelled users of Proposition 2."""
    return replace(pair, p=kept_p * pair.p + (1.0 - kept_p) * pair.q, q=kept_q * pair.q + (1.0 - kept_q) * pair.p)


def mixing_bound(kept_p: float, kept_q: float, forwards: float, backwards: float) -> float:
    """Return an upper bound on KL(P' || Q'), given KL(P || Q) and KL(Q || P).

    Proposition 2 states the bound KL(P || Q) for all lambda, mu in [0, 1]. At lambda = mu = 0, it says KL(Q || P) <=
    KL(P || Q), which can be false. Its proof gives lambda mu KL(P || Q) + (1 - lambda)(1 - mu) KL(Q || P). There is a
    better bound, because KL is jointly convex. If lambda + mu >= 1, then (P', Q') consists of lambda + mu - 1 parts (P,
    Q), 1 - mu parts (P, P) and 1 - lambda parts (Q, Q), and the last two have KL 0. If lambda + mu < 1, the same
    argument applies from (Q, P). The bounds also apply to chi2 and T, which are f-divergences.

    Args:
        kept_p: lambda, in [0, 1].
        kept_q: mu, in [0, 1].
        forwards: KL(P || Q), nats.
        backwards: KL(Q || P), nats.
    """
    # Below 0 more labels are wrong than right: the pair is (Q, P) with some labels lost.
    kept = kept_p + kept_q - 1.0
    return kept * forwards if kept >= 0 else -kept * backwards


def measure(pair: Pair, alphas: Sequence[float], *, draws: int = 100_000, seed: int = 0) -> Measured:
    """Measure a pair: by enumeration for up to a million sequences, by Monte Carlo for more.

    Args:
        pair: the two distributions.
        alphas: shares alpha_u, each in (0, 1).
        draws: number of sequences to draw if they are not enumerated; at least 2.
        seed: seed for the draws.

    Raises:
        InputError: sequences are drawn but ``draws`` is below two, or an alpha_u is outside (0, 1).
    """
    if pair.enumerable:
        return by_enumeration(pair, alphas)
    return by_sampling(pair, alphas, draws, np.random.default_rng(seed))


def by_enumeration(pair: Pair, alphas: Sequence[float]) -> Measured:
    """Return the exact values, summed over all V^L sequences.

    Raises:
        InputError: there are more than a million sequences, or an alpha_u is outside (0, 1).
    """
    if not pair.enumerable:
        raise InputError(
            f"{pair.sequences:,} sequences are too many to enumerate: lower vocabulary or length until vocabulary"
            f" ** length is at most {LARGEST_ENUMERATION:,}, or sample"
        )
    p, q = np.zeros(pair.sequences), np.zeros(pair.sequences)
    for chain, of_p, of_q in zip(pair.chains, pair.p, pair.q, strict=True):
        each = _every_probability(chain, pair.length)
        # (V^L,), one chain at a time: all chains at once would be n times as large.
        p += of_p * each
        q += of_q * each
    # Finite: no probability of a chain is 0.
    log_ratio = np.log(p) - np.log(q)
    kl, chi = _mean(log_ratio, p), _mean(np.expm1(log_ratio), p)
    return _measured(log_ratio, p, kl, ChiSquared(chi, math.expm1(kl.low), chi_squared_ceiling(pair), None), alphas)


def by_sampling(pair: Pair, alphas: Sequence[float], draws: int, rng: np.random.Generator) -> Measured:
    """Return estimates: KL and T from ``draws`` sequences of P, chi2 from as many particles, and pilots from half as
    many.

    Args:
        pair: the two distributions.
        alphas: shares alpha_u, each in (0, 1).
        draws: number of sequences to draw, at least 2.
        rng: generator for all draws.

    Raises:
        InputError: ``draws`` is below two, or an alpha_u is outside (0, 1).
    """
    if draws < 2:
        raise InputError(f"draws is {draws}, too few for an interval: set draws to 2 or more")
    log_ratio = np.concatenate(
        [
            log_ratios(pair, draw(chain, min(_BLOCK, count - start), pair.length, rng))
            # A draw from the mixture P is a draw from one of its chains, in blocks that fit in memory.
            for chain, count in zip(pair.chains, rng.multinomial(draws, pair.p), strict=True)
            for start in range(0, count, _BLOCK)
        ]
    )
    kl = _mean(log_ratio, None)
    # Pilots and filters have separate draws: were the estimate to vouch for itself, low ones would pass.
    moments = np.array([log_second_moment(pair, math.ceil(draws / FILTERS), rng) for _ in range(PILOTS + FILTERS)])
    return _measured(log_ratio, None, kl, _chi_squared(pair, kl, moments), alphas)


def log_ratios(pair: Pair, tokens: NDArray[np.int64]) -> Array:
    """Return log P(x) - log Q(x) of each sequence. For tokens (B, L), the shape is (B,)."""
    each = np.array([log_probability(chain, tokens) for chain in pair.chains])  # (n, B)
    of_p, of_q = (logsumexp(each, axis=0, b=weights[:, None]) for weights in (pair.p, pair.q))
    return np.asarray(of_p - of_q, dtype=np.float64)


def log_second_moment(pair: Pair, particles: int, rng: np.random.Generator) -> float:
    """Return the log of an unbiased estimate of chi2 + 1 = sum_x P(x)^2 / Q(x), by a particle filter.

    The filter draws x_t, token by token, in proportion to P(x_t | x_<t)^2 / Q(x_t | x_<t). It resamples prefixes in
    proportion to the sum of these weights, so a few prefixes do not get all the weight. The estimate is the
    product of the sums' means (Del Moral 2004, section 2.4). Given x_<t, P and Q are mixtures of the chains' rows with
    the chains' posterior weights.
    """
    transitions = np.stack([chain.transitions for chain in pair.chains], axis=1)  # (V, n, V)
    # For each particle the next token's law in every chain, and the weights of the chains in P and Q given its prefix.
    rows = np.tile(np.array([chain.initial for chain in pair.chains]), (particles, 1, 1))  # (B, n, V)
    posterior = np.tile(np.array([pair.p, pair.q]), (particles, 1, 1))  # (B, 2, n)
    total, places = 0.0, np.arange(particles)
    for t in range(pair.length):
        following = posterior @ rows  # (B, 2, V)
        # Cumulated over the V tokens: the last is the particle's weight.
        ends = np.cumsum(following[:, 0] ** 2 / following[:, 1], axis=1)
        shares = np.cumsum(ends[:, -1])
        # The product of mean weights, as a sum of logarithms: it may be too large for a double.
        total += math.log(shares[-1] / particles)
        # The last token is summed over, not drawn.
        if t + 1 == pair.length:
            break
        # Systematic resampling: with one offset for all, a particle's copies differ from its share by less than one.
        kept = np.searchsorted(shares, (places + rng.random()) * shares[-1] / particles, side="right")
        kept = np.minimum(kept, particles - 1)  # a sum may be an ulp short
        ends = ends[kept]
        tokens = np.minimum((ends <= rng.random(particles)[:, None] * ends[:, -1:]).sum(axis=1), ends.shape[1] - 1)
        # Bayes: each chain's weight times the probability that it gives the token drawn, (B, 2, n).
        posterior = posterior[kept] * rows[kept, :, tokens][:, None]
        posterior /= posterior.sum(axis=2, keepdims=True)
        rows = transitions[tokens]
    return total


def chi_squared_ceiling(pair: Pair) -> float:
    """Return an upper bound on chi2(P || Q): the mean of chi2(D_u || D_v) over components u of P and v of Q, by
    convexity.

    For two chains, chi2 is exact: sum_x D_u(x)^2 / D_v(x) is a product of matrices with entries a^2 / b.
    """
    total = 0.0
    for u, v in ((u, v) for u in np.flatnonzero(pair.p) for v in np.flatnonzero(pair.q)):
        one, other = pair.chains[u], pair.chains[v]
        # The sum over all sequences token by token: V^L terms as L - 1 products of V x V matrices.
        step = one.transitions**2 / other.transitions
        ends = np.linalg.matrix_power(step, pair.length - 1).sum(axis=1)
        total += float(pair.p[u] * pair.q[v] * ((one.initial**2 / other.initial) @ ends))
    return total - 1.0


def _every_probability(chain: Chain, length: int) -> Array:
    """Return the probabilities of all sequences, (V^L,), ordered by tokens. Prefixes grow by one token at a time."""
    size, found = chain.initial.size, chain.initial
    for _ in range(length - 1):
        found = (found.reshape(-1, size, 1) * chain.transitions).ravel()  # last token, next token
    return found


def _chi_squared(pair: Pair, kl: Interval, logs: Array) -> ChiSquared:
    # Relative to the largest: the moments themselves may be too large for doubles, their ratios are not.
    top = float(logs.max())
    pilots, moments = np.split(np.exp(logs - top), [PILOTS])
    spread = float(pilots.std(ddof=1) / pilots.mean())
    estimate = None
    if spread <= LARGEST_SPREAD:
        its = _mean(moments, None)
        estimate = Interval(*(math.exp(top) * end - 1.0 for end in (its.value, its.low, its.high)))
    return ChiSquared(estimate, math.expm1(kl.low), chi_squared_ceiling(pair), spread)


def _mean(values: Array, probabilities: Array | None) -> Interval:
    """Return the expectation of ``values``: exact with ``probabilities``, otherwise with the Student interval of a
    sample."""
    if probabilities is not None:
        exact = float(probabilities @ values)
        return Interval(exact, exact, exact)
    centre, size = float(values.mean()), values.size
    width = float(stats.t.ppf(1.0 - ALPHA / 2.0, size - 1) * values.std(ddof=1)) / math.sqrt(size)
    return Interval(centre, centre - width, centre + width)


def _measured(
    log_ratio: Array, probabilities: Array | None, kl: Interval, chi: ChiSquared, alphas: Sequence[float]
) -> Measured:
    points, growth, before = [], [], None
    for alpha in alphas:
        if not 0.0 < alpha < 1.0:
            raise InputError(f"alpha_u is {alpha:g}, outside (0, 1): choose a share above 0 and below 1")
        # log(alpha r + 1 - alpha) of each draw, where r itself may overflow.
        terms = np.logaddexp(math.log(alpha) + log_ratio, math.log1p(-alpha))
        statistic = _mean(terms, probabilities)
        below = _mean(terms - log_ratio - math.log(alpha), probabilities)  # paired: on the same draws
        jensen = math.log1p(alpha * math.expm1(kl.value))
        slope = alpha * math.exp(kl.value - jensen)  # of Jensen's bound in KL: delta method, paired
        tighter = _mean(terms - jensen - slope * (log_ratio - kl.value), probabilities)
        points.append(Point(alpha, statistic, below, tighter, *_under(alpha, statistic, chi)))
        if before is not None:
            growth.append(_mean(terms - before, probabilities))
        before = terms
    return Measured(kl, chi, tuple(points), tuple(growth), None if probabilities is not None else log_ratio.size)


def _under(alpha: float, statistic: Interval, chi: ChiSquared) -> tuple[Interval, Interval]:
    """Return alpha chi2 - T and log(1 + alpha chi2) - T. Their errors add up, because the terms have separate draws."""
    low, high = chi.limits
    value = chi.estimate.value if chi.estimate else low
    bounds = [(alpha * its, math.log1p(alpha * its)) for its in (value, low, high)]
    # The lowest difference is the bound's low end minus the statistic's high end: nothing is paired here.
    ends = (statistic.value, statistic.high, statistic.low)
    paper, jensen = zip(*[(a - t, b - t) for (a, b), t in zip(bounds, ends, strict=True)], strict=True)
    return Interval(*paper), Interval(*jensen)
