"""The samplers of a mechanism. A sampler draws the units of each step, and gives the accountant's event.

A unit's coins depend only on the run's key and the unit's own name. Adding or removing a unit therefore changes no
other unit's coins. Several processes, each with some of the units, together draw the sample of a single process. A
resumed step draws the same units again. The generator is HMAC-SHA-256 under a 256-bit key.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from heldin.base.coins import keyed_digest, keyed_order
from heldin.base.errors import InputError
from heldin.base.section import Count
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    Event,
    FilteredGaussian,
    PoissonGaussian,
    UnamplifiedGaussian,
    participations,
)
from heldin.defenses.accounting.rounding import check_rounding
from heldin.defenses.choices import Adjacency, Choice, Clip, Rate
from heldin.defenses.correlation import banded_square_root
from heldin.defenses.gaps import Gaps
from heldin.words.guarantee import NoGuaranteeReason
from heldin.words.statement import Statement

Cohorts: TypeAlias = Callable[[int], list[int]]
"""Function from the number of a step to the indices of the step's units, increasing."""


class SamplerKind(Choice, ABC):
    """A kind of sampling."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("add_remove", "zero_out")
    """Neighbouring relations under which heldin can compute epsilon for this kind."""
    by_coins: ClassVar[bool] = False
    """If true, each step includes each unit by an independent coin flip."""
    draws_by_gaps: ClassVar[bool] = False
    """Whether heldin computes a unit's digests only for the steps that use the unit."""
    full_batch: ClassVar[bool] = False
    """Whether every step uses every unit."""

    def check(self, adjacency: Adjacency, members: int, delta: float, steps: int) -> None:
        """Raise InputError for a run that no accountant covers with this sampler."""
        if adjacency not in self.adjacencies:
            raise InputError(self.refused_adjacency(adjacency))

    def refused_adjacency(self, adjacency: Adjacency) -> str:
        """Return the reason why no accountant covers an adjacency, with the adjacency to use instead."""
        return f"{adjacency} adjacency has no accountant under Poisson sampling: use add_remove"

    @property
    def groups(self) -> int:
        """The number of groups of units; each step draws from the next group."""
        return 1

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The coefficients of C, if the noise of the steps is C^-1 z; only the number 1 for independent noise."""
        return banded_square_root(self.groups)

    def at_rate(self, rate: float) -> "PoissonSampler | BandedPoissonSampler":
        """Return Poisson sampling with another rate and the same groups, for checks of single steps and draws."""
        return PoissonSampler(rate=rate)

    def rounds(self, steps: int) -> int:
        """Return how often accounting composes ``event`` in ``steps`` steps: the largest number of steps of a group."""
        return -(-steps // self.groups)

    @abstractmethod
    def event(self, noise_multiplier: float, members: int, clip: Clip) -> Event:
        """Return the event of one round that accounting assumes.

        Args:
            members: number of sampled members of the protected unit.
        """

    def fallback_event(
        self, noise_multiplier: float, members: int, adjacency: Adjacency, steps: int
    ) -> UnamplifiedGaussian | None:
        """Return the event of the whole run without credit for sampling; None if an accountant covers the sampler."""
        return None

    def unprotected(self) -> Statement | None:
        """Return the reason why this sampler gives no guarantee; None if the sampler allows a guarantee."""
        return None

    @abstractmethod
    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return the draw of each step. Raises InputError if there are more units than the public population."""


