"""Propositions 1 and 2 of Kandpal et al. over alpha_u, distinctiveness and mixing, at two sizes.

At the small size, all sequences are enumerated. At the large size, sequences are drawn. A finding is confirmed if the
upper ends of the 95 % intervals confirm all its checks. No correction for the number of checks is needed, because every
check must be confirmed.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replication.markov import MarkovCorpus
from replication.mean_estimation_sweeps import ALPHA, Finding, Interval
from replication.proposition import Measured, Pair, Point, measure, mixed, mixing_bound, user_against_rest

Check = tuple[str, Interval, float]

ALPHAS = (*(2.0**-k for k in range(10, 0, -1)), 0.9)
KEPT = tuple(k / 8 for k in range(9))  # lambda and mu, the shares of texts that keep their label


@dataclass(frozen=True)
class Size:
    """One size of the study.

    Attributes:
        corpus: the corpus.
        alpha: the alpha_u for the sweep over distinctiveness.
        distinctiveness: values of distinctiveness.
    """

    corpus: MarkovCorpus
    alpha: float
    distinctiveness: tuple[float, ...]


SIZES = (
    Size(MarkovCorpus(users=8, vocabulary=8, length=6), 1 / 8, tuple(k / 10 for k in range(1, 11))),
    Size(
        MarkovCorpus(users=16, vocabulary=16, length=32, distinctiveness=0.3),
        1 / 16,
        tuple(k / 10 for k in range(1, 8)),
    ),
)


@dataclass(frozen=True)
class Mix:
    """The KL of two users if some of their texts are mislabelled.

    Attributes:
        kept_p: share lambda of P's texts that keep their label.
        kept_q: share mu of Q's texts that keep their label.
        kl: KL(P' || Q'), nats.
    """

    kept_p: float
    kept_q: float
    kl: Interval


@dataclass(frozen=True)
class SizeResult:
    """The results for one size.

    Attributes:
        size: the size.
        over_alpha: T over alpha_u.
        over_distinctiveness: pairs (distinctiveness, T at this distinctiveness).
        forwards: KL(D_u || D_-u), nats.
        backwards: KL(D_-u || D_u), nats.
        mixes: KL of mixed users, for all pairs of ``KEPT`` if sequences are enumerated, and for equal pairs if they are
            drawn.
    """

    size: Size
    over_alpha: Measured
    over_distinctiveness: tuple[tuple[float, Measured], ...]
    forwards: Interval
    backwards: Interval
    mixes: tuple[Mix, ...]

    @property
    def name(self) -> str:
        """Return a text about the size."""
        its, draws = self.size.corpus, self.over_alpha.draws
        how = "all enumerated" if draws is None else f"{draws:,} drawn"
        count = its.vocabulary**its.length
        many = f"{count:,}" if count < 1e9 else f"{count:.0e}"
        return f"{its.users} users, {its.vocabulary} words, {its.length} tokens: {many} sequences, {how}"


@dataclass(frozen=True)
class PropositionStudy:
    """The results of the study.

    Attributes:
        draws: number of sequences to draw per pair, if they are not enumerated.
        seed: seed for sources and draws.
        results: results for each size.
        findings: verdicts on the paper's claims.
    """

    draws: int
    seed: int
    results: tuple[SizeResult, ...]
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return every number in table and figure."""
        fields = dataclasses.asdict(self)
        fields["findings"] = [{**dataclasses.asdict(its), "confirmed": its.confirmed} for its in self.findings]
        return {"confidence": 1.0 - ALPHA, **fields}


