"""Which units take part in a step: the draw that the accountant assumes, as a function of (key, step, identity).

A unit's coin depends on nothing but the run's key, the step and the unit's own name, so that adding or removing
another unit changes no other coin, ranks that hold different units together draw the sample that one process would, and
a resumed step draws what it would have drawn. HMAC-SHA-256 under a 256-bit key is the keyed cryptographic generator.
"""

from collections.abc import Sequence
from typing import assert_never

from heldin.base.coins import keyed_digest, keyed_order, keyed_uniform
from heldin.base.errors import InputError
from heldin.defenses.choices import CappedPoissonSampler, FullBatchSampler, PoissonSampler, Sampler, ShuffledSampler


def draw(sampler: Sampler, key: bytes, step: int, identities: Sequence[str]) -> list[int]:
    """Indices of the units that take part in step 0, 1, ..., increasing; possibly none.

    Args:
        sampler: Poisson, Poisson with a hard cap, or shuffled cohorts of fixed size.
        key: the run's secret key.
        step: number of the optimizer step.
        identities: a name per unit, unique and stable; never a position in a list.

    Raises:
        InputError: more units than the public population of a shuffled or capped sampler.
    """
    match sampler:
        case PoissonSampler(rate=rate):
            return _poisson(rate, key, step, identities)
        case CappedPoissonSampler(rate=rate, population=population, cap=cap):
            _check_population(population, len(identities))
            drawn = _poisson(rate, key, step, identities)
            if len(drawn) <= cap:
                return drawn
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
    return [i for i, name in enumerate(identities) if keyed_uniform(key, purpose, name) < rate]


def _shuffled(sampler: ShuffledSampler, key: bytes, step: int, identities: Sequence[str]) -> list[int]:
    """One cohort of a pass over ``population`` slots; slots without a unit stay empty.

    The slots, not the units that happen to be there, are counted, so that a unit takes part at most once in each pass
    of ceil(population / cohort) steps, which is what the fallback guarantee counts.
    """
    _check_population(sampler.population, len(identities))
    whole, rest = divmod(sampler.population, sampler.cohort)
    per_pass = whole if sampler.drop_incomplete or not rest else whole + 1
    number, cohort = divmod(step, per_pass)
    slots = [f"unit {name}" for name in identities]
    slots += [f"empty {i}" for i in range(sampler.population - len(identities))]
    digests = sorted((keyed_digest(key, f"pass {number}", slot), i) for i, slot in enumerate(slots))
    taken = digests[cohort * sampler.cohort : (cohort + 1) * sampler.cohort]
    return sorted(i for _, i in taken if i < len(identities))


def _check_population(population: int, units: int) -> None:
    if units > population:
        raise InputError(
            f"the corpus has {units} units, more than the public population {population} that the plan states: raise it"
        )
