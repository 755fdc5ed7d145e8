"""Lower bounds on epsilon from one training run, after Steinke et al. 2023 and Mahloujifar et al. 2024.

The conditions of every bound in this module (docs/theory.md#conditions-of-one-run): an independent fair coin decided
the membership of each of the m users. The coins were drawn after the pool was fixed, and were used once. The scores are
a function of the released model and of randomness independent of the coins. m counts all users with a coin, including
users on whom the guesser abstains. The number of guesses r was fixed before looking, or the error probability covers
its choice. The theorems allow users' scores to depend on each other.

The theorems allow any guesses that are a function of the scores: the guesser never sees a coin.
docs/theory.md#choice-of-guesses describes how heldin chose the number of guesses and the guessed users. The module also
simulates right guesses of a Gaussian attacker: scores are N(mu, 1) for members and N(0, 1) for others.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from heldin.base.errors import InputError, TooFewUsers
from heldin.bounds.scores import LabelledScores, check_alpha, check_bound_delta
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.roc_ceiling import RocCeiling, symmetrised
from heldin.words.evidence import Refusal

Array = NDArray[np.float64]

_GROWTH = 0.84  # the main number of guesses is this times m^{3/4}
_HIGHEST_EPSILON = 64.0
_HIGHEST_MU = 32.0
_PRECISION = 1e-5  # of epsilon and of mu; the returned value is one that the test rejects
_ROUNDING = 1e-12  # relative, of the recursion's sums

InverseRoc = Callable[[float], float]


@dataclass(frozen=True)
class Guesses:
    """The outcome of a guessing game.

    Attributes:
        users: m, all users with a coin.
        made: r, users with a guess; the guesser abstained on the others.
        correct: v, correct guesses.
    """

    users: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.made <= self.users or self.made == 0:
            raise InputError(
                f"{self.correct} correct guesses of {self.made} on {self.users} users are impossible: give correct <="
                " guesses <= users"
            )


@dataclass(frozen=True)
class Try:
    """A number of guesses (``made``), and the error probability that the test of this game may spend (``level``)."""

    made: int
    level: float


def guess(labelled: LabelledScores, made: int, *, tie_seed: int = 0) -> Guesses:
    """Guess for the r = ``made`` users whose scores are farthest from the centre: "in" above it, "out" below.

    The scores without membership decide how many guesses are "in" (``guessed_out``). Raises InputError unless
    1 <= made <= m.
    """
    m = labelled.scores.size
    if not 1 <= made <= m:
        raise InputError(f"{made} guesses on {m} users are impossible: choose from 1 to {m} guesses")
    # Ties are broken in a random order, independent of membership: by row, a file sorted by membership would decide.
    shuffled = np.random.default_rng(tie_seed).permutation(m)
    order = shuffled[np.argsort(labelled.scores[shuffled], kind="stable")]  # lowest score first
    low = guessed_out(labelled.scores[order], made)
    ranked = labelled.member[order]
    # Lowest ``low`` guessed out, highest ``made - low`` guessed in; the others are abstentions, which m still counts.
    return Guesses(m, made, int((~ranked[:low]).sum() + ranked[m - made + low :].sum()))


def paid_tries(users: int, made: int | None = None, alpha: float = 0.05, attacks: int = 1) -> tuple[Try, ...]:
    """Return the numbers of guesses to try and their shares of alpha / attacks, which depend on the arguments only.

    Without a registered number, the tries are 0.84 m^{3/4} guesses (149 of 1,000) at 70 % of the error probability,
    half of the users at 10 % and all users at 20 %. The first number is nearly the best for attackers with AUROC 0.6 to
    0.9. The other numbers are for attackers who identify nearly all members (docs/theory.md#choice-of-guesses has the
    simulations).

    Args:
        made: number of guesses r, registered beforehand; None: heldin tries several numbers.
        alpha: total error probability.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.

    Raises:
        InputError: ``made`` is not between 1 and m.
        TooFewUsers: there are too few users or registered guesses for any statement.
    """
    level = check_alpha(alpha, attacks)
    if made is not None and not 1 <= made <= users:
        raise InputError(
            f"{made} registered guesses on {users} users are impossible: register from 1 to {users} guesses"
        )
    most = users if made is None else made
    # With no leak at all (epsilon 0) all r guesses are right with probability 2^-r.
    if 0.5**most > level:
        needed = int(np.ceil(-np.log2(level)))
        few = Refusal.TOO_FEW_USERS if made is None else Refusal.TOO_FEW_GUESSES
        raise TooFewUsers(few(count=most, level=level, needed=needed))
    if made is not None:
        return (Try(made, level),)
    # In a small audit two of the numbers may be equal: one test, with both shares.
    shares: dict[int, float] = {}
    for number, share in ((round(_GROWTH * users**0.75), 0.7), (users // 2, 0.1), (users, 0.2)):
        shares[min(users, number)] = shares.get(min(users, number), 0.0) + share
    # A number that could not reject epsilon = 0 even with all guesses right, 2^-r > its level, is not tried; the others
    # share what it would have cost.
    useful = {number: share for number, share in shares.items() if 0.5**number <= level * share} or {users: 1.0}
    return tuple(Try(number, level * share / sum(useful.values())) for number, share in sorted(useful.items()))


@dataclass(frozen=True)
class Games:
    """The games of one run that share the error probability. The number of users and alpha fix them.

    Attributes:
        levels: error probability that the test of each game may spend.
        played: the guesses, which follow from the scores.
    """

    levels: tuple[float, ...]
    played: tuple[Guesses, ...]

    def play(self) -> Iterator[tuple[Guesses, float]]:
        """Yield each game with the error probability that its test may spend."""
        return zip(self.played, self.levels, strict=True)

    @property
    def made(self) -> tuple[int, ...]:
        """The number of guesses of each game."""
        return tuple(game.made for game in self.played)


# A judgement asks for the same games in every bound and verdict; scores that differ are other objects.
@functools.lru_cache(maxsize=8)
def games_of(labelled: LabelledScores, made: int | None, alpha: float, attacks: int) -> Games:
    """Play the games of these scores; see ``paid_tries`` for the other arguments and for errors."""
    tries = paid_tries(labelled.scores.size, made, alpha, attacks)
    return Games(tuple(t.level for t in tries), tuple(guess(labelled, t.made) for t in tries))


def perfect_games(users: int, made: int | None, alpha: float, attacks: int) -> tuple[tuple[Guesses, float], ...]:
    """Return the games in which every guess is right, with their levels; see ``paid_tries``."""
    tries = paid_tries(users, made, alpha, attacks)
    return tuple((Guesses(users, attempt.made, attempt.made), attempt.level) for attempt in tries)


def centre(ranked: Array) -> float:
    """Return the mean of the middle half of the scores, shape (m,), ascending."""
    # Fair coins hold in about half of the users. Where the groups separate, this lies between them, even if chance
    # made them unequal; where they overlap, it lies in the middle of the bulk, and the longer tail is the side that
    # tells more. A quarter of the scores on either side may be anything.
    cut = ranked.size // 4
    middle = ranked[cut : ranked.size - cut]
    scale = float(np.abs(middle).max()) or 1.0  # so that the sum of huge scores does not overflow
    return float((middle / scale).mean()) * scale


def guessed_out(ranked: Array, made: int) -> int:
    """Count the guesses "out": scores below ``centre`` among the ``made`` scores farthest from it.

    The other guesses are "in". The result is between 0 and ``made``, and does not depend on the order of the users.
    Reversing the sign of all scores exchanges "in" and "out", except for scores at equal distances on both sides.

    Args:
        ranked: scores, shape (m,), ascending.
        made: r, between 1 and m.
    """
    middle = centre(ranked)
    # Scores near the largest double may lie farther apart than it: infinity compares as it should.
    with np.errstate(over="ignore"):
        below, above = middle - ranked[:made], ranked[ranked.size - made :] - middle
    # Scores at the centre are guessed with the side that has fewer users beyond it, since fair coins make sides equal.
    fewer_below = np.searchsorted(ranked, middle, "left") < ranked.size - np.searchsorted(ranked, middle, "right")
    # Compare the k-th lowest score with the k-th of the ``made`` highest: the farther one is guessed.
    return int(np.count_nonzero(below >= above if fewer_below else below > above))


SIMULATIONS = 400  # audits
LARGEST_SIMULATED = 20_000


def attack_mu(auroc: float) -> float:
    """Return mu of the Gaussian attacker with this AUROC: sqrt 2 Phi^-1(AUROC). Raises InputError outside [0.5, 1)."""
    if not 0.5 <= auroc < 1.0:
        raise InputError(
            f"AUROC {auroc} is outside [0.5, 1): give the AUROC that you expect of the attack, for example 0.75"
        )
    return math.sqrt(2.0) * float(special.ndtri(auroc))


def typical_rights(users: int, made: int, mu: float) -> int:
    """Return the right guesses of the median run: r P(in | score among the r / 2 highest). The low end is symmetric."""
    return min(made, int(made * _precision(users, made, mu)))


def _precision(users: int, made: int, mu: float) -> float:
    # The share guessed "in": of the even mixture of N(mu, 1) and N(0, 1), so much lies above the threshold.
    share = (made - made // 2) / users

    def excess(threshold: float) -> float:
        return 0.5 * float(special.ndtr(mu - threshold) + special.ndtr(-threshold)) - share

    threshold = float(optimize.brentq(excess, -10.0, mu + 10.0))
    above_in, above_out = float(special.ndtr(mu - threshold)), float(special.ndtr(-threshold))
    return above_in / (above_in + above_out)


def simulated_rights(users: int, mu: float, tries: tuple[int, ...], seed: int) -> NDArray[np.int64]:
    """Simulate right guesses in runs of the Gaussian attacker; shape (SIMULATIONS, len(tries)).

    Args:
        mu: mean score of members.
        tries: numbers of guesses.
    """
    rng = np.random.default_rng(seed)
    # For many users binomial draws, which differ from a simulation by less than a thousandth of their own spread.
    if users > LARGEST_SIMULATED:
        return np.stack([rng.binomial(r, _precision(users, r, mu), SIMULATIONS) for r in tries], axis=1)
    rows = []
    for _ in range(SIMULATIONS):
        # Coins, not an exact half: unequal sides are part of what an audit may get.
        coins = rng.random(users) < 0.5
        scores = rng.standard_normal(users) + mu * coins
        order = np.argsort(scores)
        ranked, member = scores[order], coins[order]
        low = [guessed_out(ranked, r) for r in tries]
        in_below = np.append(0, np.cumsum(member))
        # Right: non-members among the k lowest, members among the r - k highest.
        rows.append([k - in_below[k] + in_below[-1] - in_below[users - r + k] for k, r in zip(low, tries, strict=True)])
    return np.array(rows, dtype=np.int64)


@dataclass(frozen=True)
class OneRunBound:
    """The best bound over the tried numbers of guesses.

    Attributes:
        alpha: total error probability.
        guesses: the game that gave the bound.
        tried: every number of guesses that was tried.
        mu: lower bound on mu, if mu-GDP is assumed; None otherwise.
    """

    epsilon: float
    alpha: float
    guesses: Guesses
    tried: tuple[int, ...]
    mu: float | None = None


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a p-value of ``correct`` or more right guesses under (epsilon, delta)-DP.

    The p-value is from Steinke, Nasr, Jagielski 2023, Theorem 5.2:

    P[Bin(r, q) >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= Bin(r, q) < v] / i with q = e^eps / (1 + e^eps), at most
    1. For the conditions see the module docstring. Add/remove and replace coincide, because the coin decides presence.
    """
    check_bound_delta(delta)
    m, r, v = guesses.users, guesses.made, guesses.correct
    # e^eps / (1 + e^eps) without overflow: the largest probability that a guess at prior odds of 1 is right.
    q = float(special.expit(epsilon))
    tail = float(stats.binom.sf(v - 1, r, q))  # P[Bin >= v]
    # No i between 1 and v: the maximum is over nothing.
    if delta == 0.0 or v == 0:
        return min(1.0, tail)
    # P[v - i <= Bin < v] for i = 1, 2, ...: beyond 12 deviations below the mean it grows no more, and over i it falls.
    least = max(0, min(v - 1, int(r * q - 12.0 * np.sqrt(r * q * (1.0 - q)) - 10.0)))
    below = np.cumsum(stats.binom.pmf(np.arange(v - 1, least - 1, -1), r, q))
    # m and not r: every user whose coin was flipped counts, also those on whom the guesser abstains.
    return min(1.0, tail + 2.0 * m * delta * float((below / np.arange(1, v - least + 1)).max()))


