"""The effect of one training step on one privacy unit, as small frozen classes for the accountant.

Each class has a one-step dominating pair, or a separate theorem. The accountant covers no other event.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from heldin.base.errors import InputError
from heldin.base.section import MANY, MOST

MOST_NOISE, LEAST_RATE = 1e9, 1e-15  # beyond these, losses are below what a double resolves


@dataclass(frozen=True)
class PoissonGaussian:
    """A Poisson-sampled Gaussian sum. The protected unit has ``group_size`` independently sampled members.

    One step is N(Binom(G, rate), s^2) against N(0, s^2) (Charles et al., Theorem 1, add/remove). group_size 1 with the
    rate of users is user-level sampling (ULS, Theorem 2). group_size 1 with the rate of examples is the example level.
    group_size G is example-level sampling with at most G examples per user (ELS; group privacy of Chua et al., B.3).

    Attributes:
        noise_multiplier: s, noise standard deviation over clip norm, >= 0 (0 spends infinite epsilon).
        rate: probability that a member is in a step.
        group_size: number G of members.
    """

    noise_multiplier: float
    rate: float
    group_size: int = 1

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_rate(self.rate)
        check_count("group size", self.group_size, MANY)


@dataclass(frozen=True)
class CappedPoissonGaussian:
    """Poisson sampling with a random cut to a hard cap (add/remove, single units only).

    The event is dp-accounting's TruncatedSubsampledGaussianDpEvent.

    Attributes:
        noise_multiplier: noise standard deviation over clip norm.
        rate: probability that a unit is in a step, before the cap.
        population: public upper bound on the number of units.
        cap: maximum number of units in a step.
    """

    noise_multiplier: float
    rate: float
    population: int
    cap: int

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_rate(self.rate)
        check_count("population", self.population)
        check_count("cohort cap", self.cap)
        if self.cap < self.rate * self.population:
            raise InputError(
                f"cohort cap {self.cap} is below the expected cohort {self.rate * self.population:g}: raise the"
                " cap (a cap of expected + 8 sqrt(expected) costs nothing), or lower the sampling rate"
            )


@dataclass(frozen=True)
class TwoLevelGaussian:
    """Users and entities with separate sampling coins; each drawn user's update is clipped as a whole.

    The protected pair is a user and an entity that at most ``holders`` other users' records name. For a *public*
    n ~ Binom(holders, user_rate), one step is N(a + entity_sensitivity n b, s^2) against N(0, s^2), with independent
    coins a of the user and b of the entity (docs/theory.md#two-level-sampling).

    Attributes:
        noise_multiplier: s, noise standard deviation over clip norm, >= 0.
        user_rate: probability that a user is in a step.
        entity_rate: probability that an entity is in a step; 1 if one drawn entity suffices to use a record.
        holders: K, maximum number of other users whose records name the entity; 0: the guarantee of users.
        entity_sensitivity: largest change of a drawn holder's update with the entity, in clip norms, at most 2.
    """

    noise_multiplier: float
    user_rate: float
    entity_rate: float
    holders: int
    entity_sensitivity: float = 2.0

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_rate(self.user_rate)
        check_rate(self.entity_rate)
        if self.holders:
            check_count("holders", self.holders, MANY)
        if not 0.0 < self.entity_sensitivity <= 2.0:
            raise InputError(
                f"entity sensitivity {self.entity_sensitivity} is outside (0, 2] clip norms, but two clipped"
                " updates differ by at most 2 clip norms: give a number above 0 and at most 2"
            )


@dataclass(frozen=True)
class UnamplifiedGaussian:
    """An event without credit for sampling: the unit is in a limited number of steps of the whole run.

    One Gaussian with mean mu = sensitivity sqrt(participations) group_size / s dominates the run. The sensitivity is 1
    for zero_out and 2 for replace (docs/theory.md#shuffled-cohorts). The number of steps does not matter.

    Attributes:
        noise_multiplier: s, noise standard deviation over clip norm.
        participations: maximum number of steps with the unit.
        group_size: number of members of the unit.
    """

    noise_multiplier: float
    participations: int
    adjacency: Literal["zero_out", "replace"] = "zero_out"
    group_size: int = 1

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_count("participations", self.participations)
        check_count("group size", self.group_size, MANY)

    @property
    def mu(self) -> float:
        """The mean of the dominating Gaussian in units of its standard deviation; inf without noise."""
        shift = (1.0 if self.adjacency == "zero_out" else 2.0) * self.group_size * math.sqrt(self.participations)
        return shift / self.noise_multiplier if self.noise_multiplier > 0 else math.inf


@dataclass(frozen=True)
class FilteredGaussian:
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3): full batches of ``users``, replacement adjacency.

    The theorem of Asi and Liu gives an (epsilon, delta), and no loss distribution.

    Attributes:
        noise_multiplier: multiplier of the Gaussian noise of all steps. The noise spends the rest of epsilon at delta /
            2.
        users: public number of users.
        above_epsilon: epsilon that AboveThreshold spends over the whole run.
    """

    noise_multiplier: float
    users: int
    above_epsilon: float

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_count("users", self.users)
        if not (math.isfinite(self.above_epsilon) and self.above_epsilon > 0):
            raise InputError(f"epsilon of AboveThreshold is {self.above_epsilon}: give a number above 0")


GridEvent: TypeAlias = PoissonGaussian | TwoLevelGaussian | CappedPoissonGaussian | UnamplifiedGaussian
Event: TypeAlias = GridEvent | FilteredGaussian


def with_noise(event: Event, noise_multiplier: float) -> Event:
    """Return the event with another noise multiplier."""
    return replace(event, noise_multiplier=noise_multiplier)


def participations(population: int, cohort: int, steps: int, *, drop_incomplete: bool = False) -> int:
    """Return the largest number of steps with one unit if passes over a population are cut into cohorts.

    The number is ceil(steps cohort / population) (docs/theory.md#shuffled-cohorts). It assumes that no batch spans two
    passes with the same unit in both. If each pass drops its incomplete last batch, the number is ceil(steps /
    floor(population / cohort)).

    Args:
        population: public number of units.
        cohort: number of units in a step.
        drop_incomplete: whether each pass drops its incomplete last cohort.
    """
    check_count("population", population)
    check_count("cohort", cohort)
    check_count("steps", steps)
    if cohort > population:
        raise InputError(f"cohort {cohort} is larger than the population {population}: lower the cohort")
    # Rounded up in whole numbers: a float quotient just above a whole number could lose a participation.
    if drop_incomplete:
        return -(-steps // (population // cohort))
    return -(-steps * cohort // population)


def check_noise(noise_multiplier: float) -> None:
    """Raise InputError unless 0 <= noise_multiplier <= MOST_NOISE."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0.0):
        raise InputError(
            f"noise multiplier {noise_multiplier} is not a number of at least 0: give the standard deviation of the"
            " noise / clip norm"
        )
    if noise_multiplier > MOST_NOISE:
        raise InputError(
            f"noise multiplier {noise_multiplier:g} is above {MOST_NOISE:g}, and no model learns with so much"
            " noise: lower the noise multiplier"
        )


def check_rate(rate: float) -> None:
    """Raise InputError unless LEAST_RATE <= rate <= 1."""
    if not 0.0 < rate <= 1.0:
        raise InputError(f"sampling rate {rate} is outside (0, 1]: give the expected cohort / public population")
    if rate < LEAST_RATE:
        raise InputError(
            f"sampling rate {rate:g} is below {LEAST_RATE:g}, so nobody would ever be drawn: raise the sampling rate"
        )


def check_count(name: str, value: int, most: int = MOST) -> None:
    """Raise InputError unless value is an integer from 1 to ``most``. Floats and bools are not accepted."""
    given: object = value
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or value < 1:
        raise InputError(f"{name} is {value!r}: give a whole number of at least 1")
    if value > most:
        raise InputError(f"{name} is above {most:,}, the largest number that heldin accounts for: lower {name}")
