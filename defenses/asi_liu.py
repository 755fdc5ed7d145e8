"""Asi & Liu's filtered gradient descent (Chua et al., Algorithm 3): its noise, and when that is less than ULS's.

Full batch: all of the public number N of users enter every step. Half the budget pays for AboveThreshold on the
concentration scores, half for the Gaussian noise. Its proof uses replace adjacency, and halting is an output.
"""

import math
from dataclasses import dataclass

from heldin.base.coins import keyed_uniform
from heldin.base.errors import InputError
from heldin.defenses.accounting.events import PoissonGaussian, check_count
from heldin.defenses.accounting.guarantees import calibrate, gaussian_mu

# Replacing one user changes at most 2 (N - 1) ordered pairs, and the score is their number over N
# (docs/theory.md#filtered-descent).
SCORE_SENSITIVITY = 2.0


@dataclass(frozen=True)
class FilterNoise:
    """The noise of Algorithm 3 in units of its concentration threshold tau.

    Attributes:
        noise_multiplier: s_A, PRIVACCOUNTING(eps/2, delta/2, N, N, T).
        deviation_per_tau: noise standard deviation per coordinate of the averaged gradient, over tau:
            s_A sqrt(8 (eps + ln(T / delta))) / N (line 14).
    """

    noise_multiplier: float
    deviation_per_tau: float


def filter_noise(users: int, steps: int, target_epsilon: float, delta: float) -> FilterNoise:
    """The noise that Algorithm 3 adds; s_A = sqrt(T) / mu(eps/2, delta/2), full batch.

    Args:
        users: public number N.
        steps: T.
        target_epsilon: of the whole run.
        delta: of the whole run.
    """
    check_count("users", users)
    check_count("steps", steps)
    if not target_epsilon > 0.0:
        raise InputError(f"target epsilon {target_epsilon} is not a number above 0")
    # T full-batch steps are one Gaussian of mu = sqrt(T) / s_A, for which half of epsilon and of delta is left.
    noise = math.sqrt(steps) / gaussian_mu(target_epsilon / 2.0, delta / 2.0)
    concentration = math.sqrt(8.0 * (target_epsilon + math.log(steps / delta)))
    return FilterNoise(noise, noise * concentration / users)


def break_even_concentration(users: int, cohort: int, steps: int, target_epsilon: float, delta: float) -> float:
    """tau / C below which Algorithm 3 adds less noise than ULS with this cohort (Chua et al., Figure 3).

    (s_U / n) N / (s_A sqrt(8 (eps + ln(T / delta)))), with s_U calibrated for Poisson rate n / N. The compute differs:
    Algorithm 3 needs N user gradients per step, ULS needs n.

    Args:
        users: public number N.
        cohort: n, of ULS.
        steps: T.
        target_epsilon: of both.
        delta: of both.
    """
    if cohort > users:
        raise InputError(f"cohort {cohort} is larger than the population {users}: lower the cohort")
    if cohort == users:
        # Nobody is left out by sampling: a Gaussian has a closed form and needs no loss grid.
        uls_noise = math.sqrt(steps) / gaussian_mu(target_epsilon, delta)
    else:
        uls_noise = calibrate(PoissonGaussian(1.0, cohort / users), steps, delta, target_epsilon)
    return uls_noise / cohort / filter_noise(users, steps, target_epsilon, delta).deviation_per_tau


def concentration_threshold(users: int) -> float:
    """4 N / 5, which the score must reach at every step for training to go on (Algorithm 3, line 9); N is public."""
    check_count("users", users)
    return 0.8 * users


def above_threshold(score: float, users: int, above_epsilon: float, key: bytes, step: int) -> bool:
    """AboveThreshold (sparse vector) over the steps of a run: whether training goes on (Algorithm 3, line 9).

    Args:
        score: concentration score of this step.
        users: public number N.
        above_epsilon: that AboveThreshold may spend over the run.
        key: the run's secret key.
        step: number of the step, from 0.
    """
    # The threshold gets one Laplace number for the run, the score one per step, both functions of the key, so that a
    # resumed run asks again with the same noise. At these scales above_epsilon pays for all steps together.
    threshold = concentration_threshold(users) + _laplace(2.0 * SCORE_SENSITIVITY / above_epsilon, key, "threshold")
    return score + _laplace(4.0 * SCORE_SENSITIVITY / above_epsilon, key, f"score {step}") >= threshold


def keep_probability(near: int, users: int) -> float:
    """p of a user with ``near`` users within 2 tau: 0 below N / 2, 1 from 2 N / 3 on, linear between (line 12)."""
    return min(1.0, max(0.0, (near - users / 2.0) / (users / 6.0)))  # 2 N / 3 - N / 2 is N / 6


def _laplace(scale: float, key: bytes, name: str) -> float:
    # Neither 0 nor 1, of which one of the logarithms below does not exist.
    u = min(keyed_uniform(key, "above threshold", name) + 2.0**-54, 1.0 - 2.0**-53)
    return -scale * math.log(2.0 * (1.0 - u)) if u > 0.5 else scale * math.log(2.0 * u)