@functools.lru_cache(maxsize=65536)
def one_run_epsilon(guesses: Guesses, delta: float, alpha: float = 0.05) -> float:
    """Return the largest epsilon found with one_run_p_value <= alpha; 0 if epsilon = 0 is not rejected."""
    # (epsilon, delta)-DP implies (epsilon', delta)-DP for every larger epsilon', so any rejected epsilon is a valid
    # lower bound with confidence 1 - alpha, whether or not the p-value is monotone.
    check_alpha(alpha)
    return _largest(lambda epsilon: one_run_p_value(guesses, epsilon, delta) <= alpha, _HIGHEST_EPSILON)


def fdp_rejects(guesses: Guesses, inverse_roc: InverseRoc, alpha: float = 0.05) -> bool:
    """Return whether the recursion of Mahloujifar, Melis, Chaudhuri 2024, Theorem 3.2, rejects f-DP at level alpha.

    R = alpha v/m, H = alpha (r - v)/m; for i = v-1, ..., 0: H' = max(H, F^-1(R)), R += i/(r - i) (H' - H), H = H'. The
    test rejects iff R + H > r/m.

    Args:
        guesses: the game; for the conditions see the module docstring.
        inverse_roc: F^-1(y), the smallest FPR at which the claimed ROC reaches TPR y. The ROC is symmetric and concave.
            An ROC above the true ROC keeps the test valid.
        alpha: error probability.
    """
    check_alpha(alpha)
    m, r, v = guesses.users, guesses.made, guesses.correct
    right, wrong = alpha * v / m, alpha * (r - v) / m
    # Rounding must not reject: where R + H is r / m exactly, the curve allows the game.
    limit = r / m * (1.0 + _ROUNDING)
    for i in range(v - 1, -1, -1):
        # H' = max(H, F^-1(R)); r - i is at least 1, since i < v <= r.
        reached = inverse_roc(right)
        # R and H never fall, and change no more once H' = H: the recursion may end early in both cases.
        if reached <= wrong:
            return False
        right += i / (r - i) * (reached - wrong)
        wrong = reached
        if right + wrong > limit:
            return True
    return False


