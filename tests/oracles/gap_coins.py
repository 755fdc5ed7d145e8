"""Poisson coins of one unit, gap by gap, in exact fractions: slow and obviously right."""

import math
from fractions import Fraction

from heldin.base.coins import keyed_digest

LONGEST = 2**16


def coins(rate, key, name, steps):
    """Whether the unit takes part in each of the steps."""
    waits = 1 - Fraction(rate)
    # As many steps as one digest decides about: those within which a unit has waited with probability 2^-10.
    covered = 1 if rate == 1.0 else min(LONGEST, max(1, int(10 * math.log(2) / -math.log1p(-rate))))
    taken, position, number = [False] * steps, 0, 0
    while position < steps:
        x = int.from_bytes(keyed_digest(key, f"gap {number}", name)[:8], "big")
        number += 1
        gap, still = 0, waits
        # Beyond gap j lies the probability (1 - rate)^j of waiting longer.
        while gap < covered and x >= 2**64 * (1 - still) // 1:
            gap, still = gap + 1, still * waits
            if position + gap >= steps:
                break
        position += gap
        if gap < covered and position < steps:
            taken[position] = True
            position += 1
    return taken
