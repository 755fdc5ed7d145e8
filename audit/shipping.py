"""The defense to ship: a candidate, of at most three, that meets every requirement over the blocks.

Each requirement is a one-sided t test of H0 "the limit is broken" over S blocks. A candidate passes if all its tests
reject (intersection-union: the largest p-value). Holm's correction over the candidates holds under any dependence. A
candidate that breaks a limit passes with at most the level's probability (docs/theory.md#shipping-by-a-rule).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

from heldin.audit.coarse import brief
from heldin.audit.requirement import Requirement
from heldin.base.section import Facts
from heldin.bounds.verdict import holm
from heldin.words.statement import Statement

MOST_CANDIDATES = 3  # more would be paid for by all of them
LEAST_BLOCKS = 5  # of a rule's limits: with three the first step of Holm hardly ever passes
_ROUNDING = 0.001 / math.sqrt(12.0)  # standard deviation of what three decimals leave out
_MOST_BLOCKS = 500  # that are asked for


@dataclass(frozen=True)
class Candidate:
    """The values that a candidate is judged by.

    Attributes:
        exact: the value of each measure that follows from the plan; None for a guarantee that the plan does not give.
        measured: for each measure, the values of each of its kinds (attacks) over the S blocks; all kinds must pass.
        disqualified: why the candidate cannot be shipped with any values; "" if nothing rules the candidate out.
    """

    name: str
    exact: Mapping[str, float | None]
    measured: Mapping[str, Sequence[Sequence[float]]]
    disqualified: str = ""


class Tested(Facts):
    """The test of one requirement of a candidate.

    Attributes:
        requirement: the requirement, in words.
        value: the exact measure, or the mean over blocks of its worst kind; null if there is no value.
        limit: one-sided limit of the mean in ``value`` at the rule's level, or an exact value itself; null if there is
            no limit.
        p_value: p-value of "the limit is broken"; 0 or 1 for an exact measure.
        broken: whether the requirement is shown to be broken, corrected for all limits of all candidates.
    """

    requirement: str
    value: float | None
    limit: float | None
    p_value: float
    broken: bool


class CandidateResult(Facts):
    """The result of a candidate.

    Attributes:
        passes: whether the candidate passes, corrected for all candidates.
        breaks: whether the candidate is shown to break a limit, or is disqualified.
        adjusted: Holm's adjusted p-value.
        disqualified: the reason; "" if the candidate is not disqualified.
        blocks_needed: number of blocks with which a candidate with these means and spreads would pass; null if no
            number suffices, or if the candidate passes.
    """

    name: str
    passes: bool
    breaks: bool
    adjusted: float
    tests: list[Tested]
    disqualified: str
    blocks_needed: int | None


class Shipping(Facts):
    """The answer of the shipping rule.

    Attributes:
        answer: outcome of the rule: "ship" (one variant may be released), "none passes", or "cannot be judged".
        variant: the variant to ship; null otherwise.
        block: the block of the model to ship; null otherwise.
        level: largest probability that a recommended variant breaks a limit.
        candidates: result of each candidate.
        reason: reason for the answer.
    """

    answer: Literal["ship", "none passes", "cannot be judged"]
    variant: str | None
    block: int | None
    level: float
    candidates: list[CandidateResult]
    reason: Statement


def judge_candidates(
    candidates: Sequence[Candidate], requirements: Sequence[Requirement], level: float
) -> list[CandidateResult]:
    """Test every requirement of every candidate.

    Args:
        candidates: the candidates, at most three, which were named before any of them was measured.
        requirements: the requirements for every candidate.
        level: error probability of all tests together.
    """
    # Of the opposite statements, each at its share: what is shown to be broken is no matter of more blocks.
    share = level / (len(candidates) * len(requirements))
    tests = [
        [_tested(candidate, requirement, level, share) for requirement in requirements] for candidate in candidates
    ]
    # Intersection-union: a candidate breaks a limit if it breaks any, so that the largest p-value is one of it.
    largest = [max(p for _, p in of_candidate) for of_candidate in tests]
    adjusted = holm([1.0 if c.disqualified else p for c, p in zip(candidates, largest, strict=True)])
    results = []
    for candidate, of_candidate, p in zip(candidates, tests, adjusted, strict=True):
        passes = not candidate.disqualified and p <= level
        tested = [test for test, _ in of_candidate]
        needed = None
        if not (passes or candidate.disqualified):
            needed = _blocks_needed(candidate, requirements, level / len(candidates))
        results.append(
            CandidateResult(
                name=candidate.name,
                passes=passes,
                breaks=bool(candidate.disqualified) or any(test.broken for test in tested),
                adjusted=_upwards(p),
                tests=tested,
                disqualified=candidate.disqualified,
                blocks_needed=needed,
            )
        )
    return results


def probability_of_passing(room: float, spread: float, blocks: int, level: float) -> float:
    """Return the probability that one requirement is shown to be met, by the noncentral t distribution.

    Args:
        room: true distance from the limit, positive if the limit is met.
        spread: standard deviation of one block's value.
        blocks: number of blocks S.
        level: level of the test, after Holm's first step.
    """
    critical = -float(special.stdtrit(blocks - 1, level))
    return float(stats.nct.sf(critical, blocks - 1, room / spread * math.sqrt(blocks)))


def _tested(candidate: Candidate, requirement: Requirement, level: float, share: float) -> tuple[Tested, float]:
    """Return the test and its unrounded p-value. ``share`` is the level at which a limit is shown to be broken."""
    if requirement.measure in candidate.exact:
        value = candidate.exact[requirement.measure]
        kept = value is not None and float(requirement.room([value])[0]) >= 0.0
        p_value = float(not kept)
        return Tested(
            requirement=requirement.words(), value=value, limit=value, p_value=p_value, broken=not kept
        ), p_value
    kinds = candidate.measured[requirement.measure]
    # All kinds must keep the limit: the one with the largest p-value decides.
    p_values = [_p_value(requirement.room(values)) for values in kinds]
    worst = int(np.argmax(p_values))
    mean, error = _mean_and_error(kinds[worst])
    reach = -float(special.stdtrit(len(kinds[worst]) - 1, level)) * error
    limit = mean + reach if requirement.at_most is not None else mean - reach
    opposite = min(_p_value(-requirement.room(values)) for values in kinds)
    tested = Tested(
        requirement=requirement.words(),
        value=brief(mean, 4),
        limit=brief(limit, 4),
        p_value=_upwards(p_values[worst]),
        # Any kind that breaks it is enough, so that the smallest pays for their number.
        broken=len(kinds) * opposite <= share,
    )
    return tested, p_values[worst]


def _p_value(room: np.ndarray) -> float:
    """Return the p-value of H0: the mean room is 0 or less."""
    mean, error = _mean_and_error(room)
    if error == 0.0:
        return 0.0 if mean > 0.0 else 1.0
    return float(special.stdtr(room.size - 1, -mean / error))


def _mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    numbers = np.asarray(values, dtype=np.float64)
    # Records have three decimals of an AUROC: what spreads by less than their rounding may still lie apart by that.
    return float(numbers.mean()), max(float(numbers.std(ddof=1)), _ROUNDING) / math.sqrt(numbers.size)


def _blocks_needed(candidate: Candidate, requirements: Sequence[Requirement], level: float) -> int | None:
    """Return the fewest blocks with which these means and spreads would pass; None if 500 blocks are too few."""
    most = 0
    for requirement in requirements:
        if requirement.measure in candidate.exact:
            value = candidate.exact[requirement.measure]
            if value is None or float(requirement.room([value])[0]) < 0.0:
                return None
            continue
        for values in candidate.measured[requirement.measure]:
            room = requirement.room(values)
            mean, spread = float(room.mean()), float(room.std(ddof=1))
            blocks = np.arange(room.size, _MOST_BLOCKS + 1)
            t = np.full(blocks.size, np.inf) if spread == 0.0 else mean / spread * np.sqrt(blocks)
            enough = blocks[special.stdtr(blocks - 1, -t) <= level]
            needed = int(enough[0]) if mean > 0.0 and enough.size else None
            if needed is None:
                return None
            most = max(most, needed)
    return most


def _upwards(p: float) -> float:
    """Round up to three decimals."""
    return min(1.0, math.ceil(p * 1000) / 1000)