def gaussian_inverse(mu: float) -> InverseRoc:
    """Return F^-1 of mu-GDP: Phi(Phi^-1(y) - mu)."""
    return lambda y: float(special.ndtr(special.ndtri(y) - mu))


def epsilon_delta_inverse(epsilon: float, delta: float) -> InverseRoc:
    """Return F^-1 of (epsilon, delta)-DP: max(0, e^-eps (y - delta), 1 - delta - e^eps (1 - y))."""
    check_bound_delta(delta)
    # e^710 is no double.
    up, down = float(np.exp(min(epsilon, 700.0))), float(np.exp(-epsilon))
    return lambda y: max(0.0, down * (y - delta), 1.0 - delta - up * (1.0 - y))


def curve_inverse(ceiling: RocCeiling) -> InverseRoc:
    """Return F^-1 of an accountant's curve.

    The function first makes the curve symmetric and concave, and never lowers it.
    """
    hull = symmetrised(ceiling)
    # R may pass 1 by ``_ROUNDING``, which ``fpr_at`` refuses.
    return lambda y: hull.fpr_at(min(1.0, y))


@functools.lru_cache(maxsize=65536)
def fdp_mu(guesses: Guesses, alpha: float = 0.05) -> float:
    """Return the largest mu (to 1e-5) for which mu-GDP is rejected; 0 if none is. Valid for mu-GDP mechanisms."""
    return _largest(lambda mu: fdp_rejects(guesses, gaussian_inverse(mu), alpha), _HIGHEST_MU)


