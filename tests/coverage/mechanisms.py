"""Mechanisms of known epsilon, each a function from membership to scores."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from heldin.bounds.noise_family import NoiseFamily
from heldin.bounds.plan_claims import noise_family
from heldin.bounds.verdict import Claim, curve_claim
from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import calibrate, ceiling_of
from heldin.defenses.accounting.roc_ceiling import RocCeiling, epsilon_delta_ceiling
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from replication.effective_noise import gaussian_mu

DELTA = 1e-5
STEPS, RATE = 10, 0.1

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True, eq=False)
class Known:
    """A mechanism that is (epsilon, delta)-DP for each user's membership, and no better to within a hair.

    draw: membership of shape (m,) to scores of shape (m,). independent: whether scores are, given membership.
    threshold: one that a good auditor would fix beforehand. ceiling: its ROC, where the test against a curve applies.
    family: the mechanism at any noise, where it has some.
    """

    name: str
    epsilon: float
    delta: float
    draw: Draw
    threshold: float
    ceiling: RocCeiling
    independent: bool = True
    gaussian: bool = False
    family: NoiseFamily | None = None

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


@functools.cache
def gaussian(epsilon: float) -> Known:
    """N(mu, 1) against N(0, 1)."""
    mu = gaussian_mu(epsilon, DELTA) if epsilon > 0 else 0.0
    ceiling = ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, DELTA) if mu else epsilon_delta_ceiling(0.0, 0.0)

    def draw(member, rng):
        return mu * member + rng.standard_normal(member.size)

    family = family_of(1 / mu, 1.0, 1) if mu else None
    return Known("Gaussian", epsilon, DELTA, draw, mu, ceiling, gaussian=True, family=family)


@functools.cache
def subsampled(epsilon: float) -> Known:
    """Ten Poisson-sampled Gaussian steps at rate 0.1 each, scored by the likelihood ratio of the whole transcript."""
    sigma = calibrate(PoissonGaussian(1.0, RATE), STEPS, DELTA, epsilon)

    def draw(member, rng):
        there = member[:, None] & (rng.random((member.size, STEPS)) < RATE)
        seen = there + sigma * rng.standard_normal((member.size, STEPS))
        return np.log1p(RATE * np.expm1((seen - 0.5) / sigma**2)).sum(1)

    ceiling = ceiling_of(PoissonGaussian(sigma, RATE), STEPS, DELTA)
    return Known("subsampled Gaussian", epsilon, DELTA, draw, 0.5, ceiling, family=family_of(sigma, RATE, STEPS))


@functools.cache
def family_of(sigma: float, rate: float, steps: int) -> NoiseFamily:
    """Poisson-sampled Gaussian steps at any noise."""
    mechanism = Mechanism(
        unit="user",
        sampled="user",
        sampler=PoissonSampler(rate=rate),
        clip=FlatClip(norm=1.0),
        noise_multiplier=sigma,
        steps=steps,
        delta=DELTA,
        divisor=ConstantDivisor(value=1.0),
    )
    found = noise_family(mechanism.assumed_event, mechanism.steps, DELTA)
    assert found is not None
    return found


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


def one_sided(epsilon: float, share: float = 0.2) -> Known:
    """Only high scores tell: a member has one with probability `share`, another user e^-eps times as often."""

    def draw(member, rng):
        high = rng.random(member.size) < np.where(member, share, share * np.exp(-epsilon))
        return 3.0 * high + rng.random(member.size)

    fpr = share * np.exp(-epsilon)
    ceiling = RocCeiling(np.array([0.0, fpr, 1.0]), np.array([0.0, share, 1.0]))
    return Known("one-sided response", epsilon, DELTA, draw, 3.0, ceiling)


def shaken(epsilon: float) -> Known:
    """The Gaussian behind a shift, a stretch and a skew that all users share: where the middle lies tells nothing."""
    plain = gaussian(epsilon)

    def draw(member, rng):
        shift, stretch, skew = rng.standard_cauchy(), rng.lognormal(0.0, 3.0), rng.uniform(0.0, 1.0)
        return shift + stretch * np.expm1(skew * plain.draw(member, rng))

    return dataclasses.replace(plain, name="Gaussian, skewed", draw=draw, independent=False)


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
        one_sided(epsilon),
        *([shaken(epsilon)] if users <= 500 else []),
        all_or_nothing(epsilon),
    ]
