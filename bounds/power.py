"""Estimate, before a model is trained, which epsilon an audit of m users can certify or contradict.

These are planning numbers, not bounds. The assumed attacker is Gaussian, with scores N(mu, 1) for members and N(0, 1)
for others, and AUROC Phi(mu / sqrt 2). The limits from perfect guessing hold for every attacker.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import InputError, TooFewUsers
from heldin.base.tabular import Tabular
from heldin.bounds import one_run
from heldin.bounds.design import Assignment, Design
from heldin.bounds.one_run import LARGEST_SIMULATED, Guesses, Try, attack_mu, simulated_rights, typical_rights
from heldin.bounds.scores import check_alpha
from heldin.bounds.thresholds import Counts, clopper_pearson
from heldin.bounds.verdict import Claim, could_reject, max_certifiable_epsilon
from heldin.defenses.accounting.closed_forms import check_delta, gaussian_epsilon

LARGEST = 1_000_000  # users; a question about this many takes under ten seconds
MOST_USERS = 100_000
_KNOTS = 7  # numbers of right guesses at which a bound is computed; it is interpolated between them
_COIN = Assignment.COIN


@dataclass(frozen=True)
class Reach:
    """The epsilon that perfect guessing with m users certifies at delta; no attack can certify more.

    Attributes:
        one_run: epsilon by Steinke et al. 2023, with guesses for all m users registered beforehand.
        fdp: epsilon by the f-DP recursion on the curve of (epsilon, delta)-DP.
        paid: the larger of ``one_run`` and ``fdp`` if the error probability covers the choice of the number of guesses.
        mu: lower bound on mu by the f-DP recursion on Gaussian curves.
        gaussian: epsilon of mu-GDP at this mu.
        clopper_pearson: epsilon from m / 2 + m / 2 independent trainings; None for m = 1.
    """

    one_run: float
    fdp: float
    paid: float
    mu: float
    gaussian: float
    clopper_pearson: float | None


@dataclass(frozen=True)
class Expected:
    """Quantiles of the epsilon that the assumed attacker certifies. Alpha covers the choice of the number of guesses r.

    Attributes:
        median: median of the simulated runs.
        low: 5 % quantile.
        high: 95 % quantile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ClaimPower:
    """The number of users needed to reject a claim.

    Attributes:
        in_reach: whether perfect guessing with m users would reject the claim.
        probability: probability that a run of the assumed attacker rejects the claim.
        users_perfect: the fewest users with whom perfect guessing rejects the claim; None above MOST_USERS.
        users_at_auroc: the fewest users with whom the attacker's median run rejects the claim; None above MOST_USERS.
    """

    claim: str
    in_reach: bool
    probability: float
    users_perfect: int | None
    users_at_auroc: int | None