@functools.lru_cache(maxsize=65536)
def fdp_epsilon(guesses: Guesses, delta: float, alpha: float = 0.05) -> float:
    """Return the largest epsilon (to 1e-5) whose (epsilon, delta)-DP curve the f-DP recursion rejects; 0 for none.

    Valid for every mechanism. At delta = 0, the result equals one_run_epsilon if all guesses were right, and is
    slightly below one_run_epsilon otherwise (0.69 instead of 0.70 at 75 right of 100).
    """
    return _largest(lambda e: fdp_rejects(guesses, epsilon_delta_inverse(e, delta), alpha), _HIGHEST_EPSILON)


def one_run_rejects(guesses: Guesses, epsilon: float, delta: float, alpha: float = 0.05) -> bool:
    """Return whether (epsilon, delta)-DP is rejected at level alpha by either theorem.

    The f-DP recursion is sharper at large delta, and the binomial tail is sharper at small delta.

    Args:
        epsilon: claimed epsilon, >= 0.
        delta: claimed delta, in [0, 1).
        alpha: error probability.
    """
    # Both theorems bound the same probability of at least v right guesses, so the smaller bound is a p-value too, and
    # taking it needs no correction.
    if one_run_p_value(guesses, epsilon, delta) <= check_alpha(alpha):
        return True
    return fdp_rejects(guesses, epsilon_delta_inverse(epsilon, delta), alpha)


