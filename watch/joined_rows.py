"""Rows that were joined and cut at one length, without a sign of where a row ends: what the sequences' ends show.

No row can be recognised then. The first and last tokens of a sequence still lie within some row as a rule, and how
often they lie within one of a canary user follows from the number of their tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heldin.record.planted import JoinedRows

GRAM = 8  # tokens in a row that are compared
_ENDS = 2  # tokens between two rows, at most
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 2**64) for power in range(1, GRAM + 1)], dtype=np.uint64)

Grams = NDArray[np.uint64]


def grams_of(tokens: Sequence[int]) -> Grams:
    """Return a hash of each run of ``GRAM`` tokens, shape (tokens - GRAM + 1,), or (0,) for fewer tokens."""
    if len(tokens) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    values = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    # Modulo 2**64, as unsigned integers are multiplied.
    hashes: Grams = (np.lib.stride_tricks.sliding_window_view(values, GRAM) * _FACTORS).sum(axis=1, dtype=np.uint64)
    return hashes


def joined_rows(edges: Grams, canary: Sequence[Grams], other: Sequence[Grams], tokens: int) -> JoinedRows:
    """Compare the ends of sequences with the rows that they were joined of.

    Args:
        edges: hashes of the first and the last tokens of each distinct sequence.
        canary: hashes of each canary row, see ``grams_of``.
        other: those of each real row.
        tokens: of all rows.
    """
    mine = np.concatenate(canary) if canary else np.zeros(0, dtype=np.uint64)
    others = np.concatenate(other) if other else np.zeros(0, dtype=np.uint64)
    # A run of tokens that real rows have too shows no canary row.
    own = mine[~np.isin(mine, others)]
    within_own = np.isin(edges, own)
    within = within_own | np.isin(edges, others) | np.isin(edges, mine)
    runs = mine.size + others.size
    places = tokens + _ENDS * (len(canary) + len(other))
    return JoinedRows(
        ends=edges.size,
        foreign=int((~within).sum()),
        foreign_expected=edges.size * (1 - runs / places) if places else 0.0,
        canary=int(within_own.sum()),
        canary_expected=float(within.sum() * own.size / runs) if runs else 0.0,
    )