@dataclass(frozen=True)
class Power(Tabular):
    """The answer of ``heldin power``.

    Attributes:
        users: m, users with a coin.
        auroc: AUROC of the assumed attacker.
        delta: delta of every epsilon in the answer.
        alpha: error probability.
        largest: the largest certifiable epsilon, which perfect guessing certifies.
        expected_one_run: median, 5 % and 95 % quantile of the certified epsilon, by Steinke et al. 2023.
        expected_fdp: median, 5 % and 95 % quantile of the certified epsilon, by the f-DP recursion.
        expected_gaussian: median, 5 % and 95 % quantile of the certified epsilon, by the f-DP recursion for Gaussian
            mechanisms only.
        claims: number of users needed to reject each claim.
    """

    users: int
    auroc: float
    delta: float
    alpha: float
    largest: Reach
    expected_one_run: Expected
    expected_fdp: Expected
    expected_gaussian: Expected
    claims: tuple[ClaimPower, ...] = ()

    def heading(self) -> str:
        """State the epsilon that the users certify if every guess is right.

        A registered number of guesses certifies more.
        """
        return (
            f"{self.users} users by coin: if every guess is right, one run certifies epsilon {self.largest.paid:.3g} at"
            f" delta {self.delta:g}, or {self.largest.one_run:.3g} if the number of guesses was registered beforehand"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the epsilon that the attacker certifies, one row per bound: median, 5 % and 95 % quantile."""
        named = (
            ("one-run", self.expected_one_run),
            ("one-run f-DP", self.expected_fdp),
            ("one-run Gaussian, for Gaussian mechanisms only", self.expected_gaussian),
        )
        return [{"bound": name, "auroc": self.auroc, **dataclasses.asdict(spread)} for name, spread in named]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a nested dict."""
        return dataclasses.asdict(self)


def power(
    users: int, auroc: float, delta: float, *, alpha: float = 0.05, claims: tuple[Claim, ...] = (), seed: int = 0
) -> Power:
    """Return the epsilon that one training run could certify, and the users needed to reject each claim.

    Args:
        auroc: AUROC of the assumed attacker, in [0.5, 1).
        delta: delta of the bounds, in (0, 1).
        alpha: error probability.
        claims: claims to reject, each considered separately.

    Raises:
        InputError: m is too small for any statement, or is above LARGEST.
    """
    check_delta(delta, 1)
    if users > LARGEST:
        raise InputError(
            f"heldin computes power for at most {LARGEST} users, but {users} were given: give {LARGEST}, because"
            " more users would certify hardly more"
        )
    mu = attack_mu(auroc)
    tries = one_run.paid_tries(users, alpha=alpha)
    right = simulated_rights(users, mu, tuple(attempt.made for attempt in tries), seed)

    def expected(bound: Callable[[Guesses, float], float]) -> Expected:
        # Each audit takes the best of its numbers of guesses, whose levels have paid for that: (SIMULATIONS,).
        best = np.max([_along(users, attempt, right[:, i], bound) for i, attempt in enumerate(tries)], axis=0)
        low, median, high = np.quantile(best, [0.05, 0.5, 0.95])
        return Expected(float(median), float(low), float(high))

    return Power(
        users=users,
        auroc=auroc,
        delta=delta,
        alpha=alpha,
        largest=reach(users, delta, alpha=alpha),
        expected_one_run=expected(lambda game, level: one_run.one_run_epsilon(game, delta, level)),
        expected_fdp=expected(lambda game, level: one_run.fdp_epsilon(game, delta, level)),
        expected_gaussian=expected(lambda game, level: _gaussian(one_run.fdp_mu(game, level), delta)),
        claims=tuple(claim_power(users, auroc, claim, alpha=alpha, seed=seed) for claim in claims),
    )


def reach(users: int, delta: float, *, alpha: float = 0.05) -> Reach:
    """Return the row of docs/theory.md#table-of-largest-certifiable-epsilons for m users."""
    perfect = Guesses(users, users, users)
    mu = one_run.fdp_mu(perfect, alpha)
    n1, n0 = users - users // 2, users // 2
    return Reach(
        one_run=one_run.one_run_epsilon(perfect, delta, alpha),
        fdp=one_run.fdp_epsilon(perfect, delta, alpha),
        paid=max_certifiable_epsilon(n1, n0, delta, Design(_COIN, alpha=alpha)),
        mu=mu,
        gaussian=_gaussian(mu, delta),
        clopper_pearson=trainings_reach(n1, n0, delta, alpha=alpha) if n0 else None,
    )


def trainings_reach(members: int, non_members: int, delta: float = 0.0, *, alpha: float = 0.05) -> float:
    """Return the largest epsilon that perfectly separated trainings certify, by Clopper-Pearson at one threshold.

    For 100 + 100 trainings, this epsilon is 3.28 at delta 0 (docs/theory.md#independent-trainings).

    Args:
        members: number of trainings with the user.
        non_members: number of trainings without the user.
        delta: delta of the bound, in [0, 1).
        alpha: error probability.
    """
    return clopper_pearson(Counts(members, members, 0, non_members), delta, alpha=alpha, pairs=1)


def claim_power(users: int, auroc: float, claim: Claim, *, alpha: float = 0.05, seed: int = 0) -> ClaimPower:
    """Return the number of users needed to reject a claim.

    Args:
        auroc: AUROC of the assumed attacker, in [0.5, 1).
        alpha: error probability.
    """
    design, mu = Design(_COIN, alpha=alpha), attack_mu(auroc)
    tries = one_run.paid_tries(users, alpha=alpha)
    right = simulated_rights(users, mu, tuple(attempt.made for attempt in tries), seed)
    least = [_least_rejected(users, attempt, claim) for attempt in tries]

    def median_rejects(m: int) -> bool:
        typical = (
            (Guesses(m, t.made, typical_rights(m, t.made, mu)), t.level) for t in one_run.paid_tries(m, alpha=alpha)
        )
        return any(claim.rejected_by(game, level) for game, level in typical)

    return ClaimPower(
        claim=str(claim.label),
        in_reach=could_reject(users - users // 2, users // 2, claim, design),
        probability=float((right >= np.array(least)).any(axis=1).mean()),
        users_perfect=_least_perfect(claim, design, alpha),
        users_at_auroc=_least_users(median_rejects, alpha),
    )


def forecast(
    users: int,
    delta: float,
    claims: Sequence[Claim] = (),
    *,
    units: str = "users",
    unit: str = "user",
    sharing: int = 1,
) -> list[str]:
    """Return lines that state the best possible result of a run at 95 %. Read them before you pay for the run.

    Args:
        users: m, users or entities whose coins are flipped.
        delta: delta of the bounds, in (0, 1).
        units: plural name of the users or entities.
        unit: singular name of a user or entity.
        sharing: number of groups and looks that share the error probability.
    """
    alpha = 0.05
    design, members = Design(_COIN, alpha=alpha, attacks=sharing), users - users // 2
    try:
        most = max_certifiable_epsilon(members, users // 2, delta, design)
    except TooFewUsers as error:
        return [f"power: {users} {units} by coin can certify nothing ({error})"]
    lines = [
        f"power: {users} {units} by coin can certify at most epsilon {most:.3g} per {unit}, if every guess is right"
    ]
    for claim in claims:
        if could_reject(members, users // 2, claim, design):
            lines.append(f"power: they could contradict {claim.label}")
        else:
            needed = _count(_least_perfect(claim, design, alpha))
            lines.append(f"power: they could not contradict {claim.label}, which needs at least {needed} {units}")
    return lines


def table(power: Power) -> str:
    """Return the answer as plain text."""
    most, percent = power.largest, 100.0 * (1.0 - power.alpha)
    lines = [
        f"{power.users:,} users by fair coin, delta {power.delta:g}, confidence {percent:g} %",
        "",
        "largest epsilon that perfect guessing certifies",
        _row("one run (number of guesses registered)", most.one_run),
        _row("one run (number of guesses chosen after)", most.paid),
        f"{_row('one run, Gaussian mechanisms', most.gaussian)}   mu {most.mu:.2f}",
    ]
    if most.clopper_pearson is not None:
        lines.append(_row("as many independent training runs", most.clopper_pearson))
    lines += ["", f"epsilon certified by a Gaussian attack of AUROC {power.auroc:g}: median (5 % to 95 % of runs)"]
    kinds = (
        ("one run", power.expected_one_run),
        ("one run, f-DP", power.expected_fdp),
        ("one run, Gaussian mechanisms", power.expected_gaussian),
    )
    lines += [f"{_row(name, spread.median)}   ({spread.low:.2f} to {spread.high:.2f})" for name, spread in kinds]
    for need in power.claims:
        lines += ["", f"claim: {need.claim}"]
        lines += [
            f"  perfect guessing with {power.users:,} users {'rejects' if need.in_reach else 'does not reject'} it"
        ]
        lines += [f"  this attack rejects it in {100.0 * need.probability:.0f} % of runs, if the attack is that good"]
        lines += [f"  users needed with perfect guessing: {_count(need.users_perfect)}"]
        lines += [f"  users needed with AUROC {power.auroc:g}: {_count(need.users_at_auroc)}"]
    return "\n".join(lines)


def _row(name: str, epsilon: float) -> str:
    return f"  {name:<42}{epsilon:8.2f}"


def _along(
    users: int, tried: Try, right: NDArray[np.int64], bound: Callable[[Guesses, float], float]
) -> NDArray[np.float64]:
    """Return the bound at each number of right guesses. The function interpolates between a few exact bounds."""
    count = _KNOTS if users <= LARGEST_SIMULATED else 3
    knots = np.unique(np.linspace(right.min(), right.max(), count).round().astype(np.int64))
    return np.interp(right, knots, [bound(Guesses(users, tried.made, int(v)), tried.level) for v in knots])


def _least_rejected(users: int, tried: Try, claim: Claim) -> int:
    """Return the least number of right guesses that rejects the claim; made + 1 if no number does."""
    low, high = 0, tried.made + 1  # bisection: more right guesses are taken to reject whatever fewer do
    while high - low > 1:
        middle = (low + high) // 2
        rejected = claim.rejected_by(Guesses(users, tried.made, middle), tried.level)
        low, high = (low, middle) if rejected else (middle, high)
    return high


def _least_perfect(claim: Claim, design: Design, alpha: float) -> int | None:
    """Return the fewest users, half of them members, with whom perfect guessing could reject the claim."""
    least = check_alpha(alpha, design.attacks)
    return _least_users(lambda users: could_reject(users - users // 2, users // 2, claim, design), least)


def _least_users(enough: Callable[[int], bool], alpha: float) -> int | None:
    # Fewer users support no statement: all right by chance has probability 2^-m, above alpha.
    low = high = math.ceil(-math.log2(check_alpha(alpha)))
    if enough(low):
        return low
    while not enough(high):
        if high == MOST_USERS:
            return None
        low, high = high, min(MOST_USERS, 2 * high)
    # To half a per cent: a test is slow, and the numbers are for planning.
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _gaussian(mu: float, delta: float) -> float:
    return gaussian_epsilon(mu, delta) if mu > 0.0 else 0.0


def _count(users: int | None) -> str:
    return f"more than {MOST_USERS:,}" if users is None else f"{users:,}"
