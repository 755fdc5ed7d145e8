"""Right guesses of a Gaussian attacker, whose scores are N(mu, 1) for members and N(0, 1) for others."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from heldin.base.errors import InputError
from heldin.bounds.guessing import guessed_out

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
        seed: seed of the simulation.
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
