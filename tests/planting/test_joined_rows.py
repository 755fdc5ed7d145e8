"""Rows that were joined and cut: the ends of the sequences tell other texts, and canary rows that are missing."""

import random

import numpy as np
import pytest

from heldin.planting.given_rows import GRAM, grams_of, joined_rows

_CANARY, _REAL = 60, 600


def _rows(dice, count, length=40):
    tokens = np.random.default_rng(dice.randrange(2**32)).integers(5000, size=(count, length))
    return [row[: dice.randint(length // 2, length)].tolist() for row in tokens]


def _found(dice, given, canary, real, length=64):
    """Counts for sequences that were joined of ``given`` in some order, each row ended by a token, and cut."""
    dice.shuffle(given)
    stream = [token for row in given for token in [*row, 0]]
    starts = np.arange(0, len(stream) - length, length)
    edges = grams_of(stream)[np.concatenate([starts, starts + length - GRAM])]  # the ends of each sequence
    tokens = sum(map(len, [*canary, *real]))
    return joined_rows(edges, [grams_of(row) for row in canary], [grams_of(row) for row in real], tokens)


def test_grams_are_those_of_a_plain_loop():
    tokens = [5, 0, 3, 3, 3, 3, 3, 3, 3, 9, 5, 0, 3, 3, 3, 3, 3, 3]
    found = grams_of(tokens)
    windows = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    assert len(found) == len(windows)
    for i, one in enumerate(windows):
        assert [found[i] == its for its in found] == [one == other for other in windows]
    assert grams_of(tokens[: GRAM - 1]).size == 0


@pytest.mark.parametrize("short", [12, 40, 200])
def test_honest_joined_rows_raise_no_alarm(short):
    dice = random.Random(short)
    for _ in range(15):
        canary, real = _rows(dice, _CANARY, short), _rows(dice, _REAL, short)
        counts = _found(dice, [*canary, *real], canary, real)
        assert not counts.are_foreign
        assert not counts.lack_canaries


def test_other_texts_and_missing_canary_rows_are_seen():
    dice = random.Random(1)
    for _ in range(10):
        canary, real = _rows(dice, _CANARY), _rows(dice, _REAL)
        counts = _found(dice, list(real), canary, real)
        assert counts.lack_canaries
        assert not counts.are_foreign
        others = _rows(dice, _REAL)
        assert _found(dice, others, canary, real).are_foreign


def test_runs_that_real_rows_have_too_show_no_canary_row():
    dice = random.Random(2)
    real = _rows(dice, _REAL)
    counts = _found(dice, list(real), real[:40], real)
    assert (counts.canary, counts.canary_expected) == (0, 0)
    assert not counts.lack_canaries