class PoissonSampler(SamplerKind):
    """In each step, an independent coin with probability ``rate`` decides whether each unit is sampled.

    A step with an empty sample also gets noise.

    Attributes:
        kind: name of the sampler in configs and plans.
        rate: probability of each coin.
        population: public number of units, if known, for the expected cohort and the warning about delta.
    """

    by_coins: ClassVar[bool] = True
    draws_by_gaps: ClassVar[bool] = True

    kind: Literal["poisson"] = "poisson"
    rate: Rate
    population: Count | None = None

    @classmethod
    def of(cls, population: int, cohort: float) -> "PoissonSampler":
        """Return the sampler with rate = cohort / population, both public constants."""
        return cls(rate=_rate(population, cohort), population=population)

    def event(self, noise_multiplier: float, members: int, clip: Clip) -> PoissonGaussian:
        """Return a Poisson-sampled Gaussian sum."""
        return PoissonGaussian(noise_multiplier, self.rate, members)

    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return the separate coins of each unit. They do not depend on the number of units."""
        return _by_coins(self.rate, key, identities, steps)


class BandedPoissonSampler(SamplerKind):
    """Step t draws from group t mod ``bands`` by Poisson coins, and noise is correlated over ``bands`` steps.

    A unit's group is a keyed hash of its own identity. Two steps with the same unit are therefore at least ``bands``
    steps apart, and no noise vector is in the noise of both steps (docs/theory.md#banded-noise).

    Attributes:
        kind: name of the sampler in configs and plans.
        rate: probability of each coin, in the steps of the unit's group: bands times cohort over population.
        population: public number of units.
        bands: b, number of groups, and of coefficients of C.
    """

    draws_by_gaps: ClassVar[bool] = True

    kind: Literal["banded_poisson"] = "banded_poisson"
    rate: Rate
    population: Count
    bands: Count

    @classmethod
    def of(cls, population: int, cohort: int, bands: int) -> "BandedPoissonSampler":
        """Return the sampler with rate = bands cohort / population, all public. Raises InputError above rate 1."""
        if bands * cohort > population:
            raise InputError(
                f"{bands} bands of {cohort:,} users per step need {bands * cohort:,} users, more than the population"
                f" {population:,}: use at most {max(1, population // cohort)} bands, or a smaller cohort"
            )
        return cls(rate=_rate(population, bands * cohort), population=population, bands=bands)

    @property
    def groups(self) -> int:
        """The number of bands."""
        return self.bands

    def at_rate(self, rate: float) -> "BandedPoissonSampler":
        """Return a sampler with the same groups."""
        return BandedPoissonSampler(rate=rate, population=self.population, bands=self.bands)

    def check(self, adjacency: Adjacency, members: int, delta: float, steps: int) -> None:
        """Raise InputError for the same runs as Poisson sampling, and for more bands than steps."""
        super().check(adjacency, members, delta, steps)
        if self.bands > steps:
            raise InputError(f"{self.bands} bands are more than the {steps} steps: use at most {steps} bands")

    def event(self, noise_multiplier: float, members: int, clip: Clip) -> PoissonGaussian:
        """Return a Poisson-sampled Gaussian sum, once for each step of a group."""
        return PoissonGaussian(noise_multiplier, self.rate, members)

    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return each unit's own coins, in the steps of its group."""
        groups = [group_of(key, name, self.bands) for name in identities]
        members = [[i for i, group in enumerate(groups) if group == number] for number in range(self.bands)]
        of_groups = [_by_coins(self.rate, key, [identities[i] for i in own], self.rounds(steps)) for own in members]

        def at(step: int) -> list[int]:
            number = step % self.bands
            return [members[number][i] for i in of_groups[number](step // self.bands)]

        return at


def group_of(key: bytes, identity: str, bands: int) -> int:
    """Return the group of a unit, from 0. The group depends only on the unit's identity and the key."""
    return int.from_bytes(keyed_digest(key, "group", identity)[:16], "big") % bands


class CappedPoissonSampler(SamplerKind):
    """Poisson sampling with the cohort randomly cut to ``cap`` units, which bounds memory.

    Attributes:
        kind: name of the sampler in configs and plans.
        rate: probability of each unit's coin.
        population: public upper bound on the number of units.
        cap: maximum number of units in a step.
    """

    draws_by_gaps: ClassVar[bool] = True

    kind: Literal["capped_poisson"] = "capped_poisson"
    rate: Rate
    population: Count
    cap: Count

    @classmethod
    def of(cls, population: int, cohort: float, cap: int) -> "CappedPoissonSampler":
        """Return the sampler with rate = cohort / population, both public constants."""
        return cls(rate=_rate(population, cohort), population=population, cap=cap)

    def check(self, adjacency: Adjacency, members: int, delta: float, steps: int) -> None:
        """Raise InputError for the same runs as Poisson sampling, for a group of members, and for a delta that
        dp-accounting cannot resolve."""
        super().check(adjacency, members, delta, steps)
        # The loss distribution of a capped cohort is dp-accounting's and has no tilted form for a small delta.
        check_rounding(delta, steps)
        if members > 1:
            raise InputError(
                f"a hard cohort cap with group size {members} has no accountant: drop the cap, or sample users"
            )

    def event(self, noise_multiplier: float, members: int, clip: Clip) -> CappedPoissonGaussian:
        """Return dp-accounting's truncated Poisson sampling."""
        return CappedPoissonGaussian(noise_multiplier, self.rate, self.population, self.cap)

    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return each unit's own coins, and a random subset if more than ``cap`` units were drawn."""
        _require_population(self.population, identities)
        drawn_at = _by_coins(self.rate, key, identities, steps)

        def at(step: int) -> list[int]:
            drawn = drawn_at(step)
            if len(drawn) <= self.cap:
                return drawn
            # A random subset of those drawn, by a purpose of its own, so that who is cut is independent of the
            # coins (docs/theory.md#hard-cohort-caps).
            index = {identities[i]: i for i in drawn}
            return sorted(index[name] for name in keyed_order(key, f"cap {step}", list(index))[: self.cap])

        return at


class ShuffledSampler(SamplerKind):
    """Passes over a shuffled population in cohorts of fixed size.

    For comparison only: no amplification theorem applies.

    Attributes:
        kind: name of the sampler in configs and plans.
        population: public number of units.
        cohort: number of units in a step.
        drop_incomplete: whether each pass drops its incomplete last cohort.
    """

    # Cohorts of one size need a population of one size: an absent unit leaves its place empty (zero-out) or to
    # another (replace).
    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero_out", "replace")

    kind: Literal["shuffled"] = "shuffled"
    population: Count
    cohort: Count
    drop_incomplete: bool = False

    @property
    def rate(self) -> float:
        """The sampling rate that Poisson accounting would assume: cohort / population."""
        return _rate(self.population, self.cohort)

    def refused_adjacency(self, adjacency: Adjacency) -> str:
        """Return the reason: the place of an absent unit remains."""
        return "shuffled cohorts fix the population: use zero_out or replace adjacency"

    def event(self, noise_multiplier: float, members: int, clip: Clip) -> PoissonGaussian:
        """Return the event of Poisson sampling, although ``unprotected`` reports that this event does not hold."""
        return PoissonGaussian(noise_multiplier, self.rate, members)

    def fallback_event(
        self, noise_multiplier: float, members: int, adjacency: Adjacency, steps: int
    ) -> UnamplifiedGaussian:
        """Return an event that bounds the number of steps with the unit (docs/theory.md#shuffled-cohorts)."""
        times = participations(self.population, self.cohort, steps, drop_incomplete=self.drop_incomplete)
        relation: Literal["zero_out", "replace"] = "replace" if adjacency == "replace" else "zero_out"
        return UnamplifiedGaussian(noise_multiplier, times, relation, members)

    def unprotected(self) -> Statement:
        """Return the reason: there is no amplification theorem."""
        return NoGuaranteeReason.SHUFFLED()

    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return cohorts of a pass over ``population`` slots. Slots without a unit stay empty."""
        _require_population(self.population, identities)
        # Slots are counted, not the units present, so that a unit takes part at most once in each pass of
        # ceil(population / cohort) steps: the fallback guarantee rests on that.
        whole, rest = divmod(self.population, self.cohort)
        per_pass = whole if self.drop_incomplete or not rest else whole + 1

        @functools.lru_cache(maxsize=1)
        def order(number: int) -> list[int]:
            # Prefixed, so that no unit's name can be that of an empty slot.
            slots = [f"unit {name}" for name in identities]
            slots += [f"empty {i}" for i in range(self.population - len(slots))]
            digests = sorted((keyed_digest(key, f"pass {number}", slot), i) for i, slot in enumerate(slots))
            return [i for _, i in digests]

        def at(step: int) -> list[int]:
            number, cohort = divmod(step, per_pass)
            taken = order(number)[cohort * self.cohort : (cohort + 1) * self.cohort]
            # Empty slots are left out only now: they take their place in the cohort, as the absent unit of zero-out
            # does.
            return sorted(i for i in taken if i < len(identities))

        return at


class FullBatchSampler(SamplerKind):
    """Every step has all users. Users missing from the public ``population`` count as users with gradient zero."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("replace",)
    full_batch: ClassVar[bool] = True

    kind: Literal["full_batch"] = "full_batch"
    population: Count

    @property
    def rate(self) -> float:
        """The rate 1, because every unit is in every step."""
        return 1.0

    def event(self, noise_multiplier: float, members: int, clip: Clip) -> FilteredGaussian:
        """Return filtered descent, the only mechanism with full batches."""
        return FilteredGaussian(noise_multiplier, self.population, clip.filter_epsilon)

    def cohorts(self, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
        """Return all units."""
        _require_population(self.population, identities)
        return lambda _: list(range(len(identities)))


Sampler: TypeAlias = Annotated[
    PoissonSampler | BandedPoissonSampler | CappedPoissonSampler | ShuffledSampler | FullBatchSampler,
    Field(discriminator="kind"),
]


class Draws:
    """The units in each step of a run.

    Steps are requested in ascending order. For an earlier step, heldin draws from the first step again.

    Args:
        identities: a name for each unit, unique and stable; never a position in a list.

    Raises:
        InputError: there are more units than the public population of the sampler.
    """

    def __init__(self, sampler: Sampler, key: bytes, identities: Sequence[str], steps: int) -> None:
        self._cohorts, self._steps = sampler.cohorts(key, identities, steps), steps

    def at(self, step: int) -> list[int]:
        """Return the indices of a step's units, from 0, increasing; the list may be empty."""
        if not 0 <= step < self._steps:
            raise ValueError(f"step {step} is not among {self._steps}")
        return self._cohorts(step)


def _by_coins(rate: float, key: bytes, identities: Sequence[str], steps: int) -> Cohorts:
    coins: Gaps | None = None

    def at(step: int) -> list[int]:
        nonlocal coins
        if rate == 1.0:
            return list(range(len(identities)))
        if coins is None or step < coins.step:
            coins = Gaps(rate, key, identities, steps)
        return coins.at(step)

    return at


def _require_population(population: int, identities: Sequence[str]) -> None:
    if len(identities) > population:
        raise InputError(
            f"the corpus has {len(identities)} units, more than the public population {population} of the plan: raise"
            " the population"
        )


def _rate(population: int, cohort: float) -> float:
    if population < 1:
        raise InputError(f"the population is {population}: give a number above 0")
    if cohort > population:
        raise InputError(f"cohort {cohort:g} is larger than the population {population}: lower the cohort")
    return cohort / population
