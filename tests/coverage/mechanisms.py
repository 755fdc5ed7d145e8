"""Mechanisms of known epsilon, each a function from membership to scores."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from audit.tradeoff import RocCeiling, ceiling_of, epsilon_delta_ceiling
from audit.verdict import Claim, curve_claim
from defenses.accounting import calibrate, gaussian_mu
from defenses.events import PoissonGaussian, UnamplifiedGaussian

DELTA = 1e-5
STEPS, RATE = 10, 0.1

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True, eq=False)
class Known:
    """A mechanism that is (epsilon, delta)-DP for each user's membership, and no better to within a hair.

    draw: membership of shape (m,) to scores of shape (m,). independent: whether scores are, given membership.
    threshold: one that a good auditor would fix beforehand. ceiling: its ROC, where the test against a curve applies.
    """

    name: str
    epsilon: float
    delta: float
    draw: Draw
    threshold: float
    ceiling: RocCeiling
    independent: bool = True
    gaussian: bool = False

    @functools.cached_property
    def claim(self) -> Claim:
        """Its own curve as a claim, which is true."""
        return curve_claim(self.ceiling, self.epsilon, self.delta)


def randomised_response(epsilon: float, delta: float = DELTA) -> Known:
    """Tells the truth with probability e^eps / (1 + e^eps), plus uniform noise: the ROC is a line of slope e^eps."""
    q = float(special.expit(epsilon))

    def draw(member, rng):
        return np.where(rng.random(member.size) < q, member, ~member) + rng.random(member.size)

    return Known("randomised response", epsilon, delta, draw, 1.0, epsilon_delta_ceiling(epsilon, 0.0))


def gaussian(epsilon: float) -> Known:
    """N(mu, 1) against N(0, 1)."""
    mu = gaussian_mu(epsilon, DELTA) if epsilon > 0 else 0.0
    ceiling = ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, DELTA) if mu else epsilon_delta_ceiling(0.0, 0.0)

    def draw(member, rng):
        return mu * member + rng.standard_normal(member.size)

    return Known("Gaussian", epsilon, DELTA, draw, mu, ceiling, gaussian=True)


@functools.cache
def subsampled(epsilon: float) -> Known:
    """Ten Poisson-sampled Gaussian steps at rate 0.1 each, scored by the likelihood ratio of the whole transcript."""
    sigma = calibrate(PoissonGaussian(1.0, RATE), STEPS, DELTA, epsilon)

    def draw(member, rng):
        there = member[:, None] & (rng.random((member.size, STEPS)) < RATE)
        seen = there + sigma * rng.standard_normal((member.size, STEPS))
        return np.log1p(RATE * np.expm1((seen - 0.5) / sigma**2)).sum(1)

    ceiling = ceiling_of(PoissonGaussian(sigma, RATE), STEPS, DELTA)
    return Known("subsampled Gaussian", epsilon, DELTA, draw, 0.5, ceiling)


def interfering(epsilon: float, users: int) -> Known:
    """One noisy sum of unit vectors in users / 4 dimensions: each canary disturbs every other's score."""
    mu = gaussian_mu(epsilon, DELTA) if epsilon > 0 else 0.0
    dimension = max(2, users // 4)
    canaries = np.random.default_rng(7).standard_normal((users, dimension))
    canaries /= np.linalg.norm(canaries, axis=1, keepdims=True)
    ceiling = ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, DELTA) if mu else epsilon_delta_ceiling(0.0, 0.0)

    def draw(member, rng):
        return canaries @ (mu * (canaries.T @ member.astype(float)) + rng.standard_normal(dimension))

    return Known("interfering sum", epsilon, DELTA, draw, 0.0, ceiling, independent=False, gaussian=True)


def all_or_nothing(epsilon: float, delta: float = 0.04) -> Known:
    """Randomised response that with probability delta publishes every coin at once: all canaries fall together."""
    hidden = randomised_response(epsilon).draw

    def draw(member, rng):
        return member + rng.random(member.size) if rng.random() < delta else hidden(member, rng)

    return Known("all or nothing", epsilon, delta, draw, 1.0, epsilon_delta_ceiling(epsilon, delta), independent=False)


def mechanisms(epsilon: float, users: int) -> list[Known]:
    """Every mechanism at this epsilon; at epsilon 0 the subsampled Gaussian is the Gaussian."""
    return [
        randomised_response(epsilon),
        gaussian(epsilon),
        *([subsampled(epsilon)] if epsilon > 0 else []),
        interfering(epsilon, users),
        all_or_nothing(epsilon),
    ]
