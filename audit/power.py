"""Power before cost: what m users could certify or falsify, before a model is trained.

Planning numbers, not bounds: the attacker is taken to be Gaussian, scores N(mu, 1) of members and N(0, 1) of others,
with AUROC Phi(mu / sqrt 2). Limits that perfect guessing cannot pass hold for every attacker.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from audit import one_run
from audit.bounds import Counts, clopper_pearson
from audit.labelled import check_alpha
from audit.one_run import Guesses
from audit.verdict import Assignment, Claim, Design, could_reject, max_certifiable_epsilon
from corpus.errors import InputError
from defenses.accounting import check_delta, gaussian_epsilon

SIMULATIONS = 400
MOST_USERS = 100_000
_KNOTS = 7
_COIN = Assignment.COIN


@dataclass(frozen=True)
class Reach:
    """What perfect guessing with m users certifies at delta; nothing can certify more.

    one_run: Steinke et al. 2023, all m guessed, registered beforehand; fdp: the f-DP recursion on (epsilon, delta)-DP;
    paid: the same when the number of guesses is paid for; mu, gaussian: for mu-GDP; clopper_pearson: of m / 2 + m / 2
    independent trainings (None for m = 1).
    """

    one_run: float
    fdp: float
    paid: float
    mu: float
    gaussian: float
    clopper_pearson: float | None


@dataclass(frozen=True)
class Expected:
    """Median, 5 % and 95 % quantile of a certified epsilon for the assumed attacker, the choice of r paid for."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ClaimPower:
    """What a claim needs. users_* are None beyond MOST_USERS.

    in_reach: perfect guessing with m users would reject; probability: that the assumed attacker's run rejects;
    users_perfect, users_at_auroc: the least m at which perfect guessing, or the median run of the attacker, rejects.
    """

    claim: str
    in_reach: bool
    probability: float
    users_perfect: int | None
    users_at_auroc: int | None


