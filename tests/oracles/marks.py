"""Slow, obviously right exposure: every mark beside every candidate of its recipe, in plain loops."""

import math


def rank(mark, candidates):
    """1 plus the candidates that are as likely or likelier, or planted themselves; (text, value) and planted texts."""
    ahead = 0
    for value, planted in candidates:
        if planted or value >= mark:
            ahead += 1
    return 1 + ahead


def exposure(mark, candidates):
    """log2 of how many marks there are, less log2 of the rank."""
    return math.log(len(candidates) + 1, 2) - math.log(rank(mark, candidates), 2)
