"""Which units take part in a step: the draw that the accountant assumes, as a function of (key, step, identity).

A unit's coin depends only on the run's key, the step and the unit's own name. So adding or removing a unit changes no
other coin, processes with different units together draw the sample that a single process would, and a resumed step
draws the same units again. The generator is HMAC-SHA-256 under a 256-bit key.
"""

from collections.abc import Sequence
from typing import assert_never

from heldin.base.coins import keyed_digest, keyed_order, keyed_uniform
from heldin.base.errors import InputError
from heldin.defenses.choices import CappedPoissonSampler, FullBatchSampler, PoissonSampler, Sampler, ShuffledSampler


def draw(sampler: Sampler, key: bytes, step: int, identities: Sequence[str]) -> list[int]:
    """Indices of the units that take part in a step, increasing; possibly none.

    Args:
        sampler: Poisson, Poisson with a hard cap, shuffled cohorts of fixed size, or full batches.
        key: the run's secret key.
        step: number of the optimizer step, from 0.
        identities: a name per unit, unique and stable; never a position in a list.

    Raises:
        InputError: there are more units than the public population of the sampler.
    """
    match sampler:
        case PoissonSampler(rate=rate):
            # No population to check: each coin is right whatever the number of units.
            return _poisson(rate, key, step, identities)
        case CappedPoissonSampler(rate=rate, population=population, cap=cap):
            _check_population(population, len(identities))
            drawn = _poisson(rate, key, step, identities)
            if len(drawn) <= cap:
                return drawn
            # A random subset of those drawn, by a purpose of its own, so that who is cut is independent of the coins
            # (docs/theory.md#hard-cohort-caps).
            index = {identities[i]: i for i in drawn}
            return sorted(index[name] for name in keyed_order(key, f"cap {step}", list(index))[:cap])
        case ShuffledSampler():
            return _shuffled(sampler, key, step, identities)
        case FullBatchSampler(population=population):
            _check_population(population, len(identities))
            return list(range(len(identities)))
        case _:
            assert_never(sampler)


def _poisson(rate: float, key: bytes, step: int, identities: Sequence[str]) -> list[int]:
    purpose = f"sampling {step}"
    # Strictly below: the numbers lie in [0, 1), so that rate 1 draws everybody.
    return [i for i, name in enumerate(identities) if keyed_uniform(key, purpose, name) < rate]


def _shuffled(sampler: ShuffledSampler, key: bytes, step: int, identities: Sequence[str]) -> list[int]:
    """One cohort of a pass over ``population`` slots; slots without a unit stay empty."""
    # Slots are counted, not the units present, so that a unit takes part at most once in each pass of
    # ceil(population / cohort) steps: the fallback guarantee rests on that.
    _check_population(sampler.population, len(identities))
    whole, rest = divmod(sampler.population, sampler.cohort)
    per_pass = whole if sampler.drop_incomplete or not rest else whole + 1
    number, cohort = divmod(step, per_pass)
    # Prefixed, so that no unit's name can be that of an empty slot.
    slots = [f"unit {name}" for name in identities]
    slots += [f"empty {i}" for i in range(sampler.population - len(identities))]
    digests = sorted((keyed_digest(key, f"pass {number}", slot), i) for i, slot in enumerate(slots))
    taken = digests[cohort * sampler.cohort : (cohort + 1) * sampler.cohort]
    # Empty slots are left out only now: they take their place in the cohort, as the absent unit of zero-out does.
    return sorted(i for _, i in taken if i < len(identities))


def _check_population(population: int, units: int) -> None:
    if units > population:
        raise InputError(
            f"the corpus has {units} units, more than the public population {population} that the plan states: raise it"
        )
