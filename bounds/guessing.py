"""The guessing game of a one-run audit: how many guesses, for which users, and how many of them are "in".

The theorems of bounds/one_run.py allow any guesses that are a function of the scores: the guesser never sees a coin.
The number of guesses must be pre-registered, or its choice paid for. docs/verdict.md says how both rules were chosen.

Right guesses are also simulated for a Gaussian attacker, whose scores are N(mu, 1) for members and N(0, 1) for others.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from heldin.base.errors import InputError, TooFewUsers
from heldin.bounds.scores import LabelledScores, check_alpha
from heldin.words.evidence import Refusal

Array = NDArray[np.float64]

_GROWTH = 0.84  # the main number of guesses is this times m^{3/4}


@dataclass(frozen=True)
class Guesses:
    """The outcome of a guessing game.

    Attributes:
        users: m, all users whose coins were flipped.
        made: r, users for whom a guess was made; on the others the guesser abstained.
        correct: v, correct guesses.
    """

    users: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.made <= self.users or self.made == 0:
            raise InputError(f"{self.correct} right of {self.made} guesses on {self.users} users is not a game")


@dataclass(frozen=True)
class Try:
    """A number of guesses (``made``), and the error probability that its test may spend (``level``)."""

    made: int
    level: float


def guess(labelled: LabelledScores, made: int, *, tie_seed: int = 0) -> Guesses:
    """Guess the r = ``made`` users whose scores are farthest from the centre: "in" above it, "out" below.

    How many are "in" follows from the scores without membership (``guessed_out``). Raises InputError unless
    1 <= made <= m.
    """
    m = labelled.scores.size
    if not 1 <= made <= m:
        raise InputError(f"{made} guesses on {m} users: choose between 1 and {m}")
    # Ties are broken in a random order, independent of membership: by row, a file sorted by membership would decide.
    shuffled = np.random.default_rng(tie_seed).permutation(m)
    order = shuffled[np.argsort(labelled.scores[shuffled], kind="stable")]  # lowest score first
    low = guessed_out(labelled.scores[order], made)
    ranked = labelled.member[order]
    # Lowest ``low`` guessed out, highest ``made - low`` guessed in; the others are abstentions, which m still counts.
    return Guesses(m, made, int((~ranked[:low]).sum() + ranked[m - made + low :].sum()))


def paid_tries(users: int, made: int | None = None, alpha: float = 0.05, attacks: int = 1) -> tuple[Try, ...]:
    """The numbers of guesses to try and their shares of alpha / attacks; a function of the arguments only.

    Without a registered number: 0.84 m^{3/4} guesses (149 of 1,000) at 70 % of the error probability, half of the users
    at 10 % and all users at 20 %. The first is near the best number for attackers of AUROC 0.6 to 0.95, the others are
    for attackers who tell nearly all users apart (docs/verdict.md has the simulations).

    Args:
        made: number of guesses r, registered beforehand; None: several are tried.
        alpha: total error probability.
        attacks: number of attacks tried, if these scores are the best of several; alpha is divided by it.

    Raises:
        InputError: ``made`` is not between 1 and m.
        TooFewUsers: the users, or registered guesses, are too few for any statement.
    """
    level = check_alpha(alpha, attacks)
    if made is not None and not 1 <= made <= users:
        raise InputError(f"{made} guesses registered on {users} users: choose between 1 and {users}")
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


def centre(ranked: Array) -> float:
    """Mean of the middle half of the scores, shape (m,), ascending."""
    # Fair coins hold in about half of the users. Where the groups separate, this lies between them, even if chance
    # made them unequal; where they overlap, it lies in the middle of the bulk, and the longer tail is the side that
    # tells more. A quarter of the scores on either side may be anything.
    cut = ranked.size // 4
    middle = ranked[cut : ranked.size - cut]
    scale = float(np.abs(middle).max()) or 1.0  # so that the sum of huge scores does not overflow
    return float((middle / scale).mean()) * scale


def guessed_out(ranked: Array, made: int) -> int:
    """Count the guesses "out": scores below ``centre`` among the ``made`` scores farthest from it.

    The rest are "in". Always holds: the result is between 0 and ``made``; it does not depend on the order of the users;
    reversing the sign of all scores exchanges in and out, except for scores equally far on both sides.

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
    """mu of the Gaussian attacker with this AUROC: sqrt 2 Phi^-1(AUROC). Raises InputError outside [0.5, 1)."""
    if not 0.5 <= auroc < 1.0:
        raise InputError(f"AUROC {auroc} is outside [0.5, 1): give that of the attack you expect, for example 0.75")
    return math.sqrt(2.0) * float(special.ndtri(auroc))


def typical_rights(users: int, made: int, mu: float) -> int:
    """Right guesses of the median run: r P(in | score among the r / 2 highest), by symmetry also at the lower end."""
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
    """Right guesses of simulated runs of the Gaussian attacker, shape (SIMULATIONS, len(tries)).

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