@dataclass(frozen=True)
class Power:
    """The answer of `heldin power`. expected_one_run: 4d; expected_gaussian: 4e, for Gaussian mechanisms only."""

    users: int
    auroc: float
    delta: float
    alpha: float
    largest: Reach
    expected_one_run: Expected
    expected_fdp: Expected
    expected_gaussian: Expected
    claims: tuple[ClaimPower, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, nested."""
        return dataclasses.asdict(self)


def power(
    users: int, auroc: float, delta: float, *, alpha: float = 0.05, claims: tuple[Claim, ...] = (), seed: int = 0
) -> Power:
    """What one training run with `users` coin-flipped users could certify or falsify if the attack has this AUROC.

    Args:
        users: m, those whose coins are flipped.
        auroc: of the assumed attacker, in [0.5, 1].
        delta: in (0, 1).
        alpha: error probability.
        claims: each is asked for on its own.
        seed: of the simulated runs.

    Raises InputError where m is too small for any statement.
    """
    check_delta(delta, 1)
    mu = attack_mu(auroc)
    tries, level = one_run.tries_and_level(users, alpha=alpha)
    right = simulated_rights(users, mu, tries, seed)

    def expected(bound: Callable[[Guesses], float]) -> Expected:
        best = np.max([_along(users, r, right[:, i], bound) for i, r in enumerate(tries)], axis=0)
        low, median, high = np.quantile(best, [0.05, 0.5, 0.95])
        return Expected(float(median), float(low), float(high))

    return Power(
        users=users,
        auroc=auroc,
        delta=delta,
        alpha=alpha,
        largest=reach(users, delta, alpha=alpha),
        expected_one_run=expected(lambda g: one_run.one_run_epsilon(g, delta, level)),
        expected_fdp=expected(lambda g: one_run.fdp_epsilon(g, delta, level)),
        expected_gaussian=expected(lambda g: _gaussian(one_run.fdp_mu(g, level), delta)),
        claims=tuple(claim_power(users, auroc, claim, alpha=alpha, seed=seed) for claim in claims),
    )


def reach(users: int, delta: float, *, alpha: float = 0.05) -> Reach:
    """The "largest certifiable" row of accounting.md section 4h for m users."""
    perfect = Guesses(users, users, users)
    mu = one_run.fdp_mu(perfect, alpha)
    n1, n0 = users - users // 2, users // 2
    return Reach(
        one_run=one_run.one_run_epsilon(perfect, delta, alpha),
        fdp=one_run.fdp_epsilon(perfect, delta, alpha),
        paid=max_certifiable_epsilon(n1, n0, delta, Design(_COIN, alpha=alpha)),
        mu=mu,
        gaussian=_gaussian(mu, delta),
        clopper_pearson=clopper_pearson(Counts(n1, n1, 0, n0), delta, alpha=alpha, pairs=1) if n0 else None,
    )


def trials_reach(members: int, non_members: int, delta: float = 0.0, *, alpha: float = 0.05) -> float:
    """Largest epsilon that independent trainings certify if all are told apart: Clopper-Pearson at one threshold.

    100 + 100: 3.28 at delta 0 (accounting.md section 7).
    """
    return clopper_pearson(Counts(members, members, 0, non_members), delta, alpha=alpha, pairs=1)


def claim_power(users: int, auroc: float, claim: Claim, *, alpha: float = 0.05, seed: int = 0) -> ClaimPower:
    """What the claim needs; arguments of `power`."""
    design, mu = Design(_COIN, alpha=alpha), attack_mu(auroc)
    tries, level = one_run.tries_and_level(users, alpha=alpha)
    right = simulated_rights(users, mu, tries, seed)
    least = [_least_rejected(users, r, lambda g: claim.rejected_by(g, level)) for r in tries]

    def median_rejects(m: int) -> bool:
        at, each = one_run.tries_and_level(m, alpha=alpha)
        return any(claim.rejected_by(Guesses(m, r, typical_rights(m, r, mu)), each) for r in at)

    return ClaimPower(
        claim=claim.label,
        in_reach=could_reject(users - users // 2, users // 2, claim, design),
        probability=float((right >= np.array(least)).any(axis=1).mean()),
        users_perfect=_least_perfect(claim, design, alpha),
        users_at_auroc=_least_users(median_rejects, alpha),
    )


def forecast(users: int, delta: float, claims: Sequence[Claim] = (), *, alpha: float = 0.05) -> list[str]:
    """What a run with so many coin-flipped users could say at best, a line each, to be read before it is paid for."""
    design, members = Design(_COIN, alpha=alpha), users - users // 2
    try:
        most = max_certifiable_epsilon(members, users // 2, delta, design)
    except InputError as error:
        return [f"power: {users} users by coin can certify nothing ({error})"]
    lines = [f"power: {users} users by coin can certify at most epsilon {most:.3g} per user, if every guess is right"]
    for claim in claims:
        if could_reject(members, users // 2, claim, design):
            lines.append(f"power: they could falsify {claim.label}")
        else:
            needed = _count(_least_perfect(claim, design, alpha))
            lines.append(f"power: they could not falsify {claim.label}, which takes {needed} users at least")
    return lines


def table(found: Power) -> str:
    """The answer as plain text."""
    most, percent = found.largest, 100.0 * (1.0 - found.alpha)
    lines = [
        f"{found.users} users by fair coin, delta {found.delta:g}, confidence {percent:g} %",
        "",
        "largest epsilon that perfect guessing certifies",
        f"  one run (number of guesses registered)    {most.one_run:8.2f}",
        f"  one run (number of guesses paid for)      {most.paid:8.2f}",
        f"  one run, Gaussian mechanisms              {most.gaussian:8.2f}   mu {most.mu:.2f}",
    ]
    if most.clopper_pearson is not None:
        lines += [f"  as many independent trainings             {most.clopper_pearson:8.2f}"]
    lines += ["", f"epsilon certified by a Gaussian attack of AUROC {found.auroc:g}: median (5 % to 95 % of runs)"]
    kinds = (
        ("one run", found.expected_one_run),
        ("one run, f-DP", found.expected_fdp),
        ("one run, Gaussian mechanisms", found.expected_gaussian),
    )
    lines += [f"  {name:<42}{its.median:8.2f}   ({its.low:.2f} to {its.high:.2f})" for name, its in kinds]
    for its in found.claims:
        lines += ["", f"claim: {its.claim}"]
        lines += [f"  perfect guessing with {found.users} users {'rejects' if its.in_reach else 'does not reject'} it"]
        lines += [f"  this attack rejects it in {100.0 * its.probability:.0f} % of runs, if the attack is that good"]
        lines += [f"  users needed with perfect guessing: {_count(its.users_perfect)}"]
        lines += [f"  users needed with AUROC {found.auroc:g}: {_count(its.users_at_auroc)}"]
    return "\n".join(lines) + "\n"


def attack_mu(auroc: float) -> float:
    """mu of the Gaussian attacker with this AUROC: sqrt 2 Phi^-1(AUROC). Raises InputError outside [0.5, 1)."""
    if not 0.5 <= auroc < 1.0:
        raise InputError(f"AUROC {auroc} is outside [0.5, 1): give that of the attack you expect, for example 0.75")
    return math.sqrt(2.0) * float(special.ndtri(auroc))


def typical_rights(users: int, made: int, mu: float) -> int:
    """Right guesses of the median run: r P(in | score above the r / 2 highest), alike at the lower end."""
    share = (made - made // 2) / users

    def excess(threshold: float) -> float:
        return 0.5 * float(special.ndtr(mu - threshold) + special.ndtr(-threshold)) - share

    threshold = float(optimize.brentq(excess, -10.0, mu + 10.0))
    above_in, above_out = float(special.ndtr(mu - threshold)), float(special.ndtr(-threshold))
    return min(made, int(made * above_in / (above_in + above_out)))


def simulated_rights(users: int, mu: float, tries: tuple[int, ...], seed: int) -> NDArray[np.int64]:
    """Right guesses of simulated runs of the Gaussian attacker at each r, shape (SIMULATIONS, len(tries))."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(SIMULATIONS):
        coins = rng.random(users) < 0.5
        ranked = coins[np.argsort(rng.standard_normal(users) + mu * coins)]
        above, below = np.cumsum(ranked[::-1]), np.cumsum(~ranked)
        rows.append([above[r - r // 2 - 1] + (below[r // 2 - 1] if r > 1 else 0) for r in tries])
    return np.array(rows, dtype=np.int64)


def _along(users: int, made: int, right: NDArray[np.int64], bound: Callable[[Guesses], float]) -> NDArray[np.float64]:
    """The bound at each number of right guesses, interpolated between a few."""
    knots = np.unique(np.linspace(right.min(), right.max(), _KNOTS).round().astype(np.int64))
    return np.interp(right, knots, [bound(Guesses(users, made, int(v))) for v in knots])


def _least_rejected(users: int, made: int, rejected: Callable[[Guesses], bool]) -> int:
    """The least number of right guesses that is rejected; made + 1 where none is."""
    low, high = 0, made + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rejected(Guesses(users, made, middle)) else (middle, high)
    return high


def _least_perfect(claim: Claim, design: Design, alpha: float) -> int | None:
    """The fewest users, half of them held in, of whom perfect guessing could reject the claim."""
    return _least_users(lambda users: could_reject(users - users // 2, users // 2, claim, design), alpha)


def _least_users(enough: Callable[[int], bool], alpha: float) -> int | None:
    low = high = math.ceil(-math.log2(check_alpha(alpha)))
    if enough(low):
        return low
    while not enough(high):
        if high == MOST_USERS:
            return None
        low, high = high, min(MOST_USERS, 2 * high)
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _gaussian(mu: float, delta: float) -> float:
    return gaussian_epsilon(mu, delta) if mu > 0.0 else 0.0


def _count(users: int | None) -> str:
    return f"more than {MOST_USERS}" if users is None else str(users)
