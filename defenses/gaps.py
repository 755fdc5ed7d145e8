"""Poisson coins of units, drawn as the gaps between a unit's steps.

A run therefore needs one digest for each unit and one for each step that a unit is in, instead of one for each unit and
step (docs/theory.md#keys-and-coins).
"""

import functools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_digest

LONGEST_TABLE = 2**16  # steps that one digest decides about at most
_SURVIVAL_BITS = 10  # a table ends where a unit takes part in none of its steps with probability 2^-10
_FIXED_POINT = 128  # bits
_BLOCK = 2**16  # digests held at once


class Gaps:
    """Poisson coins of all units, from step 0 on.

    Attributes:
        step: the last requested step.
    """

    def __init__(self, rate: float, key: bytes, identities: Sequence[str], steps: int) -> None:
        self._table, self._key, self._identities, self._steps = gap_table(rate), key, identities, steps
        # Digests that each unit has used: the next one has this number.
        self._used = np.zeros(len(identities), dtype=np.uint32)
        self._later: defaultdict[int, list[int]] = defaultdict(list)
        units = np.arange(len(identities), dtype=np.int64)
        first = self._next(units, np.zeros(units.size, dtype=np.int64))
        # Of a run's first draws an array: a list of each step's units would hold every unit as an object.
        self._order = np.argsort(first, kind="stable").astype(np.uint32)
        self._first = first[self._order]
        self.step, self._drawn = -1, np.empty(0, dtype=np.int64)

    def at(self, step: int) -> list[int]:
        """Return the indices of a step's units, increasing. The step must not be before the last requested step."""
        while self.step < step:
            self.step += 1
            begin, end = np.searchsorted(self._first, (self.step, self.step + 1))
            again = np.array(self._later.pop(self.step, []), dtype=np.int64)
            self._drawn = np.sort(np.concatenate([self._order[begin:end], again]))
            after = self._next(self._drawn, np.full(self._drawn.size, self.step + 1))
            for unit, next_step in zip(self._drawn.tolist(), after.tolist(), strict=True):
                if next_step < self._steps:
                    self._later[next_step].append(unit)
        return [int(unit) for unit in self._drawn]

    def _next(self, units: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return each unit's first step at or after ``start``, or the end of the run if there is no such step."""
        steps = np.full(units.size, self._steps, dtype=np.int64)
        waiting = np.flatnonzero(start < self._steps)
        position = start.copy()
        while waiting.size:
            gaps = self._gaps(units[waiting])
            position[waiting] += gaps
            # Beyond its table a unit waits on, with the next digest.
            more = gaps == self._table.size
            steps[waiting[~more]] = position[waiting[~more]]
            waiting = waiting[more & (position[waiting] < self._steps)]
        return np.minimum(steps, self._steps)

    def _gaps(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many steps each unit skips before its next step; the table's length if the unit skips all steps of
        the table."""
        gaps = np.empty(units.size, dtype=np.int64)
        for begin in range(0, units.size, _BLOCK):
            block = units[begin : begin + _BLOCK]
            numbers = self._used[block].tolist()
            digests = b"".join(
                keyed_digest(self._key, f"gap {number}", self._identities[unit])[:8]
                for unit, number in zip(block.tolist(), numbers, strict=True)
            )
            drawn = np.frombuffer(digests, dtype=">u8").astype(np.uint64)
            gaps[begin : begin + _BLOCK] = np.searchsorted(self._table, drawn, side="right")
        self._used[units] += 1
        return gaps


@functools.cache
def gap_table(rate: float) -> npt.NDArray[np.uint64]:
    """Return the limit of each gap in 64 random bits: 2^64 times the probability that one of j steps has the unit.

    Entry j - 1 is floor(2^64 (1 - (1 - rate)^j)), computed in integers, and therefore equal on every machine. With x
    uniform on 64 bits, the gap is the number of entries at or below x. Each coin of a table has its rate to within
    2^-53, because a unit is still waiting at the table's end with probability 2^-10 or more.

    Args:
        rate: probability of each coin, in (0, 1).
    """
    # As a float first: of the smallest rates the quotient is infinite.
    length = max(1, int(min(LONGEST_TABLE, _SURVIVAL_BITS * math.log(2.0) / -math.log1p(-rate))))
    numerator, denominator = rate.as_integer_ratio()
    coin = (numerator << _FIXED_POINT) // denominator
    waiting, table = 1 << _FIXED_POINT, []
    for _ in range(length):
        waiting -= waiting * coin >> _FIXED_POINT
        table.append(((1 << _FIXED_POINT) - waiting) >> (_FIXED_POINT - 64))
    return np.array(table, dtype=np.uint64)
