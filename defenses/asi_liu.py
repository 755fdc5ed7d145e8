"""Asi & Liu's filtered gradient descent (Chua et al., Algorithm 3): whether training goes on, and who is kept.

Full batch: all of the public number N of users enter every step. Half the budget pays for AboveThreshold on the
concentration scores, half for the Gaussian noise. Its proof uses replace adjacency, and halting is an output.
"""

import math

from heldin.base.coins import keyed_uniform
from heldin.defenses.accounting.events import check_count

# Replacing one user changes at most 2 (N - 1) ordered pairs, and the score is their number over N
# (docs/theory.md#filtered-descent).
SCORE_SENSITIVITY = 2.0


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