def run_study(
    draws: int = 100_000,
    seed: int = 0,
    *,
    sizes: Sequence[Size] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> PropositionStudy:
    """Measure every pair once, and judge the findings.

    Args:
        draws: number of sequences to draw per pair, if there are more than a million; at least 2.
        seed: seed for sources and draws.
        sizes: the sizes; None: the two default sizes.
        advance: called with 1 after each of ``pairs_of(sizes)`` pairs.
    """
    results = []
    for size in SIZES if sizes is None else sizes:
        # The study's seed also makes the users: another seed is another population, not only other draws.
        corpus = dataclasses.replace(size.corpus, seed=seed)
        results.append(_run_size(dataclasses.replace(size, corpus=corpus), draws, seed, advance))
    return PropositionStudy(draws, seed, tuple(results), judge(results))


def pairs_of(sizes: Sequence[Size]) -> int:
    """Return the number of pairs of distributions that a study measures."""
    return sum(1 + len(size.distinctiveness) + len(_mixes(user_against_rest(size.corpus))) for size in sizes)


def _run_size(size: Size, draws: int, seed: int, advance: Callable[[int], None]) -> SizeResult:
    def measured(pair: Pair, alphas: Sequence[float]) -> Measured:
        found = measure(pair, alphas, draws=draws, seed=seed)
        advance(1)
        return found

    pair = user_against_rest(size.corpus)
    over_alpha = measured(pair, ALPHAS)
    over_distinctiveness = tuple(
        (value, measured(user_against_rest(dataclasses.replace(size.corpus, distinctiveness=value)), (size.alpha,)))
        for value in size.distinctiveness
    )
    mixes = tuple(Mix(a, b, measured(mixed(pair, a, b), ()).kl) for a, b in _mixes(pair))
    # All labels kept is (P, Q) itself, all lost is (Q, P): both are among the mixes.
    forwards, backwards = (next(mix.kl for mix in mixes if mix.kept_p == mix.kept_q == kept) for kept in (1.0, 0.0))
    return SizeResult(size, over_alpha, over_distinctiveness, forwards, backwards, mixes)


def _mixes(pair: Pair) -> list[tuple[float, float]]:
    # All pairs where it is cheap; where sequences are drawn every mix costs draws of its own.
    return [(a, b) for a in KEPT for b in KEPT if a == b or pair.enumerable]


def judge(results: Sequence[SizeResult]) -> tuple[Finding, ...]:
    """Judge the claims of both propositions, as differences that must be below 0.

    Claims that no difference can show are omitted: Jensen's upper bound if chi2 was refused, and Proposition 2 if both
    sides are the same number. This is the case for lambda = mu = 1; for the corrected form also for lambda = mu = 0,
    and for lambda + mu = 1, because then P' = Q'.
    """
    # Proposition 2 is claimed for any P and Q, so each of the two laws takes a turn as P.
    points = [its for result in results for its in _points(result)]
    mixes = [(result, mix, mix.kept_p + mix.kept_q - 1.0) for result in results for mix in result.mixes]
    return (
        Finding(
            "the bounds of Proposition 1 bracket T",
            (
                *((f"log(alpha) + KL - T at {at}", _negative(point.over_lower), 0.0) for at, _, point in points),
                *((f"T - alpha chi2 at {at}", _negative(point.under_upper), 0.0) for at, _, point in points),
            ),
        ),
        Finding(
            "so do Jensen's, log(1 + alpha (e^KL - 1)) and log(1 + alpha chi2)",
            (
                *((f"lower bound - T at {at}", _negative(point.over_jensen), 0.0) for at, _, point in points),
                *((f"T - upper bound at {at}", _negative(point.under_jensen), 0.0) for at, k, point in points if k),
            ),
        ),
        Finding("T grows with alpha_u at fixed D_-u", tuple(its for result in results for its in _growth(result))),
        Finding("T grows with distinctiveness", tuple(its for result in results for its in _sharpening(result))),
        Finding(
            "Proposition 2 as printed: KL(P' || Q') <= KL(P || Q) for all lambda, mu",
            (
                *((_at(its, mix), _less(mix.kl, its.forwards), 0.0) for its, mix, kept in mixes if kept < 1.0),
                *((_exchanged(its, mix), _less(mix.kl, its.backwards), 0.0) for its, mix, kept in mixes if kept > -1.0),
            ),
        ),
        Finding(
            "corrected: KL(P' || Q') <= (lambda + mu - 1) KL(P || Q), or if below 0 (1 - lambda - mu) KL(Q || P)",
            tuple(
                (_at(its, mix), _less(mix.kl, most_after(its, mix)), 0.0)
                for its, mix, kept in mixes
                if 0.0 < abs(kept) < 1.0
            ),
        ),
    )


def most_after(result: SizeResult, mix: Mix) -> Interval:
    """Return the upper bound on KL(P' || Q') by the corrected Proposition 2."""
    # Value with value, limit with limit: the bound rises with both divergences.
    ends = zip(dataclasses.astuple(result.forwards), dataclasses.astuple(result.backwards), strict=True)
    return Interval(*(mixing_bound(mix.kept_p, mix.kept_q, forwards, backwards) for forwards, backwards in ends))


def table(study: PropositionStudy) -> str:
    """Return sweeps and findings as plain text."""
    lines = [
        "T: the statistic of the exact mixture, D_u against the rest, in nats; where drawn, with 95 % intervals",
        *(line for result in study.results for line in ("", *_size_lines(result))),
        "",
        "findings, all checks at 95 %",
        *(line for finding in study.findings for line in _finding_lines(finding)),
    ]
    return "\n".join(lines) + "\n"


def _size_lines(result: SizeResult) -> Iterator[str]:
    bounds = f"{'log(alpha)+KL':>15}{'Jensen below':>14}{'T':>9}{'Jensen above':>14}{'alpha chi2':>12}"
    corpus, kl = result.size.corpus, result.over_alpha.kl
    yield result.name
    yield f"distinctiveness {corpus.distinctiveness:g}: KL {_shown(kl)}, chi2 {_chi(result.over_alpha)}"
    yield f"{'alpha_u':>9}{bounds}"
    for point in result.over_alpha.points:
        yield f"{point.alpha:>9.3g}{_row(result.over_alpha, point)}"
    yield f"alpha_u {result.size.alpha:g}"
    yield f"{'distinct':>9}{bounds}  KL, chi2"
    for value, measured in result.over_distinctiveness:
        point = measured.points[0]
        yield f"{value:>9g}{_row(measured, point)}  {_shown(measured.kl)}, {_chi(measured)}"
    yield f"users mixed, P = D_u, Q = D_-u: KL(P || Q) {_shown(result.forwards)}, KL(Q || P) {_shown(result.backwards)}"
    yield f"{'lambda = mu':>12}{'at most':>9}  KL(P' || Q')"
    for mix in diagonal(result):
        yield f"{mix.kept_p:>12g}{most_after(result, mix).value:>9.4g}  {_shown(mix.kl)}"


def diagonal(result: SizeResult) -> list[Mix]:
    """Return the mixes with lambda = mu."""
    return [mix for mix in result.mixes if mix.kept_p == mix.kept_q]


def bounds_of(measured: Measured, point: Point) -> tuple[float, float, float, float]:
    """Return log(alpha) + KL, both of Jensen's bounds, and alpha chi2. For a refused chi2, use its proved floor."""
    chi = measured.chi_squared.estimate
    # The floor is below chi2: the bounds drawn from it are marked ">", for they are at least this.
    excess = point.alpha * (chi.value if chi else measured.chi_squared.floor)
    below = math.log1p(point.alpha * math.expm1(measured.kl.value))
    return math.log(point.alpha) + measured.kl.value, below, math.log1p(excess), excess


def _row(measured: Measured, point: Point) -> str:
    lower, below, above, upper = bounds_of(measured, point)
    shown = [f"{'' if measured.chi_squared.estimate else '>'}{value:.4g}" for value in (above, upper)]
    interval = "" if measured.draws is None else f"  T {point.statistic.low:.4g} to {point.statistic.high:.4g}"
    return f"{lower:>15.4g}{below:>14.4g}{point.statistic.value:>9.4g}{shown[0]:>14}{shown[1]:>12}{interval}"


def _chi(measured: Measured) -> str:
    its = measured.chi_squared
    if its.estimate:
        return _shown(its.estimate)
    return f"refused (spread {its.spread:.2g}), {its.floor:.2g} to {its.ceiling:.2g} by proof"


def _shown(interval: Interval) -> str:
    exact = f"{interval.value:.4g}"
    return exact if interval.low == interval.high else f"{exact} ({interval.low:.4g} to {interval.high:.4g})"


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"{'confirmed' if finding.confirmed else 'not confirmed'}: {finding.claim}"
    name, interval, limit = max(finding.checks, key=lambda check: check[1].high)
    failed = sum(its.high >= most for _, its, most in finding.checks)
    count = f"{failed} of {len(finding.checks)} checks fail"
    yield f"  {count}; the worst, to be below {limit:g}: {name}: {_shown(interval)}"


def _points(result: SizeResult) -> Iterator[tuple[str, bool, Point]]:
    """Yield the place, whether chi2 is known, and the point, for each point."""
    size = result.size
    measurements = [(size.corpus.distinctiveness, result.over_alpha), *result.over_distinctiveness]
    for value, measured in measurements:
        for point in measured.points:
            at = f"alpha {point.alpha:.3g}, distinctiveness {value:g}, {_short(result)}"
            yield at, measured.chi_squared.estimate is not None, point


def _growth(result: SizeResult) -> Iterator[Check]:
    points = result.over_alpha.points
    for (before, after), rise in zip(itertools.pairwise(points), result.over_alpha.growth, strict=True):
        yield f"T at alpha {before.alpha:.3g} - at {after.alpha:.3g}, {_short(result)}", _negative(rise), 0.0


def _sharpening(result: SizeResult) -> Iterator[Check]:
    for (one, before), (other, after) in itertools.pairwise(result.over_distinctiveness):
        fall = _less(before.points[0].statistic, after.points[0].statistic)
        yield f"T at distinctiveness {one:g} - at {other:g}, {_short(result)}", fall, 0.0


def _short(result: SizeResult) -> str:
    return f"{result.size.corpus.length} tokens"


def _at(result: SizeResult, mix: Mix) -> str:
    return f"difference at lambda {mix.kept_p:g}, mu {mix.kept_q:g}, {_short(result)}"


def _exchanged(result: SizeResult, mix: Mix) -> str:
    """Return a text about the mix with D_-u as P and D_u as Q. Kept labels then become lost labels."""
    return f"{_at(result, Mix(1.0 - mix.kept_p, 1.0 - mix.kept_q, mix.kl))}, P and Q exchanged"


def _negative(interval: Interval) -> Interval:
    # Limits change places with the sign.
    return Interval(-interval.value, -interval.high, -interval.low)


def _less(one: Interval, other: Interval) -> Interval:
    """Return one - other for any dependence between them, so the errors of both add up."""
    return Interval(one.value - other.value, one.low - other.high, one.high - other.low)