def steinke_bound(
    labelled: LabelledScores, delta: float, *, alpha: float = 0.05, made: int | None = None, attacks: int = 1
) -> OneRunBound:
    """Return a lower bound on epsilon by Steinke et al. 2023 at confidence 1 - alpha, under the module's conditions.

    Args:
        delta: delta of the bound, in [0, 1).
        alpha: total error probability.
        made: number of guesses r, registered beforehand; None: the numbers of ``paid_tries``, each with its share of
            alpha.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.
    """
    return _best(labelled, made, alpha, attacks, lambda g, a: (one_run_epsilon(g, delta, a), None))


def fdp_bound(
    labelled: LabelledScores, delta: float, *, alpha: float = 0.05, made: int | None = None, attacks: int = 1
) -> OneRunBound:
    """Return a lower bound on epsilon by the f-DP recursion on the (epsilon, delta)-DP curve; see ``steinke_bound``."""
    return _best(labelled, made, alpha, attacks, lambda g, a: (fdp_epsilon(g, delta, a), None))


def fdp_gaussian_bound(
    labelled: LabelledScores, delta: float, *, alpha: float = 0.05, made: int | None = None, attacks: int = 1
) -> OneRunBound:
    """Return lower bounds on mu and epsilon(mu, delta) by the f-DP recursion, for a Gaussian trade-off curve.

    The bounds are not valid for other mechanisms, such as subsampled mechanisms. Test another mechanism against its own
    curve. Delta is in (0, 1); see ``steinke_bound`` for the other arguments.
    """

    def bound(guesses: Guesses, level: float) -> tuple[float, float]:
        mu = fdp_mu(guesses, level)
        return (gaussian_epsilon(mu, delta) if mu > 0.0 else 0.0), mu

    return _best(labelled, made, alpha, attacks, bound)


def _best(
    labelled: LabelledScores,
    made: int | None,
    alpha: float,
    attacks: int,
    bound: Callable[[Guesses, float], tuple[float, float | None]],
) -> OneRunBound:
    """Return the largest (epsilon, mu) that ``bound`` gives for any of the paid games at its level."""
    games = games_of(labelled, made, alpha, attacks)
    results = [bound(game, level) for game, level in games.play()]
    # The best of several is valid because each has its own share of alpha.
    best = max(range(len(results)), key=lambda i: results[i][0])
    return OneRunBound(results[best][0], alpha, games.played[best], games.made, results[best][1])


def _largest(rejects: Callable[[float], bool], highest: float) -> float:
    """Return, by bisection, a rejected value within _PRECISION of a value that is not; 0 if 0 is not rejected."""
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    # ``low`` is rejected at every moment: what is returned is a bound even where rejection is not monotone.
    while high < highest and rejects(high):
        low, high = high, 2.0 * high
    while high - low > _PRECISION:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low
